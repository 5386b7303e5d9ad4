"""Grids of methods, read from a TOML file and checked before any fit, and their cells.

A grid is methods (its rows) × data sets × code lengths × seeds × scenarios, with parameters and sweeps over them::

    title = "AMSH and EDMH on generated data"
    datasets = ["wiki", {name = "generated", generated = {n_items = 400}}]
    bits = [16, 32]
    seeds = 3
    scenario = "unpaired"

    [[rows]]
    label = "AMSH"
    method = "amsh"
    parameters = {n_anchors = 300}

    [quick]
    wiki = {bits = [16], seeds = 1}

``modalhash experiment --help`` lists all keys. A file of parameters is TOML or JSON with a table per method, e.g.
``[rlh]`` with ``ridge = 0.003`` and ``kernel = "none"``. TOML has no null, so the text ``"none"`` represents it.

A cell is one measurement, identified by a digest of everything its result depends on, including the code.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from modalhash.core.files import NONSENSE, write_atomically
from modalhash.core.validation import check_choice, check_int
from modalhash.evaluation import Protocol
from modalhash.experiments.provenance import Input, code_digest
from modalhash.methods import registry

SET_ELSEWHERE = {"n_bits": "the code lengths (--bits)", "random_state": "the seeds (--seeds)"}
"""Parameters that a comparison sets, and the option for each."""


def check_parameters(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters if the method has all of them; an error lists what it has.

    ``fit`` checks the values.

    Examples
    --------
    >>> check_parameters("batch", {"ridge": 0.1})
    {'ridge': 0.1}
    >>> check_parameters("batch", {"rigde": 0.1})
    Traceback (most recent call last):
    ...
    ValueError: batch has no parameter 'rigde'; did you mean 'ridge'? It has feature_weight, ...
    """
    known = registry.method(method)().get_params(deep=False)
    for name in given:
        if name in SET_ELSEWHERE:
            raise ValueError(f"{method}: {name} is set by {SET_ELSEWHERE[name]}; remove it from the parameters")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}? It" if near else "; it"
            free = [one for one in known if one not in SET_ELSEWHERE]
            raise ValueError(f"{method} has no parameter {name!r}{hint} has {', '.join(free) or 'none'}")
    return dict(given)


def read_parameters(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read a TOML or JSON file of parameters into a dict by method."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not in UTF-8 ({error})") from None
    try:
        content = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
        raise ValueError(f"{path}: not {kind}: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(one, dict) for one in content.values()):
        raise ValueError(f"{path}: expected a table per method, e.g. [rlh] with ridge = 0.003 below it")
    found = {}
    for method, values in content.items():
        try:
            found[method] = check_parameters(method, {name: _denoted(value) for name, value in values.items()})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
    return found


def write_parameters(path: str | Path, parameters: Mapping[str, Mapping[str, Any]], notes: Sequence[str] = ()) -> None:
    """Write a file of parameters for :func:`read_parameters`; notes become comments in TOML."""
    path = Path(path)
    if path.suffix.lower() == ".json":
        text = json.dumps(parameters, indent=1, ensure_ascii=False)
    else:
        lines = [f"# {' '.join(note.split())}" for note in notes]
        for method, values in parameters.items():
            lines += ["", f"[{_key(method)}]", *(f"{_key(name)} = {_toml(value)}" for name, value in values.items())]
        text = "\n".join(lines).lstrip("\n")
    write_atomically(path, (text + "\n").encode())


def _denoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _denoted(one) for name, one in value.items()}
    return None if value == "none" else value


def _key(name: str) -> str:
    plain = name.replace("-", "").replace("_", "")
    return name if plain.isascii() and plain.isalnum() else json.dumps(name)


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool | str):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise TypeError(f"{value!r} cannot be written; expected numbers, texts, true, false, none, or lists and tables")


PAIRINGS = ("paired", "unpaired", "semi_paired", "unequal")
LABEL_CHANGES = ("noisy_labels", "missing_labels")
FEATURES = ("own", "labels")


@dataclass(frozen=True)
class Scenario:
    """Changes of the training items: their pairing, then their labels.

    Examples
    --------
    >>> Scenario.parse("semi_paired:0.25+noisy_labels:0.1").steps
    (('semi_paired', 0.25), ('noisy_labels', 0.1))
    """

    steps: tuple[tuple[str, float | None], ...]

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """Parse ``pairing[:share][+label change[:rate]]``; without a pairing the items stay paired."""
        steps = []
        for part in text.split("+"):
            name, _, number = part.strip().partition(":")
            check_choice(name, "scenario", PAIRINGS + LABEL_CHANGES)
            if number and name in ("paired", "unpaired"):
                raise ValueError(f"scenario {text!r}: {name} takes no number")
            steps.append((name, float(number) if number else None))
        if steps[0][0] not in PAIRINGS:
            steps.insert(0, ("paired", None))
        if any(name in PAIRINGS for name, _ in steps[1:]):
            raise ValueError(f"scenario {text!r}: expected one pairing, first, and then changes of labels")
        return cls(tuple(steps))


@dataclass(frozen=True)
class Row:
    """A line of a table: a method with non-default parameters in one scenario."""

    label: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    scenario: str = ""
    features: str = "own"
    """``"labels"`` passes labels as features, also of queries, for upper bounds."""
    sweep: str = ""
    """Name of its sweep, if any."""
    seeds: int | None = None
    """Fewer seeds than the grid, for slow methods; None for all."""


@dataclass(frozen=True)
class Sweep:
    """Parameters varied together; every combination of their values is a row."""

    name: str
    title: str
    values: Mapping[str, Sequence[float]]
    symbols: Mapping[str, str]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.values) != set(self.symbols) or not 1 <= len(self.values) <= 2:
            raise ValueError(f"sweep {self.name!r}: values and symbols must name the same one or two parameters")

    def rows(self, base: Row) -> list[Row]:
        points = [dict(zip(self.values, point, strict=True)) for point in product(*self.values.values())]
        return [
            replace(
                base, label=self.label(point), parameters={**base.parameters, **self.fixed, **point}, sweep=self.name
            )
            for point in points
        ]

    def label(self, point: Mapping[str, float]) -> str:
        """Return e.g. ``λ=0.001, β=1``."""
        return ", ".join(f"{self.symbols[name]}={value:g}" for name, value in point.items())


@dataclass(frozen=True)
class Part:
    """The part of a grid that is run on one data set; None means everything."""

    bits: Sequence[int] | None = None
    seeds: int | None = None
    rows: Sequence[str] | None = None
    sweeps: Sequence[str] | None = None


@dataclass(frozen=True)
class Grid:
    """The measurements to make. Rows are expanded: one per scenario and per point of a sweep."""

    name: str
    inputs: Mapping[str, Input]
    title: str = ""
    path: Path = Path()
    bits: Sequence[int] = ()
    seeds: int = 1
    scenarios: Sequence[str] = ("paired",)
    """Default of the rows."""
    protocol: Protocol = field(default_factory=Protocol)
    intra: bool = False
    """Also measure each modality against itself."""
    per_query: bool = True
    """Store average precisions per query and curves, for tests and figures."""
    limit_seconds: float | None = None
    """A fit that takes longer is stopped and recorded as failed."""
    rows: Sequence[Row] = ()
    sweeps: Sequence[Sweep] = ()
    quick: Mapping[str, Part] | None = None
    """By data set; missing data sets are skipped. None runs one seed of everything."""
    full: Mapping[str, Part] = field(default_factory=dict)

    @property
    def datasets(self) -> list[str]:
        return list(self.inputs)

    def part(self, dataset: str, *, quick: bool) -> Part | None:
        """Return the part to run on a data set; None for nothing."""
        if not quick:
            return self.full.get(dataset, Part())
        return Part(seeds=1) if self.quick is None else self.quick.get(dataset)


KEYS = {
    "title": "a heading for the report",
    "datasets": "names of the catalog, or tables {name, file | twin | generated | catalog, options, ...}",
    "bits": "code lengths",
    "seeds": "number of seeds, counted from 0",
    "scenario": "paired, unpaired, semi_paired:0.5, unequal:0.2; +noisy_labels:0.1, +missing_labels:0.1",
    "scenarios": "several of them: every row is run in each",
    "protocol": "how to measure, as `modalhash evaluate --protocol` takes it",
    "intra": "true: measure each modality against itself, too",
    "per_query": "false: keep neither curves nor the average precision of each query",
    "limit_seconds": "a fit that takes longer is stopped and counts as failed",
    "rows": "tables {label, method, parameters, scenario | scenarios, features, seeds}",
    "sweeps": "tables {name, title, values, symbols, fixed}: the one row, over values of one or two parameters",
    "quick": "by data set, what --quick runs: {bits, seeds, rows, sweeps}",
    "full": "by data set, what is run without --quick; everything by default",
}
"""Keys of a grid file, with descriptions."""


def load_grid(path: str | Path) -> Grid:
    """Read and check a grid file; errors name the file."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return make_grid(content, path)
    except NONSENSE as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error


def make_grid(content: Mapping[str, Any], path: Path, known: Mapping[str, Input] | None = None) -> Grid:
    """Build a grid from the content of a file; ``known`` defines data sets that the file only names."""
    content = dict(content)
    if unknown := set(content) - set(KEYS):
        raise ValueError(f"unknown key(s) {', '.join(sorted(unknown))}; known: {', '.join(sorted(KEYS))}")
    inputs = [_input(entry, path.parent, known or {}) for entry in content.pop("datasets")]
    own = _scenarios(content) or ["paired"]
    quick = content.pop("quick", None)
    sweeps = [Sweep(**entry) for entry in content.pop("sweeps", [])]
    rows = [row for entry in content.pop("rows", []) for row in _rows(entry, own)]
    if sweeps:
        if len(rows) != 1:
            raise ValueError(f"sweeps vary the parameters of one row; there are {len(rows)}")
        rows = [point for sweep in sweeps for point in sweep.rows(rows[0])]
    grid = Grid(
        name=path.stem,
        path=path,
        inputs={entry.name: entry for entry in inputs},
        protocol=Protocol.parse(content.pop("protocol", "")),
        scenarios=own,
        rows=rows,
        sweeps=sweeps,
        quick=None if quick is None else {name: Part(**part) for name, part in quick.items()},
        full={name: Part(**part) for name, part in content.pop("full", {}).items()},
        **content,
    )
    _check(grid, len(inputs))
    return grid


def _input(entry: str | dict[str, Any], folder: Path, known: Mapping[str, Input]) -> Input:
    if isinstance(entry, str):
        return known.get(entry) or Input(entry, catalog=entry)
    allowed = {field.name for field in fields(Input)} | {"file"}
    if unknown := set(entry) - allowed:
        raise ValueError(f"data set: unknown key(s) {', '.join(sorted(unknown))}; known: {', '.join(sorted(allowed))}")
    entry = dict(entry)
    file = entry.pop("file", None)
    if file is not None:  # relative to the grid file
        entry["files"] = [str((folder / file).resolve())]
    if not any(entry.get(kind) for kind in ("files", "twin", "generated", "catalog")):
        entry["catalog"] = entry["name"]
    return Input(**entry)


def _scenarios(entry: dict[str, Any]) -> list[str]:
    """Remove the key ``scenario`` or ``scenarios`` from a table and return its values."""
    one, several = entry.pop("scenario", None), entry.pop("scenarios", None)
    if one is not None and several is not None:
        raise ValueError("scenario and scenarios are both given; expected one of them")
    return [one] if one is not None else list(several or [])


def _rows(entry: dict[str, Any], scenarios: Sequence[str]) -> list[Row]:
    entry = dict(entry)
    own = _scenarios(entry) or scenarios
    parameters = {key: None if value == "none" else value for key, value in entry.pop("parameters", {}).items()}
    return [Row(parameters=parameters, scenario=scenario, **entry) for scenario in own]


def _check(grid: Grid, n_inputs: int) -> None:
    if len(grid.inputs) < n_inputs:
        raise ValueError("two data sets have the same name")
    check_int(grid.seeds, "seeds", at_least=1)
    if len({(row.label, row.sweep, row.scenario) for row in grid.rows}) < len(grid.rows):
        raise ValueError("two rows have the same label")
    for scenario in grid.scenarios:
        Scenario.parse(scenario)
    for row in grid.rows:
        Scenario.parse(row.scenario)
        check_choice(row.features, f"{row.label}: features", FEATURES)
        if row.seeds is not None and check_int(row.seeds, f"{row.label}: seeds", at_least=1) > grid.seeds:
            raise ValueError(f"{row.label}: {row.seeds} seeds; a row has at most the {grid.seeds} of the grid")
        try:
            registry.method(row.method)
        except (ValueError, ImportError, AttributeError) as error:
            raise ValueError(f"{row.label}: {error}") from error
    for dataset, part in [*grid.full.items(), *(grid.quick or {}).items()]:
        if dataset not in grid.inputs:
            raise ValueError(f"{dataset!r} is not among the data sets {', '.join(grid.inputs)}")
        if set(part.bits or ()) - set(grid.bits) or (part.seeds or 0) > grid.seeds:
            raise ValueError(f"{dataset!r}: quick and full select a part of the grid and cannot add to it")
        if unknown := set(part.rows or ()) - {row.label for row in grid.rows}:
            raise ValueError(f"{dataset!r}: no row has the label {', '.join(sorted(unknown))}")


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
    scenario: str
    method: str
    parameters: str
    """All but bits and seed, as sorted JSON, so that a changed default makes another cell."""
    features: str
    bits: int
    seed: int
    protocol: str
    intra: bool
    measured: bool
    """False if only the time of the fit is meaningful."""
    code: str
    """See :func:`code_digest`."""
    per_query: bool = True
    limit_seconds: float | None = None

    @property
    def key(self) -> str:
        """Digest of everything the numbers depend on, without the time limit and what is stored."""
        content = asdict(self)
        del content["limit_seconds"], content["per_query"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def path(self) -> str:
        """Readable path of the result in the folder of results, unique by its key."""
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
        for seed in range(min(part.seeds or grid.seeds, row.seeds or grid.seeds))
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
    """Return all parameters of a method except bits and seed, as JSON; raise ValueError for unknown ones."""
    parameters: dict[str, Any] = registry.method(method)().get_params(deep=False)
    given: Mapping[str, Any] = json.loads(changes)
    if unknown := set(given) - set(parameters):
        raise ValueError(f"{method} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(parameters)}")
    parameters.update(given)
    for name in ("n_bits", "random_state"):
        parameters.pop(name, None)  # a method without randomness has no seed
    return json.dumps(parameters, sort_keys=True)


def unique(cells: Iterable[Cell], order: Iterable[str] = ()) -> list[Cell]:
    """Return each cell once, with the first limit. Data sets stay together in ``order``; cheap cells come first."""
    by_key: dict[str, Cell] = {}
    for cell in cells:
        first = by_key.setdefault(cell.key, cell)
        if cell.per_query and not first.per_query:
            by_key[cell.key] = replace(first, per_query=True)
    rank = {name: number for number, name in enumerate(order)}
    return sorted(by_key.values(), key=lambda cell: (rank.get(cell.dataset, len(rank)), cell.seed, cell.bits))
