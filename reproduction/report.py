"""The report on the paper, in the paper's order, preceded by what a reader has to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from modalhash import __version__
from modalhash.evaluation import PairedTest
from modalhash.experiments import Results, environments
from modalhash.experiments.results import kind_of
from modalhash.methods.registry import info
from reproduction import figures
from reproduction.claims import (
    BEATS,
    FAILS,
    HOLDS,
    PAPERS,
    UNJUDGED,
    Verdicts,
    ablation,
    comparison,
    deep_methods,
    parameters,
    training,
)
from reproduction.document import Block, Bullets, Claims, Entry, GroupedTable, Report, Section, write
from reproduction.paper_data import SOURCES
from reproduction.published import Experiment
from reproduction.study import Evidence, Study
from reproduction.tables import data_statistics, learned_codes, quality, sweeps, times
from reproduction.verdicts import STATEMENT, Comparison, against_ours, level_with_best

TITLE = "Adaptive Marginalized Semantic Hashing, reproduced"
SUBTITLE = (
    "Every table and figure of section IV of K. Luo, C. Zhang, H. Li, X. Jia, C. Chen, “Adaptive Marginalized Semantic "
    "Hashing for Unpaired Cross-Modal Retrieval”, IEEE Transactions on Multimedia, 2023, measured with modalhash."
)
CLAIMS = (
    "Each statement of section IV, and what was measured on the data named. Where the paper's own data are absent "
    "(see *What is not here*), nothing can be said of them. Verdicts are made by rules from the results: *beats* "
    "and *outperforms* mean a higher mean mAP with the paper's (learned) database at every code length in both "
    "directions; *generally* and *most* mean more than half; *steady* is a range of at most 0.02 mAP, *drastically* "
    "a fall of at least 0.05, *less sensitive* a range that is smaller by more than 0.02."
)
EVIDENCE = (
    "*learned 8/8 (+7 −0)* reads: with learned codes the mean of AMSH is higher in 8 of 8 comparisons, "
    "significantly so in 7, and significantly lower in none. Hashed and unseen databases are not in the paper and do "
    "not enter the verdict."
)
BEYOND = (
    "The paper searches the items it trained on, by the codes that training gave them. Supervised methods make "
    "these codes from the labels of the database items, so such a search partly reads the answer from the label. "
    "The same items can be hashed from their features; and items can be searched that training never saw, which is "
    "what new items get. Hash functions were fitted on the training items, so a method that fits them closely keeps "
    "much of its learned codes when it hashes them, and nothing of that for unseen items: read the two losses "
    "together."
)


def write_report(results: Results, experiments: Mapping[str, Experiment], folder: Path) -> list[Path]:
    """Write ``report.md`` and its figures; return the pages."""
    found = Evidence(results, experiments)
    if not found.facts:
        raise FileNotFoundError(f"{results.path}: no results there; run `python -m reproduction` first")
    return write(build(found), folder)


def build(found: Evidence) -> Report:
    """Assemble all sections from the evidence."""
    verdicts = {
        name: {dataset: against_ours(study) for dataset, study in found.studies[name].items()}
        for name in ("table2", "table3", "table5")
    }
    said = [
        comparison.paired_claims(found, verdicts),
        comparison.unpaired_claims(found, verdicts),
        parameters.sensitivity_claims(found),
        training.time_claims(found),
        training.convergence_claims(found),
        ablation.ablation_claims(found, verdicts),
        deep_methods.deep_claims(found),
    ]
    sections = [
        Section("How to read this", how_to_read(found)),
        Section("The paper's claims", [CLAIMS, EVIDENCE, tally(said), Bullets(in_short(said)), *said]),
        beyond(found),
        *(experiment_section(found, name, verdicts) for name in found.experiments),
        Section("What is not here", what_is_absent(found)),
        Section("How this was made", how_it_was_made(found)),
    ]
    return Report(TITLE, SUBTITLE, summary(found, said), sections)


def summary(found: Evidence, said: Sequence[Claims]) -> list[tuple[str, str]]:
    """Return the facts at the top of the page."""
    results = found.cells
    good = [result for result in results if "error" not in result]
    days = sorted({datetime.fromtimestamp(r["started"], UTC).date().isoformat() for r in results if "started" in r})
    real = [SOURCES[n].title for n in found.facts if SOURCES[n].role != "twin" and _used(found, n)]
    twins = [SOURCES[n].title for n in found.facts if SOURCES[n].role == "twin" and _used(found, n)]
    same = [f"{SOURCES[n].title} ({kind_of(facts)})" for n, facts in found.facts.items() if SOURCES[n].same(facts)]
    counts = Counter(f.verdict for group in said for c in group.claims for f in c.findings)
    return [
        ("measured", f"{len(good)} fits of {found.planned} in the full plan on these data"),
        ("data", ", ".join(real) + (f"; for times only: {', '.join(twins)}" if twins else "")),
        ("the paper's own data", ", ".join(same) if same else "none here: published numbers are quoted, not compared"),
        ("findings", f"{counts[HOLDS]} hold, {counts[FAILS]} do not hold, "
                     f"{counts[UNJUDGED]} cannot be judged"),
        ("when", days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "–"),
        ("modalhash", __version__),
    ]  # fmt: skip


def _used(found: Evidence, dataset: str) -> bool:
    return any(dataset in studies for studies in found.studies.values())


def tally(said: Sequence[Claims]) -> GroupedTable:
    """Count the verdicts by data set."""
    verdicts = (HOLDS, FAILS, UNJUDGED)
    titles = [source.title for source in SOURCES.values()]
    titles.append(PAPERS)
    names = [t for t in titles if any(f.dataset == t for g in said for c in g.claims for f in c.findings)]
    rows = []
    for group in said:
        entries = []
        for name in names:
            counts = Counter(f.verdict for c in group.claims for f in c.findings if f.dataset == name)
            entries.append(Entry(" · ".join(str(counts[v]) for v in verdicts)) if counts else Entry())
        rows.append((group.title, entries))
    return GroupedTable(
        "Findings",
        "Claims that hold · do not hold · cannot be judged, by data set.",
        "",
        names,
        [("", rows)],
        notes=[
            "Only data that Table I calls *original* or *recomputed features* are the paper's: on others, a claim "
            "that holds does so on these data, and one that does not may hold on the paper's."
        ],
    )


def in_short(said: Sequence[Claims]) -> list[str]:
    """Name the methods that AMSH beats, a line per data set."""
    beaten: dict[str, dict[str, list[str]]] = {}
    for group in said:
        for claim in group.claims:
            if claim.statement.startswith(BEATS):
                for finding in claim.findings:
                    lists = beaten.setdefault(finding.dataset, {})
                    lists.setdefault(finding.verdict, []).append(claim.statement.removeprefix(BEATS))
    return [
        f"**{dataset}**: AMSH beats {', '.join(lists.get(HOLDS, ['none']))}"
        + (f"; not everywhere {', '.join(lists[FAILS])}" if FAILS in lists else "")
        + "."
        for dataset, lists in beaten.items()
        if lists.keys() - {UNJUDGED}
    ]


def beyond(found: Evidence) -> Section:
    """Show the effect of learned database codes."""
    blocks: list[Block] = [BEYOND]
    for name in ("table2", "table3"):
        complete = [s for s in found.studies[name].values() if {"learned", "hashed"} <= set(s.databases)]
        for number, study in enumerate(complete):
            blocks += [replace(figures.shares(study), main=number == 0), learned_codes.shares(study)]
    return Section("What the paper does not tell: learned database codes", blocks)


def experiment_section(found: Evidence, name: str, verdicts: Verdicts) -> Section:
    """Show one table or figure of the paper."""
    experiment, studies = found.experiments[name], found.studies[name]
    blocks: list[Block] = []
    if experiment.kind == "statistics":
        blocks.append(data_statistics.statistics(experiment, found.facts))
    if len(studies) and name in verdicts:
        blocks.append(quality.head_to_head(list(studies.values()), wins(verdicts[name])))
        same = [study for study in studies.values() if study.same]
        blocks += [quality.differences(same)] if same else []
    for number, study in enumerate(studies.values()):
        blocks += of_study(study, verdicts.get(name, {}).get(study.dataset, {}), brief=number > 0)
    if experiment.kind != "statistics" and not studies:
        blocks.append("Nothing was measured: the data are not here.")
    lines = [f"{study.source.title}: {len(study.failures)} of {len(study.cells)} cells failed, e.g. "
             f"{next(iter(study.failures)).label}: {next(iter(study.failures.values()))}"
             for study in studies.values() if study.failures]  # fmt: skip
    if lines:
        blocks.append(Bullets(lines))
    absent = [d for d in experiment.published if d not in studies or not studies[d].same]
    if experiment.kind in ("comparison", "times") and absent:
        blocks.append(quality.as_published(experiment, absent))
    elif experiment.notes and not studies and experiment.kind != "statistics":
        blocks.append(Bullets(experiment.notes))
    return Section(f"{experiment.paper}: {experiment.title}", blocks)


def of_study(study: Study, verdicts: Mapping[Comparison, PairedTest], *, brief: bool) -> list[Block]:
    """Return the tables and figures of one experiment on one data set."""
    kind = study.experiment.kind
    if kind == "comparison":
        drawn = figures.epochs(study)
        level = level_with_best(study) if verdicts else set()
        table: Block = quality.comparison(study, verdicts, level, brief=brief)
        return [table] if drawn is None else [table, replace(drawn, main=not brief)]
    if kind == "times":
        return [times.times(study, brief=brief)]
    if kind == "curves":
        ranks = quality.precision_at(study)
        return [replace(figures.curves(study), main=not brief), *([] if ranks is None else [ranks])]
    if kind == "convergence":
        return [replace(figures.convergence(study), main=not brief)]
    if not study.sweeps:
        return [f"On {study.source.title} only the default values were measured."]
    blocks: list[Block] = [replace(figures.sensitivity(study), main=not brief)]
    for sweep in study.sweeps:
        draw = sweeps.single_sweep if len(sweep.values) == 1 else sweeps.double_sweep
        blocks.append(draw(study, sweep))
        if len(sweep.values) == 2 and (text := sweeps.ratio_reading(study, sweep)):
            blocks.insert(1, text)
    return blocks


def wins(
    by_dataset: Mapping[str, Mapping[Comparison, PairedTest]],
) -> dict[str, dict[tuple[str, str], tuple[int, int, int]]]:
    """Count the wins, ties and losses of AMSH by data set, then label and database."""
    found: dict[str, dict[tuple[str, str], tuple[int, int, int]]] = {}
    for dataset, verdicts in by_dataset.items():
        counts: dict[tuple[str, str], Counter[int]] = {}
        for (label, _, _, database), verdict in verdicts.items():
            counts.setdefault((label, database), Counter())[verdict.sign] += 1
        found[dataset] = {key: (count[-1], count[0], count[1]) for key, count in counts.items()}
    return found


# Texts


def how_to_read(found: Evidence) -> list[Block]:
    """Explain databases, tests, marks and cautions."""
    methods = {row.method for e in found.experiments.values() for row in e.rows if row.method}
    again = sorted(name.upper() for name in methods if info(name).reimplementation)
    cautions = [
        "**AMSH has seen Wiki's queries.** Its defaults (random start, weights scaled to the number of items) were "
        "chosen with Wiki's test queries in view. Its numbers on Wiki are optimistic.",
        "**So have some baselines.** Defaults of SAPMH, RUCMH, EDMH, FMH and UCMH were picked partly on test "
        "queries of Wiki and IAPR TC-12; the paper's “carefully tuned” parameters are not known.",
        f"**Re-implementations** (†) were written without the authors' code or full text: {', '.join(again)}. Their "
        "numbers are not those of the authors.",
        _gsph(found),
        "**Other data are other data.** Every caption says what the data are: *original*; *recomputed features*, the "
        "paper's items and labels with features that were computed again; *substitute*; or *twin*, synthetic and for "
        "times only. A difference from a published number is computed only on the paper's data sets, and only where "
        "they are of the first two kinds. Elsewhere the heading of a published number says whose it is.",
    ]
    return [
        "Three databases are searched. **Learned**: the training items with the codes that training made, from "
        "labels where the method is supervised; this is what the paper reports. **Hashed**: the same items with "
        "codes from their features alone. **Unseen**: hashed items that training never saw; where the data have no "
        "such items, each query searches all other queries. Compare numbers within one kind of database only.",
        f"**Significance.** {STATEMENT}",
        Bullets(cautions),
    ]


def _gsph(found: Evidence) -> str:
    """Explain that pairs do not help GSPH with a learned database, with the numbers if known."""
    examples = []
    for study in found.studies["table3"].values():
        bits = 64 if 64 in study.bits else max(study.bits)
        values = [study.mean(label, bits, "I2T") for label in ("GSPH", "GSPH, pairs given")]
        if None not in values:
            examples.append(f"{study.source.title} {values[0]:.3f} without pairs, {values[1]:.3f} with")
    text = "**GSPH with pairs.** Its learned codes were seen to lose mAP when pairs are given; Table III has that row"
    return f"{text} (learned, image → text: {'; '.join(examples)})." if examples else f"{text}."


def what_is_absent(found: Evidence) -> list[Block]:
    """List missing data, with how to get them, and failed cells."""
    used = list(dict.fromkeys(name for e in found.experiments.values() for name in e.datasets))
    missing = [name for name in used if name not in found.facts]
    blocks: list[Block] = []
    if missing:
        blocks += [
            "With these in place, the same command makes the real comparison:",
            Bullets([f"**{SOURCES[name].title}** (`{name}`). {SOURCES[name].input.how_to_get()}" for name in missing]),
        ]
    else:
        blocks.append("All data are here.")
    unique = {  # a cell of two tables counts once
        (study.source.title, *point): error
        for studies in found.studies.values()
        for study in studies.values()
        for point, error in study.failures.items()
    }
    failures = Counter(f"{label} on {title}: {error}" for (title, label, *_), error in unique.items())
    if failures:
        lines = [f"{text} ({count} cells)" for text, count in failures.most_common()]
        blocks += ["Cells that failed:", Bullets(lines)]
    unmeasured = found.planned - len(found.cells)
    if unmeasured:
        blocks.append(
            f"{unmeasured} cells of the full plan were not measured; `python -m reproduction` with this results "
            "folder continues."
        )
    return blocks


def how_it_was_made(found: Evidence) -> list[Block]:
    """Name versions, machines and commands."""
    counts = sorted(environments(found.cells).items(), key=lambda item: -item[1])
    lines = [f"{count} cells: {text}" for text, count in counts]
    heard = Counter(
        f"{result['configuration']['method']} on {SOURCES[result['configuration']['dataset']].title}: {text}"
        for result in found.cells
        for text in result.get("warnings", ())
    )
    lines += [f"{count} cells warned. {text}" for text, count in heard.most_common()]
    digests = [
        (SOURCES[name].title, [Entry(f"`{facts['digest'][:16]}`"), Entry("own" if facts.get("own_split") else "drawn")])
        for name, facts in found.facts.items()
    ]
    return [
        "Made by `python -m reproduction`; this page by `python -m reproduction --report-only` from the results "
        "and nothing else. Settings and published numbers are in `reproduction/experiments/*.toml`. A cell is known by "
        "the digest of its whole configuration: data, scenario, method, every parameter, bits, seed, protocol, and the "
        "source code that its numbers come from. A commit with + had changes that were not committed.",
        Bullets(lines),
        GroupedTable("Data", "Digests of the data as loaded.", "data set", ["SHA-256, first digits", "split"],
                     [("", digests)]),
    ]  # fmt: skip
