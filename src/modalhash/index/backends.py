"""What every index does, and the indexes there are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from modalhash._typing import Array, Codes
from modalhash.index.hits import Hits
from modalhash.validation import check_choice

BACKENDS = ("exact", "faiss-ivf")


class SearchIndex(Protocol):
    """The interface of :class:`~modalhash.index.index.HammingIndex`, which documents it."""

    n_bits: int

    def __len__(self) -> int: ...
    @property
    def groups(self) -> dict[int, int]: ...
    def contains(self, ids: Any) -> Array: ...
    def add(self, ids: Any, codes: Codes, *, group: Any = 0, replace: bool = False) -> None: ...
    def remove(self, ids: Any, *, missing: str = "error") -> int: ...
    def search(
        self,
        query_codes: Codes,
        k: int | None = None,
        *,
        radius: int | None = None,
        ids: Any = None,
        group: int | Collection[int] | None = None,
    ) -> Hits: ...


def make_index(n_bits: int, *, backend: str = "exact", n_threads: int | None = None) -> SearchIndex:
    """An empty index: ``"exact"``, or ``"faiss-ivf"`` for many millions of codes (extra ``faiss``).

    The second answers exactly until its ``build()`` is called.
    """
    check_choice(backend, "backend", BACKENDS)
    if backend == "exact":
        from modalhash.index.index import HammingIndex

        return HammingIndex(n_bits, n_threads=n_threads)
    from modalhash.index.faiss_index import FaissIndex

    return FaissIndex(n_bits, n_threads=n_threads)
