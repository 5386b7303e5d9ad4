"""Tables of mAP, measured and published, and of AMSH against each method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from modalhash.evaluation import PairedTest
from modalhash.evaluation.significance import SIGNIFICANT
from modalhash.methods.registry import info
from reproduction.document import Entry, GroupedTable, signed
from reproduction.paper_data import SOURCES
from reproduction.published import Experiment
from reproduction.study import TASKS, Study
from reproduction.verdicts import Comparison

MARKS = {1: "▲", -1: "▼", 0: ""}
REIMPLEMENTED = "†"
KINDS = {
    "learned": "learned (the paper's)",
    "hashed": "hashed",
    "unseen": "unseen",
    "retrieval": "retrieval set, hashed",
}


def label_of(experiment: Experiment, label: str) -> str:
    """Return a row's name, marked where the method is a re-implementation or quoted."""
    row = experiment.row(label)
    if row.quoted:
        return f"{label} (quoted)"
    return f"{label} {REIMPLEMENTED}" if info(row.method).reimplementation else label


def task_of(study: Study, task: str) -> str:
    """Return the names of a task's modalities, e.g. ``image → text``."""
    first, second = study.source.modalities
    return f"{first} → {second}" if task == "I2T" else f"{second} → {first}"


def comparison(
    study: Study,
    verdicts: Mapping[Comparison, PairedTest],
    level: Collection[Comparison] = (),
    *,
    brief: bool = False,
) -> GroupedTable:
    """Tabulate measured mAP by database, with published numbers and differences where comparable.

    ``level`` are the cells that do not differ from the best of their column. ``brief`` omits the notes that the
    first table of a section has.
    """
    experiment = study.experiment
    columns = [(database, bits) for database in study.databases for bits in study.bits]
    groups = [(KINDS[database], len(study.bits)) for database in study.databases]
    quoted = [bits for bits in study.bits if bits in experiment.published_bits] if study.same else []
    if quoted:
        groups += [("published", len(quoted)), ("measured less published", len(quoted))]
    sections = []
    for task in TASKS:
        best = {column: _best(study, task, *column) for column in columns}
        top = {bits: _best_published(study, task, bits) for bits in quoted}
        rows = []
        for label in study.labels:
            entries = [_measured(study, label, task, *column, best[column], verdicts, level) for column in columns]
            entries += [_published(study, label, task, bits, top[bits]) for bits in quoted]
            entries += [_difference(study, label, task, bits) for bits in quoted]
            rows.append((label_of(experiment, label), entries))
        sections.append((task_of(study, task), rows))
    names = [str(bits) for _, bits in columns] + [str(bits) for bits in quoted] * 2
    return GroupedTable(
        number=experiment.paper,
        caption=f"{experiment.title}. {study.described}, mAP, "
        f"{'mean ± standard deviation over ' if len(study.seeds) > 1 else ''}{seeds_of(study)}; "
        "columns are code lengths in bits.",
        stub="method",
        columns=names,
        groups=groups,
        sections=sections,
        notes=notes_of(study, brief=brief),
    )


def seeds_of(study: Study) -> str:
    """Describe the seeds; a fit shared with another table may have more of them."""
    counts = Counter((point.sweep, point.label, point.bits) for point in study.results)
    low, high = min(counts.values()), max(counts.values())
    if high == 1:
        return "one seed"
    return f"{high} seeds" if low == high else f"{low} to {high} seeds"


def notes_of(study: Study, *, brief: bool = False) -> list[str]:
    """Describe the measurement, the marks, and what the paper does not state."""
    notes = [f"{_chance(study)} Protocol and marks as above."] if brief else _general_notes(study)
    if any(label_of(study.experiment, label).endswith(REIMPLEMENTED) for label in study.labels):
        notes.append(f"{REIMPLEMENTED} re-implementation: neither the authors' code nor the full text was at hand.")
    extra = [row.label for row in study.experiment.rows if row.extra and row.label in study.labels]
    if extra:
        notes.append(f"Not in the paper's table, and not counted for bold: {', '.join(extra)}.")
    if study.source.caution:
        notes.append(f"{study.source.title}: {study.source.caution}.")
    if study.source.role == "paper" and not study.same:
        notes.append("The data set does not say that it is the paper's: its numbers are treated as of other data.")
    elif different := study.source.differs(study.facts):
        notes.append(f"Not as the paper's: {', '.join(different)}.")
    return notes if brief else [*notes, *study.experiment.notes]


def _general_notes(study: Study) -> list[str]:
    notes = [f"Protocol: `{study.grid.protocol}` for learned codes, and the same for the others. {_chance(study)}"]
    if len(study.papers) > 1:
        notes.append(
            "Best of a column **bold**. ▼ significantly below AMSH, ▲ significantly above: paired randomisation test "
            f"over queries, corrected by Holm over this table, at {SIGNIFICANT:g} (see *How to read this*). ≈ not "
            "significantly below the best of the column, rows that are not in the paper included, by the same test."
        )
    return notes


def _chance(study: Study) -> str:
    levels: dict[str, list[str]] = {}
    for kind in study.databases:
        values = [study.chance(task, kind) or 0.0 for task in TASKS]
        levels.setdefault(" and ".join(dict.fromkeys(f"{value:.4f}" for value in values)), []).append(kind)
    return "A random ranking has " + ", ".join(f"{text} ({', '.join(kinds)})" for text, kinds in levels.items()) + "."


def _best(study: Study, task: str, database: str, bits: int) -> float | None:
    values = [study.mean(label, bits, task, database) for label in study.papers]
    return max((round(value, 4) for value in values if value is not None), default=None)


def _best_published(study: Study, task: str, bits: int) -> float | None:
    values = [study.experiment.of(study.quotes, task, label, bits) for label in study.labels]
    return max((value for value in values if value is not None), default=None)


def _measured(
    study: Study,
    label: str,
    task: str,
    database: str,
    bits: int,
    best: float | None,
    verdicts: Mapping[Comparison, PairedTest],
    level: Collection[Comparison],
) -> Entry:
    spread = study.spread(label, bits, task, database)
    if spread is None:
        return Entry()
    verdict = verdicts.get((label, bits, task, database))
    return Entry(
        f"{spread.mean:.4f}",
        below="" if spread.sd is None else f"±{spread.sd:.4f}",
        bold=label in study.papers and len(study.papers) > 1 and round(spread.mean, 4) == best,
        mark=("" if verdict is None else MARKS[verdict.sign]) + ("≈" if (label, bits, task, database) in level else ""),
    )


def _published(study: Study, label: str, task: str, bits: int, top: float | None) -> Entry:
    value = study.experiment.of(study.quotes, task, label, bits)
    return Entry() if value is None else Entry(f"{value:.4f}", bold=value == top)


def _difference(study: Study, label: str, task: str, bits: int) -> Entry:
    found = difference_of(study, label, task, bits)
    return Entry() if found is None else Entry(signed(found, 4))


def difference_of(study: Study, label: str, task: str, bits: int) -> float | None:
    """Return measured less published mAP, with the database that the published number is taken to be of."""
    value = study.experiment.of(study.quotes, task, label, bits)
    measured = study.mean(label, bits, task, study.experiment.row(label).database)
    return None if value is None or measured is None else measured - value


def differences(studies: Sequence[Study]) -> GroupedTable:
    """Summarise measured less published mAP: by method and data set, the mean and the cell farthest from 0."""
    experiment, rows = studies[0].experiment, []
    for row in experiment.rows:
        entries = []
        for study in studies:
            found = [difference_of(study, row.label, task, bits) for task in TASKS for bits in study.bits]
            known = [value for value in found if value is not None]
            texts = [signed(sum(known) / len(known), 3), signed(max(known, key=abs), 3)] if known else ["–", "–"]
            entries += [Entry(text) for text in texts]
        if any(entry.text != "–" for entry in entries):
            rows.append((label_of(experiment, row.label), entries))
    notes = [
        f"Published numbers of {', '.join(hashed)} are taken to be of a hashed database; see the notes of the tables."
        for hashed in [[row.label for row in experiment.rows if row.database == "hashed"]]
        if hashed
    ]
    return GroupedTable(
        f"{experiment.paper}, differences",
        "Measured less published mAP over both directions and all code lengths.",
        "method",
        ["mean", "farthest"] * len(studies),
        [("", rows)],
        [(study.described, 2) for study in studies],
        [*notes, "Why methods differ by more than .03 is in docs/measurements/choices.md."],
    )


def precision_at(study: Study) -> GroupedTable | None:
    """Tabulate the precision among the first N, learned and unseen; None if not measured."""
    bits = max(study.experiment.bits_drawn)
    databases = [database for database in ("learned", "unseen") if database in study.databases]
    measured = {
        (label, task, database): found
        for label in study.labels
        for task in TASKS
        for database in databases
        if (found := study.precision_at(label, bits, task, database))
    }
    if not measured:
        return None
    depths = sorted(set.intersection(*(set(found) for found in measured.values())))
    sections = []
    for task in TASKS:
        rows = [
            (
                label_of(study.experiment, label),
                [Entry(f"{measured[label, task, d][n]:.4f}" if (label, task, d) in measured else "–")
                 for d in databases for n in depths],
            )
            for label in study.labels
        ]  # fmt: skip
        sections.append((task_of(study, task), rows))
    return GroupedTable(
        study.experiment.paper,
        f"Precision at N. {study.described}, {bits} bits, mean over the seeds.",
        "method",
        [str(n) for n in depths] * len(databases),
        sections,
        [(KINDS[database], len(depths)) for database in databases],
    )


def as_published(experiment: Experiment, datasets: Sequence[str]) -> GroupedTable:
    """Tabulate only the paper's numbers, for data that are missing here."""
    bits = list(experiment.published_bits)
    columns = [(dataset, n) for dataset in datasets for n in bits]
    sections = []
    tasks = list(dict.fromkeys(task for dataset in datasets for task in experiment.published[dataset]))
    for task in tasks:
        values = {
            (row.label, *column): experiment.of(column[0], task, row.label, column[1])
            for row in experiment.rows
            for column in columns
        }
        rows = []
        for row in (row for row in experiment.rows if not row.extra):
            entries = []
            for column in columns:
                value = values[row.label, *column]
                group = [v for (_, *where), v in values.items() if tuple(where) == column and v is not None]
                best = (min if task == "seconds" else max)(group)
                text = "–" if value is None else f"{value:.2f}" if task == "seconds" else f"{value:.4f}"
                entries.append(Entry(text, bold=value == best))
            rows.append((row.label, entries))
        sections.append(({"I2T": "image → text", "T2I": "text → image"}.get(task, ""), rows))
    return GroupedTable(
        number=f"{experiment.paper}, as published",
        caption="Quoted from the paper: these data are not here, and nothing was measured on them.",
        stub="method",
        columns=[str(n) for _, n in columns],
        groups=[(SOURCES[dataset].title, len(bits)) for dataset in datasets],
        sections=sections,
    )


def head_to_head(
    studies: Sequence[Study], wins: Mapping[str, Mapping[tuple[str, str], tuple[int, int, int]]]
) -> GroupedTable:
    """Count the significant wins, the ties and the losses of AMSH against each row."""
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
    return GroupedTable(
        experiment.paper,
        "AMSH against each row: comparisons (code length × direction) in which AMSH is significantly better · "
        "does not differ significantly · is significantly worse.",
        "against",
        [kind for _, kind in columns],
        [("", rows)],
        [(study.described, len(study.databases)) for study in studies],
        ["**Bold** where AMSH is significantly better everywhere."],
    )
