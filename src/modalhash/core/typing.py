"""Type aliases used across the package, and the test for sparse arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Codes: TypeAlias = npt.NDArray[np.uint8]
Matrix: TypeAlias = Any
"""A validated 2-D float array or canonical CSR array (scipy.sparse has no types)."""

T = TypeVar("T")
PerModality: TypeAlias = T | Mapping[str, T]
"""One value for all modalities, or a mapping by modality name."""


def is_sparse(values: Any) -> bool:
    """Return whether values are a sparse array or matrix of scipy.

    Loading ``scipy.sparse`` takes a third of a command that only reads an engine, so it is loaded when the first sparse
    array is made: with ``import scipy``, by the first use of ``scipy.sparse``.
    """
    test = getattr(sys.modules.get("scipy.sparse"), "issparse", None)
    return test is not None and bool(test(values))
