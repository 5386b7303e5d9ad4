"""What section IV-G claims about training: its time, and that the objective converges."""

from __future__ import annotations

import numpy as np

from modalhash.core.typing import Array
from reproduction.claims import Rule, claim
from reproduction.document import Claims
from reproduction.study import OURS, Evidence, Study

STABLE = 1e-3
"""Relative change of the objective in the last iteration."""


def time_claims(found: Evidence) -> Claims:
    """Check the claims of section IV-G on time."""
    experiment, studies = found.experiments["table4"], found.studies["table4"]
    data, where = experiment.datasets, "IV-G, Table IV"
    flickr = {name: study for name, study in studies.items() if name.startswith("mirflickr25k")}
    return Claims("Training time", [
        claim("BATCH is generally the fastest", where, studies, extreme("BATCH", least=True), data),
        claim("FSH is the slowest", where, studies, extreme("FSH", least=False), data),
        claim("AMSH can be trained within 5 seconds on MIRFlickr-25K", "IV-I", flickr, within(5.0), ["mirflickr25k"]),
    ])  # fmt: skip


def extreme(label: str, *, least: bool) -> Rule:
    """Of all methods measured, at more than half of the code lengths."""

    def rule(study: Study) -> tuple[bool, str] | None:
        winners = []
        for bits in study.bits:
            seconds = {x: s.mean for x in study.papers if (s := study.seconds(x, bits)) is not None}
            if label in seconds and len(seconds) > 2:
                winners.append((min if least else max)(seconds, key=lambda name: seconds[name]))
        if not winners:
            return None
        names = ", ".join(f"{bits} bits: {name}" for bits, name in zip(study.bits, winners, strict=False))
        return 2 * winners.count(label) > len(winners), f"{'fastest' if least else 'slowest'} at {names}"

    return rule


def within(limit: float) -> Rule:
    """CPU seconds at every length, one thread of this machine."""

    def rule(study: Study) -> tuple[bool, str] | None:
        seconds = {bits: s.mean for bits in study.bits if (s := study.seconds(OURS, bits)) is not None}
        text = ", ".join(f"{value:.1f} s with {bits} bits" for bits, value in seconds.items())
        return (max(seconds.values()) <= limit, f"{text}; one thread") if seconds else None

    return rule


def convergence_claims(found: Evidence) -> Claims:
    """Check the claims of section IV-G on convergence."""
    experiment, studies = found.experiments["convergence"], found.studies["convergence"]
    data, where = experiment.datasets, "IV-G, Fig. 6"
    return Claims("Convergence", [
        claim("The objective decreases monotonously with each iteration", where, studies, monotone, data),
        claim("After 15 iterations it reaches a stable state", where, studies, stable, data),
    ])  # fmt: skip


def _traces(study: Study) -> list[Array]:
    objectives = [r["objective"] for point, r in study.results.items() if point.label == OURS]
    return [np.array(trace, dtype=float) for o in objectives for trace in (o["codes"], *o["functions"].values())]


def monotone(study: Study) -> tuple[bool, str] | None:
    """No value is above the one before, up to rounding (1e-7 of it), in either step."""
    traces = _traces(study)
    rises = [float(np.max(np.diff(t) / np.abs(t[:-1]), initial=-1.0)) for t in traces if len(t) > 1]
    wrong = sum(rise > 1e-7 for rise in rises)
    return (wrong == 0, f"{len(rises) - wrong} of {len(rises)} traces never rise") if rises else None


def stable(study: Study) -> tuple[bool, str] | None:
    """The last iteration changes the value by less than a thousandth, in either step."""
    last = [abs(t[-1] - t[-2]) / abs(t[-2]) for t in _traces(study) if len(t) > 1]
    return (max(last) < STABLE, f"last change at most {100 * max(last):.3f} %") if last else None
