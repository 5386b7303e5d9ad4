"""Results of an evaluation: by direction, and as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.evaluation.measures import Curve
from modalhash.evaluation.protocol import Protocol
from modalhash.evaluation.significance import bootstrap_interval, randomisation_test

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "→": r"$\to$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "≤": r"$\le$",
    }
)


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers with a title, and notes of which the first is the protocol."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row has {len(row)} cells for {len(self.columns)} columns: {row}")
        if not self.notes:
            raise ValueError("a table without notes does not say what was measured; put the protocol there")

    def to_markdown(self) -> str:
        cells = [[text.replace("|", "\\|") for text in row] for row in self._texts()]
        aligned = ["---" if self._is_text(j) else "---:" for j in range(len(self.columns))]
        lines = [f"**{self.title}**", ""]
        lines += [f"| {' | '.join(row)} |" for row in (self.columns, aligned, *cells)]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.notes)]).rstrip() + "\n"

    def to_latex(self) -> str:
        """Return a ``table`` environment that needs the package booktabs."""
        layout = "".join("l" if self._is_text(j) else "r" for j in range(len(self.columns)))
        body = [" & ".join(text.translate(_LATEX) for text in row) + r" \\" for row in (self.columns, *self._texts())]
        caption = ". ".join(text.rstrip(".") for text in (self.title, *self.notes)).translate(_LATEX) + "."
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{caption}}}",
                rf"\begin{{tabular}}{{{layout}}}",
                r"\toprule",
                body[0],
                r"\midrule",
                *body[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def to_json(self) -> str:
        """Return title, notes and one object per row; numbers keep all digits."""
        rows = [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]
        return json.dumps({"title": self.title, "notes": list(self.notes), "rows": rows}, indent=2, ensure_ascii=False)

    def to_rich(self) -> Any:
        from rich.markup import escape
        from rich.table import Table as RichTable

        table = RichTable(title=escape(self.title), caption=escape("\n".join(self.notes)), caption_justify="left")
        texts = self._texts()
        for j, column in enumerate(self.columns):
            whole = j == 0 or (self._is_text(j) and not any(" " in row[j] for row in texts))  # image→text is one word
            justify: Any = "left" if self._is_text(j) else "right"
            table.add_column(escape(column), justify=justify, overflow="fold", no_wrap=whole)
        for row in texts:
            table.add_row(*map(escape, row))
        return table

    def _texts(self) -> list[list[str]]:
        return [[_text(cell) for cell in row] for row in self.rows]

    def _is_text(self, column: int) -> bool:
        return any(isinstance(row[column], str) for row in self.rows)


def _text(cell: Any) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _plain(cell: Any) -> Any:
    return asdict(cell) if is_dataclass(cell) and not isinstance(cell, type) else cell


@dataclass(frozen=True, eq=False)
class Direction:
    """Queries of one modality against a database of another (or the same)."""

    query: str
    database: str
    n_queries: int
    n_items: int
    n_empty: int
    """Number of queries without a relevant item."""
    map: float
    chance: float
    """Exact mAP of a random ranking."""
    average_precision: Array
    """Per query, float32; NaN if the protocol excludes the query."""
    precision_at: Mapping[int, float]
    recall_at: Mapping[int, float]
    radius: int
    lookup_precision: float
    """Mean precision within ``radius``; 0 for a query without items there."""
    lookup_recall: float
    by_rank: Curve
    by_radius: Curve

    @property
    def name(self) -> str:
        return f"{self.query}→{self.database}"

    def interval(self, *, level: float = 0.95, draws: int = 2000, random_state: int = 0) -> tuple[float, float]:
        low, high = bootstrap_interval(self.average_precision, level=level, draws=draws, random_state=random_state)
        # count_from scales the interval in the same way as the mean
        mean = float(np.nanmean(self.average_precision, dtype=np.float64))
        scale = self.map / mean if mean else 1.0
        return low * scale, high * scale

    def to_json(self) -> dict[str, Any]:
        values = {**vars(self), "by_rank": self.by_rank.to_json(), "by_radius": self.by_radius.to_json()}
        values["average_precision"] = [None if np.isnan(x) else float(x) for x in self.average_precision]
        return values


@dataclass(frozen=True, eq=False)
class Result:
    """The return value of :func:`modalhash.evaluation.evaluate`, with one entry per direction."""

    protocol: Protocol
    n_bits: int
    directions: Mapping[tuple[str, str], Direction]

    def __getitem__(self, direction: tuple[str, str]) -> Direction:
        try:
            return self.directions[direction]
        except KeyError:
            known = ", ".join(map(repr, self.directions))
            raise KeyError(f"no direction {direction!r}; measured were {known}") from None

    @property
    def map(self) -> float:
        return float(np.mean([direction.map for direction in self.directions.values()]))

    def table(self, title: str = "Retrieval") -> Table:
        at = list(next(iter(self.directions.values())).precision_at)
        columns = ["direction", self.protocol.measure, "95 % interval", "chance", *(f"P@{n}" for n in at)]
        radius = min(direction.radius for direction in self.directions.values())
        rows = []
        for direction in self.directions.values():
            low, high = direction.interval()
            row = [direction.name, direction.map, f"{low:.4f} – {high:.4f}", direction.chance]
            rows.append([*row, *direction.precision_at.values(), direction.lookup_precision])
        sizes = "; ".join(
            f"{d.name}: {d.n_queries} queries ({d.n_empty} without relevant items), {d.n_items} items"
            for d in self.directions.values()
        )
        notes = [f"Protocol: {self.protocol}", f"{self.n_bits} bits. {sizes}"]
        return Table(title, [*columns, f"P(d≤{radius})"], rows, notes)

    def to_json(self) -> str:
        """Return protocol, measures, curves and the average precision of every query."""
        content = {
            "protocol": {"text": str(self.protocol), **asdict(self.protocol)},
            "n_bits": self.n_bits,
            "directions": [direction.to_json() for direction in self.directions.values()],
        }
        return json.dumps(content, ensure_ascii=False)

    def __str__(self) -> str:
        return self.table().to_markdown()

    def __rich__(self) -> Any:
        return self.table().to_rich()


def compare(first: Result, second: Result, *, draws: int = 10_000, random_state: int = 0) -> Table:
    """Compare two methods on the same queries: difference of the mAP and its p-value, per direction."""
    if first.protocol != second.protocol:
        raise ValueError(
            f"the protocols differ: {first.protocol!s} and {second.protocol!s}; measure both with the same protocol"
        )
    if set(first.directions) != set(second.directions):
        raise ValueError(f"the directions differ: {list(first.directions)} and {list(second.directions)}")
    rows = []
    for key, a in first.directions.items():
        b = second[key]
        p = randomisation_test(a.average_precision, b.average_precision, draws=draws, random_state=random_state)
        rows.append([a.name, a.map, b.map, a.map - b.map, p])
    notes = [f"Protocol: {first.protocol}", f"p: two-sided paired randomisation test over queries, {draws} draws"]
    return Table("Comparison", ["direction", "first", "second", "difference", "p"], rows, notes)
