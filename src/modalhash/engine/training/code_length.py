"""Choose the code length: the shortest at which items with conflicting labels do not share a code.

A *label set* is the set of labels of an item. Two label sets *conflict* if they share less than half of their labels:
``{activity, medal}`` and ``{activity, needle}`` do, ``{activity}`` and ``{activity, medal}`` do not. They *collide* if
items of both have the same code. An item is *misplaced* if its label set conflicts with the most frequent one of its
code. ``n_bits="auto"`` takes the first of :data:`LENGTHS` that misplaces at most :data:`TOLERANCE` of the training
items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from modalhash.core.progress import Callback, Progress
from modalhash.core.typing import Array, Codes, Matrix

if TYPE_CHECKING:
    from modalhash.methods.base import CrossModalHasher

AUTO = "auto"
LENGTHS = (32, 64, 128, 256)
"""Code lengths in bits that are tried; shorter ones only if there are too few items for 32 bits."""
LENGTH_WITHOUT_LABELS = 64
"""Code length in bits of methods that do not learn from labels."""
TOLERANCE = 0.01
"""Largest accepted fraction of misplaced items."""
_SETS_PER_BLOCK = 256
"""Label sets compared with all others at a time, which bounds memory."""


@dataclass(frozen=True)
class Collisions:
    """How the label sets of training items share codes."""

    label_sets: int
    codes: int
    pairs: int
    """Pairs of label sets that collide."""
    conflicting: int
    """Colliding pairs that share less than half of their labels."""
    disjoint: int
    """Colliding pairs without a common label."""
    misplaced: int
    items: int

    @property
    def matter(self) -> bool:
        """True if more than :data:`TOLERANCE` of the items are misplaced."""
        return self.misplaced > TOLERANCE * self.items

    def to_config(self) -> dict[str, Any]:
        numbers = asdict(self)
        return {"label_sets": numbers.pop("label_sets"), "collisions": numbers}


def count_collisions(codes: Mapping[str, Codes], labels: Mapping[str, Array]) -> Collisions:
    """Count label sets that share a code, over the labelled items of all modalities."""
    all_labels = np.concatenate([labels[modality] for modality in codes])
    labelled = all_labels.any(axis=1)
    all_labels, all_codes = all_labels[labelled], np.concatenate(list(codes.values()))[labelled]
    first_with_set, set_of = _distinct_rows(np.packbits(all_labels, axis=1))
    first_with_code, code_of = _distinct_rows(all_codes)
    n_sets, n_codes = len(first_with_set), len(first_with_code)
    sets = sparse.csr_array(all_labels[first_with_set], dtype=np.int32)
    held, counts = np.unique(code_of * n_sets + set_of, return_counts=True)  # (code, label set) pairs
    code, own = held // n_sets, held % n_sets
    pairs = conflicting = disjoint = 0
    for first, second in _colliding_pairs(code, own, n_codes, n_sets):
        common, union = _overlap(sets, first, second)
        pairs += len(first)
        conflicting += int((2 * common < union).sum())
        disjoint += int((common == 0).sum())
    by_size = np.lexsort((own, -counts, code))  # the most frequent label set of each code comes first
    most_frequent = own[by_size[np.unique(code[by_size], return_index=True)[1]]]
    common, union = _overlap(sets, own, most_frequent[code])
    misplaced = int(counts[2 * common < union].sum())
    return Collisions(n_sets, n_codes, pairs, conflicting, disjoint, misplaced, len(all_labels))


def _distinct_rows(values: Array) -> tuple[Array, Array]:
    """Return the first index of each distinct row of bytes, and the number of the distinct row of each row."""
    rows = np.ascontiguousarray(values).view(f"V{values.shape[1]}")[:, 0]  # much faster than np.unique(axis=0)
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    return first, which


def _colliding_pairs(code: Array, own: Array, n_codes: int, n_sets: int) -> Iterator[tuple[Array, Array]]:
    """Yield the pairs of label sets that have a code in common, each pair once, in blocks."""
    holds = sparse.csr_array((np.ones(len(code), np.int32), (own, code)), shape=(n_sets, n_codes))
    by_code = holds.T.tocsr()
    for start in range(0, n_sets, _SETS_PER_BLOCK):
        first, second = (holds[start : start + _SETS_PER_BLOCK] @ by_code).nonzero()
        first = first + start
        yield first[first < second], second[first < second]


def _overlap(sets: sparse.csr_array, first: Array, second: Array) -> tuple[Array, Array]:
    sizes = sets.sum(axis=1)
    common = np.asarray(sets[first].multiply(sets[second]).sum(axis=1)).ravel()
    return common, sizes[first] + sizes[second] - common


def lengths_to_try(n_label_sets: int, n_items: int) -> list[tuple[int, ...]]:
    """Return code lengths in ascending order, in groups that are fitted together.

    AMSH finds about as many codes as bits, so the first length is the first of which twice reaches the number of label
    sets. If that length alone is smaller than the number of label sets, the next one is fitted with it, because one fit
    of both is cheaper than two. The longest length costs as much as all others together and is tried last and alone.

    Parameters
    ----------
    n_label_sets : number of distinct label sets of the training items
    n_items : number of items of the smallest modality; code lengths stay below it

    Examples
    --------
    >>> lengths_to_try(10, 2000), lengths_to_try(98, 1517), lengths_to_try(14_781, 17_664), lengths_to_try(10, 20)
    ([(32,), (64,), (128,), (256,)], [(64, 128), (256,)], [(128,), (256,)], [(16,)])
    """
    possible = [length for length in LENGTHS if length < n_items] or [longest_below(n_items)]
    enough = [length for length in possible if 2 * length >= n_label_sets or length == LENGTHS[-2]] or possible[-1:]
    lengths = possible[possible.index(enough[0]) :]
    both = len(lengths) > 1 and lengths[0] < n_label_sets and lengths[1] != LENGTHS[-1]
    n_first = 2 if both else 1
    return [tuple(lengths[:n_first]), *((length,) for length in lengths[n_first:])]


def longest_below(n_items: int) -> int:
    """Return the largest power of two below ``n_items``, at least 1."""
    return 1 << max(0, (n_items - 1).bit_length() - 1)


class Fitted(NamedTuple):
    """A fitted method, its collisions (None without labels), and the lengths tried."""

    hasher: CrossModalHasher
    collisions: Collisions | None
    tried: list[int]


def fit_with_length(
    hasher: CrossModalHasher,
    n_bits: int | str,
    features: Mapping[str, Matrix],
    labels: Mapping[str, Array] | None,
    *,
    pairs: Array | None,
    callback: Callback | None,
) -> Fitted:
    """Fit a method with ``n_bits``, or with the shortest sufficient code length if that is "auto"."""
    n_items = min(values.shape[0] for values in features.values())
    if pairs is not None:
        n_items = min(n_items, len(pairs))
    if n_bits == AUTO and labels is None:
        n_bits = min(LENGTH_WITHOUT_LABELS, longest_below(n_items))
    if isinstance(n_bits, int):
        hasher.set_params(n_bits=n_bits).fit(features, labels, pairs=pairs, callback=callback)
        return Fitted(hasher, count_collisions(hasher.codes_, labels) if labels is not None else None, [n_bits])
    assert labels is not None
    n_label_sets = len(_distinct_rows(np.packbits(np.concatenate(list(labels.values())), axis=1))[0])
    tried: list[int] = []
    best: tuple[CrossModalHasher, Collisions] | None = None
    for lengths in lengths_to_try(n_label_sets, n_items):
        for model in _fit_lengths(hasher, lengths, features, labels, pairs, callback):
            tried.append(model.n_bits)
            collisions = count_collisions(model.codes_, labels)
            if best is None or collisions.misplaced < best[1].misplaced:
                best = model, collisions
            if not collisions.matter:
                return Fitted(model, collisions, tried)
    assert best is not None
    return Fitted(*best, tried)


def _fit_lengths(
    hasher: CrossModalHasher,
    lengths: tuple[int, ...],
    features: Mapping[str, Matrix],
    labels: Mapping[str, Array],
    pairs: Array | None,
    callback: Callback | None,
) -> Iterator[CrossModalHasher]:
    """Yield a model of each length; fit them together if the method shares work between lengths."""
    from sklearn.base import clone

    if len(lengths) > 1 and hasher.shares_lengths:
        shown = _with_length(callback, ", ".join(map(str, lengths)))
        yield from hasher.fit_path(features, labels, n_bits=lengths, pairs=pairs, callback=shown).values()
        return
    for length in lengths:
        shown = _with_length(callback, str(length))
        yield clone(hasher).set_params(n_bits=length).fit(features, labels, pairs=pairs, callback=shown)


def _with_length(callback: Callback | None, length: str) -> Callback | None:
    if callback is None:
        return None

    def show(progress: Progress) -> None:
        callback(replace(progress, stage=f"{length} bits: {progress.stage}"))

    return show
