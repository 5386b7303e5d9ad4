from .filters import (
    KINDS as KINDS,
    PICTURE_TEXT as PICTURE_TEXT,
    SEARCHED_FIELDS as SEARCHED_FIELDS,
    And as And,
    Comparison as Comparison,
    Filter as Filter,
    FilterError as FilterError,
    Not as Not,
    Or as Or,
    all_of as all_of,
    any_value as any_value,
)
from .postgres.engines import (
    AuditTable as AuditTable,
    EngineDatabase as EngineDatabase,
    drop_schema as drop_schema,
)
from .postgres.store import PostgresStore as PostgresStore
from .records import (
    MAX_REFINEMENT as MAX_REFINEMENT,
    Key as Key,
    Record as Record,
    Revision as Revision,
    Store as Store,
    StoreAccessError as StoreAccessError,
    StoreBusyError as StoreBusyError,
    StoreError as StoreError,
    StoreFullError as StoreFullError,
    StoreMissingError as StoreMissingError,
    StoreReplacedError as StoreReplacedError,
    StoreUnavailableError as StoreUnavailableError,
    StoreUncertainError as StoreUncertainError,
    check_storable as check_storable,
)
from .sqlite.store import STORE_FORMAT as STORE_FORMAT, SqliteStore as SqliteStore
