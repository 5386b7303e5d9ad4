"""Codes in memory: an exact index by Hamming distance, and an approximate one for many millions.

Importing this package loads neither numba nor faiss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.index.backends import SearchIndex as SearchIndex
    from modalhash.index.backends import make_index as make_index
    from modalhash.index.faiss_index import FaissIndex as FaissIndex
    from modalhash.index.hits import Hits as Hits
    from modalhash.index.index import HammingIndex as HammingIndex

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "backends": ["SearchIndex", "make_index"],
        "faiss_index": ["FaissIndex"],
        "hits": ["Hits"],
        "index": ["HammingIndex"],
    },
)
