from .hamming import HammingIndex as HammingIndex
from .interface import Index as Index, IndexUnavailableError as IndexUnavailableError
from .milvus import MilvusIndex as MilvusIndex
from .milvus_collection import (
    CollectionGoneError as CollectionGoneError,
    Milvus as Milvus,
    MilvusCollection as MilvusCollection,
    Reached as Reached,
)
from .milvus_view import MilvusView as MilvusView
from .scan import Hits as Hits, merge_sources as merge_sources
from .snapshot import (
    Frozen as Frozen,
    Snapshot as Snapshot,
    SnapshotError as SnapshotError,
    freeze as freeze,
    read_snapshot_facts as read_snapshot_facts,
    write_snapshot as write_snapshot,
)
from .vectors import FoundRows as FoundRows, VectorTable as VectorTable, largest as largest
