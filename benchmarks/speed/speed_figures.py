"""Figures of the speed page, from the rows of the result files: the same bytes for the same results.

A figure is left out where no rows are there for it. Importing this module does not load matplotlib.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

Results = dict[str, dict[str, Any]]
Series = dict[str, list[tuple[float, float]]]
"""Points by the name of a curve."""


def rows_of(results: Results, name: str) -> dict[str, dict[str, Any]]:
    return {line["row"]: line for line in results.get(name, {}).get("rows", [])}


def by_length(results: Results) -> Series:
    """Times as fast as FAISS by code length, one thread: all queries together, and one by one."""
    series: Series = {}
    for name, line in rows_of(results, "search_speed").items():
        if found := re.fullmatch(r"top\d+-(\d+)(-alone)?-1", name):
            series.setdefault("one by one" if found[2] else "together", []).append((float(found[1]), line["ratio"]))
    return {name: sorted(points) for name, points in series.items()}


def by_size(results: Results) -> Series:
    """Milliseconds of a query by the number of codes, one by one, of each index."""
    series: Series = {}
    names = {
        "flat": "FAISS flat",
        "lists": "FAISS inverted lists, recall at least 0.95",
        "HNSW": "FAISS HNSW, recall at least 0.95",
    }
    for name, line in rows_of(results, "growth_faiss").items():
        if found := re.fullmatch(r"growth-(\d+)-(clusters-)?(flat|lists|HNSW)-alone", name):
            if found[3] == "flat":
                ours = "HammingIndex with clusters (exact)" if found[2] else "HammingIndex (exact)"
                series.setdefault(ours, []).append((float(found[1]), line["ours"]))
            if line["theirs"] is not None and not found[2]:
                series.setdefault(names[found[3]], []).append((float(found[1]), line["theirs"]))
    return {name: sorted(points) for name, points in series.items()}


def of_training(results: Results) -> list[tuple[str, float, float]]:
    """What is measured, the ratio, and its mark, of training rows that are to be faster than something."""
    rows = [*rows_of(results, "training_speed").values(), *rows_of(results, "rlh_speed").values()]
    return [
        (line["measure"], line["ratio"], float(line["reach"].split()[1]))
        for line in rows
        if line["reach"].startswith(">=") and line["ratio"] is not None
    ]


def draw_length(results: Results) -> bytes | None:
    series = by_length(results)
    if not series:
        return None

    def plot(axes: Any) -> None:
        lengths = sorted({length for points in series.values() for length, _ in points})
        for name, points in series.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.axhline(1, color="grey", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel="bits", ylabel="times as fast as FAISS flat", xticks=lengths)
        axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
        axes.minorticks_off()
        axes.legend(frameon=False)

    return as_svg(plot, "length")


def draw_size(results: Results) -> bytes | None:
    series = by_size(results)
    if not series:
        return None

    def plot(axes: Any) -> None:
        for name, points in series.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="codes of 64 bits", ylabel="ms for one query")
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))

    return as_svg(plot, "size", width=9)


def draw_training(results: Results) -> bytes | None:
    ratios = of_training(results)
    if not ratios:
        return None

    def plot(axes: Any) -> None:
        places = range(len(ratios))
        axes.plot([ratio for _, ratio, _ in ratios], places, "o", label="measured")
        axes.plot([mark for _, _, mark in ratios], places, "|", color="black", markersize=16, label="mark")
        axes.set(xscale="log", xlabel="times as fast", ylim=(len(ratios) - 0.5, -0.5))
        axes.set_yticks(places, [measure for measure, _, _ in ratios], fontsize=7)
        axes.legend(frameon=False)

    return as_svg(plot, "training", width=9)


DRAWN: dict[str, tuple[Callable[[Results], bytes | None], Callable[[Results], Any], str]] = {
    "speed-length.svg": (draw_length, by_length, "Exact search against FAISS flat by code length, one thread"),
    "speed-size.svg": (draw_size, by_size, "Time of one query by the number of codes"),
    "speed-training.svg": (draw_training, of_training, "Training: how many times as fast, and the marks"),
}


def captions(results: Results) -> dict[str, str]:
    """File names and captions of the figures for which there are rows."""
    return {name: caption for name, (_, points, caption) in DRAWN.items() if points(results)}


def draw(results: Results) -> dict[str, bytes]:
    """SVG by file name."""
    return {name: drawing for name, (make, _, _) in DRAWN.items() if (drawing := make(results)) is not None}


def as_svg(plot: Callable[[Any], None], salt: str, width: float = 6) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": f"speed-{salt}", "svg.fonttype": "none"}):
        figure = Figure(figsize=(width, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.grid(alpha=0.3)
        plot(axes)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
