"""Codes in memory, searched exactly by Hamming distance; vectors by item.

Importing this package does not load numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.index._kernel_use import prefer_kernels as prefer_kernels
    from modalhash.index._scan import merge_sources as merge_sources
    from modalhash.index._sections import SnapshotError as SnapshotError
    from modalhash.index.base import Hits as Hits
    from modalhash.index.base import Index as Index
    from modalhash.index.hamming import HammingIndex as HammingIndex
    from modalhash.index.sharded import FanOut as FanOut
    from modalhash.index.sharded import ShardedHits as ShardedHits
    from modalhash.index.sharded import ShardedIndex as ShardedIndex
    from modalhash.index.sharded import ShardError as ShardError
    from modalhash.index.snapshot import Frozen as Frozen
    from modalhash.index.snapshot import Snapshot as Snapshot
    from modalhash.index.snapshot import freeze as freeze
    from modalhash.index.snapshot import read_snapshot_facts as read_snapshot_facts
    from modalhash.index.snapshot import write_snapshot as write_snapshot
    from modalhash.index.vectors import FoundRows as FoundRows
    from modalhash.index.vectors import VectorTable as VectorTable

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "_kernel_use": ["prefer_kernels"],
        "_scan": ["merge_sources"],
        "_sections": ["SnapshotError"],
        "base": ["Hits", "Index"],
        "hamming": ["HammingIndex"],
        "sharded": ["FanOut", "ShardError", "ShardedHits", "ShardedIndex"],
        "snapshot": ["Frozen", "Snapshot", "freeze", "read_snapshot_facts", "write_snapshot"],
        "vectors": ["FoundRows", "VectorTable"],
    },
)
