"""Dependencies point one way, between rooms and inside them; names are unique; importing is cheap.

A room is a package of modalhash.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import modalhash

SOURCE = Path(modalhash.__file__).parent
MAY_IMPORT = {  # a room -> the other rooms it may know, every one of which it does
    "core": set(),
    "distributed": {"core", "methods"},  # methods for types only
    "methods": {"core", "distributed", "evaluation"},
    "evaluation": {"core"},
    "data": {"core"},
    "encoders": {"core", "data"},
    "index": {"core"},
    "store": {"core"},
    "engine": {"core", "data", "encoders", "evaluation", "index", "methods", "store"},
    "experiments": {"core", "data", "evaluation", "methods"},
    "serve": {"core", "data", "engine", "index", "store"},
}
TOPMOST = "cli"  # knows every room, and no room knows it
ENGINE_FLOORS = ["items", "search", "storage", "training"]  # sub-packages of engine, from the ground up
ENGINE_GROUND = "settings"  # a module of engine below all of them
FLOORS = {  # a room -> its modules from the ground up; a module knows only those on lower floors
    "cli": [
        "common",
        "options",
        "experiment items listings maintenance search serve",
        "demo evaluate train",
    ],
    "core": [
        "archives deprecation files imports label_names parallel progress typing",
        "bit_kernels blocks codes frames linalg pictures",
        "randomness validation",
        "maps option",
        "features",
    ],
    "data": [
        "formats.variables picture_features",
        "dataset formats.arrow formats.excel formats.matlab formats.npz formats.sandbox_worker layouts",
        "formats.hdf5 formats.sandbox scenarios",
        "formats.tables",
        "formats.manifest",
        "feature_tables",
        "reading",
        "catalog",
        "sets._official sets.iapr sets.openmoji synthetic",
        "sets.iapr255 sets.mirflickr sets.nuswide sets.wiki",
    ],
    "distributed": [
        "arrays",
    ],
    "encoders": [
        "encoder image_kernels names",
        "encode picture_files text",
        "huggingface image",
        "semantic",
        "combined neural",
    ],
    "engine": [
        "items.urls search.refinement search.reliability settings storage.audit",
        "items.item",
        "items.lines items.photos search.ordering search.picture_prints search.query storage.code_files",
        "items.sources search.photo_words",
        "items.bulk_inputs search.confidence training.corpus",
        "search.hits storage.folder training.expected_quality",
        "report search.near_duplicates storage.encode_to storage.index_snapshot storage.ingest storage.location "
        "training.learn",
        "storage.backup storage.folder_sync storage.milvus_follower storage.relabel",
        "storage.opening training.check training.train",
        "searching training.online",
        "engine",
    ],
    "evaluation": [
        "measures significance",
        "protocol",
        "result",
        "figures retrieval trec",
    ],
    "experiments": [
        "provenance timing",
        "config",
        "measure measured",
        "comparison results",
        "tuning",
        "run",
    ],
    "index": [
        "kernels",
        "layout",
        "kernels.bitsliced kernels.numpy_search kernels.shells",
        "kernels.scans vectors",
        "kernels.compiled scan",
        "clusters interface",
        "hamming milvus_collection",
        "milvus_view snapshot",
        "milvus",
    ],
    "methods": [
        "amsh.codes amsh.functions registry rlh.codes",
        "fitted rlh.posteriors",
        "base",
        "_deep alech amsh batch chance cmfh cre dch fcmh fddh fmh fsh itq label_oracle rlh scm scratch seph srlch",
        "aadah cca_itq dcmh edmh gsph rucmh sapmh smfh tech ucch ucmh wash",
    ],
    "serve": [
        "client errors monitoring pools telemetry",
        "auth media",
        "limits worker_state",
        "schemas searcher",
        "openapi service",
        "http routes routes_items",
        "app timeouts",
        "server",
        "workers",
    ],
    "store": [
        "filters",
        "conditions",
        "records",
        "postgres.connection sqlite.labels sqlite.words",
        "postgres.engines postgres.words sqlite.schema",
        "postgres.schema sqlite.store",
        "postgres.store",
    ],
}  # fmt: skip
MOST_PARAMETERS = 8
WIDE_KERNELS = {  # compiled loops, which take arrays one by one
    "encoders.image_kernels": {"step"},
    "index.kernels.scans": {"insert"},
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


def defines_names(path: Path) -> bool:
    return any(
        isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


def rooms_known(room: str) -> set[str]:
    files = [path for name, path in {**MODULES, **PACKAGES}.items() if name.split(".")[0] == room]
    return {known.split(".")[0] for path in files for known in imports(path)} - {room}


def test_every_room_has_a_row():
    assert {name.split(".")[0] for name in MODULES} == {*MAY_IMPORT, TOPMOST}


@pytest.mark.slow
@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_knows_what_its_row_says(room):
    assert rooms_known(room) == MAY_IMPORT[room]


@pytest.mark.parametrize("room", FLOORS)
def test_modules_know_only_lower_floors(room):
    rows = {module: level for level, names in enumerate(FLOORS[room]) for module in names.split()}
    modules = {**MODULES, **{name: path for name, path in PACKAGES.items() if defines_names(path)}}
    own = {name.removeprefix(f"{room}."): path for name, path in modules.items() if name.startswith(f"{room}.")}
    floor = dict.fromkeys(own, len(FLOORS[room])) | rows  # those without a row are above all others
    assert floor.keys() == own.keys()
    for module, path in own.items():
        for known in imports(path, for_types=False):
            if known.startswith(f"{room}."):
                below = known.removeprefix(f"{room}.")
                assert floor[below] < floor[module], f"{room}.{module} must not know {known}"


def test_sub_packages_of_the_engine_know_only_lower_floors():
    floor = {name: level for level, names in enumerate(ENGINE_FLOORS) for name in names.split()}
    assert len(ENGINE_FLOORS) <= 4
    assert floor.keys() == {name.split(".")[1] for name in PACKAGES if name.startswith("engine.")}
    for module, path in MODULES.items():
        _, _, own = module.partition("engine.")
        if (home := own.split(".")[0]) in floor and "." in own:
            known = {name.split(".")[1] for name in imports(path, for_types=False) if name.startswith("engine.")}
            above = {name for name in known - {home, ENGINE_GROUND} if floor.get(name, len(floor)) >= floor[home]}
            assert not above, f"{module} must not know {above}"


@pytest.mark.slow
def test_rooms_know_each_other_by_exported_names():
    """A module imports another room's package, not what is inside; what is in core and methods has its own name."""
    for name, path in MODULES.items():
        room = name.split(".")[0]
        inside = {known for known in imports(path) if "." in known}
        inside = {known for known in inside if known.split(".")[0] not in {room, "core", "methods"}}
        inside -= {"engine.settings", "serve.limits"} if room == TOPMOST else set()  # declare the options of commands
        assert inside <= {"data.picture_features", "data.scenarios", "serve.client"}, f"{name} imports {inside}"


@pytest.mark.slow
def test_no_cycles():
    graph = {name: imports(path, for_types=False) & MODULES.keys() for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


SAME_MODULES = {
    "codes": "packed in core, learned in amsh and rlh",
    **dict.fromkeys(("schema", "store", "words"), "of sqlite and postgres"),
    "train": "of the engine, and the command",
}
SAME_CLASSES = {"Hit", "Item", "Query"}  # of the engine, and their counterparts in the HTTP API


def test_no_two_modules_share_a_name():
    names = Counter(name.split(".")[-1] for name in MODULES)
    assert {name for name, n in names.items() if n > 1} == SAME_MODULES.keys()


@pytest.mark.slow
def test_no_two_classes_share_a_name():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in MODULES.values()]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert {name for name, n in names.items() if n > 1} == SAME_CLASSES


def test_the_top_level_is_short():
    entries = {path.name for path in SOURCE.iterdir() if not path.name.startswith("__")} - {"py.typed"}
    assert len(entries) <= 12


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
def test_importing_loads_nothing_heavy():
    assert not loaded_by("import modalhash") & {"numba", "sklearn", "scipy", "h5py", "matplotlib", "rich"}
    assert not loaded_by("import modalhash.cli") & {
        "numba",
        "sklearn",
        "h5py",
        "matplotlib",
        "PIL",
        "starlette",
        "uvicorn",
    }
    engine = "from modalhash.engine import Engine, describe_label_overlap"  # what info and search import in addition
    assert not loaded_by(engine) & {"numba", "sklearn", "scipy.sparse", "scipy.linalg", "matplotlib"}
    assert not loaded_by("from modalhash import AMSH") & {"numba", "h5py", "matplotlib", "typer"}


def test_the_page_about_the_architecture_names_modules_and_rooms_that_exist():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page))
    assert len(named) > 40
    roots = (SOURCE, SOURCE.parents[1])
    assert {name for name in named if not any((root / name).is_file() for root in roots)} == set()
    table = dict(re.findall(r"^\| `(\w+)/` \| .* \| (.*) \|$", page, re.MULTILINE))
    assert table.keys() - {"reproduction"} == MAY_IMPORT.keys() | {TOPMOST}
    for room in ("evaluation", "index", "store", "data", "encoders", "experiments"):
        assert set(re.findall(r"`(\w+)`", table[room])) == MAY_IMPORT[room]


def test_functions_take_few_parameters():
    """A function with more parameters takes a value with the options instead; see CONTRIBUTING, "Add an option"."""
    reproduction = {f"reproduction.{path.stem}": path for path in (SOURCE.parents[1] / "reproduction").glob("*.py")}
    wide: dict[str, set[str]] = {}
    for name, path in (MODULES | reproduction).items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
                own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if len(own) - (own[:1] != [] and own[0].arg in ("self", "cls")) > MOST_PARAMETERS:
                    wide.setdefault(name, set()).add(node.name)
    assert wide == WIDE_KERNELS
