"""Several indexes searched as one: every search queries all shards concurrently and merges their hits exactly.

A shard is any object with the methods of an index, in this process or behind a network. Ids are unique across shards,
so (distance, id) orders all hits as in one index of all items. A shard that cannot be reached raises OSError (which
ConnectionError and TimeoutError are). The result is then an error or names the missing shards; it is never silently
incomplete.
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
"""Ways to treat an unreachable shard."""
_THREADS_PER_SHARD = 8  # concurrent requests to a shard
_FAR = np.iinfo(np.int32).max


class ShardError(ConnectionError):
    """Some shards did not answer; ``reasons`` maps the name of each to its error."""

    def __init__(self, reasons: Mapping[str, str], n_shards: int) -> None:
        self.reasons = dict(reasons)
        first, why = next(iter(self.reasons.items()))
        super().__init__(
            f"{len(self.reasons)} of {n_shards} shards did not answer (first: {first}: {why}). Try again, or allow "
            "answers without them: missing='partial' (--partial)"
        )


@dataclass(frozen=True)
class ShardedHits(Hits):
    """Hits of several shards; ``missing`` names the shards that did not answer, whose items are not included."""

    missing: tuple[str, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether items that may be nearer are missing."""
        return bool(self.missing)


class FanOut(Generic[Shard]):
    """Queries several named shards concurrently."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        if not shards:
            raise ValueError("got no shards; expected at least one")
        self.shards = dict(shards)
        self._pool = ThreadPoolExecutor(_THREADS_PER_SHARD * len(self.shards), thread_name_prefix="shard")

    def ask(
        self, question: Callable[[Shard], Answer], *, missing: str = "error"
    ) -> tuple[dict[str, Answer], tuple[str, ...]]:
        """Return the answers by name, in the order of the shards, and the names of unreachable shards.

        An unreachable shard raises :class:`ShardError`, unless ``missing`` is "partial" and another shard answers. Any
        other error is raised unchanged.
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
        """Stop the threads after their current work."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class ShardedIndex:
    """An :class:`~modalhash.index.Index` of several shards, with the hits of a single index.

    Parameters
    ----------
    shards : sequence of Index
        Indexes of codes of the same length, possibly filled, without common ids. A shard on another machine is an
        object with the same methods that raises OSError when it cannot be reached.
    missing : {"error", "partial"}
        How a search treats an unreachable shard: raise :class:`ShardError`, or omit its items and name it in
        :attr:`ShardedHits.missing`. Everything else needs all shards.

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
        """Stop the threads; the shards are not closed."""
        self._fan_out.close()

    @property
    def groups(self) -> dict[int, int]:
        total: dict[int, int] = {}
        for own in self._every(lambda shard: shard.groups):
            for group, n in own.items():
                total[group] = total.get(group, 0) + n
        return dict(sorted(total.items()))

    def contains(self, ids: Any) -> Array:
        numbers = check_ids(ids)
        present: Array = np.any(self._every(lambda shard: shard.contains(numbers)), axis=0)
        return present

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items, each to the shard given by its id modulo the number of shards.

        If an id is in any shard already, ValueError is raised and nothing is added; with ``replace`` it is removed
        there.
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
        """Search all shards; parameters are those of :meth:`HammingIndex.search`."""
        answers, missing = self._fan_out.ask(
            lambda shard: shard.search(query_codes, k, radius=radius, ids=ids, group=group), missing=self.missing
        )
        parts = list(answers.values())
        merged = _merge_flat(parts) if k is None else _merge_rows(parts, check_int(k, "k", at_least=1))
        return ShardedHits(merged.ids, merged.distances, merged.offsets, missing)

    def shortlist(
        self, query_codes: Codes, k: int, *, max_hits: int, ids: Any = None, group: int | Collection[int] | None = None
    ) -> ShardedHits:
        answers, missing = self._fan_out.ask(
            lambda shard: shard.shortlist(query_codes, k, max_hits=max_hits, ids=ids, group=group), missing=self.missing
        )
        merged = cut_ties(_merge_flat(list(answers.values())), k, max_hits)
        return ShardedHits(merged.ids, merged.distances, merged.offsets, missing)

    def distances(self, query_code: Codes, ids: Any, *, group: int | Collection[int] | None = None) -> Array:
        numbers = check_ids(ids)
        found: Array = np.max(self._every(lambda shard: shard.distances(query_code, numbers, group=group)), axis=0)
        return found

    def _every(self, question: Callable[[Index], Answer]) -> list[Answer]:
        return list(self._fan_out.ask(question)[0].values())


def _merge_rows(parts: list[Hits], k: int) -> Hits:
    rows = [(part.ids, np.where(part.distances == PADDING, _FAR, part.distances)) for part in parts]
    merged = merge_nearest(rows, len(parts[0]), k, ordered=False)
    padding = merged.distances == _FAR
    ids, distances = np.where(padding, PADDING, merged.ids), np.where(padding, PADDING, merged.distances)
    _check_distinct((ids[:, 1:] == ids[:, :-1]) & ~padding[:, 1:], ids[:, 1:])
    return Hits(ids, distances)


def _merge_flat(parts: list[Hits]) -> Hits:
    flat = [(part.ids, part.distances, part.offsets) for part in parts if part.offsets is not None]
    merged = merge_within(flat, len(parts[0]))
    assert merged.offsets is not None
    again = merged.ids[1:] == merged.ids[:-1]
    borders = merged.offsets[(merged.offsets > 0) & (merged.offsets < len(merged.ids))] - 1
    again[borders] = False  # equal ids of different queries are not duplicates
    _check_distinct(again, merged.ids[1:])
    return merged


def _check_distinct(again: Array, ids: Array) -> None:
    """Raise if two shards returned the same id."""
    if again.any():
        raise ValueError(f"two shards hold the id {ids[again][0]}; ids must be unique across shards")
