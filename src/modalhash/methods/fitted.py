"""Fitted hashers, which compute codes of new items from feature maps and matrices, without scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from modalhash.core import validation
from modalhash.core.blocks import row_slices
from modalhash.core.codes import pack_signs
from modalhash.core.maps import FittedMap
from modalhash.core.typing import Array, Codes, Matrix

BLOCK_VALUES = 2**22
"""Feature values that transform maps in one block: 16 MiB in float32, which the allocator reuses for the next block."""


class FittedHasher:
    """The part of a fitted method that hashes new items, which is all that a search engine loads to search.

    Every method derives from it. :class:`modalhash.methods.persistence.SavedModel` restores one on its own if the
    method projects by ``maps_`` and ``functions_``.

    Attributes
    ----------
    n_bits : length of the codes
    maps_, functions_ : feature map and (features, bits) matrix, by modality
    n_features_in_ : number of features, by modality
    """

    n_bits: int
    maps_: Mapping[str, FittedMap]
    functions_: dict[str, Array]
    n_features_in_: dict[str, int]

    def transform(self, X: Mapping[str, Any]) -> dict[str, Codes]:
        """Return the packed codes of new items of any of the fitted modalities."""
        return {name: pack_signs(values) for name, values in self.decision_function(X).items()}

    def decision_function(self, X: Mapping[str, Any]) -> dict[str, Array]:
        """Return real-valued projections (n, n_bits), whose signs are the codes."""
        return {
            name: validation.check_projections(self._project_blocks(name, values), name)
            for name, values in self._check_new(X).items()
        }

    def project(self, name: str, X: Matrix) -> tuple[Array, Array | None]:
        """Return the projections of rows of one modality, and their mapped features.

        The features are those after the model's feature map, so that a caller need not map the rows again. They are
        None if the method overrides ``_project`` or if the rows are mapped in blocks.
        """
        clean = self._check_new({name: X})[name]
        if type(self)._project is not FittedHasher._project or clean.shape[0] > self._block_rows(name, clean):
            return validation.check_projections(self._project_blocks(name, clean), name), None
        mapped = self.maps_[name].map(clean)
        return validation.check_projections(mapped @ self.functions_[name], name), mapped

    def _check_new(self, X: Mapping[str, Any]) -> dict[str, Matrix]:
        return validation.check_features(X, expected=self.n_features_in_)

    def _project(self, name: str, X: Matrix) -> Array:
        """Return the projections of checked features of one modality."""
        return self.maps_[name].map(X) @ self.functions_[name]

    def _project_blocks(self, name: str, X: Matrix) -> Array:
        size = self._block_rows(name, X)
        if X.shape[0] <= size:
            return self._project(name, X)
        return np.concatenate([self._project(name, X[rows]) for rows in row_slices(X.shape[0], size)])

    def _block_rows(self, name: str, X: Matrix) -> int:
        """Return the number of rows per block."""
        return max(1, BLOCK_VALUES // max(X.shape[1], self._width(name)))

    def _width(self, name: str) -> int:
        """Return the number of features per item after the feature map, if there is one."""
        return self.maps_[name].width if hasattr(self, "maps_") else self.n_features_in_[name]
