"""How sure a number is: spread over seeds, an interval over queries, a test between two methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modalhash._typing import Array
from modalhash.validation import check_int, check_number

AT_ONCE = 2**20  # random numbers held in memory
TOSSES_AT_ONCE = 1000  # fixed, as the tosses depend on it


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
        """The spread of these numbers."""
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
    """Percentile interval of the mean, over queries drawn anew with replacement.

    NaN stands for a query that the protocol leaves out.

    Examples
    --------
    >>> bootstrap_interval([0.5, 0.5, 0.5])
    (0.5, 0.5)
    """
    numbers = _clean(values, "values")
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        raise ValueError("values: no query counts; there is nothing to draw from")
    check_number(level, "level", positive=True)
    if level >= 1:
        raise ValueError(f"level is {level}; expected a number between 0 and 1, e.g. 0.95")
    draws = check_int(draws, "draws", at_least=1)
    rng = np.random.default_rng(random_state)
    means = np.concatenate(
        [
            numbers[rng.integers(len(numbers), size=(some, len(numbers)))].mean(axis=1)
            for some in _batches(draws, numbers)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def randomisation_test(first: Any, second: Any, *, draws: int = 10_000, random_state: int = 0) -> float:
    """Two-sided p-value for "both methods are alike", from the same queries asked to both.

    If they were, which of the two got which average precision on a query would be a coin's toss: the
    p-value is how often tosses make the means differ as much. All tosses are tried when there are no
    more of them than ``draws``.

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
        raise ValueError("the protocol leaves out different queries for the two; expected the same ones")
    difference = (a - b)[~np.isnan(a)]
    n = len(difference)
    if not n:
        raise ValueError("no query counts; there is nothing to compare")
    observed = abs(difference.sum()) * (1 - 1e-12)  # equal sums may differ in the last bit
    if 2**n <= draws:
        tosses = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return float(np.mean(np.abs((2 * tosses - 1) @ difference) >= observed))
    rng = np.random.default_rng(random_state)
    extreme = 0
    for some in _batches(draws, difference):
        signs = 2.0 * rng.integers(2, size=(some, n), dtype=np.int8) - 1
        extreme += int((np.abs(signs @ difference) >= observed).sum())
    return (extreme + 1) / (draws + 1)


def randomisation_tests(differences: Sequence[Array], *, draws: int = 20_000, random_state: int = 0) -> list[float]:
    """Return the two-sided p-values of many paired comparisons, given as differences per query.

    The test is that of :func:`randomisation_test`; comparisons of one length share their tosses, which makes
    hundreds of them affordable. NaN stands for a query that the protocol leaves out.

    Examples
    --------
    >>> randomisation_tests([np.zeros(9), np.ones(40)], draws=999)
    [1.0, 0.001]
    """
    p_values = [1.0] * len(differences)
    groups: dict[int, list[int]] = {}
    for number, difference in enumerate(differences):
        groups.setdefault(len(difference), []).append(number)
    for length, members in groups.items():
        rng = np.random.default_rng([random_state, length])
        columns = np.nan_to_num(np.stack([differences[number] for number in members], axis=1))
        observed = np.abs(columns.sum(axis=0)) * (1 - 1e-9)
        extreme = np.zeros(len(members), dtype=np.int64)
        for start in range(0, draws, TOSSES_AT_ONCE):
            some = min(TOSSES_AT_ONCE, draws - start)
            signs = 2.0 * rng.integers(2, size=(some, length), dtype=np.int8) - 1
            extreme += (np.abs(signs @ columns) >= observed).sum(axis=0)
        for number, count in zip(members, extreme.tolist(), strict=True):
            p_values[number] = (count + 1) / (draws + 1)
    return p_values


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's step-down rule.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    corrected = np.asarray(p_values, dtype=np.float64)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.minimum(np.maximum.accumulate(corrected), 1.0) if len(corrected) else corrected
    found = np.empty(len(p_values))
    found[order] = corrected
    return [float(f"{p:.12g}") for p in found]


def _clean(values: Any, name: str) -> Array:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"{name}: got shape {numbers.shape}; expected one number per query, at least one")
    return numbers


def _batches(draws: int, values: Array) -> list[int]:
    size = max(1, AT_ONCE // len(values))
    return [min(size, draws - done) for done in range(0, draws, size)]
