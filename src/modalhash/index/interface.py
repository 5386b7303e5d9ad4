"""The ``Index`` protocol."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from modalhash.core.typing import Array, Codes
from modalhash.index.scan import Hits


class IndexUnavailableError(RuntimeError):
    """The index cannot be searched now; the message gives the reason. Trying again later may help."""


class Index(Protocol):
    """Packed codes in memory, searched by Hamming distance.

    Items are int64 ids with a code and a group, a small integer such as the number of their modality. Hits are ordered
    by (distance, id). Searches may run in several threads, concurrently with additions and removals.
    :class:`~modalhash.index.HammingIndex` documents the parameters.
    """

    n_bits: int

    def __len__(self) -> int: ...

    @property
    def groups(self) -> dict[int, int]:
        """Number of items in each non-empty group."""

    def contains(self, ids: Any) -> Array:
        """Return for each id whether it is in the index."""

    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None:
        """Add items; if an id is in the index and ``replace`` is false, raise and add nothing."""

    def remove(self, ids: Any, *, missing: str = "error") -> int:
        """Remove items and return how many; an unknown id raises unless ``missing="ignore"``."""

    def search(
        self,
        query_codes: Codes,
        k: int | None = None,
        *,
        radius: int | None = None,
        ids: Any = None,
        group: int | Collection[int] | None = None,
    ) -> Hits:
        """Return the k nearest items of each query, or all within a radius."""

    def shortlist(
        self, query_codes: Codes, k: int, *, max_hits: int, ids: Any = None, group: int | Collection[int] | None = None
    ) -> Hits:
        """Return the k nearest items of each query and all ties with the k-th, at most ``max_hits``."""

    def distances(self, query_code: Codes, ids: Any, *, group: int | Collection[int] | None = None) -> Array:
        """Return the distances of some items from one query; -1 for unknown ids."""
