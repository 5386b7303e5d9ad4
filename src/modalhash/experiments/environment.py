"""What seconds and last digits depend on: versions, BLAS, machine, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "BLIS_NUM_THREADS")
"""Set to 1 in every worker: two processes with two threads each on two cores are slower than two with one."""
PACKAGES = ("modalhash", "numpy", "scipy", "scikit-learn", "numba")


def describe_environment() -> dict[str, Any]:
    """Describe the process that calls it."""
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "blas": sorted({f"{pool['internal_api']} {pool['version']}" for pool in pools}),
        "threads": max((pool["num_threads"] for pool in pools), default=1),
        "commit": _commit(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str | None:
    """Return the commit of the repository that the package runs from, with a + where its source was changed since.

    Elsewhere ``$MODALHASH_COMMIT``, for those who run a copy and know which; or None.
    """
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=here, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # an installed package may lie inside somebody else's repository
    if git("ls-files", "--error-unmatch", "../registry.py") is None:
        return os.environ.get("MODALHASH_COMMIT")
    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit}+" if commit and git("status", "--porcelain", "--untracked-files=no", "..") else commit
