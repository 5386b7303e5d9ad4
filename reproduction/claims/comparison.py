"""What sections IV-D and IV-E claim about AMSH against other methods, with pairs and without."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reproduction.claims import BEATS, Rule, Verdicts, beats, claim, measured_with
from reproduction.document import Claims, signed
from reproduction.study import OURS, TASKS, Evidence, Study


def curves_above(study: Study) -> tuple[bool, str] | None:
    """AMSH's curve is the highest over half of the recall range or more, in every panel."""
    shares = []
    for bits in study.experiment.bits_drawn:
        for task in TASKS:
            ours = study.curve(OURS, bits, task, "learned")
            others = [study.curve(label, bits, task, "learned") for label in study.papers if label != OURS]
            known = [curve for curve in others if curve is not None]
            if ours is not None and known:
                n = min(len(ours), *map(len, known))
                highest = np.max([curve[:n] for curve in known], axis=0)
                shares.append(float(np.mean(ours[:n] >= highest)))
    if not shares:
        return None
    return min(shares) >= 0.5, "highest over " + ", ".join(f"{100 * s:.0f} %" for s in shares) + " of the recall range"


def supervised_win(study: Study) -> tuple[bool, str] | None:
    """The mean of the supervised methods is higher in every comparison."""
    labels = {flag: [x for x in study.papers if study.supervised(x) is flag]
              for flag in (True, False)}  # fmt: skip
    gaps, pairs = [], []
    for bits in study.bits:
        for task in TASKS:
            values = {
                flag: [v for x in labels[flag] if (v := study.mean(x, bits, task)) is not None] for flag in labels
            }
            if values[True] and values[False]:
                gaps.append(float(np.mean(values[True]) - np.mean(values[False])))
                pairs += [a > b for a in values[True] for b in values[False]]
    if not gaps:
        return None
    return min(gaps) > 0, (
        f"means differ by {signed(min(gaps), 3)} to {signed(max(gaps), 3)}; {sum(pairs)} of {len(pairs)} pairs in order"
    )


def longer_is_better(study: Study) -> tuple[bool, str] | None:
    """More than half of the methods have a higher mAP with the longest code than with the shortest."""
    if len(study.bits) < 2:
        return None
    low, high = min(study.bits), max(study.bits)
    better, n = 0, 0
    for label in study.papers:
        for task in TASKS:
            short, long = study.mean(label, low, task), study.mean(label, high, task)
            if short is not None and long is not None:
                n, better = n + 1, better + (long > short)
    return (
        (2 * better > n, f"{better} of {n} (method, direction) are better with {high} bits than with {low}")
        if n
        else None
    )


def text_queries_win(study: Study) -> tuple[bool, str] | str | None:
    """More than half of the methods have a higher mAP from text to image."""
    if study.source.modalities != ("image", "text"):
        return "no texts in these data"
    better, labels = 0, []
    for label in study.papers:
        values = [(study.mean(label, b, "T2I"), study.mean(label, b, "I2T")) for b in study.bits]
        known = [(a, b) for a, b in values if a is not None and b is not None]
        if known:
            labels.append(label)
            better += float(np.mean([a - b for a, b in known])) > 0
    unseen = (
        [study.mean(OURS, b, "T2I", "unseen") for b in study.bits],
        [study.mean(OURS, b, "I2T", "unseen") for b in study.bits],
    )
    more = ""
    if all(v is not None for side in unseen for v in side) and unseen[0]:
        gap = float(np.mean(np.array(unseen[0], dtype=float) - np.array(unseen[1], dtype=float)))
        more = f"; AMSH with unseen items: {signed(gap, 3)}"
    return (2 * better > len(labels), f"{better} of {len(labels)} methods{more}") if labels else None


def drop_from_mirflickr(studies: Mapping[str, Study]) -> Rule:
    """Lower on this data set than on MIRFlickr-25K, for every method. Needs both of the paper's data sets."""

    def rule(study: Study) -> tuple[bool, str] | None:
        base = studies.get("mirflickr25k")
        if base is None or study is base or study.source.role != "paper":
            return None
        gaps = []
        for label in study.papers:
            for bits, task in measured_with(study, label):
                here, there = study.mean(label, bits, task), base.mean(label, bits, task)
                if here is not None and there is not None:
                    gaps.append(here - there)
        if not gaps:
            return None
        return max(gaps) < 0, f"from {signed(min(gaps), 3)} to {signed(max(gaps), 3)} against MIRFlickr-25K"

    return rule


def same_without_pairs(paired: Mapping[str, Study]) -> Rule:
    """AMSH's mAP with and without pairing differ by no more than the paper's own two tables do."""

    def rule(study: Study) -> tuple[bool, str] | None:
        other = paired.get(study.dataset)
        if other is None:
            return None
        first, second = other.experiment, study.experiment
        allowed = max(
            abs((first.of(d, t, OURS, b) or 0) - (second.of(d, t, OURS, b) or 0))
            for d in first.published for t in TASKS for b in first.published_bits
        )  # fmt: skip
        gaps = [abs(a - c) for b in study.bits for t in TASKS
                if (a := study.mean(OURS, b, t)) is not None and (c := other.mean(OURS, b, t)) is not None]  # fmt: skip
        if not gaps:
            return None
        return max(gaps) <= allowed, (
            f"largest difference {max(gaps):.4f} (the paper's own: {allowed:.4f}); here rows are ordered by their "
            "content, so shuffling them changes nothing"
        )

    return rule


def is_low(label: str) -> Rule:
    """In the lower half of its table, on average."""

    def rule(study: Study) -> tuple[bool, str] | None:
        others = study.papers
        ranks = []
        for bits in study.bits:
            for task in TASKS:
                values = {x: v for x in others if (v := study.mean(x, bits, task)) is not None}
                if label in values:
                    ranks.append(1 + sum(v > values[label] for v in values.values()))
        if not ranks:
            return None
        chance = study.chance("I2T", "learned") or 0.0
        level = float(np.mean([study.mean(label, b, "I2T") or 0 for b in study.bits]))
        return float(np.mean(ranks)) > (len(others) + 1) / 2, (
            f"mean rank {np.mean(ranks):.1f} of {len(others)}; image → text {level:.3f}, a random ranking {chance:.3f}"
        )

    return rule


def paired_claims(found: Evidence, verdicts: Verdicts) -> Claims:
    """Check the claims of section IV-D."""
    experiment, studies = found.experiments["table2"], found.studies["table2"]
    data, section = experiment.datasets, "IV-D, Table II"
    claims = [
        claim(f"{BEATS}{row.label}", section, studies, beats(row.label, verdicts["table2"]), data)
        for row in experiment.rows
        if row.label != OURS and not row.extra
    ]
    claims += [
        claim("The PR curves of AMSH are generally above those of the baselines", "IV-D, Fig. 3",
              found.studies["table2-curves"], curves_above, data),
        claim("Supervised methods generally outperform unsupervised ones", "IV-D", studies, supervised_win, data),
        claim("For most methods the performance gets better with longer codes", "IV-D", studies,
              longer_is_better, data),
        claim("mAP drops drastically from MIRFlickr-25K to NUS-WIDE and IAPR TC-12", "IV-D",
              {n: s for n, s in studies.items() if s.source.role == "paper"}, drop_from_mirflickr(studies), data),
        claim("For most methods mAP is higher from text to image than from image to text", "IV-D", studies,
              text_queries_win, data),
    ]  # fmt: skip
    return Claims("Paired data", claims)


def unpaired_claims(found: Evidence, verdicts: Verdicts) -> Claims:
    """Check the claims of section IV-E."""
    experiment, studies = found.experiments["table3"], found.studies["table3"]
    data, section = experiment.datasets, "IV-E, Table III"
    claims = [
        claim(f"{BEATS}{row.label}", section, studies, beats(row.label, verdicts["table3"]), data)
        for row in experiment.rows
        if row.label != OURS and not row.extra
    ]
    claims += [
        claim("The PR curves of AMSH are generally above those of the other methods", "IV-E, Fig. 4",
              found.studies["table3-curves"], curves_above, data),
        claim("AMSH without pairs is almost the same as with pairs", "IV-E", studies,
              same_without_pairs(found.studies["table2"]), data),
        claim("SAPMH obtains relatively low mAP", "IV-E", studies, is_low("SAPMH"), data),
        claim("Most methods are better with longer codes", "IV-E", studies, longer_is_better, data),
        claim("Methods are generally better from text to image", "IV-E", studies, text_queries_win, data),
    ]  # fmt: skip
    return Claims("Unpaired data", claims)
