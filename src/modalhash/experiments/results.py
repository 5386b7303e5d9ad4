"""Results: a JSON file per cell in a folder, or all of them in one compressed file; read back as rows of tables.

Both forms hold the same: :func:`pack` makes the file of a folder, :func:`unpack` the folder of a file. Reports are made
from either, and from nothing else.
"""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from modalhash._files import write_atomically
from modalhash._typing import Array
from modalhash.evaluation import Spread, Table
from modalhash.experiments.cells import Cell, Point, cells_of
from modalhash.experiments.config import Grid, Sweep

FORMAT = 2
DATABASES = ("learned", "hashed", "unseen", "retrieval")
Result = dict[str, Any]


class Results:
    """What was measured, under a folder or in a packed file (``*.json.xz``, read only).

    A cell's file is named by the digest of its configuration, which has the digest of the data, every parameter and
    the digest of the code in it: what changed is another file, and is run anew.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._packed = _unpacked(self.path.read_bytes(), self.path) if self.path.name.endswith(".xz") else None
        self._found: dict[str, Result | None] = {}

    def read(self, cell: Cell) -> Result | None:
        """Return what is known of a cell, also that it failed; None if nothing is."""
        return self._load(f"cells/{cell.path}")

    def write(self, cell: Cell, result: Result) -> None:
        """Keep the result of a cell."""
        configuration = {name: value for name, value in vars(cell).items() if name != "limit_seconds"}
        configuration["parameters"] = json.loads(cell.parameters)
        self._found.clear()
        self._write(f"cells/{cell.path}", {"format": FORMAT, "configuration": configuration, **result})

    def done(self, cell: Cell, *, retry: bool = False) -> bool:
        """Whether there is nothing to do: measured, or failed and not to be tried again."""
        known = self.read(cell)
        if known is None or "error" in known:
            return known is not None and not retry
        return known["configuration"]["per_query"] or not cell.per_query

    def write_dataset(self, facts: dict[str, Any]) -> None:
        """Keep digest and sizes of a data set."""
        self._write(f"datasets/{facts['name']}.json", {"format": FORMAT, **facts})

    def datasets(self) -> dict[str, dict[str, Any]]:
        """Return what is known of every data set that was run on."""
        return {facts["name"]: facts for facts in self._all("datasets/*.json")}

    def everything(self) -> Iterator[Result]:
        """Iterate over the results of all cells, of whatever configuration."""
        yield from self._all("cells/*/*.json")

    @cached_property
    def _by_configuration(self) -> dict[tuple[Any, ...], list[Result]]:
        found = defaultdict(list)
        for result in self.everything():
            found[_coarse(result["configuration"])].append(result)
        return found

    def find(self, cell: Cell, given: Mapping[str, Any]) -> Result | None:
        """Return what a report shows of a cell: its result, or the newest that other code made of the same cell.

        A cell is run anew when the code changes, but a report of what was measured before remains true of it. So
        parameters that the method did not have then, or no longer has, do not count, unless the row sets them
        (``given``).
        """
        if cell.key not in self._found:
            self._found[cell.key] = self.read(cell) or self._similar(cell, given)
        return self._found[cell.key]

    def _similar(self, cell: Cell, given: Mapping[str, Any]) -> Result | None:
        wanted = json.loads(cell.parameters)

        def fits(result: Result) -> bool:
            known = result["configuration"]["parameters"]
            return set(given) <= set(known) and all(wanted[name] == known[name] for name in wanted if name in known)

        candidates = [result for result in self._by_configuration.get(_coarse(vars(cell)), ()) if fits(result)]
        return max(candidates, key=lambda result: result.get("started", 0), default=None)

    def _load(self, name: str) -> Result | None:
        if self._packed is not None:
            return self._packed.get(name)
        path = self.path / name
        return _parsed(path.read_text(encoding="utf-8", errors="replace"), name, path) if path.is_file() else None

    def _all(self, pattern: str) -> Iterator[Result]:
        if self._packed is not None:
            folder = pattern.partition("/")[0]
            yield from (content for name, content in self._packed.items() if name.startswith(f"{folder}/"))
            return
        for path in sorted(self.path.glob(pattern)):
            content = self._load(path.relative_to(self.path).as_posix())
            if content is not None:
                yield content

    def _write(self, name: str, content: dict[str, Any]) -> None:
        if self._packed is not None:
            raise ValueError(f"{self.path} is packed and only read; unpack it to go on measuring")
        write_atomically(self.path / name, _to_text(content).encode())


_COARSE = ("dataset", "digest", "scenario", "method", "features", "bits", "seed", "protocol", "intra")


def _coarse(configuration: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what has to be equal for a report to show one cell for another; parameters are compared one by one."""
    return tuple(configuration[name] for name in _COARSE)


def _checked(content: Any, name: str, path: Path) -> Result:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: not a result of this version (format {FORMAT}); take another folder of results")
    if name.startswith("datasets/"):
        if not isinstance(content.get("name"), str):
            raise ValueError(f"{path}: {name} does not name its data set; the file is damaged")
        return content
    configuration = content.get("configuration")
    if not isinstance(configuration, dict) or not isinstance(configuration.get("parameters"), dict):
        raise ValueError(f"{path}: {name} is no cell with its configuration; the file is damaged")
    for key in _COARSE:
        if not isinstance(configuration.get(key), str | int):
            raise ValueError(f"{path}: the configuration of {name} has no {key!r}; the file is damaged")
    return content


def pack(folder: str | Path, *, per_query: bool = True) -> bytes:
    """Return the files of a results folder as one compressed file; the same files give the same bytes.

    Without ``per_query`` the average precision of every query and the curves are left out, as if the grid had said so:
    a tenth of the size.
    """
    folder = Path(folder)
    paths = [*sorted(folder.glob("datasets/*.json")), *sorted(folder.glob("cells/*/*.json"))]
    if not paths:
        raise FileNotFoundError(f"{folder}: no results there")
    # a line per file: its name, then its content as it is
    texts = ((path, path.read_text(encoding="utf-8")) for path in paths)
    if not per_query:
        texts = ((path, _without_queries(text)) for path, text in texts)
    lines = [f"{path.relative_to(folder).as_posix()}\t{text}" for path, text in texts]
    return lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)


def _without_queries(text: str) -> str:
    content = json.loads(text)
    for directions in content.get("databases", {}).values():
        for entry in directions.values():
            entry.pop("average_precision", None)
            entry.pop("curve", None)
    if "configuration" in content:
        content["configuration"]["per_query"] = False
    return _to_text(content)


def _to_text(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def unpack(content: bytes, folder: str | Path) -> None:
    """Write the files that :func:`pack` read; ValueError, and nothing is written, if it is no such file."""
    parts = _lines(content)
    for name, _ in parts:
        if not _is_own(name):
            raise ValueError(f"packed results hold a file {name!r}; expected cells/ and datasets/ only")
    for name, text in parts:
        write_atomically(Path(folder) / name, text.encode())


def _unpacked(content: bytes, path: Path) -> dict[str, Result]:
    try:
        parts = _lines(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return {name: _parsed(text, name, path) for name, text in parts}


def _lines(content: bytes) -> list[tuple[str, str]]:
    """Return the names and contents of the files in a packed one."""
    try:
        lines = lzma.decompress(content).decode().split("\n")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"not packed results ({error})") from error
    return [(name, text) for name, _, text in (line.partition("\t") for line in lines)]


def _is_own(name: str) -> bool:
    """Return whether a file is named like one of a results folder, and lies in it."""
    kind, *parts = name.split("/")
    return len(parts) == {"cells": 2, "datasets": 1}.get(kind) and not any(
        part.strip(".") == "" or set(part) & set("\\\0") for part in parts
    )


def _parsed(text: str, name: str, path: Path) -> Result:
    """Return what a file says that :class:`Results` wrote under this name."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or no results of modalhash ({error})") from error
    return _checked(content, name, path)


@dataclass(frozen=True, eq=False)
class Study:
    """The results of one grid on one data set."""

    grid: Grid
    dataset: str
    facts: Mapping[str, Any]
    cells: Mapping[Point, Cell]
    """All of them, measured or not."""
    found: Mapping[Point, Result]
    """What is known of them, failures included."""

    @cached_property
    def results(self) -> dict[Point, Result]:
        """What was measured."""
        return {point: result for point, result in self.found.items() if "error" not in result}

    @cached_property
    def failures(self) -> dict[Point, str]:
        """The reasons of the cells that failed."""
        return {point: str(result["error"]) for point, result in self.found.items() if "error" in result}

    @property
    def title(self) -> str:
        """The data set's name for people."""
        return self.grid.inputs[self.dataset].heading

    @cached_property
    def rows(self) -> list[tuple[str, str]]:
        """Label and scenario of the rows with any result, in the order of the file; points of sweeps left out."""
        found = {(point.label, point.scenario) for point in self.results}
        wanted = [(row.label, row.scenario) for row in self.grid.rows if not row.sweep]
        return [row for row in wanted if row in found]

    @cached_property
    def bits(self) -> list[int]:
        """Code lengths with any result."""
        return sorted({point.bits for point in self.results})

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds with any result."""
        return sorted({point.seed for point in self.results})

    @cached_property
    def databases(self) -> list[str]:
        """Kinds of database that were searched."""
        found = {kind for result in self.results.values() for kind in result.get("databases", {})}
        return [kind for kind in DATABASES if kind in found]

    @cached_property
    def directions(self) -> list[str]:
        """E.g. ``image→text``, as they were measured."""
        entries = (entry for result in self.results.values() for entry in result.get("databases", {}).values())
        return list(dict.fromkeys(direction for entry in entries for direction in entry))

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """Those with two points or more: the default values alone, which other tables share, show nothing."""
        points: dict[str, set[str]] = {}
        for point in self.results:
            points.setdefault(point.sweep, set()).add(point.label)
        return [sweep for sweep in self.grid.sweeps if len(points.get(sweep.name, ())) > 1]

    @cached_property
    def _by_row(self) -> dict[tuple[str, str, str, int], dict[int, Result]]:
        found: dict[tuple[str, str, str, int], dict[int, Result]] = defaultdict(dict)
        for point, result in sorted(self.results.items(), key=lambda item: item[0].seed):
            for scenario in (point.scenario, ""):
                found[point.label, scenario, point.sweep, point.bits].setdefault(point.seed, result)
        return found

    def of(self, label: str, bits: int, sweep: str = "", scenario: str = "") -> dict[int, Result]:
        """Return the results by seed. Without a scenario: the row's only one, or its first."""
        return self._by_row.get((label, scenario, sweep, bits), {})

    def entry(self, result: Result, database: str, direction: str) -> Mapping[str, Any] | None:
        """Return what was measured in one direction on one kind of database; None if it was not."""
        found: Mapping[str, Any] | None = result.get("databases", {}).get(database, {}).get(direction)
        return found

    def _entries(self, results: Iterable[Result], database: str, direction: str) -> list[Mapping[str, Any]]:
        found = (self.entry(result, database, direction) for result in results)
        return [entry for entry in found if entry is not None]

    def spread(
        self, label: str, bits: int, direction: str, database: str, sweep: str = "", scenario: str = ""
    ) -> Spread | None:
        """Return mean and deviation of the mAP over the seeds."""
        entries = self._entries(self.of(label, bits, sweep, scenario).values(), database, direction)
        return Spread.of([entry["map"] for entry in entries]) if entries else None

    def mean(
        self, label: str, bits: int, direction: str, database: str = "learned", sweep: str = "", scenario: str = ""
    ) -> float | None:
        """Return the mean mAP over the seeds."""
        found = self.spread(label, bits, direction, database, sweep, scenario)
        return None if found is None else found.mean

    def chance(self, direction: str, database: str) -> float | None:
        """Return the level of a random ranking."""
        entries = self._entries(self.results.values(), database, direction)
        return float(np.mean([entry["chance"] for entry in entries])) if entries else None

    def seconds(self, label: str, bits: int, scenario: str = "") -> Spread | None:
        """Return the CPU seconds of a fit."""
        values = [result["seconds"]["cpu"] for result in self.of(label, bits, scenario=scenario).values()]
        return Spread.of(values) if values else None

    def memory(self, label: str, bits: int, scenario: str = "") -> float | None:
        """Return the most bytes that a process held during a fit, the data set included; None if nobody noted it."""
        found = self.of(label, bits, scenario=scenario).values()
        return max((result["memory"]["peak"] for result in found if result.get("memory")), default=None)

    def curve(self, label: str, bits: int, direction: str, database: str) -> Array | None:
        """Return the precision over the recall grid, mean over the seeds."""
        entries = self._entries(self.of(label, bits).values(), database, direction)
        curves = [entry["curve"] for entry in entries if "curve" in entry]
        if not curves:
            return None
        n = min(map(len, curves))
        return np.mean([curve[:n] for curve in curves], axis=0)

    def per_query(self, label: str, bits: int, direction: str, database: str, seeds: Iterable[int]) -> Array | None:
        """Return the average precision of every query.

        The mean over the seeds where these ask the same queries, else one seed after another, so that a query is
        never counted twice.
        """
        found = self.of(label, bits)
        chosen = [(found[seed], self.entry(found[seed], database, direction)) for seed in seeds]
        values = [
            np.array([np.nan if x is None else x for x in entry["average_precision"]])
            for _, entry in chosen
            if entry is not None and "average_precision" in entry
        ]
        if not values:
            return None
        alike = len({result["queries"] for result, entry in chosen if entry is not None}) == 1
        return np.mean(values, axis=0) if alike else np.concatenate(values)


def read_study(results: Results, grid: Grid, dataset: str, facts: Mapping[str, Any]) -> Study:
    """Gather what the results hold of a grid on a data set; ``facts`` are what they know of the data set."""
    given = {(row.label, row.scenario, row.sweep): row.parameters for row in grid.rows}
    cells = cells_of(grid, dataset, facts["digest"])
    found = {point: results.find(cell, given[point[:3]]) for point, cell in cells.items()}
    known = {point: result for point, result in found.items() if result is not None}
    return Study(grid, dataset, facts, cells, known)


def read_studies(results: Results, grid: Grid) -> dict[str, Study]:
    """Gather what the results hold of a grid: by data set, those with any result."""
    facts = results.datasets()
    studies = {name: read_study(results, grid, name, facts[name]) for name in grid.datasets if name in facts}
    return {name: study for name, study in studies.items() if study.found}


# Tables


def quality_tables(study: Study) -> list[Table]:
    """Return a table of mAP per direction: mean ± standard deviation over seeds, the databases side by side."""
    columns = [(bits, kind) for bits in study.bits for kind in study.databases]
    shown = study.rows or [(row.label, row.scenario) for row in study.grid.rows]
    sweeps = {(row.label, row.scenario): row.sweep for row in study.grid.rows}
    several = len({scenario for _, scenario in shown}) > 1
    tables = []
    for direction in study.directions:
        rows = []
        for label, scenario in shown:
            where = sweeps[label, scenario], scenario
            spreads = [study.spread(label, bits, direction, kind, *where) for bits, kind in columns]
            if any(spread is not None for spread in spreads):
                rows.append([label, *([scenario] if several else []), *spreads])
        chance = ", ".join(f"{study.chance(direction, kind) or 0:.4f} ({kind})" for kind in study.databases)
        tables.append(
            Table(
                title=f"{study.title}: mAP, {direction}",
                columns=["", *(["scenario"] if several else []), *(f"{bits} bits, {kind}" for bits, kind in columns)],
                rows=rows,
                notes=[
                    "; ".join(
                        f"`{study.grid.protocol.with_database(kind)}`"
                        for kind in study.databases
                        if kind != "retrieval"
                    ),
                    f"Mean ± standard deviation over {len(study.seeds)} seed{'s' if len(study.seeds) != 1 else ''}. "
                    f"A random ranking has {chance}.",
                ],
            )
        )
    return tables


def seconds_table(study: Study) -> Table:
    """Return a table of CPU seconds per fit, mean over the seeds."""
    rows = []
    for label, scenario in study.rows:
        spreads = [study.seconds(label, bits, scenario) for bits in study.bits]
        rows.append([f"{label} ({scenario})", *(None if s is None else f"{s.mean:.2f}" for s in spreads)])
    return Table(
        f"{study.title}: CPU seconds per fit",
        ["", *(f"{bits} bits" for bits in study.bits)],
        rows,
        ["CPU time of a process with one BLAS thread, kernel features included; mean over the seeds."],
    )


def environments(results: Iterable[Result]) -> dict[str, int]:
    """Count the results by where they were measured, described in words."""
    counts: dict[str, int] = defaultdict(int)
    for result in results:
        if "environment" in result:
            counts[describe(result["environment"])] += 1
    return counts


def describe(environment: Mapping[str, Any]) -> str:
    """Return machine, threads, versions and commit as one line."""
    versions = ", ".join(f"{name} {value}" for name, value in environment["versions"].items())
    threads = f"thread{'s' if environment['threads'] != 1 else ''}"
    if "blas" in environment:
        threads = f"BLAS {threads} ({', '.join(environment['blas'])})"
    commit = f", commit {environment['commit']}" if environment["commit"] else ""
    return f"{environment['machine']}, {environment['threads']} {threads}; {versions}{commit}"
