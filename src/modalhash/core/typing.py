"""Type names used across the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Codes: TypeAlias = npt.NDArray[np.uint8]
Matrix: TypeAlias = Any
"""What validation hands on: a 2-D float array or a canonical CSR array (scipy.sparse carries no types)."""

T = TypeVar("T")
PerModality: TypeAlias = "T | Mapping[str, T]"
"""One value for all modalities, or a mapping by modality name."""
