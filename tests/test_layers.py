"""Dependencies point one way, between rooms and inside them, and importing is cheap.

A room is a package of modalhash, or a module at its top.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import modalhash

SOURCE = Path(modalhash.__file__).parent
MAY_IMPORT = {  # a room -> the other rooms it may know, every one of which it does
    "audit": set(),
    "_archives": set(),
    "_config": set(),
    "_decoding": {"_typing"},
    "_files": set(),
    "_imports": set(),
    "_lazy": set(),
    "_parallel": set(),
    "_typing": set(),
    "progress": set(),
    "codes": {"_typing"},
    "kernels": {"_typing"},
    "linalg": {"_typing"},
    "blocks": {"_parallel", "_typing"},
    "frames": {"_imports", "_typing"},
    "origins": {"_typing"},
    "validation": {"_typing", "blocks", "frames", "origins"},
    "randomness": {"_typing", "blocks"},
    "features": {"_typing", "blocks", "randomness", "validation"},
    "kernel_choice": {"_parallel", "_typing", "features", "linalg", "randomness", "validation"},
    "items": {"_typing", "validation"},
    "distributed": {"_imports", "_lazy", "_typing", "base", "blocks", "validation"},  # base for types only
    "registry": {"_imports", "base"},  # base for types only
    "persistence": {"_config", "_files", "_typing", "base", "distributed", "features", "registry", "validation"},  # base for types only
    "base": {"_typing", "blocks", "codes", "distributed", "evaluation", "features", "items", "persistence", "progress", "validation"},
    "methods": {"_imports", "_parallel", "_typing", "base", "blocks", "codes", "evaluation", "features", "items", "kernel_choice", "linalg", "progress", "randomness", "validation"},
    "data": {"_decoding", "_files", "_imports", "_lazy", "_typing", "blocks", "frames", "origins", "progress", "validation"},
    "evaluation": {"_imports", "_lazy", "_typing", "blocks", "codes", "kernels", "validation"},
    "encoders": {"_archives", "_config", "_decoding", "_files", "_imports", "_lazy", "_typing", "blocks", "data", "kernels", "progress", "validation"},
    "index": {"_files", "_lazy", "_parallel", "_typing", "codes", "kernels", "validation"},
    "store": {"_imports", "_lazy", "_typing", "codes", "validation"},
    "client": {"index", "validation"},
    "engine": {"_archives", "_config", "_decoding", "_files", "_imports", "_lazy", "_parallel", "_typing", "base", "blocks", "codes", "data", "encoders", "evaluation", "features", "frames", "index", "linalg", "persistence", "progress", "randomness", "registry", "store", "validation"},
    "experiments": {"_config", "_files", "_imports", "_lazy", "_typing", "data", "evaluation", "progress", "registry", "validation"},
    "serve": {"_archives", "_decoding", "_files", "_imports", "_lazy", "audit", "engine", "store"},
}  # fmt: skip
TOPMOST = "cli"  # knows every room, and no room knows it
FLOORS = {  # a room -> its modules from the ground up; a module knows only those on lower floors
    "data": [
        "_checks _errors _root labels pictures principal_components",
        "dataset formats._found formats.table_format limits shards",
        "formats._child formats._variables formats.arrow formats.excel formats.matlab formats.npz scenarios sets._official synthetic",
        "_layouts formats.foreign formats.hdf5 write",
        "_assemble formats.table_files",
        "formats.manifest",
        "feature_tables",
        "_read sets.nuswide",
        "catalog sets.wiki",
        "sets._features_file sets.iapr sets.openmoji",
        "sets.iapr255 sets.mirflickr",
    ],
    "distributed": ["cluster", "parts", "arrays"],
    "encoders": [
        "_efficientnet _gist_kernels _nouns _picture_kernels _row_cache _torch_file _transformers base names quality",
        "_pictures _weights encode lookup precomputed text",
        "_word_senses huggingface image picture_reader",
        "semantic",
        "combined neural",
    ],
    "engine": [
        "_code_length _filter_check _urls code_use feature_cache folder_names item_files meaning named_labels reliability same_pictures source_items words",
        "picture_folders picture_text query refinement source_lines",
        "exif photo_tables photo_words",
        "sources",
        "code_files feedback label_check listing ordering tar_samples",
        "confidence encoding",
        "_training_cost answer encode_run expected folder",
        "picture_prints place",
        "archive index_snapshot ingest splitting",
        "checkup",
        "learning near_duplicates relabelling",
        "training",
        "folder_sync retraining source_check unique_hits",
        "engine",
        "report",
    ],
    "evaluation": [
        "ranking significance tables",
        "precision protocol trec",
        "curves runs",
        "result",
        "figures measures",
        "retrieval",
        "databases",
    ],
    "experiments": [
        "environment parameters provenance timing",
        "comparison inputs",
        "config tuning",
        "cells measure",
        "results",
        "grid_report run",
    ],
    "index": [
        "_kernel_use _sections base",
        "_layout",
        "_bucket_kernels _changing_tables _cluster_kernels _hit_kernels _numpy_search _planes _vector_kernels sharded",
        "_chunk_kernels",
        "_kernels",
        "_scan vectors",
        "_group_tables",
        "clusters multi_index",
        "hamming",
        "snapshot",
    ],
    "serve": [
        "batching clients monitoring",
        "access_tokens seats settings",
        "connections errors schemas",
        "http media openapi pages searcher uploads",
        "service",
        "routes_duplicates routes_items routes_search routes_state",
        "app",
        "server",
        "workers",
    ],
    "store": [
        "filters",
        "_filter_sql _postgres_copy _postgres_filters base",
        "_labels _postgres_connections _words",
        "_postgres_words _sqlite_schema",
        "_sqlite_rows",
        "_sqlite_open",
        "sqlite",
        "postgres",
    ],
}
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")  # the latter is the command line by another name
}
PACKAGES = {".".join(path.parent.relative_to(SOURCE).parts): path for path in sorted(SOURCE.rglob("*/__init__.py"))}


def imports(path: Path, *, for_types: bool = True) -> set[str]:
    """What a file imports of modalhash: modules, or packages where it takes a name from one."""
    found = set()

    def visit(node: ast.AST) -> None:
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(a.name.removeprefix("modalhash.") for a in node.names if a.name.startswith("modalhash."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "modalhash":
            package = node.module.removeprefix("modalhash").lstrip(".")
            for name in (alias.name for alias in node.names):
                module = f"{package}.{name}".lstrip(".")
                found.add(module if module in {*MODULES, *PACKAGES} else package)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found - {""}  # names of modalhash itself


def rooms_known(room: str) -> set[str]:
    files = [path for name, path in {**MODULES, **PACKAGES}.items() if name.split(".")[0] == room]
    return {known.split(".")[0] for path in files for known in imports(path)} - {room}


def test_every_room_has_a_row():
    assert {name.split(".")[0] for name in MODULES} == {*MAY_IMPORT, TOPMOST}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_knows_what_its_row_says(room):
    assert rooms_known(room) == MAY_IMPORT[room]


@pytest.mark.parametrize("room", FLOORS)
def test_modules_know_only_lower_floors(room):
    floor = {module: level for level, names in enumerate(FLOORS[room]) for module in names.split()}
    own = {name.removeprefix(f"{room}."): path for name, path in MODULES.items() if name.startswith(f"{room}.")}
    assert floor.keys() == own.keys()
    for module, path in own.items():
        for known in imports(path, for_types=False):
            if known.startswith(f"{room}."):
                below = known.removeprefix(f"{room}.")
                assert floor[below] < floor[module], f"{room}.{module} must not know {known}"


def test_rooms_know_each_other_by_exported_names():
    """A module imports another room's package, not what is inside; methods have no package to speak of."""
    for name, path in MODULES.items():
        room = name.split(".")[0]
        inside = {known for known in imports(path) if "." in known and known.split(".")[0] not in {room, "methods"}}
        assert inside <= {"data.pictures", "data.scenarios"}, f"{name} imports {inside}"


def test_no_cycles():
    graph = {name: imports(path, for_types=False) & MODULES.keys() for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_no_two_modules_share_a_name():
    names = Counter(name.split(".")[-1] for name in MODULES)
    assert {name for name, n in names.items() if n > 1} <= {"base", "codes", "estimator"}  # of AMSH and RLH


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
