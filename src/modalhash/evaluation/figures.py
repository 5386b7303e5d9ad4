"""Figures of single results in given or new axes, and of many methods as small multiples."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.evaluation.result import Result

INK, FAINT = "#1c1c1c", "#dedede"
RED, BLUE, GREEN, VIOLET, ORANGE = "#c8321f", "#2f6db5", "#2a9d77", "#b07aa1", "#d98c1f"
BROWN, SLATE, CYAN, OLIVE = "#8c6d4f", "#7f7f9c", "#4fb3c9", "#9aa13b"
PALETTE = (BLUE, GREEN, ORANGE, VIOLET, BROWN, CYAN, SLATE, OLIVE, RED, INK)
COLOURS = {
    "amsh": RED, "amsh_cnn": RED, "rlh": INK, "batch": BLUE, "scratch": GREEN, "srlch": VIOLET, "dch": ORANGE,
    "smfh": BROWN, "cre": SLATE, "fsh": CYAN, "cmfh": OLIVE, "fmh": BLUE, "edmh": GREEN, "gsph": ORANGE,
    "ucmh": VIOLET, "rucmh": SLATE, "sapmh": OLIVE, "gsph, pairs given": BROWN,
    "amsh-s": ORANGE, "amsh-t": GREEN, "amsh-k": BLUE, "amsh-m": VIOLET,
}  # fmt: skip
"""Colours of methods by lower-case name, the same in every figure."""
DASHES = ("-", "--", ":", "-.")
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
    "savefig.facecolor": "white",
}
"""matplotlib rc parameters for figures of several panels."""
RECALL_STEP = 0.02
"""Difference of recall between two points of a stored curve."""
MAX_COLUMNS = 4
Panel = tuple[str, str, int]
"""Database, direction and code length."""


def method_colours(labels: Iterable[str]) -> dict[str, str]:
    """Return a colour for each label: that of the method, or the next free one of the palette.

    Examples
    --------
    >>> method_colours(["AMSH", "Mine", "batch"])
    {'AMSH': '#c8321f', 'Mine': '#2a9d77', 'batch': '#2f6db5'}
    """
    found: dict[str, str] = {}
    labels = list(labels)
    for label in labels:
        own = COLOURS.get(label.lower())
        if own is not None and own not in found.values():
            found[label] = own
    free = [colour for colour in PALETTE if colour not in found.values()] or list(PALETTE)
    others = [label for label in labels if label not in found]
    found |= {label: free[number % len(free)] for number, label in enumerate(others)}
    return {label: found[label] for label in labels}


def draw_curves(figure: Any, curves: Mapping[Panel, Mapping[str, Array]], *, bold: str = "") -> None:
    """Draw precision over recall as small multiples with a common legend.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        With constrained layout.
    curves : dict
        (database, direction, bits) → label → precision at recall 0, 0.02, 0.04, …
    bold : str
        Label of the thick line, e.g. the reference method.
    """
    labels = list(dict.fromkeys(label for lines in curves.values() for label in lines))
    colours = method_colours(labels)
    rows, columns = _layout(curves)
    shared = "row" if len(columns[0]) == 1 else False  # code lengths share a scale, directions do not
    axes = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=shared)
    handles: dict[str, Any] = {}
    for panel_row, row in zip(axes, rows, strict=True):
        for ax, column in zip(panel_row, columns, strict=True):
            for number, label in enumerate(labels):
                if (precision := curves.get(row + column, {}).get(label)) is not None:
                    thick = label == bold
                    (handles[label],) = ax.plot(
                        RECALL_STEP * np.arange(len(precision)),
                        precision,
                        color=colours[label],
                        linestyle="-" if thick else DASHES[number % len(DASHES)],
                        linewidth=1.9 if thick else 1.2,
                        zorder=3 if thick else 2,
                    )
            _, direction, bits = row + column
            ax.set_title(f"{direction.replace('→', ' → ')}, {bits} bits", loc="left")
        panel_row[0].set_ylabel(f"precision, {row[0]}")
    for ax in axes.flat:
        ax.set(xlim=(0, 1), ylim=(0, None))  # after all lines, because axes may be shared
    for ax in axes[-1]:
        ax.set_xlabel("recall")
    ncols = min(len(labels), 9, 1 + 2 * len(columns))  # not wider than the panels
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside lower center", ncols=ncols, handlelength=2.2
    )


def figure_size(curves: Mapping[Panel, Any]) -> tuple[float, float]:
    rows, columns = _layout(curves)
    return 2.35 * len(columns) + 0.4, 2.15 * len(rows) + 0.75


def render_curves(
    curves: Mapping[Panel, Mapping[str, Array]], *, title: str, caption: str, bold: str = "", kind: str = "svg"
) -> bytes:
    """Return :func:`draw_curves` with title and caption as the bytes of an svg, png or pdf file, reproducibly."""
    matplotlib = require("matplotlib", extra="plot", why="drawing curves")
    module = require("matplotlib.figure", extra="plot", why="drawing curves")
    width, height = figure_size(curves)
    width = max(width, 5.1)  # room for the caption
    lines = [line for part in caption.splitlines() for line in textwrap.wrap(part, int(17.5 * width))]
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": title}):
        heights = [height + 0.3, 0.12 * len(lines) + 0.1]
        figure = module.Figure(figsize=(width, sum(heights)), layout="constrained")
        drawing, below = figure.subfigures(2, 1, height_ratios=heights)
        drawing.suptitle(textwrap.fill(title, int(12 * width)), x=0.01, ha="left", fontsize=10)
        draw_curves(drawing, curves, bold=bold)
        below.text(0.01, 1.0, "\n".join(lines), va="top", fontsize=7)
        out = io.BytesIO()
        undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
        figure.savefig(out, format=kind, dpi=200, metadata=undated)
    return out.getvalue()


def _layout(curves: Mapping[Panel, Any]) -> tuple[list[Any], list[Any]]:
    """Return the panel prefixes that make the rows, and the suffixes that make the columns.

    A row is a database if there are few directions and lengths, otherwise a database and a direction.
    """
    if not curves:
        raise ValueError("curves is empty; expected a dict from (database, direction, bits) to curves")
    at = 1 if len({panel[1:] for panel in curves}) <= MAX_COLUMNS else 2
    return list(dict.fromkeys(panel[:at] for panel in curves)), list(dict.fromkeys(panel[at:] for panel in curves))


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
