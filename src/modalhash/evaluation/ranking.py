"""The Hamming ranking of a database for a set of queries, as histograms instead of sorted lists.

The measures need only the number of items, and of relevant items, at each distance from a query: ``n_bits + 1`` pairs
of counts instead of a ranking of the whole database.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from modalhash.core.codes import check_codes, to_words
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_int, check_labels

TIES = ("expected", "stable", "optimistic", "pessimistic")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Items and relevant items (sharing at least one label) at each distance from each query."""

    query_codes: Array
    """64-bit words, ``(queries, words)``, like the query labels."""
    query_labels: Array
    codes: Array
    """64-bit words, ``(words, items)``, like the labels."""
    labels: Array
    histograms: Array
    """``int32 (queries, n_bits + 1, 2)``: items and relevant items at each distance."""
    excluded: Array
    """Row of the item excluded for each query; −1 for none."""

    @property
    def n_queries(self) -> int:
        return int(self.query_codes.shape[0])

    @cached_property
    def n_items(self) -> int:
        """Return the number of items that a query is compared with, without the excluded one."""
        return int(self.histograms[:, :, 0].sum(axis=1, dtype=np.int64).max())

    @cached_property
    def n_relevant(self) -> Array:
        return np.asarray(self.histograms[:, :, 1].sum(axis=1, dtype=np.int64))

    def stable_ranks(self, *, cutoff: int | None = None, depth: int = 0) -> tuple[Array, Array, Array, Array]:
        """Rank the relevant items with ties in database order; see :func:`modalhash.core.bit_kernels.stable_ranks`."""
        from modalhash.core import bit_kernels as kernels

        ranks: tuple[Array, Array, Array, Array] = kernels.stable_ranks(
            self.query_codes,
            self.query_labels,
            self.codes,
            self.labels,
            self.histograms,
            self.excluded,
            self.n_items if cutoff is None else cutoff,
            depth,
        )
        return ranks


def rank(
    query_codes: Codes,
    query_labels: Any,
    database_codes: Codes,
    database_labels: Any,
    *,
    n_bits: int | None = None,
    excluded: Any = None,
    names: tuple[str, str] = ("queries", "database"),
) -> Ranking:
    """Scan the database once for all queries.

    Parameters
    ----------
    query_codes, database_codes : (n, ceil(n_bits / 8)) uint8
        Packed codes.
    query_labels, database_labels : (n, n_classes) 0/1, dense or CSR
        Items with a label in common are relevant to each other.
    n_bits : int, optional
        Length of the codes; by default all bits of the bytes.
    excluded : (n_queries,) int, optional
        For each query, the row of a database item to exclude, e.g. itself; −1 for none.
    names : (str, str)
        Names of the queries and the database in errors.
    """
    if n_bits is None:
        n_bits = 8 * (query_codes.shape[1] if getattr(query_codes, "ndim", 0) == 2 else 1)
    n_bits = check_int(n_bits, "n_bits", at_least=1)
    if n_bits >= 2**15:
        raise ValueError(f"n_bits is {n_bits}; distances are counted for fewer than {2**15} bits")
    clean = {}
    for name, codes in zip(names, (query_codes, database_codes), strict=True):
        check_codes(codes, n_bits, name)
        if not len(codes):
            raise ValueError(f"{name}: there are no items; expected at least one")
        clean[name] = codes
    labels = check_labels(dict(zip(names, (query_labels, database_labels), strict=True)), clean, unlabelled="allow")

    from modalhash.core import bit_kernels as kernels

    query, query_label = _words(query_codes), _words(_pack(labels[names[0]]))
    item, item_label = (np.ascontiguousarray(_words(part).T) for part in (database_codes, _pack(labels[names[1]])))
    own = _check_excluded(excluded, len(query_codes), len(database_codes))
    counts = kernels.histograms(query, query_label, item, item_label, n_bits)
    kernels.forget(counts, query, query_label, item, item_label, own)
    return Ranking(query, query_label, item, item_label, counts, own)


def _check_excluded(excluded: Any, n_queries: int, n_items: int) -> Array:
    if excluded is None:
        return np.full(n_queries, -1)
    own = np.asarray(excluded)
    if own.shape != (n_queries,) or not np.issubdtype(own.dtype, np.integer):
        raise ValueError(f"excluded: got {own.dtype} of shape {own.shape}; expected {n_queries} row indices")
    if own.min() < -1 or own.max() >= n_items:
        raise ValueError(
            f"excluded: values from {own.min()} to {own.max()}; expected −1 to {n_items - 1}, the rows of items"
        )
    if n_items == 1 and own.max() == 0:
        raise ValueError("excluded: the only item of the database is excluded; expected at least one more")
    return own.astype(np.int64)


def _pack(labels: Array) -> Codes:
    return np.packbits(labels, axis=1)


def _words(codes: Codes) -> Array:
    return np.require(to_words(codes), requirements=("C", "A"))
