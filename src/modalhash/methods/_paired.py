"""What the methods that learn from pairs share: one code for both items of a pair."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from modalhash._typing import Array, Matrix
from modalhash.base import CrossModalHasher, Training
from modalhash.codes import pack_signs
from modalhash.progress import Reporter


class PairedHasher(CrossModalHasher):
    """Base of methods that need pairs of two modalities.

    A subclass implements ``_fit_pairs``. Items that are in no pair take no part in training; their
    learned codes are hashed codes.
    """

    needs_pairs: ClassVar[bool] = True
    max_modalities: ClassVar[int | None] = 2

    @abstractmethod
    def _fit_pairs(
        self, X: dict[str, Matrix], L: Array | None, n_bits: int, report: Reporter
    ) -> tuple[Array, dict[str, Any]]:
        """The pairs' shared codes (pairs, n_bits), bit 1 where > 0, and the learned attributes.

        Row k of every X and of the labels L (boolean) is pair k.
        """

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        pairs = data.pairs
        assert pairs is not None  # base checked
        if len(pairs) <= data.n_bits:
            raise ValueError(f"{type(self).__name__}: {len(pairs)} pairs for {data.n_bits} bits; more pairs are needed")
        rows = dict(zip(data.X, pairs.T, strict=True))
        L = self._shared_labels(data, rows)
        B, learned = self._fit_pairs({name: X[rows[name]] for name, X in data.X.items()}, L, data.n_bits, report)
        model = clone(self)
        vars(model).update(learned, n_features_in_={name: X.shape[1] for name, X in data.X.items()})
        codes = {}
        for name, X in data.X.items():
            shared = pack_signs(B)
            codes[name] = np.zeros((X.shape[0], shared.shape[1]), dtype=np.uint8)
            codes[name][rows[name]] = shared
            alone = np.setdiff1d(np.arange(X.shape[0]), rows[name])
            if len(alone):
                codes[name][alone] = pack_signs(model._project_blocks(name, X[alone]))
        return learned | {"codes_": codes}

    def _shared_labels(self, data: Training, rows: dict[str, Array]) -> Array | None:
        if data.Y is None:
            return None
        (first, L), *others = ((name, Y[rows[name]]) for name, Y in data.Y.items())
        for name, labels in others:
            if differing := int((labels != L).any(axis=1).sum()):
                raise ValueError(
                    f"{differing} of {len(L)} pairs have other labels in {name!r} than in {first!r}; "
                    f"{type(self).__name__} takes one label row per pair. Are the rows really aligned?"
                )
        return L
