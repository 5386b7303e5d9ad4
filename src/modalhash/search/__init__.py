"""Search: an exact index in memory, a durable store, and an approximate index for many millions.

Names are loaded when first used: importing this package loads neither numba nor sqlite3 nor faiss.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalhash.search.backends import make_index as make_index
    from modalhash.search.faiss_index import FaissIndex as FaissIndex
    from modalhash.search.hits import Hits as Hits
    from modalhash.search.index import HammingIndex as HammingIndex
    from modalhash.search.records import Record as Record
    from modalhash.search.store import Position as Position
    from modalhash.search.store import Store as Store
    from modalhash.search.store import StoreError as StoreError
    from modalhash.search.sync import refresh as refresh

_NAMES = {
    "backends": ("make_index",),
    "faiss_index": ("FaissIndex",),
    "hits": ("Hits",),
    "index": ("HammingIndex",),
    "records": ("Record",),
    "store": ("Position", "Store", "StoreError"),
    "sync": ("refresh",),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
