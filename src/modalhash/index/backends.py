"""An index by the name of its backend."""

from __future__ import annotations

from modalhash.index.base import Index
from modalhash.index.faiss import FaissIndex
from modalhash.index.hamming import HammingIndex
from modalhash.validation import check_choice

BACKENDS = ("exact", "faiss-ivf")


def make_index(n_bits: int, *, backend: str = "exact", n_threads: int | None = None) -> Index:
    """Return an empty index.

    Parameters
    ----------
    n_bits : int
        Length of the codes.
    backend : {"exact", "faiss-ivf"}
        :class:`~modalhash.index.hamming.HammingIndex`, or :class:`~modalhash.index.faiss.FaissIndex` for many millions
        of codes (extra ``faiss``), which answers exactly until its ``build()`` is called.
    n_threads : int, optional
        Threads of one large exact search.
    """
    check_choice(backend, "backend", BACKENDS)
    return (HammingIndex if backend == "exact" else FaissIndex)(n_bits, n_threads=n_threads)
