"""Type aliases used across the package."""

from __future__ import annotations

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
