"""Dependencies point one way, and importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import modalhash

SOURCE = Path(modalhash.__file__).parent
MAY_IMPORT = {  # a room of the package -> the rooms it may know
    "codes": {"_typing"},
    "kernels": {"_typing"},
    "blocks": {"_typing"},
    "progress": set(),
    "_extras": set(),
    "_files": set(),
    "_lazy": set(),
    "validation": {"_typing", "blocks"},
    "randomness": {"_typing", "blocks"},
    "linalg": {"_typing"},
    "registry": {"base"},  # for types only
    "features": {"_typing", "blocks", "randomness", "validation"},
    "items": {"_typing", "validation"},
    "base": {"items", "_typing", "blocks", "codes", "features", "progress", "validation", "persistence", "evaluation", "data"},
    "persistence": {"_typing", "base", "features", "registry"},
    "methods": {"_typing", "base", "blocks", "codes", "features", "linalg", "progress", "randomness", "validation", "methods", "data"},
    "data": {"_lazy", "_files", "_typing", "_extras", "data", "validation", "progress", "randomness", "blocks"},
    "encoders": {"_lazy", "_files", "_typing", "_extras", "blocks", "data", "encoders", "progress", "validation"},
    "evaluation": {"_lazy", "_typing", "_extras", "blocks", "codes", "evaluation", "kernels", "progress", "validation"},
    "experiments": {"_files", "_lazy", "_typing", "data", "evaluation", "experiments", "progress", "registry", "validation"},
    "index": {"_lazy", "_typing", "_extras", "codes", "index", "kernels", "validation"},
    "store": {"_lazy", "_typing", "codes", "store", "validation"},
    "engine": {"_lazy", "_typing", "__version__", "base", "codes", "data", "encoders", "engine", "index", "persistence", "progress", "registry", "store", "validation"},
    "serve": {"__version__", "_extras", "codes", "engine", "serve", "store"},
}  # fmt: skip


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "modalhash":
            if node.module == "modalhash":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("modalhash."))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_dependencies_point_one_way(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    known = set(imports(path))
    if room in MAY_IMPORT:
        assert known <= MAY_IMPORT[room], f"{room} must not know {known - MAY_IMPORT[room]}"
    else:
        assert room in {"__init__", "_typing", "cli"}, f"say in MAY_IMPORT what {room!r} may import"
    if room != "cli":
        assert "cli" not in known, "nobody knows the command line"
    if room not in {"cli", "serve"}:
        assert "serve" not in known, "only the command line knows the service"


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_loads_nothing_heavy():
    assert not loaded_by("import modalhash") & {"numba", "sklearn", "scipy", "h5py", "matplotlib", "rich"}
    assert not loaded_by("import modalhash.cli") & {
        "numba",
        "sklearn",
        "h5py",
        "matplotlib",
        "PIL",
        "fastapi",
        "uvicorn",
    }
    assert not loaded_by("from modalhash import AMSH") & {"numba", "h5py", "matplotlib", "typer"}
