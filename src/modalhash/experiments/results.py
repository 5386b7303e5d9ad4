"""Results as a JSON file per cell in a folder or as one compressed file, and reports made from them.

Both forms have the same content: :func:`pack` converts a folder to a file, :func:`unpack` a file to a folder. Reports
(tables with significance, curves, environments) need nothing else.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.files import write_atomically
from modalhash.core.typing import Array
from modalhash.evaluation import PairedTest, Spread, Table, describe_tests, paired_tests, render_curves
from modalhash.experiments.config import Cell, Grid, Point, Sweep, cells_of
from modalhash.experiments.measured import Measured, Result, RowName, marked

FORMAT = 2
TestedPlace = tuple[RowName, int, str, str]
"""Row, bits, direction and database."""


class Results:
    """Measurements in a folder or in a packed file (``*.json.xz``, read-only).

    A cell's file is named by the digest of its configuration, which includes the digests of the data and the code and
    every parameter. A changed cell is therefore another file, and is run again.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._packed = _unpacked(self.path.read_bytes(), self.path) if self.path.name.endswith(".xz") else None
        self._found: dict[str, Result | None] = {}

    def read(self, cell: Cell) -> Result | None:
        """Return the result of a cell, which may be a failure; None if missing."""
        return self._load(f"cells/{cell.path}")

    def write(self, cell: Cell, result: Result) -> None:
        configuration = {name: value for name, value in vars(cell).items() if name != "limit_seconds"}
        configuration["parameters"] = json.loads(cell.parameters)
        self._found.clear()
        self._write(f"cells/{cell.path}", {"format": FORMAT, "configuration": configuration, **result})

    def done(self, cell: Cell, *, retry: bool = False) -> bool:
        """Return whether a cell needs no run: it was measured, or failed and is not retried."""
        known = self.read(cell)
        if known is None or "error" in known:
            return known is not None and not retry
        return known["configuration"]["per_query"] or not cell.per_query

    def write_dataset(self, facts: dict[str, Any]) -> None:
        file = re.sub(r"[^\w.+-]", "-", facts["name"])
        self._write(f"datasets/{file}.json", {"format": FORMAT, **facts})

    def datasets(self) -> dict[str, dict[str, Any]]:
        return {facts["name"]: facts for facts in self._all("datasets/*.json")}

    def everything(self) -> Iterator[Result]:
        yield from self._all("cells/*/*.json")

    @cached_property
    def _by_configuration(self) -> dict[tuple[Any, ...], list[Result]]:
        found = defaultdict(list)
        for result in self.everything():
            found[_coarse(result["configuration"])].append(result)
        return found

    def find(self, cell: Cell, given: Mapping[str, Any]) -> Result | None:
        """Return the result of a cell for a report, or the newest result of the same cell with other code.

        A cell is run again when the code changes, but a report on the earlier result remains true. Parameters that the
        method did not have then, or does not have now, are ignored unless the row sets them (``given``).
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
            raise ValueError(f"{self.path} is packed and read-only; unpack it to continue measuring")
        write_atomically(self.path / name, _to_text(content).encode())


_COARSE = ("dataset", "digest", "scenario", "method", "features", "bits", "seed", "protocol", "intra")


def _coarse(configuration: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what must be equal for a report to show one cell for another; parameters are compared separately."""
    return tuple(configuration[name] for name in _COARSE)


def _checked(content: Any, name: str, path: Path) -> Result:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: not a result of this version (format {FORMAT}); use another folder of results")
    if name.startswith("datasets/"):
        if not isinstance(content.get("name"), str):
            raise ValueError(f"{path}: {name} does not name its data set; the file is damaged")
        return content
    configuration = content.get("configuration")
    if not isinstance(configuration, dict) or not isinstance(configuration.get("parameters"), dict):
        raise ValueError(f"{path}: {name} is not a cell with its configuration; the file is damaged")
    for key in _COARSE:
        if not isinstance(configuration.get(key), str | int):
            raise ValueError(f"{path}: the configuration of {name} has no {key!r}; the file is damaged")
    return content


def pack(folder: str | Path, *, per_query: bool = True, only: Collection[str] | None = None) -> bytes:
    """Return the files of a results folder as one compressed file; the same files give the same bytes.

    Without ``per_query``, average precisions per query and curves are dropped, which leaves a tenth of the size.
    ``only`` limits the cells, by their ``path``.
    """
    folder = Path(folder)
    cells = sorted(folder.glob("cells/*/*.json"))
    if only is not None:
        cells = [path for path in cells if path.relative_to(folder / "cells").as_posix() in only]
    paths = [*sorted(folder.glob("datasets/*.json")), *cells]
    if not paths:
        raise FileNotFoundError(f"{folder}: no results")
    # a line per file: its name, a tab and its content
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
    """Write the files that :func:`pack` read; raise ValueError before writing if the content is invalid."""
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
    try:
        lines = lzma.decompress(content).decode().split("\n")
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"not packed results ({error})") from error
    return [(name, text) for name, _, text in (line.partition("\t") for line in lines)]


def _is_own(name: str) -> bool:  # of a file inside a results folder
    kind, *parts = name.split("/")
    return len(parts) == {"cells": 2, "datasets": 1}.get(kind) and not any(
        part.strip(".") == "" or set(part) & set("\\\0") for part in parts
    )


def _parsed(text: str, name: str, path: Path) -> Result:
    """Return the content of a file that :class:`Results` wrote under this name."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or not results of modalhash ({error})") from error
    return _checked(content, name, path)


@dataclass(frozen=True, eq=False)
class Study(Measured):
    """The results of one grid on one data set."""

    grid: Grid
    dataset: str
    facts: Mapping[str, Any]
    cells: Mapping[Point, Cell]
    """Including those without a result."""
    found: Mapping[Point, Result]

    @cached_property
    def failures(self) -> dict[Point, str]:
        return {point: str(result["error"]) for point, result in self.found.items() if "error" in result}

    @property
    def title(self) -> str:
        return self.grid.inputs[self.dataset].heading

    @property
    def described(self) -> str:
        return f"{self.title} (data: {kind_of(self.facts)})"

    @cached_property
    def rows(self) -> list[tuple[str, str]]:
        """Label and scenario of the rows with any result, in the order of the file, without points of sweeps."""
        found = {(point.label, point.scenario) for point in self.results}
        wanted = [(row.label, row.scenario) for row in self.grid.rows if not row.sweep]
        return [row for row in wanted if row in found]

    @cached_property
    def shown(self) -> list[RowName]:
        """The rows of tables: those with any result, or the points of sweeps if there are no others."""
        found = {point[:3] for point in self.results}
        rows = [(row.label, row.scenario, row.sweep) for row in self.grid.rows]
        return [row for row in rows if row in found and not (row[2] and self.rows)]

    @cached_property
    def has_scenarios(self) -> bool:
        return len({scenario for _, scenario, _ in self.shown}) > 1

    def name(self, row: RowName) -> str:
        """Return the label of a row, with its scenario if there are several."""
        return f"{row[0]} ({row[1]})" if self.has_scenarios else row[0]

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """Sweeps with two points or more; the defaults alone, which other tables share, show nothing."""
        points: dict[str, set[str]] = {}
        for point in self.results:
            points.setdefault(point.sweep, set()).add(point.label)
        return [sweep for sweep in self.grid.sweeps if len(points.get(sweep.name, ())) > 1]

    def reference_of_row(self, row: RowName, reference: str, bits: int) -> dict[int, Result]:
        """Return the results of the reference in the same scenario, or in its first one."""
        return self.of_row((reference, *row[1:]), bits) or self.of(reference, bits)

    def seconds(self, label: str, bits: int, scenario: str = "") -> Spread | None:
        values = [result["seconds"]["cpu"] for result in self.of(label, bits, scenario=scenario).values()]
        return Spread.of(values) if values else None

    def memory(self, label: str, bits: int, scenario: str = "") -> float | None:
        """Return the peak memory of a process during a fit in bytes, with the data set; None if not recorded."""
        found = self.of(label, bits, scenario=scenario).values()
        return max((result["memory"]["peak"] for result in found if result.get("memory")), default=None)

    def precision_at(self, label: str, bits: int, direction: str, database: str) -> dict[int, float]:
        entries = self.entries(self.of(label, bits).values(), database, direction)
        found = [entry["precision_at"] for entry in entries if "precision_at" in entry]
        return {int(n): float(np.mean([one[n] for one in found])) for n in (found[0] if found else ())}

    def tests(self, reference: str, *, draws: int = 10_000) -> dict[TestedPlace, PairedTest]:
        """Test every row against the one with the label ``reference``, by row, bits, direction and database.

        Rows are compared on the same queries with the same seeds.
        """
        return self._tests(lambda *place: reference, draws)

    def tests_against_best(self, *, draws: int = 10_000) -> dict[TestedPlace, PairedTest]:
        """Test every row against the one with the highest mean of the same bits, direction and database."""

        def best(*place: Any) -> str:
            return max(self.shown, key=lambda row: self._mean_of_row(row, *place))[0]

        return self._tests(best, draws)

    def _tests(self, reference: Callable[[int, str, str], str], draws: int) -> dict[TestedPlace, PairedTest]:
        differences: dict[TestedPlace, Array] = {}
        for database, direction, bits in product(self.databases, self.directions, self.bits):
            other = reference(bits, direction, database)
            for row in self.shown:
                difference = self._difference(row, other, bits, direction, database)
                if difference is not None:
                    differences[row, bits, direction, database] = difference
        return paired_tests(differences, draws=draws)

    def _mean_of_row(self, row: RowName, bits: int, direction: str, database: str) -> float:
        found = self.entries(self.of_row(row, bits).values(), database, direction)
        return sum(entry["map"] for entry in found) / len(found) if found else -1.0

    def _difference(self, row: RowName, reference: str, bits: int, direction: str, database: str) -> Array | None:
        """Return the difference of a row to the reference on every common query, or None."""
        if row[0] == reference:
            return None
        own, other = self.of_row(row, bits), self.reference_of_row(row, reference, bits)
        return self.difference(own, other, database, direction)


def kind_of(facts: Mapping[str, Any]) -> str:
    """Return the kind of a data set by its facts, e.g. ``"original"`` or ``"twin, real labels"``."""
    labels = f", {facts['labels']} labels" if "labels" in facts else ""
    return f"{facts.get('kind', 'not stated')}{labels}"


def read_study(results: Results, grid: Grid, dataset: str, facts: Mapping[str, Any]) -> Study:
    """Collect the results of a grid on a data set; ``facts`` are the stored facts of the data set."""
    given = {(row.label, row.scenario, row.sweep): row.parameters for row in grid.rows}
    cells = cells_of(grid, dataset, facts["digest"])
    found = {point: results.find(cell, given[point[:3]]) for point, cell in cells.items()}
    known = {point: result for point, result in found.items() if result is not None}
    return Study(grid, dataset, facts, cells, known)


def read_studies(results: Results, grid: Grid) -> dict[str, Study]:
    """Collect the results of a grid by data set, for those with any result."""
    facts = results.datasets()
    studies = {name: read_study(results, grid, name, facts[name]) for name in grid.datasets if name in facts}
    return {name: study for name, study in studies.items() if study.found}


def quality_tables(study: Study, against: str = "") -> list[Table]:
    """Return a table of mAP per direction: mean ± standard deviation over seeds, with a column per database.

    Arrows mark rows that differ significantly from the one with the label ``against``, by default the first.
    """
    reference = reference_of(study, against)
    tests = study.tests(reference)
    columns = [(bits, kind) for bits in study.bits for kind in study.databases]
    several = study.has_scenarios
    tables = []
    for direction in study.directions:
        rows = []
        for row in study.shown:
            spreads = [_marked(study, (row, bits, direction, kind), tests) for bits, kind in columns]
            if any(spread is not None for spread in spreads):
                rows.append([*row[: 2 if several else 1], *spreads])
        tables.append(
            Table(
                title=f"{study.described}: mAP, {direction}",
                columns=["", *(["scenario"] if several else []), *(f"{bits} bits, {kind}" for bits, kind in columns)],
                rows=rows,
                notes=[
                    *_settings(study, direction),
                    *_test_notes(study, reference, {row for row, *_ in tests}, len(tests)),
                ],
            )
        )
    return tables


def reference_of(study: Study, against: str = "") -> str:
    """Return the label that the other rows are tested against; raise ValueError for an unknown one."""
    labels = list(dict.fromkeys(row.label for row in study.grid.rows))
    if against and against not in labels:
        raise ValueError(f"no row has the label {against!r}; there are {', '.join(labels)}")
    return against or (study.shown[0][0] if study.shown else "")


def _marked(study: Study, place: TestedPlace, tests: Mapping[TestedPlace, PairedTest]) -> Spread | None:
    (label, scenario, sweep), bits, direction, database = place
    spread, test = study.spread(label, bits, direction, database, sweep, scenario), tests.get(place)
    return spread if spread is None or test is None else marked(spread, test)


def _settings(study: Study, direction: str) -> list[str]:
    protocols = [study.grid.protocol.with_database(kind) for kind in study.databases if kind != "retrieval"]
    chance = ", ".join(f"{study.chance(direction, kind) or 0:.4f} ({kind})" for kind in study.databases)
    return [
        "; ".join(f"`{protocol}`" for protocol in protocols),
        f"Mean ± standard deviation over {_seeds(study)}. A random ranking has {chance}.",
    ]


def _seeds(study: Study) -> str:
    return f"{len(study.seeds)} seed{'s' if len(study.seeds) != 1 else ''}"


def _test_notes(study: Study, reference: str, tested: set[RowName], n_tests: int) -> list[str]:
    others = [row for row in study.shown if row[0] != reference]
    named = f"{reference} in the same scenario" if study.has_scenarios else reference
    notes = [describe_tests(named, n_tests, "this data set")] if n_tests else []
    reasons: dict[str, list[str]] = {}
    for row in others:
        if row not in tested:
            reasons.setdefault(_why_not_tested(study, row, reference), []).append(study.name(row))
    return notes + [f"Not tested: {', '.join(names)}; {reason}." for reason, names in reasons.items()]


def _why_not_tested(study: Study, row: RowName, reference: str) -> str:
    def kept(results: Iterable[Result]) -> bool:
        entries = (
            entry for result in results for kind in result.get("databases", {}).values() for entry in kind.values()
        )
        return any("average_precision" in entry for entry in entries)

    own = [result for bits in study.bits for result in study.of_row(row, bits).values()]
    other = [result for bits in study.bits for result in study.reference_of_row(row, reference, bits).values()]
    if not other:
        return f"{reference} was not measured"
    for name, results in ((reference, other), (row[0], own)):
        if not kept(results):
            return f"the results of {name} have no average precision per query (`per_query = false`, or packed so)"
    return f"no seed has the same queries as {reference}"


def curve_figure(study: Study, against: str = "", kind: str = "svg") -> bytes | None:
    """Return precision over recall as an svg, png or pdf file; None if no curves were stored.

    The thick line is the reference. Needs the extra ``plot``.
    """
    curves = study.curves_of({row: study.name(row) for row in study.shown})
    if not curves:
        return None
    bold = next((study.name(row) for row in study.shown if row[0] == reference_of(study, against)), "")
    caption = [f"Mean over {_seeds(study)}. The thick line is {bold}."]
    caption += [
        f"Protocol: {study.grid.protocol.with_database(database)}" for database in dict.fromkeys(p[0] for p in curves)
    ]
    title = f"Precision over recall on {study.described}"
    return render_curves(curves, title=title, caption="\n".join(caption), bold=bold, kind=kind)


def seconds_table(study: Study) -> Table:
    """Return a table of CPU seconds per fit, mean over the seeds."""
    rows = []
    for label, scenario in study.rows:
        spreads = [study.seconds(label, bits, scenario) for bits in study.bits]
        rows.append([f"{label} ({scenario})", *(None if s is None else f"{s.mean:.2f}" for s in spreads)])
    return Table(
        f"{study.described}: CPU seconds per fit",
        ["", *(f"{bits} bits" for bits in study.bits)],
        rows,
        ["CPU time of a process with one BLAS thread, kernel features included; mean over the seeds."],
    )


def environments(results: Iterable[Result]) -> dict[str, int]:
    """Count the results by their environment, described in one line."""
    counts: dict[str, int] = defaultdict(int)
    for result in results:
        if "environment" in result:
            counts[_describe(result["environment"])] += 1
    return counts


def _describe(environment: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in environment["versions"].items())
    threads = f"thread{'s' if environment['threads'] != 1 else ''}"
    if "blas" in environment:
        threads = f"BLAS {threads} ({', '.join(environment['blas'])})"
    commit = f", commit {environment['commit']}" if environment["commit"] else ""
    return f"{environment['machine']}, {environment['threads']} {threads}; {versions}{commit}"
