"""The report's own words: what a reader has to know before reading a number."""

from __future__ import annotations

from collections import Counter

from modalhash.registry import info
from modalhash.reproduce.compare import STATEMENT
from modalhash.reproduce.document import Bullets, Entry, Grid
from modalhash.reproduce.gather import Gathered
from modalhash.reproduce.sources import SOURCES

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
    "*learned 8/8 (+7 −0)* reads: with learned codes the mean of AMSH is higher at 8 of 8 places, significantly so "
    "at 7, and significantly lower at none. Hashed and unseen databases are not in the paper and do not enter the "
    "verdict."
)
BEYOND = (
    "The paper searches the items it trained on, by the codes that training gave them. Supervised methods make "
    "these codes from the labels of the database items, so such a search partly reads the answer from the label. "
    "The same items can be hashed from their features; and items can be searched that training never saw, which is "
    "what new items get. Hash functions were fitted on the training items, so a method that fits them closely keeps "
    "much of its learned codes when it hashes them, and nothing of that for unseen items: read the two losses "
    "together."
)


def reading(found: Gathered) -> list[str | Bullets | Grid]:
    """Databases, tests, marks and cautions."""
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
        "**Other data are other data.** A published number stands beside a measured one only where Table I is "
        "matched (items, feature widths, classes), and only there is a difference computed. Elsewhere its heading "
        "says whose it is.",
    ]
    return [
        "Three databases are searched. **Learned**: the training items with the codes that training made, from "
        "labels where the method is supervised; this is what the paper reports. **Hashed**: the same items with "
        "codes from their features alone. **Unseen**: hashed items that training never saw; where the data have no "
        "such items, each query searches all other queries. Compare numbers within one kind of database only.",
        f"**Significance.** {STATEMENT}",
        Bullets(cautions),
    ]


def _gsph(found: Gathered) -> str:
    """GSPH gains nothing from pairs where its learned codes are searched: with the numbers, where they are known."""
    examples = []
    for study in found.studies["table3"].values():
        bits = 64 if 64 in study.bits else max(study.bits)
        values = [study.mean(label, bits, "I2T") for label in ("GSPH", "GSPH, pairs given")]
        if None not in values:
            examples.append(f"{study.source.title} {values[0]:.3f} without pairs, {values[1]:.3f} with")
    text = "**GSPH with pairs.** Its learned codes were seen to lose mAP when pairs are given; Table III has that row"
    return f"{text} (learned, image → text: {'; '.join(examples)})." if examples else f"{text}."


def absent(found: Gathered) -> list[str | Bullets]:
    """Data that are not here, with how to get them; cells that failed."""
    used = list(dict.fromkeys(name for e in found.experiments.values() for name in e.datasets))
    missing = [name for name in used if name not in found.facts]
    blocks: list[str | Bullets] = []
    if missing:
        blocks += [
            "With these in place, the same command makes the real comparison:",
            Bullets([f"**{SOURCES[name].title}** (`{name}`). {SOURCES[name].how_to_get()}" for name in missing]),
        ]
    else:
        blocks.append("All data are here.")
    unique = {  # a cell of two tables failed once
        (study.source.title, study.experiment.row(key[1]).scenario or study.experiment.scenario, *key): error
        for studies in found.studies.values()
        for study in studies.values()
        for key, error in study.failures.items()
    }
    failures = Counter(f"{label} on {title}: {error}" for (title, _, _, label, _, _), error in unique.items())
    if failures:
        lines = [f"{text} ({count} cells)" for text, count in failures.most_common()]
        blocks += ["Cells that failed:", Bullets(lines)]
    unmeasured = found.planned() - len(found.cells())
    if unmeasured:
        blocks.append(
            f"{unmeasured} cells of the full plan were not measured; `modalhash reproduce` with this results folder "
            "goes on."
        )
    return blocks


def made(found: Gathered) -> list[str | Bullets | Grid]:
    """Versions, machines, commands."""
    environments: Counter[str] = Counter()
    for result in found.cells():
        if "environment" in result:
            e = result["environment"]
            versions = ", ".join(f"{name} {value}" for name, value in e["versions"].items())
            threads = f"{e['threads']} BLAS thread{'s' if e['threads'] != 1 else ''}"
            commit = f", commit {e['commit']}" if e["commit"] else ""
            environments[f"{e['machine']}, {threads} ({', '.join(e['blas'])}); {versions}{commit}"] += 1
    lines = [f"{count} cells: {text}" for text, count in environments.most_common()]
    heard = Counter(
        f"{result['configuration']['method']} on {SOURCES[result['configuration']['dataset']].title}: {text}"
        for result in found.cells()
        for text in result.get("warnings", ())
    )
    lines += [f"{count} cells warned. {text}" for text, count in heard.most_common()]
    digests = [
        (SOURCES[name].title, [Entry(f"`{facts['digest'][:16]}`"), Entry("own" if facts.get("own_split") else "drawn")])
        for name, facts in found.facts.items()
    ]
    return [
        "Made by `modalhash reproduce`; this page by `modalhash reproduce --report-only` from the results folder "
        "and nothing else. Settings and published numbers are in `experiments/*.toml`. A cell is known by the "
        "digest of its whole configuration: data, scenario, method, every parameter, bits, seed, protocol and "
        "version of modalhash. A commit with + had changes that were not committed.",
        Bullets(lines),
        Grid("Data", "Digests of the data as loaded.", "data set", ["SHA-256, first digits", "split"], [("", digests)],
             key="digests", folded=True),
    ]  # fmt: skip
