"""Whether a chunk has a code near a query: what a scan asks of every chunk of 64-bit words, and mostly is denied.

Much of a scan's time goes into reading the database, so a chunk is read in the order of memory, word by word: a loop
that takes all words of a code together reads several streams at once, which the processor does not fetch ahead, and
takes three times as long. The sums of all codes stay in registers: four codes share a lane of 64 bits, since 16 bits
are enough for a distance, so that a chunk's fill eight vectors, and nothing is written between two words.

Vectors are as in :mod:`._planes`; twice as long ones make fewer instructions, but are read from memory more slowly.
Importing this module loads numba, so others import it inside the functions that need it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from modalhash.index._layout import CHUNK
from modalhash.index._planes import LANES, address_of, load_vector, repeat_word
from modalhash.kernels import intrinsic

SHARED = 4  # codes that share a lane
MAX_SUM = 2**16 - 1  # sums stop there
SUMS = CHUNK // (SHARED * LANES)  # vectors

_I16, _I64 = ir.IntType(16), ir.IntType(64)
_WORDS, _SUMS = ir.VectorType(_I64, LANES), ir.VectorType(_I16, SHARED * LANES)


def _call(builder: Any, name: str, kind: Any, *args: Any) -> Any:
    """Return what LLVM's function ``name`` makes of vectors of one kind."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(kind, [kind] * len(args)), name)
    return builder.call(function, args)


def _add_counts(builder: Any, words: Any, query: Any, sums: list[Any]) -> list[Any]:
    """Return the sums plus the bits in which a word of each code differs from the query's."""
    added = []
    for i, earlier in enumerate(sums):
        counts: Any = None
        for place in range(SHARED):
            vector = load_vector(builder, words, _I64((i * SHARED + place) * LANES))
            count = _call(builder, f"llvm.ctpop.v{LANES}i64", _WORDS, builder.xor(vector, query))
            shifted = builder.shl(count, ir.Constant(_WORDS, [16 * place] * LANES))
            counts = shifted if counts is None else builder.or_(counts, shifted)
        name = f"llvm.uadd.sat.v{SHARED * LANES}i16"
        added.append(_call(builder, name, _SUMS, earlier, builder.bitcast(counts, _SUMS)))
    return added


@intrinsic
def chunk_below(typing_context: Any, chunks: Any, c: Any, query: Any, limit: Any) -> Any:
    """Return whether chunk ``c`` has a code nearer to a query than ``limit``, or whether the limit exceeds MAX_SUM."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        n_words = builder.extract_value(context.make_array(signature.args[0])(context, builder, args[0]).shape, 1)
        chunks, query = (address_of(context, builder, signature.args[i], args[i]) for i in (0, 2))
        chunk = builder.gep(chunks, [builder.mul(builder.mul(args[1], n_words), _I64(CHUNK))])
        before, loop, done = builder.block, builder.append_basic_block("word"), builder.append_basic_block("done")
        builder.branch(loop)

        builder.position_at_end(loop)
        w, sums = builder.phi(_I64), [builder.phi(_SUMS) for _ in range(SUMS)]
        words = builder.gep(chunk, [builder.mul(w, _I64(CHUNK))])
        added = _add_counts(builder, words, repeat_word(builder, builder.load(builder.gep(query, [w]))), sums)
        following = builder.add(w, _I64(1))
        for variable, first, then in zip([w, *sums], [0] + [None] * SUMS, [following, *added], strict=True):
            variable.add_incoming(ir.Constant(variable.type, first), before)
            variable.add_incoming(then, loop)
        builder.cbranch(builder.icmp_signed("<", following, n_words), loop, done)

        builder.position_at_end(done)
        while len(added) > 1:
            pairs = zip(added[::2], added[1::2], strict=True)
            added = [_call(builder, f"llvm.umin.v{SHARED * LANES}i16", _SUMS, *pair) for pair in pairs]
        exceeds = builder.icmp_signed(">", args[3], _I64(MAX_SUM))
        bound = repeat_word(builder, builder.mul(builder.and_(args[3], _I64(MAX_SUM)), _I64(0x0001_0001_0001_0001)))
        below = builder.icmp_unsigned("<", added[0], builder.bitcast(bound, _SUMS))
        every_bit = ir.IntType(SHARED * LANES)
        return builder.or_(exceeds, builder.icmp_unsigned("!=", builder.bitcast(below, every_bit), every_bit(0)))

    return types.boolean(chunks, types.int64, query, types.int64), codegen
