from .arrays import (
    ClusterError as ClusterError,
    any_dask as any_dask,
    in_memory as in_memory,
    is_dask as is_dask,
    lazily as lazily,
    rows_of as rows_of,
)
