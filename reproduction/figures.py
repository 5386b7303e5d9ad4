"""Figures as SVG; the same results give the same bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import numpy as np

from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.evaluation.figures import COLOURS, INK, STYLE, Panel, draw_curves, figure_size
from modalhash.experiments import Sweep
from reproduction.document import Figure
from reproduction.study import OURS, TASKS, Study
from reproduction.tables.learned_codes import share_bits
from reproduction.tables.quality import label_of, seeds_of, task_of
from reproduction.tables.sweeps import surface

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
GEOMETRY = {"d", "x", "y", "width", "height", "points", "transform"}
"""Attributes that hold coordinates."""


@contextmanager
def canvas(name: str, width: float, height: float) -> Iterator[tuple[Any, list[str]]]:
    """Yield a figure to draw on; the SVG is in the list afterwards."""
    matplotlib = require("matplotlib", extra="plot", why="drawing the report's figures")
    module = require("matplotlib.figure", extra="plot", why="drawing the report's figures")
    out: list[str] = []
    # the salt makes the ids in a file depend only on its name and content
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = module.Figure(figsize=(width, height), layout="constrained")
        yield figure, out
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    out.append(small(buffer.getvalue()))


def small(svg: str) -> str:
    """Return the same drawing in less than half the bytes.

    Styles that repeat become classes; groups without attributes, metadata, ids that nothing refers to and digits
    beyond a tenth of a point go.
    """
    for prefix, address in (("", SVG), ("xlink", XLINK)):
        ElementTree.register_namespace(prefix, address)
    root = ElementTree.fromstring(svg)
    referred = set(re.findall(r"#([\w-]+)", svg))
    classes: dict[str, str] = {}
    for element in list(root.iter()):
        _unwrap(element)
        if element.attrib.get("id") not in referred:
            element.attrib.pop("id", None)
        if style := element.attrib.pop("style", None):
            element.attrib["class"] = classes.setdefault(style, f"s{len(classes)}")
        for name in GEOMETRY & element.attrib.keys():
            digits = re.sub(r"(\d\.\d)\d+", r"\1", element.attrib[name])
            element.attrib[name] = re.sub(r"\s*([MLz])\s*", r"\1", digits).replace("\n", " ")
        element.text, element.tail = (text if text and text.strip() else None for text in (element.text, element.tail))
    sheet = ElementTree.Element(f"{{{SVG}}}style")
    sheet.text = "".join(f".{name}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, name in classes.items())
    root.insert(0, sheet)
    return ElementTree.tostring(root, encoding="unicode").replace("><", ">\n<") + "\n"


def _unwrap(parent: ElementTree.Element) -> None:
    """Put the children of groups that only group into their parent."""
    children = list(parent)
    while any(_only_groups(child) for child in children):
        children = [inner for child in children for inner in (child if _only_groups(child) else [child])]
    parent[:] = [child for child in children if not child.tag.endswith("}metadata")]


def _only_groups(element: ElementTree.Element) -> bool:
    return element.tag == f"{{{SVG}}}g" and not set(element.attrib) - {"id"}


def colour(label: str) -> str:
    """Return the colour of a method, the same in every figure."""
    return COLOURS.get(label.lower(), "#777777")


KIND_STYLE = {"learned": ("-", "o"), "hashed": ("--", "s"), "unseen": (":", "D")}


def curves(study: Study) -> Figure:
    """Draw precision over recall: both directions at the drawn lengths, learned and unseen databases."""
    experiment = study.experiment
    drawn = [bits for bits in experiment.bits_drawn if bits in study.bits] or study.bits[:2]
    found: dict[Panel, dict[str, Array]] = {
        (kind, study.direction(task), bits): {
            label: curve for label in study.labels if (curve := study.curve(label, bits, task, kind)) is not None
        }
        for kind in ("learned", "unseen")
        if kind in study.databases
        for task in TASKS
        for bits in drawn
    }
    name = f"{experiment.id}-{study.dataset}"
    with canvas(name, *figure_size(found)) as (figure, out):
        draw_curves(figure, found, bold=OURS)
    return Figure(
        name,
        experiment.paper,
        f"{experiment.title}. {study.described}; mean over {seeds_of(study)}. Top: learned database codes, as in "
        "the paper; bottom: unseen items, which the paper does not show.",
        out[0],
        f"Precision over recall of {', '.join(study.labels)} on {study.source.title}.",
    )


def sensitivity(study: Study) -> Figure:
    """Draw quality over η for the three databases, and over λ and β as a map."""
    single = [sweep for sweep in study.sweeps if len(sweep.values) == 1]
    double = [sweep for sweep in study.sweeps if len(sweep.values) == 2]
    name = f"{study.experiment.id}-{study.dataset}"
    heights = [2.3] * bool(single) + [2.7] * len(double)
    with canvas(name, 9.6, sum(heights)) as (figure, out):
        parts = iter(figure.subfigures(len(heights), 1, squeeze=False)[:, 0])
        panels = [(sweep, task) for sweep in single for task in TASKS]
        if panels:
            for ax, (sweep, task) in zip(next(parts).subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
                _line(ax, study, sweep, task)
        for sweep in double:
            for ax, task in zip(next(parts).subplots(1, 2), TASKS, strict=True):
                _map(ax, study, sweep, task)
    return Figure(
        name,
        study.experiment.paper,
        f"{study.experiment.title}. {study.described}, {study.bits[0]} bits, mAP, mean over {seeds_of(study)}. "
        "Above: over η, learned (solid), hashed (dashed) and unseen (dotted) databases. Below: over λ and β, learned.",
        out[0],
        f"mAP of AMSH over η, and over λ and β, on {study.source.title}.",
    )


def _line(ax: Any, study: Study, sweep: Sweep, task: str) -> None:
    ((name, values),) = sweep.values.items()
    for kind in study.databases:
        if kind not in KIND_STYLE:
            continue
        style, marker = KIND_STYLE[kind]
        spreads = [study.spread(sweep.label({name: v}), study.bits[0], task, kind, sweep.name) for v in values]
        known = [(v, s) for v, s in zip(values, spreads, strict=True) if s is not None]
        ax.errorbar(
            [v for v, _ in known],
            [s.mean for _, s in known],
            yerr=[s.sd or 0 for _, s in known],
            color=colour(OURS),
            linestyle=style,
            marker=marker,
            markersize=3,
            elinewidth=0.6,
            label=kind,
        )
    ax.set_xscale("log")
    ax.set_ylim(0, None)
    ax.set_xlabel(sweep.symbols[name])
    scaled = "auto" in map(str, sweep.fixed.values())
    ax.set_title(f"{task_of(study, task)}\n{'λ, β scaled' if scaled else 'λ = β = 1e-3'}", loc="left")


def _map(ax: Any, study: Study, sweep: Sweep, task: str) -> None:
    (first, rows), (second, columns) = sweep.values.items()
    values = surface(study, sweep, task)
    ax.pcolormesh(np.arange(len(columns) + 1), np.arange(len(rows) + 1), values, cmap="cividis", rasterized=False)
    low, high = np.nanmin(values), np.nanmax(values)
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            dark = (value - low) / max(high - low, 1e-9) < 0.55
            ax.text(j + 0.5, i + 0.5, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=7,
                    color="#ffffff" if dark else "#111111")  # fmt: skip
    ax.grid(False)
    ax.set_xticks(np.arange(len(columns)) + 0.5, [f"{value:g}" for value in columns])
    ax.set_yticks(np.arange(len(rows)) + 0.5, [f"{value:g}" for value in rows])
    ax.set(xlabel=sweep.symbols[second], ylabel=sweep.symbols[first])
    ax.set_title(f"{task_of(study, task)}, η = 1", loc="left")


def convergence(study: Study) -> Figure:
    """Draw the objective over iterations, divided by its largest value: both steps, every length."""
    name = f"{study.experiment.id}-{study.dataset}"
    first, second = study.source.modalities
    titles = ["step 1: codes, Eq. (10)", f"step 2: {first}, Eq. (25)", f"step 2: {second}, Eq. (25)"]
    shades = ["#e59b8f", "#d96a58", "#c8321f", "#7d1c10"]
    with canvas(name, 9.6, 2.8) as (figure, out):
        axes = figure.subplots(1, 3)
        for number, bits in enumerate(study.bits):
            found = study.of(OURS, bits)
            trace = found[min(found)]["objective"]
            for ax, values in zip(
                axes, (trace["codes"], trace["functions"][first], trace["functions"][second]), strict=True
            ):
                numbers = np.array(values)
                ax.plot(np.arange(1, len(numbers) + 1), numbers / numbers.max(), color=shades[number % 4], marker="o",
                        markersize=2.4, label=f"{bits} bits")  # fmt: skip
        for ax, title in zip(axes, titles, strict=True):
            ax.set_title(title, loc="left")
            ax.set_xlabel("iteration")
        axes[0].set_ylabel("objective / largest")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return Figure(
        name,
        study.experiment.paper,
        f"{study.experiment.title}. {study.described}, seed {min(study.seeds)}. The vertical axes do not begin at "
        "zero.",
        out[0],
        f"Objective of AMSH over iterations on {study.source.title}.",
    )


def epochs(study: Study) -> Figure | None:
    """Draw the loss of networks over epochs; None if no row has one."""
    bits = min(study.bits)
    traces = {}
    for label in study.labels:
        found = study.of(label, bits)
        trace = found[min(found)]["objective"] if found else None
        if isinstance(trace, dict) and "map" in trace:
            traces[label] = trace
    if not traces:
        return None
    name = f"epochs-{study.experiment.id}-{study.dataset}"
    with canvas(name, 9.6, 2.8) as (figure, out):
        axes = figure.subplots(1, 2)
        for number, (label, trace) in enumerate(traces.items()):
            shown = label_of(study.experiment, label)
            for ax, key, style in ((axes[0], "training", "-"), (axes[0], "validation", "--"), (axes[1], "map", "-")):
                values = np.array(trace[key])
                ax.plot(np.arange(1, len(values) + 1), values, color=f"C{number}", linestyle=style, marker="o",
                        markersize=2.4, label=shown)  # fmt: skip
            best = int(np.argmax(trace["map"]))
            axes[1].plot(best + 1, trace["map"][best], color=f"C{number}", marker="o", markersize=7,
                         markerfacecolor="none")  # fmt: skip
        axes[0].set_title("objective: training (line), held out (dashed)", loc="left")
        axes[1].set_title("mAP of held-out pairs", loc="left")
        for ax in axes:
            ax.set_xlabel("epoch")
        figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return Figure(
        name,
        study.experiment.paper,
        f"What the networks on frozen features learn. {study.described}, {bits} bits, seed {min(study.seeds)}. A "
        "twentieth of the training pairs is held out; the epoch in a circle was kept. Training: negative "
        "log-likelihood, for AADAH its triplet loss; held out: negative log-likelihood of all. The vertical axes do "
        "not begin at zero.",
        out[0],
        f"Objective and mAP of the deep methods over epochs on {study.source.title}.",
    )


def shares(study: Study) -> Figure:
    """Draw each method's mAP with learned, hashed and unseen databases, joined by a line."""
    bits = share_bits(study)
    labels = [label for label in study.labels if not study.experiment.row(label).quoted]
    name = f"shares-{study.experiment.id}-{study.dataset}"
    with canvas(name, 9.0, 0.26 * len(labels) + 1.25) as (figure, out):
        axes = figure.subplots(1, 2, sharey=True)
        for ax, task in zip(axes, TASKS, strict=True):
            for height, label in enumerate(reversed(labels)):
                values = {kind: study.mean(label, bits, task, kind) for kind in KIND_STYLE}
                known = [value for value in values.values() if value is not None]
                if not known:
                    continue
                ax.plot([min(known), max(known)], [height, height], color=INK, linewidth=0.8, alpha=0.35, zorder=1)
                for kind, value in values.items():
                    if value is not None:
                        filled = kind == "learned"
                        ax.plot(value, height, marker=KIND_STYLE[kind][1], markersize=6 if filled else 5, zorder=2,
                                color=colour(label), markerfacecolor=colour(label) if filled else "none",
                                linestyle="none", markeredgewidth=1.2)  # fmt: skip
            chance = study.chance(task, "learned")
            if chance:
                ax.axvline(chance, color=INK, linewidth=0.7, linestyle=":", alpha=0.7)
            ax.set_yticks(range(len(labels)), [label_of(study.experiment, label) for label in reversed(labels)])
            ax.set_title(f"{task_of(study, task)}, {bits} bits", loc="left")
            ax.set_xlabel("mAP")
            ax.grid(axis="y", visible=False)
            ax.set_xlim(0, None)
        handles = [axes[0].plot([], [], marker=marker, linestyle="none", color=INK, markersize=5.5,
                                markerfacecolor=INK if kind == "learned" else "none")[0]
                   for kind, (_, marker) in KIND_STYLE.items()]  # fmt: skip
        figure.legend(handles, list(KIND_STYLE), loc="outside lower center", ncols=3)
    return Figure(
        name,
        "Beyond the paper",
        "mAP of each method when the database holds learned codes (the paper's number), hashed codes of the same "
        f"items, or unseen items. {study.described}, {study.experiment.scenario} data; dotted: a random ranking.",
        out[0],
        f"Learned, hashed and unseen mAP of each method on {study.source.title}.",
    )
