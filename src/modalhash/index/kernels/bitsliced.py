"""Which of 256 codes are near a query, all at once: how a batch of queries compares itself with a block of codes.

A *group* is 256 codes, two chunks. Transposed, its bits lie in *planes*: plane i has bit i of every code, and fills one
vector register. The distance of a query to all codes of the group is the sum of its planes, each complemented where the
query has a one. Carry-save adders sum them: each takes three planes of one weight and gives their sum and, of twice the
weight, their carry, in five logical instructions for 256 codes. In the end there is a plane for each binary digit of
the distance, and subtracting a bound from these digits leaves a borrow for each code that is nearer than it. That is
less than one instruction a code for 64 bits, on any processor; counting the bits of each code takes several where there
is no vector instruction for it.

The first adders are shared by all queries. Three bits of a query can be in eight ways, so there are eight carries
of three planes, and two sums. :func:`fill_table` computes them once; a query looks up those that it needs at its
*places*, from :func:`fill_places`. With the transposition that costs as much as comparing some ten queries, so that
batches gain and single queries do not.

Vectors are four words of 64 bits, whatever the processor has; LLVM takes two registers where they are shorter.
Importing this module loads numba, so others import it inside the functions that need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from modalhash.core.bit_kernels import compiled, intrinsic
from modalhash.core.typing import Array
from modalhash.index.layout import CHUNK

LANES = 4  # words of a vector
GROUP = 64 * LANES  # codes of a group
GROUP_CHUNKS = GROUP // CHUNK
TRIPLES = 22  # of the planes of one word; the last one has a single plane
ENTRIES = 10  # vectors of a triple in a table: the sum and its complement, then the eight carries
MAX_DIGITS = 9  # binary digits of a distance of 256 bits
TABLE_WORDS = TRIPLES * ENTRIES * LANES  # of a group's table, for each word of its codes

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_I64, LANES)
_ZERO = ir.Constant(_VECTOR, [0] * LANES)


# -- instructions: what numba's loops cannot be relied on to become


def address_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the address of an array's first word."""
    return builder.bitcast(context.make_array(kind)(context, builder, array).data, _I64.as_pointer())


def load_vector(builder: Any, words: Any, index: Any) -> Any:
    """Return the vector that begins at a word."""
    return builder.load(builder.bitcast(builder.gep(words, [index]), _VECTOR.as_pointer()), align=8)


def _store(builder: Any, vector: Any, words: Any, index: Any) -> None:
    """Write a vector to where a word is."""
    builder.store(vector, builder.bitcast(builder.gep(words, [index]), _VECTOR.as_pointer()), align=8)


def repeat_word(builder: Any, word: Any) -> Any:
    """Return a vector of a word, repeated."""
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), word, _I32(0))
    return _shuffle(builder, single, single, [0] * LANES)


def _shuffle(builder: Any, first: Any, second: Any, order: list[int]) -> Any:
    """Return some of the words of two vectors, counted through both."""
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_I32, LANES), order))


def _select(builder: Any, condition: Any, yes: Any, no: Any) -> Any:
    """Return the bits of ``yes`` where the condition's are set, and else those of ``no``."""
    return builder.or_(builder.and_(condition, yes), builder.and_(builder.not_(condition), no))


def _carry(builder: Any, first: Any, second: Any, third: Any) -> Any:
    """Return the bits that at least two of three vectors have."""
    return _select(builder, builder.xor(first, second), third, first)


def _add(builder: Any, levels: list[list[Any]], level: int, plane: Any) -> None:
    """Add a plane to the others of its weight, ``2 ** level``: three become one, and one of twice the weight."""
    waiting = levels[level]
    waiting.append(plane)
    if len(waiting) == 3:
        first, second, third = waiting
        levels[level] = [builder.xor(builder.xor(first, second), third)]
        _add(builder, levels, level + 1, _carry(builder, first, second, third))


def _digits(builder: Any, levels: list[list[Any]], n_digits: int) -> list[Any]:
    """Return the planes of the sum's binary digits, lowest first."""
    digits = []
    for level in range(n_digits):
        if len(levels[level]) == 2:
            first, second = levels[level]
            levels[level] = [builder.xor(first, second)]
            _add(builder, levels, level + 1, builder.and_(first, second))
        digits.append(levels[level][0])
    return digits


@intrinsic(prefer_literal=True)
def group_below(
    typing_context: Any, tables: Any, g: Any, places: Any, bounds: Any, q: Any, out: Any, n_words: Any
) -> Any:
    """Write which codes of group ``g`` are nearer to query ``q`` than its bound into ``out``; return whether any is.

    All arrays but ``out``, which gets a bit for each code, have a row for each group or query: a slice of them would
    cost two atomic instructions, to count references. ``n_words`` is a literal.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count = signature.args[6].literal_value
        n_digits = (64 * count).bit_length()
        tables, bounds, out = (address_of(context, builder, signature.args[i], args[i]) for i in (0, 3, 5))
        places = context.make_array(signature.args[2])(context, builder, args[2]).data
        table = builder.gep(tables, [builder.mul(args[1], _I64(TABLE_WORDS * count))])
        own_places = builder.gep(places, [builder.mul(args[4], _I64(2 * TRIPLES * count))])
        own_bound = builder.gep(bounds, [builder.mul(args[4], _I64(MAX_DIGITS))])
        levels: list[list[Any]] = [[] for _ in range(n_digits + 2)]
        for i in range(TRIPLES * count):
            for weight in range(2):  # the sum of a triple, and its carry
                place = builder.load(builder.gep(own_places, [_I64(2 * i + weight)]))
                _add(builder, levels, weight, load_vector(builder, table, builder.zext(place, _I64)))
        borrow: Any = _ZERO
        for i, digit in enumerate(_digits(builder, levels, n_digits)):
            other = repeat_word(builder, builder.load(builder.gep(own_bound, [_I64(i)])))
            borrow = _select(builder, builder.xor(digit, other), other, borrow)
        _store(builder, borrow, out, _I64(0))
        every_bit = ir.IntType(GROUP)
        return builder.icmp_unsigned("!=", builder.bitcast(borrow, every_bit), every_bit(0))

    return types.boolean(tables, types.int64, places, bounds, types.int64, out, n_words), codegen


@intrinsic
def gather_codes(typing_context: Any, chunk: Any, next_chunk: Any, start: Any, planes: Any) -> Any:
    """Copy the codes ``start`` to ``start + 3`` of each run of 64 into vectors: each run is a lane of ``planes``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chunk, next_chunk, planes = (address_of(context, builder, signature.args[i], args[i]) for i in (0, 1, 3))
        start, half = args[2], builder.add(args[2], _I64(64))
        a, b = load_vector(builder, chunk, start), load_vector(builder, chunk, half)
        c, d = load_vector(builder, next_chunk, start), load_vector(builder, next_chunk, half)
        even, odd, high, low = [0, 4, 2, 6], [1, 5, 3, 7], [2, 3, 6, 7], [0, 1, 4, 5]
        pairs = [(_shuffle(builder, a, b, order), _shuffle(builder, c, d, order)) for order in (even, odd)]
        rows = [_shuffle(builder, *pair, order) for order in (low, high) for pair in pairs]
        for i, row in enumerate(rows):
            _store(builder, row, planes, builder.add(builder.mul(start, _I64(LANES)), _I64(LANES * i)))
        return context.get_dummy_value()

    return types.void(chunk, next_chunk, types.int64, planes), codegen


@intrinsic
def exchange(typing_context: Any, planes: Any, row: Any, distance: Any, mask: Any) -> Any:
    """Exchange the bits ``distance`` above ``mask`` in a row with those of ``mask`` in the row ``distance`` later."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        planes, (row, distance, mask) = address_of(context, builder, signature.args[0], args[0]), args[1:]
        first = builder.mul(row, _I64(LANES))
        second = builder.mul(builder.add(row, distance), _I64(LANES))
        left, right, shift = (
            load_vector(builder, planes, first),
            load_vector(builder, planes, second),
            repeat_word(builder, distance),
        )
        differ = builder.and_(builder.xor(builder.lshr(left, shift), right), repeat_word(builder, mask))
        _store(builder, builder.xor(right, differ), planes, second)
        _store(builder, builder.xor(left, builder.shl(differ, shift)), planes, first)
        return context.get_dummy_value()

    return types.void(planes, types.int64, types.int64, types.uint64), codegen


@intrinsic
def sum_triples(typing_context: Any, planes: Any, table: Any) -> Any:
    """Write the sums and carries of each three planes into a table, for each way that a query's bits can be."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        planes, table = (address_of(context, builder, signature.args[i], args[i]) for i in range(2))

        def write(triple: int, entry: int, vector: Any) -> None:
            _store(builder, vector, table, _I64(LANES * (ENTRIES * triple + entry)))

        for triple in range(TRIPLES):
            numbers = range(3 * triple, 3 * triple + 3)
            first, second, third = (load_vector(builder, planes, _I64(LANES * i)) if i < 64 else _ZERO for i in numbers)
            total = builder.xor(builder.xor(first, second), third)
            write(triple, 0, total)
            write(triple, 1, builder.not_(total))
            for bits in range(4):  # the query's first bit is 0; where it is 1, all three are complemented
                b = builder.not_(second) if bits & 1 else second
                c = builder.not_(third) if bits & 2 else third
                carry = _carry(builder, first, b, c)
                write(triple, 2 + 2 * bits, carry)
                write(triple, 2 + 2 * (bits ^ 3) + 1, builder.not_(carry))
        return context.get_dummy_value()

    return types.void(planes, table), codegen


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:
    """Return the number of the lowest bit that is set in a word, which is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), codegen


# -- tables, places and bounds


@compiled()
def fill_table(chunks: Array, planes: Array, table: Array) -> None:
    """Write the table of a group, given as its chunks; ``planes`` is scratch space of 64 vectors."""
    for w in range(chunks.shape[1]):
        for start in range(0, 64, 4):
            gather_codes(chunks[0, w], chunks[1, w], start, planes)
        distance, mask = 32, np.uint64(2**32 - 1)
        while distance > 0:
            row = 0
            while row < 64:
                exchange(planes, row, distance, mask)
                row = (row + distance + 1) & ~distance  # the next one whose number lacks the bit `distance`
            distance >>= 1
            mask ^= mask << np.uint64(distance)
        sum_triples(planes, table[w * TABLE_WORDS : (w + 1) * TABLE_WORDS])


@compiled()
def fill_places(query: Array, places: Array) -> None:
    """Write where in a table the sums and carries for a query are, in words."""
    one = np.uint64(1)
    for w in range(query.shape[0]):
        rest = np.uint64(query[w])
        for triple in range(TRIPLES):
            first, second, third = rest & one, (rest >> one) & one, (rest >> np.uint64(2)) & one
            rest >>= np.uint64(3)
            i = w * TRIPLES + triple
            places[2 * i] = LANES * (ENTRIES * i + np.int64(first ^ second ^ third))
            places[2 * i + 1] = LANES * (ENTRIES * i + 2 + np.int64(first + 2 * second + 4 * third))


@compiled()
def fill_bound(bound: int, out: Array) -> None:
    """Write the binary digits of a bound as words of zeros or of ones."""
    for i in range(MAX_DIGITS):
        out[i] = -((np.uint64(bound) >> np.uint64(i)) & np.uint64(1))


@compiled()
def next_group_below(tables: Array, start: int, stop: int, places: Array, bounds: Array, q: int, out: Array) -> int:
    """Return the first group from ``start`` on with codes nearer to query ``q`` than its bound, or ``stop``.

    ``out`` gets a bit for each of its codes. Codes have 1, 2 or 4 words.
    """
    n_words = tables.shape[1] // TABLE_WORDS
    if n_words == 1:
        for g in range(start, stop):
            if group_below(tables, g, places, bounds, q, out, 1):
                return g
    elif n_words == 2:
        for g in range(start, stop):
            if group_below(tables, g, places, bounds, q, out, 2):
                return g
    else:
        for g in range(start, stop):
            if group_below(tables, g, places, bounds, q, out, 4):
                return g
    return stop


@compiled()
def aligned_words(n: int) -> Array:
    """Return ``n`` words that begin at a cache line: a vector that spans two lines costs twice."""
    space = np.empty(n + 8, np.uint64)
    start = (-np.int64(space.ctypes.data) % 64) // 8
    return space[start : start + n]
