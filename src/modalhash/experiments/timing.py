"""Estimates of how long fits will take, from fits of samples."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.progress import Progress, spoken as spoken
from modalhash.data import Dataset, Split, SplitData, generate
from modalhash.evaluation import evaluate_databases
from modalhash.methods import registry

SMALLEST = 128
"""Training items of the smallest sample, which also has at least two items per bit."""
RATIO = 4
"""Factor between the sizes of consecutive samples."""
SHARE = 0.05
"""Fraction of the expected work for the small fits of a method."""
TOTAL, LEAST, MOST = 4.0, 1.0, 6.0
"""Seconds for the small fits of all methods, and the minimum and maximum per method."""
clock = time.perf_counter


def growth_of(method: str) -> float:
    """Return the maximum exponent of the number of items with which the time of a fit grows."""
    return 2.0 if registry.info(method).growth.startswith("n²") else 1.0


def nearest_to_mean(bits: Sequence[int]) -> int:
    """Return the length to time, because the time of a fit grows about linearly with the length.

    Examples
    --------
    >>> nearest_to_mean([16, 32, 64, 128])
    64
    """
    return min(bits, key=lambda length: abs(length - sum(bits) / len(bits)))


Prepared = tuple[Any, SplitData, Any]
"""Model, parts of the data set, and pairs for a fit."""


def time_small_fits(
    prepare: Callable[[Dataset], Prepared], dataset: Dataset, *, method: str, bits: int, n_fits: int, n_methods: int = 1
) -> float | None:
    """Return the expected seconds of one fit with its evaluation, from fits of samples of the training items.

    Samples grow fourfold, up to all items. They may take a twentieth of the work, and at least four seconds divided by
    ``n_methods``. A fit that takes longer is stopped if the method reports its progress. Two samples are always tried.
    Returns None if all of them failed.

    Parameters
    ----------
    prepare : takes the data set with fewer training items and returns what to fit
    dataset : with a split
    method, bits : of the fits
    n_fits : number of planned fits of the method
    n_methods : number of methods to time
    """
    assert dataset.split is not None
    growth = growth_of(method)
    items = max(map(len, dataset.split.training.values()))
    timed: dict[int, _Timed] = {}
    _load_kernels()
    begin = clock()
    for size in _sample_sizes(items, bits):
        budget = max(TOTAL / n_methods, LEAST)
        if timed:
            budget = max(budget, min(SHARE * n_fits * _extrapolate(timed, items, growth), MOST))
        left = budget - (clock() - begin)
        if len(timed) > 1 and timed[max(timed)].seconds * RATIO**growth > left:
            break
        found = _time_fit(prepare, with_fewer_items(dataset, size / items), max(left, LEAST))
        if found is not None:
            timed[size] = found if found.share == 1 else _complete(found, timed[max(timed)] if timed else None, growth)
    return _extrapolate(timed, items, growth) if timed else None


@cache
def _load_kernels() -> None:
    """Load and compile the kernels, so that no fit is charged for it."""
    parts = generate(n_items=32, n_queries=8, seed=0).dataset().parts()
    model = registry.method("chance")(n_bits=8, random_state=0)
    evaluate_databases(model.fit(parts.training.features, parts.training.labels), parts)


def _sample_sizes(items: int, bits: int) -> list[int]:
    """Return the numbers of items to fit, ascending up to all items."""
    sizes = [items]
    while sizes[0] // RATIO >= max(SMALLEST, 2 * bits):
        sizes.insert(0, sizes[0] // RATIO)
    return sizes


class _Timed(NamedTuple):
    """A fit of a sample, with its evaluation."""

    seconds: float
    reports: list[float]
    """Seconds until each progress report."""
    share: float = 1.0
    """Finished fraction of the stage in which the fit was stopped; 1 if it was not."""


def _extrapolate(timed: Mapping[int, _Timed], items: int, growth: float) -> float:
    """Return the seconds for ``items`` items.

    The exponent is the mean of the one observed in the two largest samples and that of the registry, because samples
    smaller than the number of anchors, or that converge quickly, are misleading.
    """
    *smaller, size = sorted(timed)
    power = growth
    if smaller:
        ratio = max(timed[size].seconds, 1e-6) / max(timed[smaller[-1]].seconds, 1e-6)
        power = (growth + min(max(math.log(ratio) / math.log(size / smaller[-1]), 0.0), growth)) / 2
    return float(timed[size].seconds * (items / size) ** power)


def _complete(stopped: _Timed, before: _Timed | None, growth: float) -> _Timed:
    """Return a stopped fit with the seconds that it would have taken.

    The remaining part is scaled like the finished part, relative to the previous fit, but not beyond the growth.
    Without a previous fit, the current stage counts as the last.
    """
    seconds = stopped.seconds / max(stopped.share, 0.01)
    if before is not None and before.reports:
        reached = before.reports[min(len(stopped.reports), len(before.reports)) - 1]
        slower = min(stopped.seconds / max(reached, 1e-6), RATIO**growth)
        seconds = stopped.seconds + (before.seconds - reached) * slower
    return _Timed(seconds, stopped.reports)


class _Stop(Exception):
    """Ends a fit that takes too long."""


def _time_fit(prepare: Callable[[Dataset], Prepared], dataset: Dataset, limit: float) -> _Timed | None:
    reports: list[float] = []
    share = 1.0

    def watch(progress: Progress) -> None:
        nonlocal share
        reports.append(clock() - begin)
        if reports[-1] > limit and progress.step < progress.total:
            share = progress.step / progress.total
            raise _Stop

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model, parts, pairs = prepare(dataset)
            begin = clock()
            model.fit(parts.training.features, parts.training.labels, pairs=pairs, callback=watch)
            evaluate_databases(model, parts)
        except _Stop:
            return _Timed(reports[-1], reports, share)
        except Exception:  # the actual fit reports the reason, or the sample is too small
            return None
    return _Timed(clock() - begin, reports)


def with_fewer_items(dataset: Dataset, share: float) -> Dataset:
    split = dataset.split
    assert split is not None
    every = np.unique(np.concatenate(list(split.training.values())))
    kept = np.random.default_rng(0).permutation(every)[: max(1, round(share * len(every)))]
    training = {name: ids[np.isin(ids, kept)] for name, ids in split.training.items()}
    database = None if split.database_is_training else split.database
    return replace(dataset, split=Split(training, split.query, database, disjoint=False))


def describe_work(n_fits: int, seconds: float, by_method: Mapping[str, float | None]) -> str:
    """Return e.g. ``24 fits, about 3 min (amsh 1.2 s, sapmh 58 s a fit)``.

    Examples
    --------
    >>> describe_work(24, 177.6, {"amsh": 1.2, "sapmh": 13.6})
    '24 fits, about 3 min (amsh 1.2 s, sapmh 14 s a fit)'
    >>> describe_work(9, 4.5, {"amsh": 1.5, "mymodule:Mine": None})
    '9 fits, more than 4 s (amsh 1.5 s a fit; mymodule:Mine unknown)'
    """
    known = [
        f"{name} {f'{one:.2g} s' if one < 10 else spoken(one)}" for name, one in by_method.items() if one is not None
    ]
    unknown = [name for name, one in by_method.items() if one is None]
    each = [f"{', '.join(known)} a fit"] * bool(known) + [f"{', '.join(unknown)} unknown"] * bool(unknown)
    total = f"{'more than' if unknown else 'about'} {spoken(seconds)}" if known else "in an unknown time"
    return f"{n_fits} fit{'s' if n_fits != 1 else ''}, {total} ({'; '.join(each)})"
