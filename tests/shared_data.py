"""Where the real data sets are, for the tests that use them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_data(name: str) -> Path:
    """The folder of a real data set; the test is skipped, with the reason, where it is absent."""
    root = os.environ.get("MODALHASH_DATA")
    folder = (Path(root) if root else Path(__file__).resolve().parents[2] / "shared" / "data") / name
    if not folder.exists():
        pytest.skip(f"real data not present: {folder} (set MODALHASH_DATA to the folder that holds {name!r})")
    return folder
