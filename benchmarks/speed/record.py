"""Results of a benchmark as JSON, with the machine and the versions that made them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
AS_INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Environment variables for measuring how long a process takes to start, with compiled modules kept as usual."""


def processor() -> str:
    """Return the name of the processor, with family and model, because virtual machines shorten names."""
    if not Path("/proc/cpuinfo").exists():
        return platform.processor()
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    facts = {name.strip(): value.strip() for name, _, value in lines}
    name = facts.get("model name") or platform.processor()
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else name


def environment() -> dict[str, Any]:
    packages = ("modalhash", "numpy", "scipy", "scikit-learn", "numba")
    versions = {name: version(name) for name in packages}
    if "faiss" in sys.modules:
        versions["faiss-cpu"] = version("faiss-cpu")
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": round(os.getloadavg()[0], 1),
    }


def commit() -> str:
    """The commit that was measured, and "changed" if the sources are no longer those; empty outside of git."""
    root = Path(find_spec("modalhash").origin).parents[2]

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (", changed" if git("status", "--porcelain", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def write(name: str, rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    content = {"benchmark": name, "environment": environment(), "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
