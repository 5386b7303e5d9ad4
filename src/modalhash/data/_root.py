"""The folder that holds the data sets."""

from __future__ import annotations

import os
from pathlib import Path


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder that holds the data sets: the argument, ``$MODALHASH_DATA``, or ``./data``."""
    return Path(root or os.environ.get("MODALHASH_DATA") or "data")
