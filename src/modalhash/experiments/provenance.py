"""Digests of the data and the code that produce numbers, so that a change invalidates only what it affects.

The data sets of a grid are named, files, generated, or synthetic twins for times, with a given or drawn split. Also
describes the environment (versions, BLAS, machine, commit) on which times and last digits depend.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from modalhash.core.files import sha256_of
from modalhash.core.typing import Array
from modalhash.data import NAMED, data_root, declared, how_to_get, is_named, is_present, load_dataset, with_split
from modalhash.methods import registry

if TYPE_CHECKING:
    from modalhash.data import Dataset

THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "BLIS_NUM_THREADS")
"""Set to 1 in every worker: on two cores, two processes with two threads each are slower than with one."""
PACKAGES = ("modalhash", "numpy", "scipy", "scikit-learn", "numba")


def describe_environment() -> dict[str, Any]:
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
    """Return the commit of the repository that the package runs from, with a + if its source was changed.

    Outside a repository, return ``$MODALHASH_COMMIT`` or None.
    """
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=here, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # an installed package may be inside an unrelated repository
    if git("ls-files", "--error-unmatch", "../methods/registry.py") is None:
        return os.environ.get("MODALHASH_COMMIT")
    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit}+" if commit and git("status", "--porcelain", "--untracked-files=no", "..") else commit


MEASURING = "modalhash.experiments.measure"
"""Module that computes the numbers; it imports scenarios, measures and kernels."""
NOT_NUMERICAL = re.compile(
    r"modalhash(\.(cli|encoders|engine|index|serve|store)(\..*)?|\.core\.(files|imports|progress|typing)"
    r"|\.methods\.registry|\.evaluation\.(figures|significance|trec)"
    r"|\.experiments\.(config|provenance))?"
)
"""Modules without influence on numbers, although numerical ones import them."""


@cache
def code_digest(method: str) -> str:
    """Return the digest of the sources of a method's numbers: its own, and those that measure.

    It covers the module of the class and the modules of its package and of modalhash that it imports, directly or not,
    without running them. Modules without influence on numbers are excluded, and so are comments, so that a change of
    the command line keeps all results.
    """
    return source_digest([registry.method(method).__module__, MEASURING])


Reader = Callable[[str], tuple[str, bool] | None]
"""Returns the source of a module and whether it is a package; None if there is no such module."""


def source_digest(modules: Iterable[str], read: Reader | None = None) -> str:
    """Return one digest over the code of these modules and of all they import from the same packages.

    It ignores comments, docstrings and layout.
    """
    read = read or _read
    roots = list(modules)
    if lost := [name for name in roots if read(name) is None]:
        raise ValueError(f"no source of {', '.join(lost)}: a method must be in a file, to know when it changed")
    packages = {"modalhash", *(name.partition(".")[0] for name in roots)}
    found: dict[str, str] = {}
    waiting = roots
    while waiting:
        name = waiting.pop()
        source = read(name) if name not in found and not NOT_NUMERICAL.fullmatch(name) else None
        if source is None:
            continue
        text, is_package = source
        digest, imports = _analyse(text)
        if not (is_package and name.partition(".")[0] == "modalhash" and _only_re_exports(text)):
            found[name] = digest
        for node in imports:
            waiting += _imports(node, packages, read)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def _only_re_exports(text: str) -> bool:
    return not any(isinstance(node, ast.ClassDef | ast.FunctionDef) for node in ast.parse(text).body)


@cache
def _analyse(text: str) -> tuple[str, list[ast.Import | ast.ImportFrom]]:
    """Return the digest of a module's statements, and its imports other than those for type checkers."""

    class Running(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if ast.unparse(node.test).endswith("TYPE_CHECKING") else self.generic_visit(node)

    tree = Running().visit(ast.parse(text))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return hashlib.sha256(statements(ast.parse(text)).encode()).hexdigest(), imports


def statements(tree: ast.Module) -> str:
    """Return the code of a module without docstrings and comments, and change the tree accordingly.

    Examples
    --------
    >>> statements(ast.parse("'About.'; x = 1  # one"))
    'x = 1'
    """

    class Undocumented(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    bare = Undocumented().visit(tree)
    for node in ast.walk(bare):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.body:
            node.body = [ast.Pass()]
    return ast.unparse(bare)


def _imports(node: ast.AST, packages: set[str], read: Reader) -> list[str]:
    """Return the modules of these packages from which an import statement takes its names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.partition(".")[0] in packages]
    if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in packages:
        return [_home(node.module, alias.name, read) for alias in node.names]
    return []


def _home(module: str, name: str, read: Reader) -> str:
    """Return the module that defines a name, following packages that re-export it, lazily or not."""
    source = read(module)
    if source is None or not source[1]:
        return module
    if read(f"{module}.{name}") is not None:
        return f"{module}.{name}"
    for node in _analyse(source[0])[1]:
        if isinstance(node, ast.ImportFrom) and node.module and node.module != module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _home(f"{module}.{node.module}" if node.level else node.module, alias.name, read)
    return module


@cache
def _read(module: str) -> tuple[str, bool] | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # the parent is a module, or missing
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    path, stub = Path(spec.origin), Path(spec.origin).with_suffix(".pyi")  # the stub of a package lists its names
    return (stub if stub.exists() else path).read_text(encoding="utf-8"), spec.submodule_search_locations is not None


ARRAYS = (".mat", ".npz", ".h5", ".hdf5")


@dataclass(frozen=True)
class Input:
    """How a data set is loaded and split. Data files are preferred to the catalog."""

    name: str
    title: str = ""
    catalog: str = ""
    """Name for ``load_dataset``, optionally with a variant: ``mirflickr25k:full``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``load_dataset``."""
    files: Sequence[str] = ()
    """Folder or files, the preferred first; relative to the folder of the data sets."""
    twin: str = ""
    """Name of a synthetic twin, of which only the time of a fit is measured."""
    generated: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``modalhash.data.generate``."""
    modalities: Sequence[str] = ()
    """Modalities in use, in this order; all by default."""
    queries: int = 0
    """Queries drawn per seed if the data have no split; by default the data set's own number, or a fifth."""
    training: int = 0
    """Training items drawn from the rest; all by default."""
    how: str = ""
    """How to get the files, if they are not in the catalog."""

    @property
    def measured(self) -> bool:
        return not self.twin

    @property
    def heading(self) -> str:
        return self.title or self.name

    def present(self, root: Path | None) -> bool:
        if self.twin or self.generated or self._file(root) is not None:
            return True
        return is_named(self.catalog) and is_present(self.catalog, root)

    def _file(self, root: Path | None) -> Path | None:
        for name in self.files:
            path = data_root(root) / name
            if path.is_file() or (path.is_dir() and any(file.suffix in ARRAYS for file in path.iterdir())):
                return path
        return None

    def load(self, root: Path | None) -> Dataset:
        """Load the modalities, with the given split or the sizes of the one to draw."""
        if self.twin:
            from modalhash.data import twin

            return twin(self.twin, root=root)
        path = self._file(root)
        if path is not None:
            from modalhash.data import read

            dataset = declared(read(path), path if path.is_dir() else path.parent)
        elif self.generated:
            from modalhash.data import generate

            dataset = generate(**self.generated).dataset()
        else:
            dataset = load_dataset(self.catalog, root, **self.options)
        sizes = {"query": self.queries, "training": self.training}
        own = {part: size for part, size in sizes.items() if size}
        dataset = replace(dataset, name=self.name, split_sizes={**dataset.split_sizes, **own})
        return dataset.only(*self.modalities) if self.modalities else dataset

    def how_to_get(self) -> str:
        if self.how:
            return self.how
        if is_named(self.catalog):
            return how_to_get(self.catalog, "data").replace("\n", " ")
        if self.files:
            return f"There is no {' or '.join(self.files)}."
        return f"No data set is called {self.catalog!r}; there are {', '.join(NAMED)}. Files are named by `file`."


def describe(source: Input, root: Path | None) -> dict[str, Any]:
    """Return digest and sizes of a data set for the results; a twin is not drawn for this."""
    if source.twin:
        return _describe_twin(source, root)
    loaded = source.load(root)
    split = with_split(loaded, seed=0).split
    assert split is not None
    first = loaded.modalities[0]
    return {
        "name": source.name,
        "title": source.heading,
        "digest": digest_of(loaded),
        "options": dict(source.options),
        "kind": loaded.kind,
        "features": loaded.widths,
        "items": loaded.sizes[first],
        "training": len(split.training[first]),
        "queries": len(split.query[first]),
        "classes": len(loaded.class_names),
        "labels_per_item": float(np.mean(loaded.labels[first].sum(axis=1))),
        "own_split": loaded.split is not None,
        "measured": True,
    }


def _describe_twin(source: Input, root: Path | None) -> dict[str, Any]:
    from modalhash.data import RECIPES, twin

    recipe = RECIPES[source.twin]
    labels = recipe.labels_file(root)
    real = None if labels is None else sha256_of([labels])
    content = "twin", source.twin, 0, 1.0, recipe, real, source_digest([twin.__module__])
    return {
        "name": source.name,
        "title": source.heading,
        "digest": hashlib.sha256(repr(content).encode()).hexdigest(),
        "options": {},
        "kind": "twin",
        "labels": "drawn" if labels is None else "real",
        "features": {"image": recipe.image, "text": recipe.text},
        "items": recipe.n_query + recipe.n_training,
        "training": recipe.n_training,
        "queries": recipe.n_query,
        "classes": len(recipe.frequencies),
        "own_split": True,
        "measured": False,
    }


def digest_of(dataset: Dataset) -> str:
    """Return the SHA-256 over everything that a fit and its measurement use."""
    total = hashlib.sha256()

    def add(name: str, values: Any) -> None:
        if sparse.issparse(values):
            for part in ("data", "indices", "indptr"):
                add(f"{name}.{part}", getattr(values, part))
            return
        array: Array = np.ascontiguousarray(values)
        total.update(f"{name} {array.dtype.str} {array.shape};".encode())
        total.update(array.tobytes())

    for name in dataset.modalities:
        add(f"features {name}", dataset.features[name])
        add(f"labels {name}", dataset.relevance[name])
        add(f"ids {name}", dataset.ids[name].astype(str) if dataset.ids[name].dtype.hasobject else dataset.ids[name])
        if dataset.split is not None:
            for part in ("training", "query", "database"):
                add(f"{part} {name}", getattr(dataset.split, part)[name].astype(str))
    for what, sizes in (("components", dataset.components), ("split sizes", dataset.split_sizes)):
        if sizes:
            total.update(f"{what} {sorted(sizes.items())};".encode())
    return total.hexdigest()
