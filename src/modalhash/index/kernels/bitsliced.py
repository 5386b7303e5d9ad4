"""Vector kernels that find codes near a query: bit-sliced for batches, chunk by chunk for single queries.

*Bit-sliced.* A group is 256 codes, two chunks. Transposed, plane i has bit i of every code and fills one vector. The
distances of a query to all codes are the sum of the planes, each complemented where the query has a one. Carry-save
adders sum them: each takes three planes of one weight and returns their sum and, with twice the weight, their carry, in
five logical instructions for 256 codes. The result is a plane per binary digit of the distance; subtracting a bound
leaves a borrow for each nearer code. That is less than one instruction per code for 64 bits on any processor, while
counting bits takes several without a vector instruction for it. The first adders are shared by all queries: three bits
of a query have eight states, so three planes have eight carries and two sums. :func:`fill_table` computes them once; a
query looks up its own at the offsets of :func:`fill_places`. Transposition and table cost as much as comparing some ten
queries, so batches gain and single queries do not.

*Chunks.* Much of a scan's time is spent reading memory, so :func:`chunk_below` reads a chunk in memory order, word by
word; reading all words of a code together is not prefetched by the processor and takes three times as long. The sums
stay in registers: four codes share a 64-bit lane, because 16 bits hold a distance, so a chunk fills eight vectors.
With AVX2 alone, counting takes longer than reading. Then short codes are compared with all words together, keeping
only the minimum per lane, while the next chunk is prefetched in memory order.

Vectors are four 64-bit words on every processor; LLVM splits them where registers are shorter. Longer ones need fewer
instructions, but are read more slowly. Importing this module loads numba, so import it inside the functions that need
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from modalhash.core.bit_kernels import FEATURES, VECTOR_POPCOUNT, compiled, intrinsic
from modalhash.core.typing import Array
from modalhash.index.layout import CHUNK

LANES = 4  # words per vector
GROUP = 64 * LANES  # codes per group
GROUP_CHUNKS = GROUP // CHUNK
TRIPLES = 22  # of planes per word; the last has a single plane
ENTRIES = 10  # vectors per triple in a table: the sum and its complement, then eight carries
MAX_DIGITS = 9  # binary digits of a distance of 256 bits
TABLE_WORDS = TRIPLES * ENTRIES * LANES  # words of a group's table per word of its codes

JOINT_WORDS = (1, 2, 4) if "+avx2" in FEATURES.split(",") and not VECTOR_POPCOUNT else ()
"""Code lengths in words that are compared with all words together."""
LINE = 8  # words per cache line
STEP = 4  # vectors of codes whose distances are computed together
SHARED = 4  # codes per lane
MAX_SUM = 2**16 - 1  # at which sums in a shared lane saturate
SUMS = CHUNK // (SHARED * LANES)  # vectors

_I1, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
_VECTOR, _SUMS = ir.VectorType(_I64, LANES), ir.VectorType(_I16, SHARED * LANES)
_ZERO = ir.Constant(_VECTOR, [0] * LANES)


# -- instructions that numba's vectorizer does not reliably generate


def address_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return builder.bitcast(context.make_array(kind)(context, builder, array).data, _I64.as_pointer())


def load_vector(builder: Any, words: Any, index: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(words, [index]), _VECTOR.as_pointer()), align=8)


def _store(builder: Any, vector: Any, words: Any, index: Any) -> None:
    builder.store(vector, builder.bitcast(builder.gep(words, [index]), _VECTOR.as_pointer()), align=8)


def repeat_word(builder: Any, word: Any) -> Any:
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), word, _I32(0))
    return _shuffle(builder, single, single, [0] * LANES)


def _shuffle(builder: Any, first: Any, second: Any, order: list[int]) -> Any:
    """Return words of two vectors in the given order, numbered through both."""
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_I32, LANES), order))


def _select(builder: Any, condition: Any, yes: Any, no: Any) -> Any:
    return builder.or_(builder.and_(condition, yes), builder.and_(builder.not_(condition), no))


def _carry(builder: Any, first: Any, second: Any, third: Any) -> Any:
    """Return the bitwise majority of three vectors."""
    return _select(builder, builder.xor(first, second), third, first)


def _add(builder: Any, levels: list[list[Any]], level: int, plane: Any) -> None:
    """Add a plane of weight ``2 ** level``; three of a weight become a sum and a carry of twice the weight."""
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

    ``out`` gets a bit per code. All other arrays have a row per group or query, because slicing would cost two atomic
    instructions for reference counts. ``n_words`` is a literal.
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
    """Copy codes ``start`` to ``start + 3`` of each run of 64 into vectors; each run is a lane of ``planes``."""

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
    """Swap the bits ``distance`` above ``mask`` in a row with those of ``mask`` in the row ``distance`` later."""

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
    """Write the sums and carries of each three planes for each state of a query's bits into a table."""

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
            for bits in range(4):  # for a first bit of 0; for 1, all three are complemented
                b = builder.not_(second) if bits & 1 else second
                c = builder.not_(third) if bits & 2 else third
                carry = _carry(builder, first, b, c)
                write(triple, 2 + 2 * bits, carry)
                write(triple, 2 + 2 * (bits ^ 3) + 1, builder.not_(carry))
        return context.get_dummy_value()

    return types.void(planes, table), codegen


@intrinsic
def lowest_bit(typing_context: Any, word: Any) -> Any:

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), codegen


# -- bit-sliced groups


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
                row = (row + distance + 1) & ~distance  # the next row without the bit `distance`
            distance >>= 1
            mask ^= mask << np.uint64(distance)
        sum_triples(planes, table[w * TABLE_WORDS : (w + 1) * TABLE_WORDS])


@compiled()
def fill_places(query: Array, places: Array) -> None:
    """Write the offsets of a query's sums and carries in a table, in words."""
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
    """Write the binary digits of a bound as words of zeros or ones."""
    for i in range(MAX_DIGITS):
        out[i] = -((np.uint64(bound) >> np.uint64(i)) & np.uint64(1))


@compiled()
def next_group_below(tables: Array, start: int, stop: int, places: Array, bounds: Array, q: int, out: Array) -> int:
    """Return the first group from ``start`` on with codes nearer to query ``q`` than its bound, or ``stop``.

    ``out`` gets a bit per code of that group. Codes have 1, 2 or 4 words.
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
    """Return ``n`` words aligned to a cache line, because a vector that spans two lines costs twice."""
    space = np.empty(n + 8, np.uint64)
    start = (-np.int64(space.ctypes.data) % 64) // 8
    return space[start : start + n]


# -- chunks


def _call(builder: Any, name: str, kind: Any, *args: Any) -> Any:
    """Call LLVM's function ``name`` on vectors of one type."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(kind, [kind] * len(args)), name)
    return builder.call(function, args)


def _count(builder: Any, words: Any, index: Any, query: Any) -> Any:
    differing = builder.xor(load_vector(builder, words, index), query)
    return _call(builder, f"llvm.ctpop.v{LANES}i64", _VECTOR, differing)


def _any(builder: Any, conditions: Any) -> Any:
    every_bit = ir.IntType(conditions.type.count)
    return builder.icmp_unsigned("!=", builder.bitcast(conditions, every_bit), every_bit(0))


def _query_word(builder: Any, query: Any, w: Any) -> Any:
    return repeat_word(builder, builder.load(builder.gep(query, [w])))


def _loop(builder: Any, n: Any, firsts: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Build a loop over ``n`` steps that updates some variables; return their final values."""
    before, loop, done = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    variables = [builder.phi(first.type) for first in (_I64(0), *firsts)]
    thens = [builder.add(variables[0], _I64(1)), *step(variables[0], variables[1:])]
    for variable, first, then in zip(variables, (_I64(0), *firsts), thens, strict=True):
        variable.add_incoming(first, before)
        variable.add_incoming(then, builder.block)
    builder.cbranch(builder.icmp_signed("<", thens[0], n), loop, done)
    builder.position_at_end(done)
    return thens[1:]


def _joint_below(builder: Any, chunk: Any, ahead: Any, query: Any, limit: Any, n_words: int) -> Any:
    """Return whether a chunk has a code below the limit, all words together; prefetch another chunk."""
    words_of_query = [_query_word(builder, query, _I64(w)) for w in range(n_words)]
    byte = ir.IntType(8).as_pointer()
    prefetch = builder.module.declare_intrinsic(
        "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    )

    def step(i: Any, least: list[Any]) -> list[Any]:
        line = builder.mul(i, _I64(LINE))  # of each word
        for w in range(n_words):
            address = builder.gep(ahead, [builder.add(builder.mul(line, _I64(n_words)), _I64(LINE * w))])
            builder.call(prefetch, [builder.bitcast(address, byte), _I32(0), _I32(3), _I32(1)])
        nearest = least[0]
        for start in range(0, LINE, LANES):
            first = builder.add(line, _I64(start))
            distances: Any = None
            for w, word in enumerate(words_of_query):
                count = _count(builder, chunk, builder.add(first, _I64(w * CHUNK)), word)
                distances = count if distances is None else builder.add(distances, count)
            nearest = _call(
                builder, f"llvm.umin.v{SHARED * LANES}i16", _SUMS, nearest, builder.bitcast(distances, _SUMS)
            )
        return [nearest]

    far = ir.Constant(_SUMS, [MAX_SUM] * (SHARED * LANES))
    least = _loop(builder, _I64(CHUNK // LINE), [far], step)[0]
    return _any(builder, builder.icmp_signed("<", builder.bitcast(least, _VECTOR), repeat_word(builder, limit)))


def _ordered_below(builder: Any, chunk: Any, query: Any, limit: Any, n_words: Any) -> Any:
    """Return whether a chunk has a code below the limit, word by word, or the limit exceeds MAX_SUM."""

    def step(w: Any, sums: list[Any]) -> list[Any]:
        words, word = builder.gep(chunk, [builder.mul(w, _I64(CHUNK))]), _query_word(builder, query, w)
        added = []
        for i, earlier in enumerate(sums):
            counts: Any = None
            for place in range(SHARED):
                count = _count(builder, words, _I64((i * SHARED + place) * LANES), word)
                shifted = builder.shl(count, ir.Constant(_VECTOR, [16 * place] * LANES))
                counts = shifted if counts is None else builder.or_(counts, shifted)
            name = f"llvm.uadd.sat.v{SHARED * LANES}i16"
            added.append(_call(builder, name, _SUMS, earlier, builder.bitcast(counts, _SUMS)))
        return added

    sums = _loop(builder, n_words, [ir.Constant(_SUMS, None)] * SUMS, step)
    while len(sums) > 1:
        pairs = zip(sums[::2], sums[1::2], strict=True)
        sums = [_call(builder, f"llvm.umin.v{SHARED * LANES}i16", _SUMS, *pair) for pair in pairs]
    exceeds = builder.icmp_signed(">", limit, _I64(MAX_SUM))
    bound = repeat_word(builder, builder.mul(builder.and_(limit, _I64(MAX_SUM)), _I64(0x0001_0001_0001_0001)))
    return builder.or_(exceeds, _any(builder, builder.icmp_unsigned("<", sums[0], builder.bitcast(bound, _SUMS))))


@intrinsic
def chunk_below(typing_context: Any, chunks: Any, c: Any, query: Any, limit: Any, ahead: Any) -> Any:
    """Return whether chunk ``c`` has a code nearer to a query than ``limit``, or the limit exceeds MAX_SUM.

    ``ahead`` is the chunk to prefetch, or ``c`` if the next one is cached. It may be beyond the last.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n_words = builder.extract_value(context.make_array(signature.args[0])(context, builder, args[0]).shape, 1)
        chunks, query = (address_of(context, builder, signature.args[i], args[i]) for i in (0, 2))
        size = builder.mul(n_words, _I64(CHUNK))
        chunk, ahead = (builder.gep(chunks, [builder.mul(args[i], size)]) for i in (1, 4))
        done, answers = builder.append_basic_block("answered"), []
        for count in JOINT_WORDS:
            with builder.if_then(builder.icmp_signed("==", n_words, _I64(count))):
                answers.append((_joint_below(builder, chunk, ahead, query, args[3], count), builder.block))
                builder.branch(done)
        answers.append((_ordered_below(builder, chunk, query, args[3], n_words), builder.block))
        builder.branch(done)
        builder.position_at_end(done)
        below = builder.phi(_I1)
        for answer in answers:
            below.add_incoming(*answer)
        return below

    return types.boolean(chunks, types.int64, query, types.int64, types.int64), codegen


@intrinsic
def codes_below(typing_context: Any, chunks: Any, c: Any, query: Any, limit: Any, out: Any) -> Any:
    """Write which codes of chunk ``c`` are nearer to a query than ``limit`` into ``out``, a bit per code."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n_words = builder.extract_value(context.make_array(signature.args[0])(context, builder, args[0]).shape, 1)
        chunks, query, out = (address_of(context, builder, signature.args[i], args[i]) for i in (0, 2, 4))
        chunk = builder.gep(chunks, [builder.mul(args[1], builder.mul(n_words, _I64(CHUNK)))])
        limit, bits = repeat_word(builder, args[3]), ir.IntType(LANES)
        for lane in range(CHUNK // 64):

            def some(i: Any, earlier: list[Any], lane: int = lane) -> list[Any]:
                place = builder.mul(i, _I64(STEP * LANES))

                def add_word(w: Any, sums: list[Any]) -> list[Any]:
                    word = _query_word(builder, query, w)
                    first = builder.add(builder.add(builder.mul(w, _I64(CHUNK)), _I64(64 * lane)), place)
                    places = [builder.add(first, _I64(LANES * v)) for v in range(STEP)]
                    return [
                        builder.add(sum_, _count(builder, chunk, at, word))
                        for sum_, at in zip(sums, places, strict=True)
                    ]

                below = earlier[0]
                for v, distances in enumerate(_loop(builder, n_words, [ir.Constant(_VECTOR, None)] * STEP, add_word)):
                    near = builder.bitcast(builder.icmp_signed("<", distances, limit), bits)
                    at = builder.add(place, _I64(LANES * v))
                    below = builder.or_(below, builder.shl(builder.zext(near, _I64), at))
                return [below]

            word = _loop(builder, _I64(64 // (STEP * LANES)), [_I64(0)], some)[0]
            builder.store(word, builder.gep(out, [_I64(lane)]))
        return context.get_dummy_value()

    return types.void(chunks, types.int64, query, types.int64, out), codegen
