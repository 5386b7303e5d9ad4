r"""Similarity by labels, and the state of one modality in methods that learn from labels without pairs.

.. math:: S_{uv} = 2\tilde L_u\tilde L_v^T - 11^T

with :math:`\tilde L` (``G``, ``Lt``) the labels with rows of length 1: items with the same labels have S = 1, items
without a common label −1. S is applied as products of thin matrices and never formed. :class:`LabelView` also omits
:math:`11^T`, because it meets either Z with 1ᵀZ = 0 or the centring in
:func:`modalhash.core.linalg.balanced_procrustes`. Its rows are ordered by content, so that shuffled items get the same
codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from modalhash.core.blocks import FeatureBlocks
from modalhash.core.codes import pack_signs
from modalhash.core.features import FeatureMap
from modalhash.core.linalg import RidgeFactor, unit_rows
from modalhash.core.randomness import row_keys, stream
from modalhash.core.typing import Array, Codes
from modalhash.methods.base import Training


def similarity_times(Gx: Array, Gy: Array, M: Array) -> Array:
    """Return S M."""
    product = Gx @ (2 * (Gy.T @ M))
    product -= M.sum(axis=0)
    return np.asarray(product)


def squared_similarity(Gx: Array, Gy: Array) -> float:
    """Return ‖S‖²."""
    overlap = float(np.vdot(Gx.T @ Gx, Gy.T @ Gy))
    total = float(Gx.sum(axis=0) @ Gy.sum(axis=0))
    return 4 * overlap - 4 * total + len(Gx) * len(Gy)


@dataclass(frozen=True)
class LabelView:
    """Labels and kernel features of one modality."""

    Lt: sparse.csr_array
    phi: FeatureBlocks
    factor: RidgeFactor
    order: Array  # row ids of the data, in the order of the view
    rng: np.random.Generator

    @property
    def n(self) -> int:
        return len(self.order)

    def regress(self, B: Array) -> Array:
        """Return (ΦᵀΦ + ρI)⁻¹ ΦᵀB, the hash functions that fit the codes best."""
        B = self.in_data_order(B)
        right = np.zeros((self.phi.width, B.shape[1]))
        for rows, block in self.phi:
            right += block.T @ B[rows]
        return self.factor.solve(right)

    def predict(self, P: Array) -> Array:
        """Return Φ P, with rows in the order of the view."""
        return self.phi.project(P)[self.order]

    def codes(self, B: Array) -> Codes:
        """Return packed codes, with rows in the order of the data."""
        return pack_signs(self.in_data_order(B))

    def in_data_order(self, X: Array) -> Array:
        """Return rows of the view in the order of the data."""
        out = np.empty_like(X)
        out[self.order] = X
        return out


def label_views(
    data: Training, maps: dict[str, FeatureMap], ridge: dict[str, float], seed: int, memory: int | None
) -> list[LabelView]:
    """Fit the feature maps and return the views; the features of all modalities share ``memory`` bytes."""
    assert data.Y is not None  # base checked
    share = None if memory is None else max(1, memory // len(maps))
    views = []
    for name, L in data.Y.items():
        phi = maps[name].fit_blocks(data.X[name], memory_limit=share)
        keys = row_keys(data.X[name], seed) ^ row_keys(L, seed)
        order = np.argsort(keys, kind="stable")
        Lt = sparse.csr_array(unit_rows(L[order]))
        views.append(LabelView(Lt, phi, RidgeFactor(phi.gram(), ridge[name]), order, stream(seed, keys)))
    return views


def squared_products(Lu: sparse.csr_array, Lv: sparse.csr_array) -> float:
    """Return ‖2 Lu Lvᵀ − 11ᵀ‖² from c × c sums."""
    cross = float((Lu.T @ Lu).multiply(Lv.T @ Lv).sum())
    return 4 * cross - 4 * float(Lu.sum(axis=0) @ Lv.sum(axis=0)) + float(Lu.shape[0]) * Lv.shape[0]
