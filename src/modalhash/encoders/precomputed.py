"""Features that somebody else computed, passed on after a check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError

from modalhash.core.typing import Matrix
from modalhash.core.validation import check_int, check_sparse
from modalhash.encoders.encoder import EncoderBase, ItemError, State


class Precomputed(EncoderBase):
    """Rows of numbers as they come: for features from anywhere else.

    Items are the rows of an array or of a sparse matrix, or a sequence of vectors.

    Parameters
    ----------
    dim
        features per item; learned by ``fit`` if None
    source
        what made the features, in your own words: part of the digest, so that a model trained on the features of
        one source refuses those of another

    Examples
    --------
    >>> Precomputed().fit(np.eye(3)).encode([[1, 2, 3]])
    array([[1., 2., 3.]], dtype=float32)
    """

    name = "precomputed"
    reads = "array"

    def __init__(self, *, dim: int | None = None, source: str = "") -> None:
        self._dim = None if dim is None else check_int(dim, "dim", at_least=1)
        self.source = source

    def fit(self, items: Sequence[Any] | Matrix) -> Self:
        """Learn the number of features, or check it."""
        if sparse.issparse(items):
            check_sparse(items, "features")
        first: Matrix = items[:1]
        width = first.shape[1] if sparse.issparse(first) else np.asarray(first).shape[-1]
        if self._dim is not None and width != self._dim:
            raise ValueError(f"the items have {width} features; expected {self._dim}")
        self._dim = int(width)
        return self

    @property
    def dim(self) -> int:
        """Return the number of features per item."""
        if self._dim is None:
            raise NotFittedError("the encoder 'precomputed' does not know its dim; pass dim=, or call fit(features)")
        return self._dim

    @property
    def state(self) -> State:
        """Return the number of features and their source."""
        return State({"dim": self._dim, "source": self.source})

    def encode(self, batch: Sequence[Any] | Matrix) -> Matrix:
        """Return the same numbers as float32, dense or CSR as they came."""
        if sparse.issparse(batch):
            try:
                check_sparse(batch, "features")
            except ValueError as error:
                raise ItemError(str(error)) from None
            rows = sparse.csr_array(batch).astype(np.float32)
            values = rows.data
        else:
            try:
                rows = values = np.array(batch, dtype=np.float32)
            except (TypeError, ValueError) as error:
                raise ItemError(f"no rows of equally many numbers ({error})") from error
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise ItemError(f"shape {rows.shape}; expected (items, {self.dim})")
        if not np.isfinite(values).all():
            raise ItemError("some features are not finite numbers in float32")
        return rows
