"""Claims of section IV of the paper, judged by written rules; a module per subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from modalhash.evaluation import PairedTest
from reproduction.document import Claim, Finding
from reproduction.paper_data import SOURCES
from reproduction.study import OURS, TASKS, Study
from reproduction.verdicts import Comparison

PAPERS = "the paper's data"
HOLDS, FAILS, UNJUDGED = "holds", "does not hold", "cannot be judged"
BEATS = "AMSH beats "
"""Beginning of a claim about a method of Tables II and III."""
FLAT, DROP = 0.02, 0.05
"""mAP: no more than this is flat, more than that a drastic drop. The paper gives no numbers."""
Verdicts = Mapping[str, Mapping[str, Mapping[Comparison, PairedTest]]]
"""Experiment → data set → comparison."""
Rule = Callable[[Study], tuple[bool, str] | str | None]
"""Returns whether a claim holds on a study, with the evidence or why it cannot be judged; None for too few data."""


def claim(statement: str, where: str, studies: Mapping[str, Study], rule: Rule, datasets: Sequence[str]) -> Claim:
    """Apply a rule to every data set with results; the absence of results is a finding, too."""
    findings = []
    for study in studies.values():
        found = rule(study)
        if found is None or isinstance(found, str):
            findings.append(Finding(study.source.title, UNJUDGED, found or "too little was measured"))
        else:
            findings.append(Finding(study.source.title, HOLDS if found[0] else FAILS, found[1]))
    if not findings:
        absent = [SOURCES[name].title for name in datasets if SOURCES[name].role == "paper" and name not in studies]
        findings.append(Finding(PAPERS, UNJUDGED, f"not here: {', '.join(absent)}"))
    return Claim(statement, where, findings)


def measured_with(study: Study, label: str, ours: str = OURS) -> list[tuple[int, str]]:
    """Return the code lengths and tasks at which both were measured."""
    return [
        (bits, task)
        for bits in study.bits
        for task in TASKS
        if study.mean(label, bits, task) is not None and study.mean(ours, bits, task) is not None
    ]


def beats(label: str, verdicts: Mapping[str, Mapping[Comparison, PairedTest]]) -> Rule:
    """AMSH's mean mAP is higher in every comparison with a learned database; the evidence covers the others."""

    def rule(study: Study) -> tuple[bool, str] | None:
        where = measured_with(study, label)
        if not where:
            return None
        texts = []
        higher: dict[str, int] = {}
        for kind in study.databases:
            higher[kind] = sum(
                (study.mean(OURS, b, t, kind) or 0) > (study.mean(label, b, t, kind) or 0) for b, t in where
            )
            signs = [verdicts[study.dataset][label, b, t, kind].sign for b, t in where
                     if (label, b, t, kind) in verdicts[study.dataset]]  # fmt: skip
            texts.append(f"{kind} {higher[kind]}/{len(where)} (+{signs.count(-1)} −{signs.count(1)})")
        return higher["learned"] == len(where), ", ".join(texts)

    return rule
