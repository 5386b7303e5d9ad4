"""Tables that are not of mAP alone: statistics, seconds, what learned codes bring, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modalhash.reproduce.config import Experiment
from modalhash.reproduce.document import Entry, Grid
from modalhash.reproduce.gather import TASKS, Study
from modalhash.reproduce.sources import SOURCES
from modalhash.reproduce.tables import label_of, seeds_of, task_of

STATISTICS = {
    "total": "items",
    "query": "queries",
    "training": "training items",
    "image": "image features",
    "text": "text features",
    "classes": "classes",
}


def statistics(experiment: Experiment, facts: Mapping[str, Mapping[str, Any]]) -> Grid:
    """What the data sets hold: the paper's as published, what is here as counted."""
    here = [name for name in experiment.datasets if name in facts]
    published = [
        (SOURCES[name].title, [*(Entry(f"{tasks['statistics'][key][0]:,}") for key in STATISTICS), Entry()])
        for name, tasks in experiment.published.items()
    ]
    counted = [
        (SOURCES[name].title, [*(Entry(f"{facts[name]['facts'][key]:,}") for key in STATISTICS), _labels(facts[name])])
        for name in here
    ]
    sections = [("published", published), ("counted here", counted)]
    return Grid(
        experiment.paper,
        f"{experiment.title}.",
        "data set",
        [*STATISTICS.values(), "labels per item"],
        [section for section in sections if section[1]],
        notes=[
            *experiment.notes,
            *(f"{SOURCES[name].title}: {SOURCES[name].caution}." for name in here if SOURCES[name].caution),
        ],
        key="statistics",
    )


def _labels(facts: Mapping[str, Any]) -> Entry:
    return Entry(f"{facts['labels_per_item']:.2f}") if "labels_per_item" in facts else Entry()


def times(study: Study, *, brief: bool = False) -> Grid:
    """Seconds here and in the paper, each also as a multiple of AMSH's, which is what can be compared."""
    experiment = study.experiment
    quoted = [bits for bits in study.bits if bits in experiment.published_bits] if study.quotes else []
    groups = [("CPU seconds here", len(study.bits)), ("times AMSH, here", len(study.bits))]
    if quoted:
        groups += [(_whose_seconds(study), len(quoted)), ("times AMSH, published", len(quoted))]
    rows = []
    for label in study.labels:
        here = {bits: _seconds(study, label, bits) for bits in study.bits}
        base = {bits: _seconds(study, "AMSH", bits) for bits in study.bits}
        paper = {bits: experiment.of(study.quotes, "seconds", label, bits) for bits in quoted}
        theirs = {bits: experiment.of(study.quotes, "seconds", "AMSH", bits) for bits in quoted}
        least = {bits: min(filter(None, (_seconds(study, other, bits) for other in study.labels)), default=None)
                 for bits in study.bits}  # fmt: skip
        entries = [_time(here[bits], bold=here[bits] == least[bits]) for bits in study.bits]
        entries += [_ratio(here[bits], base[bits]) for bits in study.bits]
        entries += [_time(paper[bits]) for bits in quoted]
        entries += [_ratio(paper[bits], theirs[bits]) for bits in quoted]
        rows.append((label_of(experiment, label), entries))
    notes = [
        "CPU seconds of a fit in a process with one BLAS thread, mean over the seeds: other work on the machine counts "
        "little. Shortest of a column **bold**.",
        *experiment.notes,
    ]
    if brief:
        notes = ["Seconds as above."]
    if study.source.twin:
        notes.insert(
            0,
            "A twin has the paper's counts, widths and label frequencies, and synthetic content: it stands in "
            "for times only. No mAP is measured on it.",
        )
    elif quoted and not study.same:
        notes.append("Published seconds are of other data and another machine: no difference is computed.")
    return Grid(
        experiment.paper,
        f"{experiment.title}. {study.source.title}, {seeds_of(study)}; columns are code lengths in bits.",
        "method",
        [str(bits) for bits in (*study.bits, *study.bits, *quoted, *quoted)],
        [("", rows)],
        groups,
        notes,
        key=f"{experiment.id}-{study.dataset}",
    )


def _whose_seconds(study: Study) -> str:
    """Heading of published seconds: never of this machine, and often not of these data."""
    if study.same:
        return "published — other machine"
    title = SOURCES[study.quotes].title
    kind = "real data" if study.source.twin else "other data"
    return f"published on {title} — {kind}, other machine"


def _seconds(study: Study, label: str, bits: int) -> float | None:
    found = study.seconds(label, bits)
    return None if found is None else found.mean


def _time(value: float | None, *, bold: bool = False) -> Entry:
    return Entry() if value is None else Entry(f"{value:,.2f}" if value < 1000 else f"{value:,.0f}", bold=bold)


def _ratio(value: float | None, base: float | None) -> Entry:
    if value is None or not base:
        return Entry()
    ratio = value / base
    return Entry(f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}")


def share_bits(study: Study) -> int:
    """64 where it was run, else the longest."""
    return 64 if 64 in study.bits else max(study.bits)


def lost(study: Study, label: str, task: str, bits: int, kind: str) -> float | None:
    """Part of the learned database's mAP above chance that another database does not have, above its own chance."""
    learned, other = (study.mean(label, bits, task, k) for k in ("learned", kind))
    chance, own = (study.chance(task, k) for k in ("learned", kind))
    if learned is None or other is None or chance is None or own is None or learned - chance < 0.02:
        return None
    return 1 - (other - own) / (learned - chance)


def percent(share: float) -> str:
    """E.g. ``−7 %``, never a negative nought."""
    return f"{round(100 * share) + 0:d} %".replace("-", "−")


def shares(study: Study) -> Grid:
    """How much of each method's mAP comes from learned database codes."""
    bits = share_bits(study)
    rows = []
    for label in study.labels:
        if study.experiment.row(label).quoted:
            continue
        entries = []
        for task in TASKS:
            values = [study.mean(label, bits, task, kind) for kind in ("learned", "hashed", "unseen")]
            entries += [Entry() if value is None else Entry(f"{value:.4f}") for value in values]
            gone = [lost(study, label, task, bits, kind) for kind in ("hashed", "unseen")]
            entries += [Entry() if g is None else Entry(percent(g), bold=g > 0.5) for g in gone]
        rows.append((label_of(study.experiment, label), entries))
    chance = [[study.chance(task, kind) for kind in ("learned", "hashed", "unseen")] for task in TASKS]
    rows.append(
        (
            "random ranking",
            [e for line in chance for e in (*(Entry(f"{v:.4f}") if v else Entry() for v in line), *[Entry()] * 2)],
        )
    )
    names = ["learned", "hashed", "unseen", "lost hashed", "lost unseen"]
    return Grid(
        "Beyond the paper",
        f"What learned database codes bring. {study.source.title}, {study.experiment.scenario} data, {bits} bits, "
        f"mAP, mean over {seeds_of(study)}.",
        "method",
        names * 2,
        [("", rows)],
        [(task_of(study, task), 5) for task in TASKS],
        [
            "Lost: the part of the learned database's mAP above chance that is gone when the same items get their "
            "codes from features (*hashed*), or when items are searched that training never saw (*unseen*, above "
            "its own chance level). **Bold** above one half; – where the learned mAP is less than 0.02 above "
            "chance; negative where the other codes are the better ones.",
        ],
        key=f"shares-{study.experiment.id}-{study.dataset}",
    )


def head_to_head(studies: Sequence[Study], wins: Mapping[str, Mapping[tuple[str, str], tuple[int, int, int]]]) -> Grid:
    """AMSH against each row: places where it is significantly better, not to be told apart, significantly worse."""
    experiment = studies[0].experiment
    columns = [(study, kind) for study in studies for kind in study.databases]
    rows = []
    for row in experiment.rows:
        if row.label == "AMSH" or row.quoted:
            continue
        entries = []
        for study, kind in columns:
            found = wins[study.dataset].get((row.label, kind))
            text = "–" if found is None else "{}·{}·{}".format(*found)
            entries.append(Entry(text, bold=found is not None and found[0] > 0 and found[1] == found[2] == 0))
        if any(entry.text != "–" for entry in entries):
            rows.append((label_of(experiment, row.label), entries))
    return Grid(
        experiment.paper,
        "AMSH against each row: places (code length × direction) where AMSH is significantly better · "
        "cannot be told apart · is significantly worse.",
        "against",
        [kind for _, kind in columns],
        [("", rows)],
        [(study.source.title, len(study.databases)) for study in studies],
        ["**Bold** where AMSH is significantly better everywhere."],
        key=f"{experiment.id}-head",
    )
