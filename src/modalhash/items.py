"""Unpaired data in the form that scikit-learn's model selection splits: one row per item, or per pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from modalhash import validation
from modalhash._typing import Array, Matrix


class TrainingItems:
    """Items of all modalities in one long sequence.

    ``GridSearchCV`` and ``cross_val_score`` need something with a length that can be indexed by row numbers.
    A row is an item of one modality; where items are paired a row is a pair, so that no fold parts it.
    Modalities alternate evenly along the sequence: every contiguous fold has its share of each.

    Parameters
    ----------
    X, Y : dicts by modality, as for ``fit``
    pairs : None or "aligned"

    Examples
    --------
    >>> items = TrainingItems({"image": np.eye(4), "text": np.eye(2)}, {"image": np.eye(4), "text": np.eye(4)[:2]})
    >>> len(items), {name: len(x) for name, x in items[[0, 1, 2]].X.items()}
    (6, {'image': 2, 'text': 1})
    """

    def __init__(self, X: Mapping[str, Any], Y: Mapping[str, Any] | None = None, *, pairs: str | None = None) -> None:
        features = validation.check_features(X)
        labels = None if Y is None else validation.check_labels(Y, features, unlabelled="allow")
        validation.check_choice(pairs, "pairs", (None, "aligned"))
        aligned = validation.check_pairs(pairs, features)
        if aligned is not None:
            rows = {name: aligned[:, i] for i, name in enumerate(features)}
        else:
            rows = _alternating({name: values.shape[0] for name, values in features.items()})
        self._set(features, labels, pairs, rows)

    def _set(self, X: dict[str, Matrix], Y: dict[str, Array] | None, pairs: str | None, rows: dict[str, Array]) -> None:
        self._features, self._labels, self.pairs, self._rows = X, Y, pairs, rows

    def __len__(self) -> int:
        return len(next(iter(self._rows.values())))

    @property
    def shape(self) -> tuple[int]:
        """``(len,)``; scikit-learn indexes what has a shape by arrays of row numbers."""
        return (len(self),)

    def __getitem__(self, index: Any) -> TrainingItems:
        part = object.__new__(TrainingItems)
        if isinstance(index, tuple):  # scikit-learn writes X[rows, ...]
            index = index[0]
        part._set(self._features, self._labels, self.pairs, {name: rows[index] for name, rows in self._rows.items()})
        return part

    @property
    def X(self) -> dict[str, Matrix]:
        """Features of these items, by modality."""
        return self._take(self._features)

    @property
    def Y(self) -> dict[str, Array] | None:
        """Labels of these items, by modality."""
        return None if self._labels is None else self._take(self._labels)

    def _take(self, values: Mapping[str, Any]) -> dict[str, Any]:
        present = {name: rows[rows >= 0] for name, rows in self._rows.items()}
        return {name: values[name][rows] for name, rows in present.items() if len(rows)}


def _alternating(sizes: dict[str, int]) -> dict[str, Array]:
    """For every long row, the row in each modality, −1 where it is an item of another."""
    place = np.concatenate([(np.arange(n) + 0.5) / n for n in sizes.values()])
    modality = np.repeat(np.arange(len(sizes)), list(sizes.values()))
    number = np.concatenate([np.arange(n) for n in sizes.values()])
    order = np.argsort(place, kind="stable")
    return {name: np.where(modality[order] == i, number[order], -1) for i, name in enumerate(sizes)}
