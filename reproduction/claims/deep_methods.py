"""What section IV-I claims about AMSH with CNN features against deep methods."""

from __future__ import annotations

from reproduction.claims import Rule, claim
from reproduction.document import Claims, signed
from reproduction.study import Evidence, Study


def deep_claims(found: Evidence) -> Claims:
    """Check the claims of section IV-I: measured against quoted numbers, so only on the paper's data."""
    experiment = found.experiments["table6"]
    studies = {name: study for name, study in found.studies["table6"].items() if study.same}
    where = "IV-I, Table VI"

    def against(label: str, task: str, *, better: bool) -> Rule:
        def rule(study: Study) -> tuple[bool, str] | None:
            gaps = [
                (study.mean("AMSH_cnn", b, task, "retrieval") or 0)
                - (experiment.of(study.dataset, task, label, b) or 0)
                for b in study.bits
            ]
            return all((gap > 0) is better for gap in gaps), ", ".join(signed(gap, 4) for gap in gaps)

        return rule

    claims = [
        claim(
            f"AMSH with CNN features beats {label} from image to text",
            where,
            studies,
            against(label, "I2T", better=True),
            experiment.datasets,
        )
        for label in ("DCMH", "PRDH", "AADAH")
    ]
    claims.append(claim("AADAH is better than AMSH with CNN features from text to image", where, studies,
                        against("AADAH", "T2I", better=False), experiment.datasets))  # fmt: skip
    return Claims("Deep methods", claims)
