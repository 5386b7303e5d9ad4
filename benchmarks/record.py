"""Results of a benchmark as JSON, with the machine and the versions that made them."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def environment() -> dict[str, Any]:
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    packages = ("modalhash", "numpy", "scipy", "scikit-learn", "numba")
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def write(name: str, rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    content = {"benchmark": name, "environment": environment(), "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
