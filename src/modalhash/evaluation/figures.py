"""Figures: each function draws into the axes given (or new ones) and returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modalhash._imports import require
from modalhash.evaluation.result import Result


def plot_precision_recall(
    results: Mapping[str, Result], direction: tuple[str, str], *, by: str = "rank", ax: Any = None
) -> Any:
    """Draw precision over recall of several methods, by rank or by Hamming radius."""
    if by not in ("rank", "radius"):
        raise ValueError(f"by is {by!r}; expected 'rank' or 'radius'")
    ax = _axes(ax)
    for name, result in results.items():
        measured = result[direction]
        curve = measured.by_rank if by == "rank" else measured.by_radius
        ax.plot(curve.recall, curve.precision, label=name, marker=None if by == "rank" else ".")
    ax.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1))
    return _finish(ax, results, direction)


def plot_precision_at(
    results: Mapping[str, Result], direction: tuple[str, str], *, up_to: int | None = 2000, ax: Any = None
) -> Any:
    """Draw precision among the first N items over N."""
    ax = _axes(ax)
    for name, result in results.items():
        curve = result[direction].by_rank
        shown = slice(None) if up_to is None else curve.at <= up_to
        ax.plot(curve.at[shown], curve.precision[shown], label=name)
    ax.set(xlabel="N", ylabel="precision@N", ylim=(0, 1))
    return _finish(ax, results, direction)


def plot_convergence(objectives: Mapping[str, Sequence[float]], *, relative: bool = True, ax: Any = None) -> Any:
    """Draw the objective over iterations; ``relative`` divides each trace by its first value."""
    if not objectives:
        raise ValueError("objectives is empty; expected a dict from name to objective values, e.g. model.objective_")
    ax = _axes(ax)
    for name, trace in objectives.items():
        values = np.asarray(trace, dtype=np.float64)
        if values.ndim != 1 or not len(values):
            raise ValueError(f"{name!r}: the trace has shape {values.shape}; expected one value per iteration")
        ax.plot(np.arange(1, len(values) + 1), values / values[0] if relative else values, label=name)
    ax.set(xlabel="iteration", ylabel="objective / first" if relative else "objective")
    ax.legend()
    return ax


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    figure = require("matplotlib.figure", extra="plot", why="drawing a figure")
    return figure.Figure(layout="constrained").subplots()


def _finish(ax: Any, results: Mapping[str, Result], direction: tuple[str, str]) -> Any:
    if not results:
        raise ValueError("results is empty; expected a dict from name to Result")
    protocols = sorted({str(result.protocol) for result in results.values()})
    ax.set_title(f"{direction[0]} → {direction[1]}\n" + "\n".join(protocols), fontsize="small")
    ax.legend()
    return ax
