"""Items on disk: the truth that every index is a copy of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.store.base import KINDS as KINDS
    from modalhash.store.base import MAX_REFINEMENT as MAX_REFINEMENT
    from modalhash.store.base import PICTURE_TEXT as PICTURE_TEXT
    from modalhash.store.base import SEARCHED_FIELDS as SEARCHED_FIELDS
    from modalhash.store.base import Key as Key
    from modalhash.store.base import Record as Record
    from modalhash.store.base import Revision as Revision
    from modalhash.store.base import Store as Store
    from modalhash.store.base import StoreAccessError as StoreAccessError
    from modalhash.store.base import StoreBusyError as StoreBusyError
    from modalhash.store.base import StoreError as StoreError
    from modalhash.store.base import StoreFullError as StoreFullError
    from modalhash.store.base import StoreUnavailableError as StoreUnavailableError
    from modalhash.store.base import StoreUncertainError as StoreUncertainError
    from modalhash.store.base import check_storable as check_storable
    from modalhash.store.filters import And as And
    from modalhash.store.filters import Comparison as Comparison
    from modalhash.store.filters import Filter as Filter
    from modalhash.store.filters import FilterError as FilterError
    from modalhash.store.filters import Not as Not
    from modalhash.store.filters import Or as Or
    from modalhash.store.filters import all_of as all_of
    from modalhash.store.filters import any_value as any_value
    from modalhash.store.postgres import PostgresStore as PostgresStore
    from modalhash.store.postgres import drop_schema as drop_schema
    from modalhash.store.sqlite import STORE_FORMAT as STORE_FORMAT
    from modalhash.store.sqlite import SqliteStore as SqliteStore

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "base": [
            "KINDS",
            "MAX_REFINEMENT",
            "PICTURE_TEXT",
            "SEARCHED_FIELDS",
            "Key",
            "Record",
            "Revision",
            "Store",
            "StoreAccessError",
            "StoreBusyError",
            "StoreError",
            "StoreFullError",
            "StoreUnavailableError",
            "StoreUncertainError",
            "check_storable",
        ],
        "filters": ["And", "Comparison", "Filter", "FilterError", "Not", "Or", "all_of", "any_value"],
        "postgres": ["PostgresStore", "drop_schema"],
        "sqlite": ["STORE_FORMAT", "SqliteStore"],
    },
)
