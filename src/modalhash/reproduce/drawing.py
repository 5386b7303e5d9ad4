"""How figures look: one style, colours by method, SVG that is the same bytes for the same results."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from modalhash._imports import require

INK = "#010203"
"""Stands for the text colour; becomes ``currentColor``, so that a figure follows the page into the dark."""
FAINT = "#040506"
"""Likewise for lines of the grid."""
COLOURS = {
    "AMSH": "#c8321f", "BATCH": "#2f6db5", "SCRATCH": "#2a9d77", "SRLCH": "#b07aa1", "DCH": "#d98c1f",
    "SMFH": "#8c6d4f", "CRE": "#7f7f9c", "FSH": "#4fb3c9", "CMFH": "#9aa13b", "FMH": "#2f6db5", "EDMH": "#2a9d77",
    "GSPH": "#d98c1f", "UCMH": "#b07aa1", "RUCMH": "#7f7f9c", "SAPMH": "#9aa13b", "AMSH_cnn": "#c8321f",
    "AMSH-s": "#d98c1f", "AMSH-t": "#2a9d77", "AMSH-k": "#2f6db5", "AMSH-m": "#b07aa1", "GSPH, pairs given": "#8c6d4f",
}  # fmt: skip
DASHES = ["-", "--", ":", "-."]
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
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
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@contextmanager
def canvas(name: str, width: float, height: float) -> Iterator[tuple[Any, list[str]]]:
    """A figure to draw on; the SVG is in the list afterwards."""
    matplotlib = require("matplotlib", extra="plot", why="drawing the report's figures")
    module = require("matplotlib.figure", extra="plot", why="drawing the report's figures")
    out: list[str] = []
    # the salt makes the ids inside a file follow from its name and content
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = module.Figure(figsize=(width, height), layout="constrained")
        yield figure, out
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    out.append(clean(buffer.getvalue(), name))


def clean(text: str, name: str) -> str:
    """Only the ``svg`` element, scaled by the page, in the page's colours, with ids of its own."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r' id="(?:[A-Za-z0-9.]+_\d+|Quad\w*)"', "", text)
    text = text.replace(INK, "currentColor")
    text = re.sub(rf"stroke: {FAINT}", "stroke: currentColor; stroke-opacity: 0.14", text)
    text = text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, Geneva, sans-serif")
    # a hundredth of a point is enough, and half the size; texts are no attributes and keep their digits
    text = re.sub(r'="[^"]*"', lambda found: re.sub(r"(\d\.\d\d)\d+", r"\1", found[0]), text)
    return re.sub(r"\n\s*\n+", "\n", text).strip()


def standalone(svg: str) -> str:
    """The same as a file of its own: on white, whatever shows it."""
    return svg.replace("<svg ", '<svg style="background:#fff;color:#1c1c1c" ', 1) + "\n"


def colour(label: str) -> str:
    """Of a method, the same in every figure."""
    return COLOURS.get(label, "#777777")
