"""Cells: what is measured once, known by the digest of everything its result depends on, the code included."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from modalhash import registry
from modalhash.experiments.config import Grid, Row

MEASURING = "modalhash.experiments.measure"
"""The module that turns a data set and a model into numbers, with all it imports: scenarios, measures, kernels."""
NOT_NUMERICAL = re.compile(
    r"modalhash(\.(_extras|_files|_lazy|_typing|cli|encoders|engine|index|persistence|progress|registry|serve|store)"
    r"(\..*)?|\.evaluation\.(figures|significance|tables|trec)|\.experiments\.(cells|config|inputs))?"
)
"""Modules that no number depends on, although numerical ones import them."""


class Point(NamedTuple):
    """The position of a cell in its grid, on one data set."""

    label: str
    scenario: str
    sweep: str
    bits: int
    seed: int


@dataclass(frozen=True)
class Cell:
    """One fit on one data set with one seed."""

    dataset: str
    digest: str
    """Of the data."""
    scenario: str
    method: str
    parameters: str
    """All of the constructor's but bits and seed, as sorted JSON: a default that changes makes another cell."""
    features: str
    bits: int
    seed: int
    protocol: str
    intra: bool
    measured: bool
    """False: only the time of the fit means something."""
    code: str
    """Digest of the sources that the numbers come from, see :func:`code_digest`."""
    per_query: bool = True
    limit_seconds: float | None = None

    @property
    def key(self) -> str:
        """Digest of everything the numbers depend on; how long one waits, and what is kept, are no part of it."""
        content = asdict(self)
        del content["limit_seconds"], content["per_query"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def path(self) -> str:
        """Path of the result under the folder of results: readable, and unique by its key."""
        words = f"{self.method}-{self.bits}-{self.scenario}-seed{self.seed}-{self.key}.json"
        return "/".join(re.sub(r"[^\w.+-]", "-", part) for part in (self.dataset, words))

    def __str__(self) -> str:
        return f"{self.method} {self.bits} bits on {self.dataset} ({self.scenario}), seed {self.seed}"


def cells_of(grid: Grid, dataset: str, digest: str, *, quick: bool = False) -> dict[Point, Cell]:
    """Return the cells of a grid on a data set whose content has this digest."""
    part = grid.part(dataset, quick=quick)
    if part is None:
        return {}
    return {
        Point(row.label, row.scenario, row.sweep, bits, seed): _cell(grid, row, dataset, digest, bits, seed)
        for row in grid.rows
        if (part.rows is None or row.label in part.rows) and (part.sweeps is None or row.sweep in part.sweeps)
        for bits in part.bits or grid.bits
        for seed in range(part.seeds or grid.seeds)
    }


def _cell(grid: Grid, row: Row, dataset: str, digest: str, bits: int, seed: int) -> Cell:
    return Cell(
        dataset=dataset,
        digest=digest,
        scenario=row.scenario,
        method=row.method,
        parameters=resolved(row.method, json.dumps(row.parameters, sort_keys=True)),
        features=row.features,
        bits=bits,
        seed=seed,
        protocol=str(grid.protocol),
        intra=grid.intra,
        per_query=grid.per_query,
        measured=grid.inputs[dataset].measured,
        code=code_digest(row.method),
        limit_seconds=grid.limit_seconds,
    )


@cache
def resolved(method: str, changes: str) -> str:
    """Return all parameters of a method's constructor but bits and seed, as JSON. Unknown ones are an error."""
    parameters: dict[str, Any] = registry.get(method)().get_params(deep=False)
    given: Mapping[str, Any] = json.loads(changes)
    if unknown := set(given) - set(parameters):
        raise ValueError(f"{method} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(parameters)}")
    parameters.update(given)
    for name in ("n_bits", "random_state"):
        parameters.pop(name)
    return json.dumps(parameters, sort_keys=True)


def unique(cells: Iterable[Cell], order: Iterable[str] = ()) -> list[Cell]:
    """Return every cell once; the first limit counts. Data sets stay together, in this order; cheap cells first."""
    by_key: dict[str, Cell] = {}
    for cell in cells:
        first = by_key.setdefault(cell.key, cell)
        if cell.per_query and not first.per_query:
            by_key[cell.key] = replace(first, per_query=True)
    rank = {name: number for number, name in enumerate(order)}
    return sorted(by_key.values(), key=lambda cell: (rank.get(cell.dataset, len(rank)), cell.seed, cell.bits))


# The digest of the code


@cache
def code_digest(method: str) -> str:
    """Return the digest of the sources that a method's numbers come from: its own, and those that measure.

    Found without running anything: the module of the class, and the modules of its package and of modalhash that
    it imports, directly or not. What is only for people or for files is left out, so that a change of the command
    line, or of a comment, throws no result away.
    """
    return source_digest([registry.get(method).__module__, MEASURING])


Reader = Callable[[str], tuple[str, bool] | None]
"""Takes the name of a module and returns its source and whether it is a package; None if there is none."""


def source_digest(modules: Iterable[str], read: Reader | None = None) -> str:
    """Return one digest over the code of these modules and of all they import from the same packages.

    Comments, docstrings and layout do not count: two sources with the same statements have the same digest.
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
        tree = ast.parse(text)
        if not (is_package and name.partition(".")[0] == "modalhash"):  # these only say where their names live
            found[name] = hashlib.sha256(statements(tree).encode()).hexdigest()
        for node in ast.walk(_without_type_checking(tree)):
            waiting += _imports(node, packages, read)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def statements(tree: ast.Module) -> str:
    """Return the code of a module without docstrings; comments are not in the tree.

    Examples
    --------
    >>> statements(ast.parse("'About.'; x = 1  # one"))
    'x = 1'
    """

    class Undocumented(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    bare = Undocumented().visit(ast.parse(ast.unparse(tree)))
    for node in ast.walk(bare):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.body:
            node.body = [ast.Pass()]
    return ast.unparse(bare)


def _without_type_checking(tree: ast.Module) -> ast.Module:
    class Running(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if ast.unparse(node.test).endswith("TYPE_CHECKING") else self.generic_visit(node)

    found: ast.Module = Running().visit(ast.parse(ast.unparse(tree)))
    return found


def _imports(node: ast.AST, packages: set[str], read: Reader) -> list[str]:
    """Return the modules of these packages that an import statement takes its names from."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.partition(".")[0] in packages]
    if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in packages:
        return [_home(node.module, alias.name, read) for alias in node.names]
    return []


def _home(module: str, name: str, read: Reader) -> str:
    """Return the module that holds a name, through packages that import it from elsewhere, lazily or not."""
    source = read(module)
    if source is None or not source[1]:
        return module
    if read(f"{module}.{name}") is not None:
        return f"{module}.{name}"
    for node in ast.walk(ast.parse(source[0])):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _home(node.module, alias.name, read)
    return module


@cache
def _read(module: str) -> tuple[str, bool] | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # the parent is a module, or not there
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).read_text(encoding="utf-8"), spec.submodule_search_locations is not None
