"""Whether a chunk has codes near a query, and which: what a scan asks of every chunk of 64-bit words, mostly in vain.

Much of a scan's time goes into reading the database, so a chunk is read in the order of memory, word by word: a loop
that takes all words of a code together reads several places by turns, which the processor does not fetch ahead, and
takes three times as long. The sums of all codes stay in registers: four codes share a lane of 64 bits, since 16 bits
are enough for a distance, so that a chunk's fill eight vectors, and nothing is written between two words.

With AVX2 alone, counting bits takes longer than reading. There short codes are compared with all their words together
after all: the counts of a code are added before anything else is done with them, and all that is kept is the least
distance in each lane. The chunk that comes next is asked for meanwhile, line by line in the order of memory. Where one
instruction counts the bits of several words, reading in order is three times as fast, however far ahead one asks.

Vectors are as in :mod:`._planes`; twice as long ones make fewer instructions, but are read from memory more slowly.
Importing this module loads numba, so others import it inside the functions that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from modalhash.core.bit_kernels import FEATURES, VECTOR_POPCOUNT, intrinsic
from modalhash.index.kernels.bitsliced import LANES, address_of, load_vector, repeat_word
from modalhash.index.layout import CHUNK

JOINT_WORDS = (1, 2, 4) if "+avx2" in FEATURES.split(",") and not VECTOR_POPCOUNT else ()
"""Numbers of words of codes that are compared with all their words together."""
LINE = 8  # words of a cache line
STEP = 4  # vectors of codes whose distances are computed at once where all of these are wanted
SHARED = 4  # codes that share a lane
MAX_SUM = 2**16 - 1  # sums of codes that share a lane stop there
SUMS = CHUNK // (SHARED * LANES)  # vectors

_I1, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
_WORDS, _SUMS = ir.VectorType(_I64, LANES), ir.VectorType(_I16, SHARED * LANES)


def _call(builder: Any, name: str, kind: Any, *args: Any) -> Any:
    """Return what LLVM's function ``name`` makes of vectors of one kind."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(kind, [kind] * len(args)), name)
    return builder.call(function, args)


def _count(builder: Any, words: Any, index: Any, query: Any) -> Any:
    """Return in how many bits each word of a vector differs from the query's."""
    differing = builder.xor(load_vector(builder, words, index), query)
    return _call(builder, f"llvm.ctpop.v{LANES}i64", _WORDS, differing)


def _any(builder: Any, conditions: Any) -> Any:
    """Return whether any of a vector of conditions holds."""
    every_bit = ir.IntType(conditions.type.count)
    return builder.icmp_unsigned("!=", builder.bitcast(conditions, every_bit), every_bit(0))


def _query_word(builder: Any, query: Any, w: Any) -> Any:
    return repeat_word(builder, builder.load(builder.gep(query, [w])))


def _loop(builder: Any, n: Any, firsts: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """Return what becomes of some variables in a loop whose ``step`` has the loop's number and the variables so far."""
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
    """Return whether a chunk has a code below the limit, all words together; ask for the lines of another meanwhile."""
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
    return _any(builder, builder.icmp_signed("<", builder.bitcast(least, _WORDS), repeat_word(builder, limit)))


def _ordered_below(builder: Any, chunk: Any, query: Any, limit: Any, n_words: Any) -> Any:
    """Return whether a chunk has a code below the limit, word by word, or whether the limit exceeds MAX_SUM."""

    def step(w: Any, sums: list[Any]) -> list[Any]:
        words, word = builder.gep(chunk, [builder.mul(w, _I64(CHUNK))]), _query_word(builder, query, w)
        added = []
        for i, earlier in enumerate(sums):
            counts: Any = None
            for place in range(SHARED):
                count = _count(builder, words, _I64((i * SHARED + place) * LANES), word)
                shifted = builder.shl(count, ir.Constant(_WORDS, [16 * place] * LANES))
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
    """Return whether chunk ``c`` has a code nearer to a query than ``limit``, or whether the limit exceeds MAX_SUM.

    ``ahead`` is the chunk that will be asked about next, or ``c`` where that is in a cache already. It may be beyond
    the last one.
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
    """Write which codes of chunk ``c`` are nearer to a query than ``limit`` into ``out``, a bit for each."""

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
                for v, distances in enumerate(_loop(builder, n_words, [ir.Constant(_WORDS, None)] * STEP, add_word)):
                    near = builder.bitcast(builder.icmp_signed("<", distances, limit), bits)
                    at = builder.add(place, _I64(LANES * v))
                    below = builder.or_(below, builder.shl(builder.zext(near, _I64), at))
                return [below]

            word = _loop(builder, _I64(64 // (STEP * LANES)), [_I64(0)], some)[0]
            builder.store(word, builder.gep(out, [_I64(lane)]))
        return context.get_dummy_value()

    return types.void(chunks, types.int64, query, types.int64, out), codegen
