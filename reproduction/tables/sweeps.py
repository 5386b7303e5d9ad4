"""Tables of mAP over AMSH's parameters, and how the map over two of them reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from modalhash.experiments import Sweep
from reproduction.document import Entry, GroupedTable
from reproduction.study import TASKS, Study
from reproduction.tables.quality import seeds_of, task_of


def single_sweep(study: Study, sweep: Sweep) -> GroupedTable:
    """Tabulate quality over one parameter."""
    ((name, values),) = sweep.values.items()
    bits = study.bits[0]
    sections = []
    for task in TASKS:
        rows = []
        for kind in study.databases:
            spreads = [study.spread(sweep.label({name: v}), bits, task, kind, sweep.name) for v in values]
            rows.append((kind, [Entry() if s is None else Entry(f"{s.mean:.4f}", "" if s.sd is None else f"±{s.sd:.4f}")
                                for s in spreads]))  # fmt: skip
        sections.append((task_of(study, task), rows))
    return GroupedTable(
        study.experiment.paper,
        f"{sweep.title}. {study.described}, {bits} bits, mAP over {seeds_of(study)}.",
        sweep.symbols[name],
        [f"{value:g}" for value in values],
        sections,
        notes=[f"Protocol: `{study.grid.protocol}`, and the same for the other databases."],
    )


def surface(study: Study, sweep: Sweep, task: str, database: str = "learned") -> np.ndarray[Any, Any]:
    """Return the mean mAP over two parameters: rows are the first's values; NaN where nothing was measured."""
    (first, rows), (second, columns) = sweep.values.items()
    bits = study.bits[0]
    found = [
        [study.mean(sweep.label({first: a, second: b}), bits, task, database, sweep.name) for b in columns]
        for a in rows
    ]
    return np.array([[np.nan if value is None else value for value in row] for row in found])


def double_sweep(study: Study, sweep: Sweep) -> GroupedTable:
    """Tabulate quality over two parameters."""
    (first, rows), (second, columns) = sweep.values.items()
    sections = []
    for task in TASKS:
        values = surface(study, sweep, task)
        sections.append((
            f"{task_of(study, task)} (rows: {sweep.symbols[first]})",
            [(f"{a:g}", [Entry("–" if np.isnan(v) else f"{v:.4f}") for v in line])
             for a, line in zip(rows, values, strict=True)],
        ))  # fmt: skip
    return GroupedTable(
        study.experiment.paper,
        f"{sweep.title}. {study.described}, {study.bits[0]} bits, learned database, mAP, mean over {seeds_of(study)}.",
        f"{sweep.symbols[first]} \\ {sweep.symbols[second]}",
        [f"{value:g}" for value in columns],
        sections,
        notes=[f"Protocol: `{study.grid.protocol}`."],
    )


def ratio_reading(study: Study, sweep: Sweep) -> str | None:
    """Describe a map over two weights along its diagonals; None if values are missing."""
    (first, rows), (second, columns) = sweep.values.items()
    values = np.mean([surface(study, sweep, task) for task in TASKS], axis=0)
    if np.isnan(values).any():
        return None
    ratio = np.log10(np.array(rows))[:, None] - np.log10(np.array(columns))[None, :]
    parts = {
        "at most": values[ratio < 0.5],
        "ten times": values[(ratio > 0.5) & (ratio < 1.5)],
        "more": values[ratio > 1.5],
    }
    a, b = sweep.symbols[first], sweep.symbols[second]
    return (
        f"**Read along the diagonals.** On {study.source.title}, mean of both directions: "
        f"{parts['at most'].mean():.3f} where {a} ≤ {b} (lowest {parts['at most'].min():.3f}), "
        f"{parts['ten times'].mean():.3f} where {a} is ten times {b} (lowest {parts['ten times'].min():.3f}), "
        f"{parts['more'].mean():.3f} where it is more than that (highest {parts['more'].max():.3f})."
    )
