"""Uncertainty of a number: spread over seeds, intervals over queries, tests between methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from modalhash.core.typing import Array
from modalhash.core.validation import check_int, check_number

AT_ONCE = 2**20  # random numbers held in memory
TOSSES_AT_ONCE = 1000  # draws of randomisation_tests in memory
SIGNIFICANT = 0.05
"""Corrected p-value below which a table has an arrow."""
DRAWS = 10_000
"""Random sign assignments of these tests."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over runs, e.g. over seeds.

    Examples
    --------
    >>> print(Spread.of([0.70, 0.72, 0.74]))
    0.7200 ± 0.0200
    """

    mean: float
    sd: float | None
    """None for a single run."""
    n: int

    @classmethod
    def of(cls, values: Any) -> Spread:
        numbers = np.asarray(values, dtype=np.float64)
        if numbers.ndim != 1 or not len(numbers):
            raise ValueError(f"values have shape {numbers.shape}; expected at least one number per run")
        sd = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
        return cls(float(numbers.mean()), sd, len(numbers))

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if self.sd is None else f"{self.mean:.4f} ± {self.sd:.4f}"


def bootstrap_interval(
    values: Any, *, level: float = 0.95, draws: int = 2000, random_state: int = 0
) -> tuple[float, float]:
    """Return the percentile interval of the mean over queries drawn with replacement; NaN values are excluded.

    Examples
    --------
    >>> bootstrap_interval([0.5, 0.5, 0.5])
    (0.5, 0.5)
    """
    numbers = _clean(values, "values")
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        raise ValueError("values: no query counts; the sample is empty")
    check_number(level, "level", positive=True)
    if level >= 1:
        raise ValueError(f"level is {level}; expected a number between 0 and 1, e.g. 0.95")
    draws = check_int(draws, "draws", at_least=1)
    if len(numbers) == 1:  # scipy requires two
        return float(numbers[0]), float(numbers[0])
    from scipy import stats

    interval = stats.bootstrap(
        (numbers,),
        np.mean,
        method="percentile",
        confidence_level=level,
        n_resamples=draws,
        batch=max(1, AT_ONCE // len(numbers)),
        random_state=np.random.default_rng(random_state),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def randomisation_test(first: Any, second: Any, *, draws: int = 10_000, random_state: int = 0) -> float:
    """Return the two-sided p-value of the hypothesis that two methods are equal, from the same queries.

    Under the hypothesis, swapping the two average precisions of a query is a coin toss. The p-value is the fraction of
    tosses for which the means differ at least as much. All tosses are tried if there are at most ``draws``.

    Examples
    --------
    >>> randomisation_test([0.9, 0.8, 0.7], [0.1, 0.2, 0.3])
    0.25
    """
    a, b = _clean(first, "first"), _clean(second, "second")
    if len(a) != len(b):
        raise ValueError(
            f"{len(a)} and {len(b)} queries; the test compares two methods on the same queries, in one order"
        )
    draws = check_int(draws, "draws", at_least=1)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        raise ValueError("the protocol excludes different queries for the two methods; expected the same")
    difference = (a - b)[~np.isnan(a)]
    if not len(difference):
        raise ValueError("no query counts; there is nothing to compare")
    rng, at_once = np.random.default_rng(random_state), max(1, AT_ONCE // len(difference))
    return float(_p_values(difference[:, None], draws, at_once, rng)[0])


def randomisation_tests(differences: Sequence[Array], *, draws: int = 10_000, random_state: int = 0) -> list[float]:
    """Return the p-values of :func:`randomisation_test` for many comparisons; those of one length share their tosses.

    Each comparison is the difference of two methods on every query, NaN if the protocol excludes the query.

    Examples
    --------
    >>> randomisation_tests([np.zeros(9), np.ones(40)], draws=999)
    [1.0, 0.001]
    """
    draws = check_int(draws, "draws", at_least=1)
    p_values = [1.0] * len(differences)
    by_length: dict[int, list[int]] = {}
    for number, difference in enumerate(differences):
        by_length.setdefault(len(difference), []).append(number)
    for length, members in by_length.items():
        columns = np.nan_to_num(np.stack([differences[number] for number in members], axis=1))
        rng = np.random.default_rng([random_state, length])
        for number, p in zip(members, _p_values(columns, draws, TOSSES_AT_ONCE, rng).tolist(), strict=True):
            p_values[number] = p
    return p_values


def _p_values(columns: Array, draws: int, at_once: int, rng: np.random.Generator) -> Array:
    """Return two-sided p-values of columns of differences under random signs, shared by all columns."""
    n = len(columns)
    observed = np.abs(columns.sum(axis=0)) * (1 - 1e-9)  # equal sums may differ by rounding
    if 2**n <= draws:
        tosses = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return np.asarray(np.mean(np.abs((2 * tosses - 1) @ columns) >= observed, axis=0))
    extreme = np.zeros(columns.shape[1], dtype=np.int64)
    for done in range(0, draws, at_once):
        some = min(at_once, draws - done)
        signs = 2.0 * rng.integers(2, size=(some, n), dtype=np.int8) - 1
        extreme += (np.abs(signs @ columns) >= observed).sum(axis=0)
    return np.asarray((extreme + 1) / (draws + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number by Holm's step-down rule, in the order given.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    ascending = np.asarray(p_values, dtype=np.float64)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(ascending), 1.0) if len(ascending) else ascending
    return [float(f"{p:.12g}") for p in corrected]


@dataclass(frozen=True)
class PairedTest:
    """A method compared with a reference on the same queries."""

    difference: float
    """Mean over the queries; positive if the method is better."""
    p: float
    """Two-sided paired randomisation test over the queries."""
    p_holm: float
    """Corrected by Holm for all tests made together."""

    @property
    def sign(self) -> int:
        """1 if the method is significantly better than the reference, −1 if worse, else 0."""
        if self.p_holm >= SIGNIFICANT or not self.difference:
            return 0
        return 1 if self.difference > 0 else -1

    @property
    def arrow(self) -> str:
        """↑ or ↓ if the method is significantly better or worse than the reference, else empty."""
        return ("", "↑", "↓")[self.sign]


def paired_tests(
    differences: Mapping[Key, Array], *, draws: int = DRAWS, random_state: int = 0
) -> dict[Key, PairedTest]:
    """Test many methods against a reference, and correct the p-values by Holm for their number.

    Parameters
    ----------
    differences : dict
        For each test, the average precision of the method minus that of the reference, per query; NaN if the protocol
        excludes the query.
    draws, random_state
        As for :func:`randomisation_tests`.

    Examples
    --------
    >>> found = paired_tests({"good": np.full(40, 0.1), "equal": np.zeros(40)})
    >>> found["good"].arrow, found["equal"].p_holm
    ('↑', 1.0)
    """
    p_values = randomisation_tests(list(differences.values()), draws=draws, random_state=random_state)
    return {
        key: PairedTest(float(np.nanmean(difference)), p, corrected)
        for (key, difference), p, corrected in zip(differences.items(), p_values, holm(p_values), strict=True)
    }


def describe_tests(reference: str, n_tests: int, of_what: str = "this table") -> str:
    return (
        f"↑ better, ↓ worse than {reference}: p < {SIGNIFICANT:g} in a two-sided paired randomisation test over "
        f"queries, {DRAWS} draws, corrected by Holm for the {n_tests} tests of {of_what}."
    )


def _clean(values: Any, name: str) -> Array:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"{name}: got shape {numbers.shape}; expected one number per query, at least one")
    return numbers
