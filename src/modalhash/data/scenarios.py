"""Degrade training data on purpose: each function takes a data set and returns a new one.

Only training items change; queries and a separate database do not. All draws come from the seed. In a data set
without a split every item is a training item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from modalhash.core.typing import Array
from modalhash.core.validation import check_choice, check_int, check_number
from modalhash.data.dataset import Dataset, Split


def paired(dataset: Dataset) -> Dataset:
    """Sort the training items equally in every modality and drop those missing in one."""
    rows = _training_rows(dataset)
    common = None
    for name in dataset.modalities:
        ids = dataset.ids[name][rows[name]]
        common = ids if common is None else common[np.isin(common, ids)]
    if common is None or not len(common):
        raise ValueError(f"data set {dataset.name!r}: no training id occurs in every modality; nothing is paired")
    return _with_training(dataset, {name: dataset.rows_of(name, common) for name in dataset.modalities}, rows)


def unpaired(dataset: Dataset, *, seed: int = 0) -> Dataset:
    """Shuffle the training items of each modality independently."""
    rows = _training_rows(dataset)
    shuffled = {name: _rng(seed, name, "unpaired").permutation(rows[name]) for name in rows}
    return _with_training(dataset, shuffled, rows)


def unequal(dataset: Dataset, fraction: float | Mapping[str, float] = 0.2, *, seed: int = 0) -> Dataset:
    """Drop a fraction of the training items of each modality independently; keep the order."""
    rows = _training_rows(dataset)
    remaining = {}
    for name, own in rows.items():
        share = fraction[name] if isinstance(fraction, Mapping) else fraction
        n = len(own) - round(_share(share, "fraction") * len(own))
        if n == 0:
            raise ValueError(f"{name!r}: dropping {share:g} of {len(own)} training items leaves none")
        remaining[name] = np.sort(_rng(seed, name, "unequal").choice(own, size=n, replace=False))
    return _with_training(dataset, remaining, rows)


def semi_paired(dataset: Dataset, share: float = 0.5, *, seed: int = 0) -> tuple[Dataset, Array]:
    """Keep a share of the training items paired and shuffle the others within their modality.

    Returns
    -------
    dataset : Dataset
        the data set with its training part in the new order
    pairs : int array (pairs, modalities)
        row numbers within the training part, as ``fit(pairs=...)`` takes them
    """
    whole = paired(dataset)
    rows = _training_rows(whole)
    n = len(next(iter(rows.values())))
    n_pairs = round(_share(share, "share") * n)
    chosen = np.sort(_rng(seed, "", "semi_paired").choice(n, size=n_pairs, replace=False))
    rest = np.setdiff1d(np.arange(n), chosen)
    orders = {}
    for name in rows:
        # paired items are shuffled too, so that the row number does not reveal the pairing
        order = np.concatenate([chosen, rest])
        orders[name] = _rng(seed, name, "semi_paired").permutation(order)
    pairs = np.stack([np.argsort(order)[chosen] for order in orders.values()], axis=1)
    return _with_training(whole, {name: rows[name][order] for name, order in orders.items()}, rows), pairs


def noisy_labels(dataset: Dataset, rate: float = 0.2, *, seed: int = 0, shared: bool = False) -> Dataset:
    """Move each label of a training item to a class it does not have, with probability ``rate``.

    The number of labels per item does not change. Relevance is judged by the true labels. With ``shared``, items with
    the same id get the same wrong labels in every modality, as paired methods need.
    """
    rate = _share(rate, "rate")

    def spoil(labels: Array, rng: np.random.Generator) -> Array:
        out = labels.copy()
        items, classes = np.nonzero(labels & (rng.random(labels.shape) < rate))
        for item, old in zip(items.tolist(), classes.tolist(), strict=True):
            free = np.flatnonzero(~(labels[item] | out[item]))
            if len(free):  # an item with every class keeps its labels
                out[item, old] = False
                out[item, rng.choice(free)] = True
        return out

    return _with_labels(dataset, spoil, seed, "noisy", shared=shared)


def missing_labels(
    dataset: Dataset, rate: float = 0.2, *, seed: int = 0, by: str = "item", shared: bool = False
) -> Dataset:
    """Remove all labels of a share ``rate`` of the items, or ``by="label"`` each with that probability.

    Relevance is judged by the true labels. With ``shared``, items with the same id lose the same labels everywhere.
    """
    rate = _share(rate, "rate")
    check_choice(by, "by", ("item", "label"))

    def lose(labels: Array, rng: np.random.Generator) -> Array:
        if by == "item":
            lost = np.zeros(len(labels), dtype=bool)
            lost[rng.choice(len(labels), size=round(rate * len(labels)), replace=False)] = True
            return labels & ~lost[:, None]
        return labels & (rng.random(labels.shape) >= rate)

    return _with_labels(dataset, lose, seed, "missing", shared=shared)


_Change = Callable[[Array, np.random.Generator], Array]


def _training_rows(dataset: Dataset) -> dict[str, Array]:
    if dataset.split is None:
        return {name: np.arange(n) for name, n in dataset.sizes.items()}
    return {name: dataset.rows_of(name, dataset.split.training[name]) for name in dataset.modalities}


def _with_training(dataset: Dataset, chosen: Mapping[str, Array], old: Mapping[str, Array]) -> Dataset:
    """Return the data set with the training rows ``chosen`` first, then all that was not training."""
    split = dataset.split
    order = {}
    for name, n in dataset.sizes.items():
        rest = np.ones(n, dtype=bool)
        rest[old[name]] = False
        order[name] = np.concatenate([chosen[name], np.flatnonzero(rest)])
    if split is not None:
        training = {name: dataset.ids[name][rows] for name, rows in chosen.items()}
        database = None if split.database_is_training else split.database
        for name, ids in (database or {}).items():  # it may still contain dropped training items
            order[name] = np.concatenate([order[name], np.setdiff1d(dataset.rows_of(name, ids), order[name])])
        split = Split(training, split.query, database, disjoint=False)
    return replace(dataset.select(order), split=split)


def _with_labels(dataset: Dataset, change: _Change, seed: int, what: str, *, shared: bool) -> Dataset:
    if not dataset.labels:
        raise ValueError(f"data set {dataset.name!r} has no labels to change")
    rows = _training_rows(dataset)
    if shared:  # one order and one stream give the same draws in every modality
        rows = _by_id(dataset, rows)
    labels = {name: values.copy() for name, values in dataset.labels.items()}
    for name, own in rows.items():
        labels[name][own] = change(labels[name][own], _rng(seed, "" if shared else name, what))
    return replace(dataset, labels=labels, true_labels=dict(dataset.relevance))


def _by_id(dataset: Dataset, rows: Mapping[str, Array]) -> dict[str, Array]:
    """Return the rows sorted by id; raise if the modalities have different training ids."""
    ordered = {name: own[np.argsort(dataset.ids[name][own])] for name, own in rows.items()}
    first, *others = (dataset.ids[name][own] for name, own in ordered.items())
    if not all(np.array_equal(first, ids) for ids in others):
        raise ValueError(
            f"data set {dataset.name!r}: the modalities have training items of different ids, so labels cannot be "
            "changed equally; omit shared, or apply `paired` first"
        )
    return ordered


def _rng(seed: int, name: str, what: str) -> np.random.Generator:
    """Return a stream per modality and purpose, so that adding a modality changes no other draw."""
    return np.random.default_rng([check_int(seed, "seed", at_least=0), *what.encode(), 0, *name.encode()])


def _share(value: float, parameter: str) -> float:
    if check_number(value, parameter) > 1:
        raise ValueError(f"{parameter} is {value}; expected a share from 0 to 1")
    return float(value)
