"""Items on disk: the truth that every index is a copy of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.store.database import StoreBusyError as StoreBusyError
    from modalhash.store.database import StoreError as StoreError
    from modalhash.store.database import StoreFullError as StoreFullError
    from modalhash.store.records import KINDS as KINDS
    from modalhash.store.records import Record as Record
    from modalhash.store.store import Revision as Revision
    from modalhash.store.store import Store as Store

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "database": ["StoreBusyError", "StoreError", "StoreFullError"],
        "records": ["KINDS", "Record"],
        "store": ["Revision", "Store"],
    },
)
