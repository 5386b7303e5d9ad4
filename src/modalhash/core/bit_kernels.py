"""Compiled kernels over packed codes; the only module that counts bits.

Importing this module loads numba, so other modules import it inside the functions that need it. Loops run over slices
(``row = a[i]``), never over ``a[s + i]``, because an offset index keeps numba's wrap-around check and prevents the
vectorised popcount.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm, ir
from numba import extending, prange, types

from modalhash.core.typing import Array

intrinsic: Any = extending.intrinsic  # numba's own annotations do not describe what its decorators return
FEATURES: str = getattr(numba.config, "CPU_FEATURES", None) or llvm.get_host_cpu_features().flatten()
VECTOR_POPCOUNT = "+avx512vpopcntdq" in FEATURES.split(",")
"""Whether the processor can count the bits of several words in one instruction."""


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile like ``numba.njit``, without the GIL, and cache the machine code on disk if possible.

    numba caches next to the module, in the user's cache folder if that is not writable, or in ``NUMBA_CACHE_DIR``. It
    checks only the age of the kernel's own module: editing a kernel that it calls in another module does not recompile
    it.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # neither folder is writable, e.g. in a container
            warnings.warn(
                "numba has no folder for compiled code, so every process compiles for some seconds; "
                "set NUMBA_CACHE_DIR to a writable folder",
                RuntimeWarning,
                stacklevel=1,  # once, not for every kernel
            )
            return numba.njit(nogil=True, **options)(function)

    return decorate


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """Count the bits set in a 64-bit word, in one machine instruction."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def prefetch(typing_context: Any, array: Any, offset: Any) -> Any:
    """Prefetch the cache line ``offset`` bytes from the start of an array; it may be beyond the end."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.gep(builder.bitcast(data, byte), [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(function, [address, number(0), number(2), number(1)])  # to read, into the second cache, data
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@compiled(parallel=True)
def hamming(a: Array, b: Array) -> Array:
    """Return all distances between two sets of codes given as words: ``uint16 (len(a), len(b))``."""
    out = np.empty((a.shape[0], b.shape[0]), np.uint16)
    for i in prange(a.shape[0]):
        left = a[i]
        row = out[i]
        for j in range(b.shape[0]):
            right = b[j]
            total = np.uint64(0)
            for k in range(left.shape[0]):
                total += popcount(left[k] ^ right[k])
            row[j] = total
    return out


BLOCK = 4096  # items per block; two blocks of words and one of buckets fit in the cache
TILE = 16  # queries that scan a block while it is in the cache


@compiled()
def buckets(code: Array, label: Array, codes: Array, labels: Array, start: int, shared: Array, out: Array) -> None:
    """Write ``2 · distance + (shares a label)`` for each item of the block at ``start``, for one query.

    ``codes`` and ``labels`` are ``(words, items)``, so that every loop runs over neighbours and is vectorised;
    ``shared`` is scratch space. Labels of one word with codes of one or two words take a single loop.
    """
    zero, one = np.uint64(0), np.uint64(1)
    stop = start + out.shape[0]
    code_0, label_0, codes_0, labels_0 = code[0], label[0], codes[0, start:stop], labels[0, start:stop]
    if labels.shape[0] == 1 and codes.shape[0] == 1:
        for j in range(out.shape[0]):
            out[j] = (popcount(code_0 ^ codes_0[j]) << one) | np.uint64((label_0 & labels_0[j]) != zero)
        return
    if labels.shape[0] == 1 and codes.shape[0] == 2:
        code_1, codes_1 = code[1], codes[1, start:stop]
        for j in range(out.shape[0]):
            distance = popcount(code_0 ^ codes_0[j]) + popcount(code_1 ^ codes_1[j])
            out[j] = (distance << one) | np.uint64((label_0 & labels_0[j]) != zero)
        return
    for j in range(out.shape[0]):
        shared[j] = label_0 & labels_0[j]
    for k in range(1, labels.shape[0]):
        label_k, labels_k = label[k], labels[k, start:stop]
        for j in range(out.shape[0]):
            shared[j] |= label_k & labels_k[j]
    for j in range(out.shape[0]):
        out[j] = (popcount(code_0 ^ codes_0[j]) << one) | np.uint64(shared[j] != zero)
    for k in range(1, codes.shape[0]):
        code_k, codes_k = code[k], codes[k, start:stop]
        for j in range(out.shape[0]):
            out[j] += popcount(code_k ^ codes_k[j]) << one


@compiled()
def count(values: Array, counts: Array) -> None:
    """Add a histogram of ``values`` to the four rows of ``counts``.

    Neighbours often fall into the same bucket, and an increment would wait for the previous one; using the four rows
    in turn avoids that.
    """
    counts_0, counts_1, counts_2, counts_3 = counts[0], counts[1], counts[2], counts[3]
    whole = values.shape[0] // 4 * 4
    for j in range(0, whole, 4):
        counts_0[values[j]] += 1
        counts_1[values[j + 1]] += 1
        counts_2[values[j + 2]] += 1
        counts_3[values[j + 3]] += 1
    for j in range(whole, values.shape[0]):
        counts_0[values[j]] += 1


@compiled(parallel=True)
def histograms(query_codes: Array, query_labels: Array, codes: Array, labels: Array, n_bits: int) -> Array:
    """Count items and relevant items at each distance from each query: ``int32 (queries, n_bits + 1, 2)``.

    Queries are words by row; the database is words by column (``(words, items)``, contiguous).
    """
    n_queries, n_items = query_codes.shape[0], codes.shape[1]
    out = np.empty((n_queries, n_bits + 1, 2), np.int32)
    for tile in prange((n_queries + TILE - 1) // TILE):
        first = tile * TILE
        last = min(n_queries, first + TILE)
        counts = np.zeros((last - first, 4, 2 * n_bits + 2), np.int32)
        values = np.empty(BLOCK, np.uint16)
        shared = np.empty(BLOCK, np.uint64)
        for start in range(0, n_items, BLOCK):
            stop = min(n_items, start + BLOCK)
            block, scratch = values[: stop - start], shared[: stop - start]
            for q in range(first, last):
                buckets(query_codes[q], query_labels[q], codes, labels, start, scratch, block)
                count(block, counts[q - first])
        for q in range(first, last):
            total = counts[q - first].sum(axis=0)
            out[q, :, 1] = total[1::2]
            out[q, :, 0] = total[0::2] + total[1::2]
    return out


@compiled()
def forget(
    histograms: Array, query_codes: Array, query_labels: Array, codes: Array, labels: Array, excluded: Array
) -> None:
    """Subtract one item (its column, or −1 for none) per query from its histogram, in place."""
    for q in range(query_codes.shape[0]):
        item = excluded[q]
        if item < 0:
            continue
        distance = np.uint64(0)
        shared = np.uint64(0)
        for k in range(codes.shape[0]):
            distance += popcount(query_codes[q, k] ^ codes[k, item])
        for k in range(labels.shape[0]):
            shared |= query_labels[q, k] & labels[k, item]
        histograms[q, distance, 0] -= 1
        histograms[q, distance, 1] -= shared != np.uint64(0)


HALF = np.uint64(32)
LOW = np.uint64(2**32 - 1)


@compiled()
def rank_relevant(values: Array, before: Array, out: Array) -> Any:
    """Write the ranks of a block's relevant items, with the number of relevant ones up to each; return their number.

    ``values`` are buckets. ``before`` has, for each distance, the number of items that rank before its next one, and in
    the lower half of the word how many of those are relevant; ``out`` gets such words, including the item itself. Every
    item is written and then overwritten by the next unless it is relevant, which avoids a branch that would often be
    mispredicted.
    """
    one = np.uint64(1)
    n_relevant = np.uint64(0)
    for j in range(values.shape[0]):
        bucket = np.uint64(values[j])
        relevant = bucket & one
        word = before[bucket >> one] + (one << HALF) + relevant
        before[bucket >> one] = word
        out[n_relevant] = word
        n_relevant += relevant
    return n_relevant


@compiled(parallel=True)
def stable_ranks(
    query_codes: Array,
    query_labels: Array,
    codes: Array,
    labels: Array,
    groups: Array,
    excluded: Array,
    cutoff: int,
    depth: int,
) -> tuple[Array, Array, Array, Array]:
    """Rank the relevant items with ties in the order of the database, without a sort.

    ``groups`` are the histograms, which give the rank at which each distance begins, so one more scan of the database
    yields the rank of each item; ``excluded`` is as in :func:`forget`. Returns, per query, the sum of the precisions at
    the relevant items and their number, both up to rank ``cutoff``; and for each rank up to ``depth``, summed over the
    queries, the number of relevant items and their fraction of the query's relevant items.
    """
    n_queries, n_items, n_distances = query_codes.shape[0], codes.shape[1], groups.shape[1]
    precisions = np.zeros(n_queries)
    hits = np.zeros(n_queries, np.int64)
    workers = min(8, n_queries)  # fixed, so that the sums do not depend on the machine
    relevant = np.zeros((workers, depth))
    shares = np.zeros((workers, depth))
    for worker in prange(workers):
        values = np.empty(BLOCK, np.uint16)
        scratch = np.empty(BLOCK + 1, np.uint64)  # one more for the word after the last relevant item
        before = np.empty(n_distances + 1, np.uint64)  # the last is for the excluded item
        ratios = np.empty(BLOCK)
        for q in range(worker, n_queries, workers):
            n_before = n_relevant = 0
            for d in range(n_distances):
                before[d] = (np.uint64(n_before) << HALF) | np.uint64(n_relevant)
                n_before += groups[q, d, 0]
                n_relevant += groups[q, d, 1]
            share = 1.0 / max(n_relevant, 1)
            total = 0.0
            inside = np.int64(0)
            for start in range(0, n_items, BLOCK):
                block = values[: min(BLOCK, n_items - start)]
                buckets(query_codes[q], query_labels[q], codes, labels, start, scratch[: block.shape[0]], block)
                if start <= excluded[q] < start + block.shape[0]:
                    block[excluded[q] - start] = 2 * n_distances
                words = scratch[: rank_relevant(block, before, scratch)]
                for i in range(words.shape[0]):
                    rank = np.int64(words[i] >> HALF)
                    ratios[i] = np.float64(np.int64(words[i] & LOW)) / np.float64(rank) * np.float64(rank <= cutoff)
                    inside += np.int64(rank <= cutoff)
                for i in range(words.shape[0]):
                    total += ratios[i]
                for i in range(words.shape[0] if depth else 0):
                    position = np.int64(words[i] >> HALF) - 1
                    if position < depth:
                        relevant[worker, position] += 1.0
                        shares[worker, position] += share
            precisions[q] = total
            hits[q] = inside
    return precisions, hits, relevant.sum(axis=0), shares.sum(axis=0)


@compiled()
def number_codes(codes: Array, most: int, table: Array, firsts: Array, numbers: Array) -> int:
    """Number the distinct rows of ``codes`` (n, words) in order of appearance and return how many there are.

    Returns −1 as soon as there are more than ``most``. ``numbers`` gets the number of each row, ``firsts`` the first
    row of each number. ``table`` is a hash table filled with −1; its length is a power of two above ``most``.
    """
    mask = np.uint64(table.shape[0] - 1)
    n_words = codes.shape[1]
    count = 0
    for i in range(codes.shape[0]):
        code = codes[i]
        key = np.uint64(0)
        for w in range(n_words):  # every bit of the words reaches the low bits, which choose the slot
            key = (key ^ np.uint64(code[w])) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(32)
        slot = key & mask
        while True:
            number = table[slot]
            if number < 0:
                if count == most:
                    return -1
                table[slot] = number = count
                firsts[count] = i
                count += 1
                break
            other = codes[firsts[number]]
            same = True
            for w in range(n_words):
                same &= code[w] == other[w]
            if same:
                break
            slot = (slot + np.uint64(1)) & mask
        numbers[i] = number
    return count


@compiled()
def fill_items(numbers: Array, starts: Array, items: Array) -> None:
    """Sort rows by the number of their code: those of code c go to ``items[starts[c]:starts[c + 1]]``.

    ``starts`` must be zeros, one more than there are codes.
    """
    n_codes = starts.shape[0] - 1
    for i in range(numbers.shape[0]):
        starts[np.int64(numbers[i]) + 1] += 1
    for c in range(n_codes):
        starts[c + 1] += starts[c]
    ends = starts[:n_codes].copy()
    for i in range(numbers.shape[0]):
        number = np.int64(numbers[i])
        items[ends[number]] = i
        ends[number] += 1
