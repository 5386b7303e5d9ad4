"""What section IV-F claims about η, λ and β."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from modalhash.core.typing import Array
from modalhash.experiments import Sweep
from reproduction.claims import DROP, FLAT, Rule, claim
from reproduction.document import Claims
from reproduction.study import TASKS, Evidence, Study
from reproduction.tables.sweeps import surface


def sensitivity_claims(found: Evidence) -> Claims:
    """Check the claims of section IV-F."""
    experiment, studies = found.experiments["sensitivity"], found.studies["sensitivity"]
    data, where = experiment.datasets, "IV-F, Fig. 5"
    claims = []
    for sweep in experiment.grid.sweeps:
        if len(sweep.values) == 1:
            how = "λ, β scaled to the data" if "auto" in map(str, sweep.fixed.values()) else "λ = β = 1e-3"
            claims += [
                claim(
                    f"From η = 1e-3 to 1 the performance keeps steady ({how})", where, studies, eta_flat(sweep), data
                ),
                claim(f"At η = 1e2 and 1e3 the mAP drops drastically ({how})", where, studies, eta_falls(sweep), data),
            ]
        else:
            claims += [
                claim("When λ is large, the mAP drops drastically", where, studies, lambda_hurts(sweep), data),
                claim("With the increase of β the performance improves", where, studies, beta_helps(sweep), data),
                claim("AMSH is less sensitive to β than to λ", where, studies, less_to_beta(sweep), data),
                claim("Suitable λ and β are from 1e-3 to 1", where, studies, suitable(sweep), data),
            ]
    return Claims("Parameters", claims)


def _mean_curve(study: Study, sweep: Sweep) -> Array | None:
    """Quality over the values of a sweep, learned database, mean of both directions."""
    ((name, values),) = sweep.values.items()
    found = [
        [study.mean(sweep.label({name: v}), study.bits[0], t, "learned", sweep.name) for t in TASKS] for v in values
    ]
    if any(value is None for pair in found for value in pair):
        return None
    return np.mean(np.array(found, dtype=float), axis=1)


def _on_eta(sweep: Sweep, rule: Callable[[Array, Array], tuple[bool, str]]) -> Rule:
    (values,) = sweep.values.values()

    def apply(study: Study) -> tuple[bool, str] | None:
        curve = _mean_curve(study, sweep)
        return None if curve is None else rule(np.array(values), curve)

    return apply


def eta_flat(sweep: Sweep) -> Rule:
    """The range of the mAP for η ≤ 1 is at most 0.02."""

    def rule(values: Array, curve: Array) -> tuple[bool, str]:
        part = curve[values <= 1]
        return float(np.ptp(part)) <= FLAT, f"from {part[0]:.3f} to {part[-1]:.3f}, range {np.ptp(part):.3f}"

    return _on_eta(sweep, rule)


def eta_falls(sweep: Sweep) -> Rule:
    """The mAP at η = 100 and at 1,000 is at least 0.05 below that at η = 1."""

    def rule(values: Array, curve: Array) -> tuple[bool, str]:
        at = {value: float(curve[np.isclose(values, value)][0]) for value in (1.0, 1e2, 1e3)}
        low = max(at[1e2], at[1e3])
        return at[1.0] - low >= DROP, f"{at[1.0]:.3f} at 1, {at[1e2]:.3f} at 100, {at[1e3]:.3f} at 1,000"

    return _on_eta(sweep, rule)


def _on_surface(sweep: Sweep, rule: Callable[[Array, Array, Array], tuple[bool, str]]) -> Rule:
    """Rows λ, columns β, mean of both directions."""
    lambdas, betas = (np.array(values) for values in sweep.values.values())

    def apply(study: Study) -> tuple[bool, str] | None:
        values = np.mean([surface(study, sweep, task) for task in TASKS], axis=0)
        return None if np.isnan(values).any() else rule(lambdas, betas, values)

    return apply


def lambda_hurts(sweep: Sweep) -> Rule:
    """Averaged over β, the mAP at λ ≥ 100 is at least 0.05 below that at λ ≤ 1."""

    def rule(lambdas: Array, betas: Array, values: Array) -> tuple[bool, str]:
        small, large = values[lambdas <= 1].mean(), values[lambdas >= 100].mean()
        worst = values[lambdas >= 100].min()
        return bool(small - large >= DROP), f"mean {small:.3f} for λ ≤ 1, {large:.3f} for λ ≥ 100 (lowest {worst:.3f})"

    return _on_surface(sweep, rule)


def beta_helps(sweep: Sweep) -> Rule:
    """Averaged over λ, the mAP at the largest β is higher than at the smallest."""

    def rule(lambdas: Array, betas: Array, values: Array) -> tuple[bool, str]:
        line = values.mean(axis=0)
        text = ", ".join(f"{v:.3f}" for v in line)
        return bool(line[-1] > line[0]), f"mean over λ for β from {betas[0]:g} to {betas[-1]:g}: {text}"

    return _on_surface(sweep, rule)


def less_to_beta(sweep: Sweep) -> Rule:
    """The range over β, averaged over λ, is smaller by more than 0.02 than the range over λ, averaged over β."""

    def rule(lambdas: Array, betas: Array, values: Array) -> tuple[bool, str]:
        by_beta, by_lambda = np.ptp(values, axis=1).mean(), np.ptp(values, axis=0).mean()
        return bool(by_lambda - by_beta > FLAT), f"mean range over β {by_beta:.3f}, over λ {by_lambda:.3f}"

    return _on_surface(sweep, rule)


def suitable(sweep: Sweep) -> Rule:
    """Inside the range, the mean is higher than outside, and the best is within 0.02 of the best of all."""

    def rule(lambdas: Array, betas: Array, values: Array) -> tuple[bool, str]:
        inside = (lambdas[:, None] <= 1) & (betas[None, :] <= 1)
        best_in, best = values[inside].max(), values.max()
        mean_in, mean_out = values[inside].mean(), values[~inside].mean()
        holds = mean_in > mean_out and best - best_in <= FLAT
        return bool(
            holds
        ), f"mean {mean_in:.3f} inside, {mean_out:.3f} outside; best {best_in:.3f} inside, {best:.3f} of all"

    return _on_surface(sweep, rule)
