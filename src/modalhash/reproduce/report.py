"""The report: what the results folder says about the paper, in the paper's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from modalhash import __version__
from modalhash._files import write_atomically
from modalhash.reproduce import claims as quality_claims
from modalhash.reproduce import (
    figures,
    markdown,
    more_claims,
    other_tables,
    page,
    parameter_claims,
    sweep_tables,
    tables,
    words,
)
from modalhash.reproduce.claims import Verdicts
from modalhash.reproduce.compare import Place, Verdict, against_ours
from modalhash.reproduce.config import Experiment
from modalhash.reproduce.document import Bullets, Claims, Entry, Figure, Grid, Report, Section
from modalhash.reproduce.drawing import standalone
from modalhash.reproduce.gather import Gathered, Study
from modalhash.reproduce.sources import SOURCES
from modalhash.reproduce.store import Store

Block = str | Grid | Figure | Bullets | Claims


def write_report(store: Store, experiments: Mapping[str, Experiment], folder: Path) -> list[Path]:
    """Write ``index.html`` (one file that needs no other), ``report.md`` and ``figures/*.svg``."""
    found = Gathered(store, experiments)
    if not found.facts:
        raise FileNotFoundError(f"{store.folder}: no results there; run `modalhash reproduce` first")
    return write(build(found), folder)


def write(report: Report, folder: Path) -> list[Path]:
    """Write a report that was built."""
    drawn = [block for section in report.sections for block in section.blocks if isinstance(block, Figure)]
    for old in (folder / "figures").glob("*.svg"):
        if old.stem not in {figure.name for figure in drawn}:
            old.unlink()  # of an earlier report, and no longer in this one
    for figure in drawn:
        write_atomically(folder / "figures" / f"{figure.name}.svg", standalone(figure.svg).encode())
    paths = [folder / "index.html", folder / "report.md"]
    write_atomically(paths[0], page.render(report).encode())
    write_atomically(paths[1], markdown.render(report).encode())
    return paths


def build(found: Gathered) -> Report:
    """All sections, from what was gathered and from nothing else."""
    verdicts = {
        name: {dataset: against_ours(study) for dataset, study in found.studies[name].items()}
        for name in ("table2", "table3", "table5")
    }
    said = [
        quality_claims.paired_claims(found, verdicts),
        quality_claims.unpaired_claims(found, verdicts),
        parameter_claims.sensitivity_claims(found),
        more_claims.time_claims(found),
        more_claims.convergence_claims(found),
        more_claims.ablation_claims(found, verdicts),
        more_claims.deep_claims(found),
    ]
    sections = [
        Section("reading", "How to read this", words.reading(found)),
        Section(
            "claims", "The paper's claims", [words.CLAIMS, words.EVIDENCE, tally(said), Bullets(in_short(said)), *said]
        ),
        beyond(found),
        *(experiment_section(found, name, verdicts) for name in found.experiments),
        Section("absent", "What is not here", words.absent(found)),
        Section("made", "How this was made", words.made(found)),
    ]
    return Report(words.TITLE, words.SUBTITLE, summary(found, said), sections)


def summary(found: Gathered, said: Sequence[Claims]) -> list[tuple[str, str]]:
    """Facts for the head of the page."""
    results = found.cells()
    good = [result for result in results if "error" not in result]
    days = sorted({datetime.fromtimestamp(r["started"], UTC).date().isoformat() for r in results if "started" in r})
    real = [SOURCES[n].title for n in found.facts if SOURCES[n].role != "twin" and _used(found, n)]
    twins = [SOURCES[n].title for n in found.facts if SOURCES[n].role == "twin" and _used(found, n)]
    same = [SOURCES[n].title for n, facts in found.facts.items() if facts["same"]]
    counts = Counter(f.verdict for group in said for c in group.claims for f in c.findings)
    return [
        ("measured", f"{len(good)} fits of {found.planned()} in the full plan on these data"),
        ("data", ", ".join(real) + (f"; for times only: {', '.join(twins)}" if twins else "")),
        ("the paper's own data", ", ".join(same) if same else "none here: published numbers are quoted, not compared"),
        ("findings", f"{counts['confirmed']} confirmed, {counts['not confirmed']} not confirmed, "
                     f"{counts['not testable']} not testable"),
        ("when", days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "–"),
        ("modalhash", __version__),
    ]  # fmt: skip


def _used(found: Gathered, dataset: str) -> bool:
    return any(dataset in studies for studies in found.studies.values())


def tally(said: Sequence[Claims]) -> Grid:
    """Verdicts by data set."""
    verdicts = ("confirmed", "not confirmed", "not testable")
    titles = [source.title for source in SOURCES.values()]
    titles.append(quality_claims.PAPERS)
    names = [t for t in titles if any(f.dataset == t for g in said for c in g.claims for f in c.findings)]
    rows = []
    for group in said:
        entries = []
        for name in names:
            counts = Counter(f.verdict for c in group.claims for f in c.findings if f.dataset == name)
            entries.append(Entry(" · ".join(str(counts[v]) for v in verdicts)) if counts else Entry())
        rows.append((group.title, entries))
    return Grid("Findings", "Claims confirmed · not confirmed · not testable, by data set.", "", names, [("", rows)],
                notes=["None of these are the paper's data unless Table I says so: a claim confirmed here is confirmed "
                       "on this data, and one not confirmed may hold on the paper's."], key="tally")  # fmt: skip


def in_short(said: Sequence[Claims]) -> list[str]:
    """Whom AMSH beats, a line per data set: what most readers came for."""
    beaten: dict[str, dict[str, list[str]]] = {}
    for group in said:
        for claim in group.claims:
            if claim.statement.startswith(quality_claims.BEATS):
                for finding in claim.findings:
                    lists = beaten.setdefault(finding.dataset, {})
                    lists.setdefault(finding.verdict, []).append(claim.statement.removeprefix(quality_claims.BEATS))
    return [
        f"**{dataset}**: AMSH beats {', '.join(lists.get(quality_claims.CONFIRMED, ['none']))}"
        + (f"; not everywhere {', '.join(lists[quality_claims.DENIED])}" if quality_claims.DENIED in lists else "")
        + "."
        for dataset, lists in beaten.items()
        if lists.keys() - {quality_claims.UNTESTABLE}
    ]


def beyond(found: Gathered) -> Section:
    """What learned database codes bring."""
    blocks: list[Block] = [words.BEYOND]
    for name in ("table2", "table3"):
        for study in found.studies[name].values():
            if {"learned", "hashed"} <= set(study.databases):
                blocks += [figures.shares(study), other_tables.shares(study)]
    return Section("beyond", "What the paper does not tell: learned database codes", blocks)


def experiment_section(found: Gathered, name: str, verdicts: Verdicts) -> Section:
    """One table or figure of the paper."""
    experiment, studies = found.experiments[name], found.studies[name]
    blocks: list[Block] = []
    if experiment.kind == "statistics":
        blocks.append(other_tables.statistics(experiment, found.facts))
    if len(studies) and name in verdicts:
        blocks.append(other_tables.head_to_head(list(studies.values()), wins(verdicts[name])))
    for number, study in enumerate(studies.values()):
        blocks += of_study(study, verdicts.get(name, {}).get(study.dataset, {}), brief=number > 0)
    if experiment.kind != "statistics" and not studies:
        blocks.append("Nothing was measured: the data are not here.")
    lines = [f"{study.source.title}: {len(study.failures)} of {study.planned} cells failed, e.g. "
             f"{next(iter(study.failures))[1]}: {next(iter(study.failures.values()))}"
             for study in studies.values() if study.failures]  # fmt: skip
    if lines:
        blocks.append(Bullets(lines))
    absent = [d for d in experiment.published if d not in studies or not studies[d].same]
    if experiment.kind in ("comparison", "times") and absent:
        blocks.append(tables.as_published(experiment, absent))
    elif experiment.notes and not studies and experiment.kind != "statistics":
        blocks.append(Bullets(experiment.notes))
    return Section(name, f"{experiment.paper}: {experiment.title}", blocks)


def of_study(study: Study, verdicts: Mapping[Place, Verdict], *, brief: bool) -> list[Block]:
    """The tables and figures of one experiment on one data set."""
    kind = study.experiment.kind
    if kind == "comparison":
        return [tables.comparison(study, verdicts, brief=brief)]
    if kind == "times":
        return [other_tables.times(study, brief=brief)]
    if kind == "curves":
        return [figures.curves(study)]
    if kind == "convergence":
        return [figures.convergence(study)]
    if not study.sweeps:
        return [f"On {study.source.title} only the default values were measured."]
    blocks: list[Block] = [figures.sensitivity(study)]
    for sweep in study.sweeps:
        draw = sweep_tables.single_sweep if len(sweep.values) == 1 else sweep_tables.double_sweep
        blocks.append(draw(study, sweep))
        if len(sweep.values) == 2 and (text := sweep_tables.ratio_reading(study, sweep)):
            blocks.insert(1, text)
    return blocks


def wins(by_dataset: Mapping[str, Mapping[Place, Verdict]]) -> dict[str, dict[tuple[str, str], tuple[int, int, int]]]:
    """Places where AMSH is better, not to be told apart, worse: by data set, then label and database."""
    found: dict[str, dict[tuple[str, str], tuple[int, int, int]]] = {}
    for dataset, verdicts in by_dataset.items():
        counts: dict[tuple[str, str], Counter[int]] = {}
        for (label, _, _, database), verdict in verdicts.items():
            counts.setdefault((label, database), Counter())[verdict.sign] += 1
        found[dataset] = {key: (count[1], count[0], count[-1]) for key, count in counts.items()}
    return found
