"""An index by the name of its backend."""

from __future__ import annotations

from modalhash.index.base import Index
from modalhash.index.faiss import FaissIndex
from modalhash.index.hamming import HammingIndex
from modalhash.validation import check_choice

BACKENDS = ("exact", "clusters", "faiss-ivf")


def make_index(n_bits: int, *, backend: str = "exact", n_threads: int | None = None) -> Index:
    """Return an empty index.

    Parameters
    ----------
    n_bits : int
        Length of the codes.
    backend : {"exact", "clusters", "faiss-ivf"}
        :class:`~modalhash.index.hamming.HammingIndex`; the same with clusters, as exact and faster from some hundred
        thousand codes on that lie around centres; or :class:`~modalhash.index.faiss.FaissIndex` for many millions of
        codes (extra ``faiss``), which answers exactly until its ``build()`` is called.
    n_threads : int, optional
        Threads of one large exact search.
    """
    check_choice(backend, "backend", BACKENDS)
    if backend == "faiss-ivf":
        return FaissIndex(n_bits, n_threads=n_threads)
    return HammingIndex(n_bits, n_threads=n_threads, clusters=backend == "clusters")
