"""Fits on a Dask cluster: rows and features that stay on workers, of which only sums and codes come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.distributed.arrays import any_dask as any_dask
    from modalhash.distributed.arrays import in_memory as in_memory
    from modalhash.distributed.arrays import is_dask as is_dask
    from modalhash.distributed.arrays import lazily as lazily
    from modalhash.distributed.arrays import rows_of as rows_of
    from modalhash.distributed.cluster import ClusterError as ClusterError

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "arrays": ["any_dask", "in_memory", "is_dask", "lazily", "rows_of"],
        "cluster": ["ClusterError"],
    },
)
