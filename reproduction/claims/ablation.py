"""What section IV-H claims about AMSH without one of its parts."""

from __future__ import annotations

import numpy as np

from reproduction.claims import DROP, Verdicts, beats, claim, measured_with
from reproduction.document import Claims
from reproduction.study import OURS, Evidence, Study


def ablation_claims(found: Evidence, verdicts: Verdicts) -> Claims:
    """Check the claims of section IV-H."""
    experiment, studies = found.experiments["table5"], found.studies["table5"]
    data, where = experiment.datasets, "IV-H, Table V"
    claims = [
        claim(f"AMSH outperforms {row.label}", where, studies, beats(row.label, verdicts["table5"]), data)
        for row in experiment.rows
        if row.label != OURS
    ]
    claims.append(
        claim("AMSH-s and AMSH-t both achieve low mAP: the similarity terms matter", where, studies, far_below, data)
    )
    return Claims("Ablation", claims)


def far_below(study: Study) -> tuple[bool, str] | None:
    """Both are at least 0.05 below AMSH on average."""
    gaps = {}
    for label in ("AMSH-s", "AMSH-t"):
        found = [(study.mean(OURS, b, t) or 0) - (study.mean(label, b, t) or 0) for b, t in measured_with(study, label)]
        if not found:
            return None
        gaps[label] = float(np.mean(found))
    return min(gaps.values()) >= DROP, ", ".join(f"{label} {gap:.3f} below" for label, gap in gaps.items())
