"""Check confidence: reliability tables and diagrams, and the expected calibration error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from modalhash.core.typing import Array

N_BINS = 15


class Bin(NamedTuple):
    """Hits whose confidence is in one of equal ranges."""

    start: float
    """Lower end of the range."""
    hits: int
    confidence: float
    """Mean confidence."""
    right: float
    """Fraction that shares a label with the query."""


def reliability_bins(confidence: Array, right: Array, n_bins: int = N_BINS) -> list[Bin]:
    """Return the non-empty bins of ``n_bins`` equal ranges.

    Examples
    --------
    >>> reliability_bins(np.array([0.1, 0.3, 0.9]), np.array([False, True, True]), n_bins=2)
    [Bin(start=0.0, hits=2, confidence=0.2, right=0.5), Bin(start=0.5, hits=1, confidence=0.9, right=1.0)]
    """
    number = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    bins = []
    for i in np.unique(number).tolist():
        own = number == i
        means = float(confidence[own].mean()), float(right[own].mean())
        bins.append(Bin(round(i / n_bins, 4), int(own.sum()), round(means[0], 4), round(means[1], 4)))
    return bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error: mean |confidence − accuracy|, weighted by hits."""
    total = sum(each.hits for each in bins)
    return sum(each.hits * abs(each.confidence - each.right) for each in bins) / max(1, total)


def pooled(tables: Iterable[Sequence[Bin]]) -> list[Bin]:
    """Merge several tables into one."""
    together: dict[float, list[Bin]] = {}
    for table in tables:
        for each in table:
            together.setdefault(each.start, []).append(each)
    bins = []
    for start, some in sorted(together.items()):
        hits = sum(each.hits for each in some)
        confidence = sum(each.hits * each.confidence for each in some) / hits
        right = sum(each.hits * each.right for each in some) / hits
        bins.append(Bin(start, hits, round(confidence, 4), round(right, 4)))
    return bins


def reliability_svg(bins: Sequence[Bin], title: str) -> str:
    """Return the reliability diagram: a circle per bin, its area proportional to the number of hits."""
    side, edge = 360, 44
    most = max((each.hits for each in bins), default=1)

    def place(x: float, y: float) -> tuple[str, str]:
        return f"{edge + x * side:.1f}", f"{edge + (1 - y) * side:.1f}"

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side + 2 * edge} {side + 2 * edge}" role="img" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect class="paper" width="100%" height="100%" fill="#fff"/><text x="{edge}" y="24">{escape(title)}</text>',
        f'<rect x="{edge}" y="{edge}" width="{side}" height="{side}" fill="none" stroke="#999"/>',
        f'<line x1="{edge}" y1="{edge + side}" x2="{edge + side}" y2="{edge}" stroke="#999" stroke-dasharray="4"/>',
    ]
    for tick in (0.0, 0.5, 1.0):
        x, y = place(tick, 0)[0], place(0, tick)[1]
        lines.append(f'<text x="{x}" y="{edge + side + 16}" text-anchor="middle">{tick:g}</text>')
        lines.append(f'<text x="{edge - 6}" y="{y}" text-anchor="end">{tick:g}</text>')
    for each in bins:
        x, y = place(each.confidence, each.right)
        radius = 3 + 9 * (each.hits / most) ** 0.5
        lines.append(f'<circle cx="{x}" cy="{y}" r="{radius:.1f}" fill="#1f5fa8" fill-opacity=".75"/>')
    middle, bottom = edge + side / 2, edge + side + 34
    lines.append(f'<text x="{middle}" y="{bottom}" text-anchor="middle">confidence</text>')
    lines.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">share that is right</text></svg>'
    )
    return "\n".join(lines) + "\n"
