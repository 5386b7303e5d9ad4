"""Several indexes searched as one: every search asks all of them at once, and what they find is merged exactly.

A shard is any object with the methods of an index, in this process or behind a network. Ids are unique across shards;
the hits are then those of one index of all items, ties included, because (distance, id) orders them everywhere. A shard
that cannot be reached raises OSError (which ConnectionError and TimeoutError are). The answer is then an error, or it
names who is missing: it is never a shorter one that looks whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_choice, check_int
from modalhash.index.interface import (
    PADDING,
    Hits,
    Index,
    check_groups,
    check_ids,
    cut_ties,
    distinct_ids,
    merge_nearest,
    merge_within,
)

Shard = TypeVar("Shard")
Answer = TypeVar("Answer")

MISSING = ("error", "partial")
"""What a shard that cannot be reached makes of an answer."""
_THREADS_PER_SHARD = 8  # searches that ask a shard at the same time; more wait
_FAR = np.iinfo(np.int32).max


class ShardError(ConnectionError):
    """Shards did not answer, so there is no whole answer; ``reasons`` has why, by the name of the shard."""

    def __init__(self, reasons: Mapping[str, str], n_shards: int) -> None:
        self.reasons = dict(reasons)
        first, why = next(iter(self.reasons.items()))
        super().__init__(
            f"{len(self.reasons)} of {n_shards} shards did not answer (first: {first}: {why}). Try again, or allow "
            "answers without them: missing='partial' (--partial)"
        )


@dataclass(frozen=True)
class ShardedHits(Hits):
    """Hits of several shards; ``missing`` names those that did not answer, whose items are not among the hits."""

    missing: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether items are missing that might be nearer."""
        return bool(self.missing)


class FanOut(Generic[Shard]):
    """Asks several shards, which have names, at once."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        if not shards:
            raise ValueError("there are no shards; give at least one")
        self.shards = dict(shards)
        self._pool = ThreadPoolExecutor(_THREADS_PER_SHARD * len(self.shards), thread_name_prefix="shard")

    def ask(
        self, question: Callable[[Shard], Answer], *, missing: str = "error"
    ) -> tuple[dict[str, Answer], tuple[str, ...]]:
        """Return the answers by name, in the order of the shards, and the names of those that could not be reached.

        Unless ``missing`` is "partial", or if no shard answers, one that could not be reached raises
        :class:`ShardError`. Any other error, such as one about the question, is raised as it is.
        """
        futures = {name: self._pool.submit(question, shard) for name, shard in self.shards.items()}
        answers, reasons = {}, {}
        for name, future in futures.items():
            try:
                answers[name] = future.result()
            except OSError as error:
                reasons[name] = str(error) or type(error).__name__
        if reasons and (missing == "error" or not answers):
            raise ShardError(reasons, len(self.shards))
        return answers, tuple(reasons)

    def close(self) -> None:
        """End the threads when their work is done."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class ShardedIndex:
    """An :class:`~modalhash.index.Index` made of several, with the hits of a single one.

    Parameters
    ----------
    shards : sequence of Index
        Indexes of codes of the same length, no two of which hold the same id; they may hold items already. One that is
        on another machine is an object with the same methods, which raises OSError when it cannot be reached.
    missing : {"error", "partial"}
        What a shard that cannot be reached does to a search: raise :class:`ShardError`, or leave its items out, which
        the answer then says (:attr:`ShardedHits.missing`). Everything else needs all shards.

    Examples
    --------
    >>> from modalhash.index import HammingIndex
    >>> index = ShardedIndex([HammingIndex(8), HammingIndex(8)])
    >>> index.add([1, 2, 3], np.array([[7], [3], [5]], dtype=np.uint8))
    >>> hits = index.search(np.array([[7]], dtype=np.uint8), k=2)
    >>> hits.ids.tolist(), hits.distances.tolist(), hits.partial
    ([[1, 2]], [[0, 1]], False)
    >>> [len(shard) for shard in index.shards]
    [1, 2]
    """

    def __init__(self, shards: Sequence[Index], *, missing: str = "error") -> None:
        self.shards = list(shards)
        names = [str(getattr(shard, "name", f"shard {number}")) for number, shard in enumerate(self.shards)]
        if len(set(names)) < len(names):
            raise ValueError(f"two shards have the same name: {', '.join(names)}")
        self.missing = check_choice(missing, "missing", MISSING)
        self._fan_out = FanOut(dict(zip(names, self.shards, strict=True)))
        lengths = {shard.n_bits for shard in self.shards}
        if len(lengths) > 1:
            raise ValueError(f"the shards hold codes of {sorted(lengths)} bits; expected one length")
        self.n_bits = lengths.pop()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(self._every(len))

    def __repr__(self) -> str:
        return f"ShardedIndex of {len(self.shards)}, n_bits={self.n_bits}"

    def close(self) -> None:
        """End the threads; the shards stay as they are."""
        self._fan_out.close()

    @property
    def groups(self) -> dict[int, int]:
        """The number of items in each group that has any."""
        total: dict[int, int] = {}
        for own in self._every(lambda shard: shard.groups):
            for group, n in own.items():
                total[group] = total.get(group, 0) + n
        return dict(sorted(total.items()))

    def contains(self, ids: Any) -> Array:
        """Return for each id whether it is in one of the shards."""
        numbers = check_ids(ids)
        present: Array = np.any(self._every(lambda shard: shard.contains(numbers)), axis=0)
        return present

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items: an id goes to the shard of its remainder, so that shards that are filled here stay of one size.

        One that is in any shard already raises, and then nothing is added; with ``replace`` it leaves that shard.
        """
        numbers = check_ids(ids)
        groups = check_groups(group, len(numbers))
        codes = np.asarray(codes)
        if len(distinct_ids(numbers)) < len(numbers) or len(codes) != len(numbers):
            raise ValueError(f"ids: {len(numbers)} for {len(codes)} codes; expected one for each, and none twice")
        home = numbers % len(self.shards)
        with self._lock:
            if replace:
                self.remove(numbers, missing="ignore")
            elif len(known := numbers[self.contains(numbers)]):
                raise ValueError(
                    f"ids: {len(known)} of {len(numbers)} are in the index already (first: {known[0]}); nothing was "
                    "added. Pass replace=True to give them the new codes"
                )
            for number, shard in enumerate(self.shards):
                own = home == number
                shard.add(numbers[own], codes[own], group=groups[own])

    def remove(self, ids: Any, *, missing: str = "error") -> int:
        """Remove items and return how many; an unknown id raises unless ``missing="ignore"``."""
        check_choice(missing, "missing", ("error", "ignore"))
        numbers = distinct_ids(ids)
        if missing == "error" and len(unknown := numbers[~self.contains(numbers)]):
            raise ValueError(
                f"ids: {len(unknown)} of {len(numbers)} are not in the index (first: {unknown[0]}); nothing was "
                "removed. Pass missing='ignore' to remove the others"
            )
        return sum(self._every(lambda shard: shard.remove(numbers, missing="ignore")))

    def search(
        self,
        query_codes: Codes,
        k: int | None = None,
        *,
        radius: int | None = None,
        ids: Any = None,
        group: int | Collection[int] | None = None,
    ) -> ShardedHits:
        """Return the k nearest items of each query, or all within a radius: those of one index of all items.

        Parameters are those of :meth:`HammingIndex.search`.
        """
        answers, missing = self._fan_out.ask(
            lambda shard: shard.search(query_codes, k, radius=radius, ids=ids, group=group), missing=self.missing
        )
        parts = list(answers.values())
        merged = _merge_flat(parts) if k is None else _merge_rows(parts, check_int(k, "k", at_least=1))
        return ShardedHits(merged.ids, merged.distances, merged.offsets, missing)

    def shortlist(
        self, query_codes: Codes, k: int, *, max_hits: int, ids: Any = None, group: int | Collection[int] | None = None
    ) -> ShardedHits:
        """Return the k nearest items of each query and all that are as near as the k-th, at most ``max_hits``."""
        answers, missing = self._fan_out.ask(
            lambda shard: shard.shortlist(query_codes, k, max_hits=max_hits, ids=ids, group=group), missing=self.missing
        )
        merged = cut_ties(_merge_flat(list(answers.values())), k, max_hits)
        return ShardedHits(merged.ids, merged.distances, merged.offsets, missing)

    def distances(self, query_code: Codes, ids: Any, *, group: int | Collection[int] | None = None) -> Array:
        """Return the distance of each of some items from one query; -1 for ids that are in no shard."""
        numbers = check_ids(ids)
        found: Array = np.max(self._every(lambda shard: shard.distances(query_code, numbers, group=group)), axis=0)
        return found

    def _every(self, question: Callable[[Index], Answer]) -> list[Answer]:
        return list(self._fan_out.ask(question)[0].values())


def _merge_rows(parts: list[Hits], k: int) -> Hits:
    """Return the k nearest of several parts for each query."""
    rows = [(part.ids, np.where(part.distances == PADDING, _FAR, part.distances)) for part in parts]
    merged = merge_nearest(rows, len(parts[0]), k, ordered=False)
    padding = merged.distances == _FAR
    ids, distances = np.where(padding, PADDING, merged.ids), np.where(padding, PADDING, merged.distances)
    _check_distinct((ids[:, 1:] == ids[:, :-1]) & ~padding[:, 1:], ids[:, 1:])
    return Hits(ids, distances)


def _merge_flat(parts: list[Hits]) -> Hits:
    """Return the hits of several parts together, each given flat with offsets."""
    flat = [(part.ids, part.distances, part.offsets) for part in parts if part.offsets is not None]
    merged = merge_within(flat, len(parts[0]))
    assert merged.offsets is not None
    again = merged.ids[1:] == merged.ids[:-1]
    borders = merged.offsets[(merged.offsets > 0) & (merged.offsets < len(merged.ids))] - 1
    again[borders] = False  # the first of a query may be the last of the one before
    _check_distinct(again, merged.ids[1:])
    return merged


def _check_distinct(again: Array, ids: Array) -> None:
    """Raise if an id was found by two shards: both would count."""
    if again.any():
        raise ValueError(f"two shards hold the id {ids[again][0]}; ids must be unique across shards")
