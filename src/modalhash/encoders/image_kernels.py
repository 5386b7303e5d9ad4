"""Compiled kernels for pictures: gradients, colours, and the responses of a bank of filters.

Eight filters are the eight lanes of a vector: their inverse Fourier transforms take the same steps, so every addition
is one instruction (or two, with shorter registers), rows and columns need no transposition, and means are taken while a
row is in the cache. The transform is Stockham's, with radices 5, 4 and 2, for the lengths 80, 40 and 20 of GIST.
Gradients and colours equal those of :mod:`modalhash.data.picture_features`. Importing this module loads numba.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from modalhash.core.bit_kernels import compiled, intrinsic
from modalhash.core.typing import Array
from modalhash.data.picture_features import CELLS, GRID, ORIENTATIONS

HALF_TURN = np.float32(np.pi)


@compiled()
def gradients(grey: Array, down: Array, across: Array) -> None:
    """Fill ``down`` and ``across`` with the differences that ``np.gradient`` gives for brightness."""
    height, width = grey.shape
    for y in range(height):
        above, row, below = grey[max(y - 1, 0)], grey[y], grey[min(y + 1, height - 1)]
        share = np.float32(0.5) if 0 < y < height - 1 else np.float32(1)
        to = down[y]
        for x in range(width):
            to[x] = (below[x] - above[x]) * share
        left, right, to = row[:-2], row[2:], across[y]
        inner = to[1:-1]
        for x in range(width - 2):
            inner[x] = (right[x] - left[x]) * np.float32(0.5)
        to[0], to[-1] = row[1] - row[0], row[-1] - row[-2]


@compiled()
def edge_sums(down: Array, across: Array, angle: Array, sums: Array) -> None:
    """Sum the strength of edges by cell and direction in float64 ``sums`` ``(CELLS * CELLS * ORIENTATIONS,)``.

    ``angle`` is the arc tangent, from minus half a turn to half a turn; opposite directions are equal. The arithmetic
    on it is that of NumPy in float32, because many edges are exactly between two directions.
    """
    height, width = down.shape
    strength, place = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.int32)
    cells = np.empty(width, dtype=np.int32)
    for x in range(width):
        cells[x] = x * CELLS // width * ORIENTATIONS
    sums[:] = 0
    for y in range(height):
        dy, dx, turn = down[y], across[y], angle[y]
        for x in range(width):
            strength[x] = np.sqrt(dx[x] * dx[x] + dy[x] * dy[x])
        for x in range(width):
            half = turn[x] if turn[x] >= 0 else turn[x] + HALF_TURN
            half = np.float32(0) if half == HALF_TURN and turn[x] > 0 else half
            direction = np.int32(half / HALF_TURN * np.float32(ORIENTATIONS))
            place[x] = cells[x] + min(direction, np.int32(ORIENTATIONS - 1))
        cell_row = sums[y * CELLS // height * CELLS * ORIENTATIONS :]
        for x in range(width):
            cell_row[place[x]] += strength[x]


@compiled()
def colour_sums(values: Array, sums: Array) -> None:
    """Fill float64 ``sums`` ``(3, GRID, GRID, 3)`` with sums of values, squares and cubes by field and colour."""
    height, width = values.shape[0], values.shape[1]
    flat = values.reshape(height, 3 * width)
    ones, twos, threes = np.empty(3 * width), np.empty(3 * width), np.empty(3 * width)
    sums[:] = 0
    for i in range(GRID):
        ones[:] = 0
        twos[:] = 0
        threes[:] = 0
        for y in range(i * height // GRID, (i + 1) * height // GRID):
            row = flat[y]
            for x in range(3 * width):
                value = np.float64(row[x])
                square = value * value
                ones[x] += value
                twos[x] += square
                threes[x] += square * value
        for j in range(GRID):
            for x in range(j * width // GRID, (j + 1) * width // GRID):
                for colour in range(3):
                    sums[0, i, j, colour] += ones[3 * x + colour]
                    sums[1, i, j, colour] += twos[3 * x + colour]
                    sums[2, i, j, colour] += threes[3 * x + colour]


LANES = 8
"""Filters of a bank; with more, the intermediate results of a picture would not fit the second-level cache."""
RADICES = (5, 4, 2)
_declared: Any = cgutils.get_or_insert_function
_VECTOR, _CHOICE = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(32), LANES)
_ROOT = f"llvm.sqrt.v{LANES}f32"
_FUSED = ("contract",)  # allows fused multiply-add


def radices_of(size: int) -> tuple[int, ...]:
    """Return the radices of a transform of this size, e.g. (5, 4, 4) for 80."""
    steps = []
    for radix in RADICES:
        while size % radix == 0:
            steps.append(radix)
            size //= radix
    if size > 1:
        raise ValueError(f"size has the factor {size}; expected only 2 and 5")
    return tuple(steps)


@cache
def twiddles(size: int) -> Array:
    """Return the factors of all steps in order of use, float32 ``(n, 2)``; do not modify."""
    factors, length = [], size
    for radix in radices_of(size):
        turns = np.outer(np.arange(length // radix), np.arange(1, radix)) / length
        factors.append(np.exp(2j * np.pi * turns).ravel())
        length //= radix
    whole = np.concatenate(factors)
    return np.stack([whole.real, whole.imag], axis=1).astype(np.float32)


class _Vectors:
    """Arithmetic on complex vectors, as pairs of LLVM values, and their positions in arrays.

    Arrays are float32 and contiguous; complex vectors are ``(…, 2, LANES)``, real then imaginary parts.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.builder, self.signature, self.args = context, builder, signature, args

    def index(self, value: int) -> Any:
        return ir.Constant(ir.IntType(64), value)

    def data(self, argument: int) -> Any:
        return self.context.make_array(self.signature.args[argument])(
            self.context, self.builder, self.args[argument]
        ).data

    def pointer(self, argument: int, place: Any, width: int = 2, part: int = 0) -> Any:
        """Return the address of a vector: the ``part``-th of the ``place``-th group of ``width``."""
        vector = self.builder.add(self.builder.mul(place, self.index(width)), self.index(part))
        number = self.builder.gep(self.data(argument), [self.builder.mul(vector, self.index(LANES))])
        return self.builder.bitcast(number, ir.PointerType(_VECTOR))

    def load(self, argument: int, place: Any) -> Any:
        return tuple(self.builder.load(self.pointer(argument, place, part=part), align=4) for part in (0, 1))

    def store(self, value: Any, argument: int, place: Any) -> None:
        for part in (0, 1):
            self.builder.store(value[part], self.pointer(argument, place, part=part), align=4)

    def load_number(self, argument: int, place: Any) -> Any:
        lanes = []
        for part in (0, 1):
            offset = self.builder.add(self.builder.mul(place, self.index(2)), self.index(part))
            value = self.builder.load(self.builder.gep(self.data(argument), [offset]))
            lane = self.builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, self.index(0))
            lanes.append(self.builder.shuffle_vector(lane, lane, ir.Constant(_CHOICE, [0] * LANES)))
        return tuple(lanes)

    def add(self, a: Any, b: Any) -> Any:
        return tuple(self.builder.fadd(x, y, flags=_FUSED) for x, y in zip(a, b, strict=True))

    def subtract(self, a: Any, b: Any) -> Any:
        return tuple(self.builder.fsub(x, y, flags=_FUSED) for x, y in zip(a, b, strict=True))

    def scale(self, a: Any, factor: float) -> Any:
        constant = ir.Constant(_VECTOR, [float(np.float32(factor))] * LANES)
        return tuple(self.builder.fmul(x, constant, flags=_FUSED) for x in a)

    def turn(self, a: Any) -> Any:
        return self.builder.fneg(a[1]), a[0]

    def multiply(self, a: Any, b: Any) -> Any:
        times = [[self.builder.fmul(x, y, flags=_FUSED) for y in b] for x in a]
        real = self.builder.fsub(times[0][0], times[1][1], flags=_FUSED)
        return real, self.builder.fadd(times[0][1], times[1][0], flags=_FUSED)

    def transform(self, x: list[Any]) -> list[Any]:
        """Return the inverse Fourier transform of 2, 4 or 5 values, without the division."""
        if len(x) == 2:
            return [self.add(x[0], x[1]), self.subtract(x[0], x[1])]
        if len(x) == 4:
            even, odd = self.transform([x[0], x[2]]), self.transform([x[1], x[3]])
            turned = self.turn(odd[1])
            return [
                self.add(even[0], odd[0]),
                self.add(even[1], turned),
                self.subtract(even[0], odd[0]),
                self.subtract(even[1], turned),
            ]
        cos, sin = np.cos(2 * np.pi / 5 * np.arange(3)), np.sin(2 * np.pi / 5 * np.arange(3))
        outer, inner = self.add(x[1], x[4]), self.add(x[2], x[3])
        outer_odd, inner_odd = self.subtract(x[1], x[4]), self.subtract(x[2], x[3])
        near = self.add(x[0], self.add(self.scale(outer, cos[1]), self.scale(inner, cos[2])))
        far = self.add(x[0], self.add(self.scale(outer, cos[2]), self.scale(inner, cos[1])))
        near_odd = self.turn(self.add(self.scale(outer_odd, sin[1]), self.scale(inner_odd, sin[2])))
        far_odd = self.turn(self.subtract(self.scale(outer_odd, sin[2]), self.scale(inner_odd, sin[1])))
        return [
            self.add(x[0], self.add(outer, inner)),
            self.add(near, near_odd),
            self.add(far, far_odd),
            self.subtract(far, far_odd),
            self.subtract(near, near_odd),
        ]


def _butterfly(radix: int) -> Any:
    """Return the step of one radix as a function that compiled code can call.

    It reads ``radix`` vectors with stride ``step_in`` from ``start_in``, and writes ``radix`` vectors with stride
    ``step_out``, each but the first times its factor.
    """

    def step(typing_context: Any, source: Any, start_in: Any, step_in: Any, target: Any, start_out: Any, step_out: Any,
             factors: Any, first: Any) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vectors = _Vectors(context, builder, signature, args)
            _, start_in, step_in, _, start_out, step_out, _, first = args
            places = [builder.add(start_in, builder.mul(step_in, vectors.index(k))) for k in range(radix)]
            for k, value in enumerate(vectors.transform([vectors.load(0, place) for place in places])):
                if k:
                    factor = vectors.load_number(6, builder.add(first, vectors.index(k - 1)))
                    value = vectors.multiply(value, factor)
                vectors.store(value, 3, builder.add(start_out, builder.mul(step_out, vectors.index(k))))
            return context.get_dummy_value()

        places = (types.int64, types.int64)
        return types.void(source, *places, target, *places, factors, types.int64), codegen

    return intrinsic(step)


_step5, _step4, _step2 = _butterfly(5), _butterfly(4), _butterfly(2)


@intrinsic
def _filtered(typing_context: Any, spectrum: Any, at: Any, bank: Any, place: Any, target: Any, to: Any) -> Any:
    """Write a complex number of the spectrum times the gain of each filter."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vectors = _Vectors(context, builder, signature, args)
        gains = builder.load(vectors.pointer(2, args[3], width=1), align=4)
        number = vectors.load_number(0, args[1])
        vectors.store(tuple(builder.fmul(part, gains) for part in number), 4, args[5])
        return context.get_dummy_value()

    return types.void(spectrum, types.int64, bank, types.int64, target, types.int64), codegen


@intrinsic
def _copied(typing_context: Any, source: Any, place: Any, target: Any, to: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vectors = _Vectors(context, builder, signature, args)
        vectors.store(vectors.load(0, args[1]), 2, args[3])
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), codegen


@intrinsic
def _add_strength(typing_context: Any, source: Any, place: Any, sums: Any, to: Any) -> Any:
    """Add the absolute values of one complex vector to a vector of sums."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vectors = _Vectors(context, builder, signature, args)
        real, imaginary = vectors.load(0, args[1])
        squares = [builder.fmul(part, part, flags=_FUSED) for part in (real, imaginary)]
        root = _declared(builder.module, ir.FunctionType(_VECTOR, [_VECTOR]), _ROOT)
        strength = builder.call(root, [builder.fadd(*squares, flags=_FUSED)])
        place = vectors.pointer(2, args[3], width=1)
        builder.store(builder.fadd(builder.load(place, align=4), strength), place, align=4)
        return context.get_dummy_value()

    return types.void(source, types.int64, sums, types.int64), codegen


@compiled()
def _transform(values: Array, scratch: Array, size: int, factors: Array) -> bool:
    """Transform ``size`` vectors; return whether the result is in ``scratch`` instead of ``values``."""
    source, target = values, scratch
    length, stride, used, swapped = size, 1, 0, False
    while length > 1:
        radix = 5 if length % 5 == 0 else 4 if length % 4 == 0 else 2
        rest = length // radix
        for p in range(rest):
            first = used + p * (radix - 1)
            for q in range(stride):
                start, to = q + stride * p, q + stride * radix * p
                if radix == 5:
                    _step5(source, start, stride * rest, target, to, stride, factors, first)
                elif radix == 4:
                    _step4(source, start, stride * rest, target, to, stride, factors, first)
                else:
                    _step2(source, start, stride * rest, target, to, stride, factors, first)
        used += rest * (radix - 1)
        length, stride = rest, stride * radix
        source, target = target, source
        swapped = not swapped
    return swapped


@compiled()
def even_contrast(grey: Array, gains: Array, factors: Array, floor: float, work: Array, out: Array) -> None:
    """Fill ``out`` ``(size, size)`` with brightness minus its local mean, divided by the local deviation.

    Parameters
    ----------
    grey : float32 (inner, inner), a picture, which is mirrored at its edges
    gains : float32 (size,), low-pass by frequency, in both directions
    factors : of :func:`twiddles`
    floor : added to the deviation
    work : float32 (2, size, 2, LANES), for intermediate results
    """
    size, inner = out.shape[0], grey.shape[0]
    pad = (size - inner) // 2
    turned, smooth = np.empty((size, size), dtype=np.float32), np.empty((size, size), dtype=np.float32)
    for y in range(size):
        row = grey[_mirrored(y - pad, inner)]
        for x in range(size):
            out[y, x] = row[_mirrored(x - pad, inner)]
    _smooth_down(out, gains, factors, work, turned)
    _smooth_down(turned, gains, factors, work, smooth)
    for y in range(size):
        detail, square = out[y], smooth[y]
        for x in range(size):
            detail[x] -= square[x]
            square[x] = detail[x] * detail[x]
    _smooth_down(smooth, gains, factors, work, turned)
    _smooth_down(turned, gains, factors, work, smooth)
    for y in range(size):
        detail, spread = out[y], smooth[y]
        for x in range(size):
            detail[x] /= np.float32(floor) + np.sqrt(np.abs(spread[x]))


@compiled()
def _mirrored(place: int, size: int) -> int:
    return -1 - place if place < 0 else 2 * size - 1 - place if place >= size else place


@compiled()
def _smooth_down(source: Array, gains: Array, factors: Array, work: Array, target: Array) -> None:
    """Smooth the columns of a square, and write them as rows.

    Two columns form one complex column; the filter is real, so each stays in its part. The inverse transform serves in
    both directions, because applying it twice only reverses the order.
    """
    size = source.shape[0]
    first, second = work[0], work[1]
    for start in range(0, size, 2 * LANES):
        both = min(2 * LANES, size - start)
        for y in range(size):
            row, to = source[y, start : start + both], first[y].reshape(2 * LANES)
            for x in range(both):
                to[x] = row[x]
            to[both:] = 0
        swapped = _transform(first, second, size, factors)
        there, back = (second, first) if swapped else (first, second)
        for y in range(size):
            numbers, gain = there[y].reshape(2 * LANES), gains[y] / np.float32(size)
            for x in range(2 * LANES):
                numbers[x] *= gain
        done = back if _transform(there, back, size, factors) else there
        for y in range(size):
            numbers = done[size - y if y else 0].reshape(2 * LANES)
            for x in range(both):
                target[start + x, y] = numbers[x]


@compiled()
def mean_responses(spectrum: Array, bank: Array, factors: Array, edge: int, work: Array, out: Array) -> None:
    """Fill float32 ``out`` ``(fields, fields, LANES)`` with the mean response of each filter in each field.

    Parameters
    ----------
    spectrum : float32 (whole, whole, 2), Fourier transform of a picture, of which the lowest ``size`` frequencies count
    bank : float32 (size, size, LANES), transfer functions of the filters, across first
    factors : of :func:`twiddles`
    edge : margin of the picture that is ignored, pixels
    work : float32 (size + 2, size, 2, LANES), for intermediate results
    """
    whole, size, fields = spectrum.shape[0], bank.shape[0], out.shape[0]
    side = (size - 2 * edge) // fields
    first, second = work[size], work[size + 1]
    for across in range(size):
        column = across if 2 * across < size else whole - size + across
        for down in range(size):
            row = down if 2 * down < size else whole - size + down
            _filtered(spectrum, row * whole + column, bank, across * size + down, first, down)
        done = second if _transform(first, second, size, factors) else first
        for y in range(edge, size - edge):
            _copied(done, y, work, y * size + across)
    out[:] = 0
    for y in range(edge, size - edge):
        row = work[y]
        done = second if _transform(row, second, size, factors) else row
        for field in range(fields):
            to = (y - edge) // side * fields + field
            for x in range(edge + field * side, edge + (field + 1) * side):
                _add_strength(done, x, out, to)
    out /= np.float32(size * size * side * side)
