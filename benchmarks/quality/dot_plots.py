"""mAP by method as a dot plot: a row per method, a dot per kind of database, a bar as wide as seeds differ."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from modalhash.experiments import Row, Study
from modalhash.methods.registry import info

LOOKS = {  # of a database: marker, colour (also told apart by those who see few colours), filled
    "learned": ("o", "#0072b2", False),
    "hashed": ("s", "#e69f00", False),
    "unseen": ("D", "#009e73", True),
}


def draw_methods(study: Study, rows: Sequence[Row], names: Sequence[str], bits: int) -> bytes:
    """Return the figure of one data set as SVG, the same bytes for the same results.

    A panel is a direction. Methods are ordered by what they find in the last database, over both directions: that of
    items which took no part in training, where it was measured.
    """
    import matplotlib
    from matplotlib.figure import Figure

    def value(row: Row, direction: str, database: str) -> tuple[float, float]:
        spread = study.spread(row.label, bits, direction, database, scenario=row.scenario)
        return (np.nan, 0.0) if spread is None else (spread.mean, spread.sd or 0.0)

    shown = [(row, name) for row, name in zip(rows, names, strict=True) if row.method != "chance"]
    last = study.databases[-1]
    shown.sort(key=lambda pair: float(np.mean([value(pair[0], way, last)[0] for way in study.directions])))
    with matplotlib.rc_context({"svg.hashsalt": f"map-{study.dataset}", "svg.fonttype": "none", "font.size": 11}):
        figure = Figure(figsize=(9, 1.4 + 0.29 * len(shown)), layout="constrained")
        panels = figure.subplots(1, len(study.directions), sharey=True)
        for ax, direction in zip(np.atleast_1d(panels), study.directions, strict=True):
            for database in study.databases:
                marker, colour, filled = LOOKS[database]
                means, deviations = zip(*(value(row, direction, database) for row, _ in shown), strict=True)
                ax.errorbar(
                    means, range(len(shown)), xerr=deviations, linestyle="none", marker=marker, markersize=6, capsize=2,
                    color=colour, markerfacecolor=colour if filled else "white", label=f"{database} database",
                )  # fmt: skip
            ax.axvline(study.chance(direction, last), color="0.5", linestyle="--", linewidth=1, label="random ranking")
            ax.set(title=direction.replace("→", " → "), xlabel=f"mAP, {bits} bits")
            ax.grid(axis="x", alpha=0.3)
            ax.grid(axis="y", alpha=0.15)
        first = np.atleast_1d(panels)[0]
        first.set_yticks(range(len(shown)), [name for _, name in shown])
        for label, (row, _) in zip(first.get_yticklabels(), shown, strict=True):
            label.set_color("0.45" if info(row.method).control else "black")
        handles = first.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
