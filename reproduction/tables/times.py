"""Table IV: seconds of training."""

from __future__ import annotations

from reproduction.document import Entry, GroupedTable
from reproduction.paper_data import SOURCES
from reproduction.study import Study
from reproduction.tables.quality import label_of, seeds_of


def times(study: Study, *, brief: bool = False) -> GroupedTable:
    """Tabulate seconds here and in the paper, each also as a multiple of AMSH's, which is what can be compared."""
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
            "A twin has the paper's counts, widths and label frequencies, and synthetic content; it is used "
            "for times only. No mAP is measured on it.",
        )
    elif quoted and not study.same:
        notes.append("Published seconds are of other data and another machine: no difference is computed.")
    return GroupedTable(
        experiment.paper,
        f"{experiment.title}. {study.described}, {seeds_of(study)}; columns are code lengths in bits.",
        "method",
        [str(bits) for bits in (*study.bits, *study.bits, *quoted, *quoted)],
        [("", rows)],
        groups,
        notes,
    )


def _whose_seconds(study: Study) -> str:
    """Return the heading of published seconds, which are from another machine and often other data."""
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
