"""Feature maps, which transform the raw features of a modality for a method.

Both maps are scikit-learn transformers, take dense or CSR input and process it in row blocks.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from modalhash.core.blocks import (
    FeatureBlocks,
    FeatureRows,
    RemoteItems,
    RemoteRows,
    ordered_sum,
    row_slices,
    rows_per_block,
)
from modalhash.core.randomness import RandomState, draw, root_seed
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import check_choice, check_features, check_int, check_number, per_modality

NAME = "X"
ROWS = ("raw", "unit", "centred unit")
KMEANS_ITER = 100
STRIP_BYTES = 2**18  # of kernel values, which fit in the L2 cache
DENSE = 1 / 8  # fraction of set values above which a dense product of a CSR block is faster


def anchors_by_modality(n_anchors: PerModality[int], X: Mapping[str, Matrix]) -> dict[str, int]:
    """Return the number of anchors of each modality, capped at its items with one warning for all."""
    wanted = per_modality(n_anchors, X, "n_anchors")
    given = {name: min(check_int(k, "n_anchors", at_least=1), X[name].shape[0]) for name, k in wanted.items()}
    if capped := [f"{name!r} {wanted[name]} -> {k}" for name, k in given.items() if k < wanted[name]]:
        warnings.warn(
            f"fewer items than anchors asked for, all are used: {', '.join(capped)}", UserWarning, stacklevel=5
        )
    return given


class FeatureMap(TransformerMixin, BaseEstimator, ABC):
    """Base of the maps, which are learned in one pass over blocks that the caller can keep using."""

    rows: str
    centred: bool
    bias: bool
    dtype: Any
    origin_: Array
    mean_: Array
    n_features_in_: int

    def fit(self, X: Any, y: Any = None) -> Self:
        self.fit_blocks(check_features({NAME: X})[NAME], memory_limit=1)
        return self

    def fit_blocks(
        self,
        X: Matrix,
        *,
        memory_limit: int | None = None,
        block_rows: int | None = None,
        run_rows: int | None = None,
    ) -> FeatureBlocks:
        """Learn the map from checked input and return the mapped rows as centred blocks."""
        dtype = self._begin(X)
        blocks = FeatureBlocks(
            X,
            self._compute,
            width=self.width,
            dtype=dtype,
            memory_limit=memory_limit,
            block_rows=block_rows,
            run_rows=run_rows,
        )
        self._centre(blocks)
        return blocks

    def fit_parts(
        self,
        X: Matrix | RemoteItems,
        *,
        memory_limit: int | None = None,
        block_rows: int | None = None,
        run_rows: int | None = None,
    ) -> FeatureRows:
        """Learn the map like :meth:`fit_blocks`; the mapped rows of remote items stay remote."""
        if not isinstance(X, RemoteItems):
            return self.fit_blocks(X, memory_limit=memory_limit, block_rows=block_rows, run_rows=run_rows)
        if block_rows is None:
            row_bytes = self.width_for(X) * np.dtype(X.dtype if self.dtype is None else self.dtype).itemsize
            block_rows = rows_per_block(X.shape[0], row_bytes, memory_limit)
        rows = X.placed(block_rows=block_rows, run_rows=run_rows)
        dtype = self._begin(rows)
        parts = rows.features(self, width=self.width, dtype=dtype, memory_limit=memory_limit)
        self._centre(parts)
        return parts

    def _begin(self, X: Matrix | RemoteRows) -> np.dtype[Any]:
        """Learn everything but the mean of the features; return their dtype."""
        check_choice(self.rows, "rows", ROWS)
        dtype = np.dtype(X.dtype if self.dtype is None else self.dtype)
        self.n_features_in_ = X.shape[1]
        self.origin_ = self._column_means(X).astype(dtype)
        self._prepare(X)
        self.mean_ = np.zeros(self.width, dtype=dtype)
        return dtype

    def _column_means(self, X: Matrix | RemoteRows) -> Array:
        """Return the column means that rows are centred on, in float64."""
        mean = X.mean() if isinstance(X, RemoteRows) else X.mean(axis=0, dtype=np.float64)
        return np.asarray(mean).ravel()

    def _centre(self, parts: FeatureRows) -> None:
        if self.centred:
            mean = parts.mean().astype(parts.dtype)
            if self.bias:
                mean[-1] = 0
            parts.subtract(mean)
            self.mean_ = mean

    def transform(self, X: Any) -> Array:
        check_is_fitted(self)
        values = check_features({NAME: X}, expected={NAME: self.n_features_in_})[NAME]
        return self.map(values)

    def map(self, X: Matrix) -> Array:
        return self._compute(X, slice(0, X.shape[0]))

    @property
    @abstractmethod
    def width(self) -> int:
        """Return the number of mapped features."""

    @abstractmethod
    def width_for(self, X: Matrix | RemoteRows) -> int:
        """Return the number of mapped features after learning from these rows."""

    @abstractmethod
    def _prepare(self, X: Matrix) -> None:
        """Learn everything but the mean."""

    @abstractmethod
    def _map(self, block: Matrix, mean: Array) -> Array:
        """Return the features of prepared rows minus ``mean`` as a new array, without the bias."""

    def _compute(self, X: Matrix, rows: slice | Array) -> Array:
        out = self._map(self._prepared(X, rows), self.mean_[: self.width - self.bias])
        return np.column_stack([out, np.ones(len(out), dtype=out.dtype)]) if self.bias else out

    def _prepared(self, X: Matrix, rows: slice | Array) -> Matrix:
        """Return rows scaled as ``rows`` says; CSR stays CSR unless its rows are centred."""
        dtype = self.origin_.dtype
        whole = sparse.issparse(X) and isinstance(rows, slice) and rows == slice(0, X.shape[0])
        block = X if whole else X[rows]  # a slice of CSR is a copy
        if self.rows == "raw":
            return block.astype(dtype, copy=False)
        if sparse.issparse(block) and self.rows != "centred unit":
            block = block.astype(dtype)
            norms = np.sqrt(_squared_lengths(block))
        else:
            block = np.array(block.toarray() if sparse.issparse(block) else block, dtype=dtype)
            if self.rows == "centred unit":
                block -= self.origin_
            norms = np.sqrt(np.einsum("ij,ij->i", block, block))
        scale = (1 / np.where(norms > 0, norms, 1)).astype(dtype)  # a row of zeros stays zero
        return sparse.diags_array(scale) @ block if sparse.issparse(block) else block * scale[:, None]


class Linear(FeatureMap):
    """The features themselves, centred.

    Parameters
    ----------
    rows : "raw", "unit" (length 1) or "centred unit" (training mean subtracted, then length 1)
    centred : subtract the training mean, after ``rows`` is applied
    bias : append a column of ones
    dtype : of the result; None keeps that of the input
    """

    def __init__(self, *, rows: str = "raw", centred: bool = True, bias: bool = False, dtype: Any = None) -> None:
        self.rows = rows
        self.centred = centred
        self.bias = bias
        self.dtype = dtype

    @property
    def width(self) -> int:
        return self.n_features_in_ + self.bias

    def width_for(self, X: Matrix | RemoteRows) -> int:
        return int(X.shape[1]) + self.bias

    def _prepare(self, X: Matrix) -> None:
        """Learn nothing; only the mean is needed."""

    def _map(self, block: Matrix, mean: Array) -> Array:
        if not sparse.issparse(block):
            return np.asarray(block - mean)
        out = block.toarray()
        out -= mean
        return np.asarray(out)


class AnchorKernel(FeatureMap):
    r"""Map items to their RBF similarities to a few training items, centred.

    .. math:: \phi_k(x) = \exp(-\lVert x - a_k\rVert^2 / 2s) - \mu_k

    where s is the mean squared distance between all training items and all anchors, which needs no tuning, and μ the
    training mean.

    Parameters
    ----------
    n_anchors : number of anchors; capped at the number of items, with a warning
    anchors : "random", training items drawn by content; or "kmeans", centres of training items (Lloyd's algorithm from
        such items, at most 100 rounds)
    squared : True is the kernel of AMSH's authors' code. False uses the distance itself, as the paper prints it:
        :math:`\exp(-\lVert x - a\rVert / 2\delta^2)` with δ the mean distance
    bandwidth : s (or δ): "anchors", the mean over items and anchors; "pairs", from v, the mean squared distance of two
        items, which makes the kernel :math:`\exp(-\lVert x - a\rVert^2/v)`, a Gaussian half as wide, or the Laplacian
        :math:`\exp(-\lVert x - a\rVert/\sqrt v)`; or a number
    power : 1, or 0.5 for distances between signed square roots :math:`\operatorname{sign}(x)\sqrt{|x|}` of the features
    rows, centred, bias, dtype : as for :class:`Linear`
    random_state : int, Generator or None. Anchors are drawn by content, so shuffled rows give the same ones

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> AnchorKernel(n_anchors=8, random_state=0).fit_transform(X).shape
    (50, 8)
    """

    anchors_: Array
    bandwidth_: float
    _terms: dict[tuple[bool, float], tuple[Array, Array]]

    def __init__(
        self,
        n_anchors: int = 1500,
        *,
        anchors: str = "random",
        squared: bool = True,
        bandwidth: float | str = "anchors",
        power: float = 1.0,
        rows: str = "raw",
        centred: bool = True,
        bias: bool = False,
        dtype: Any = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_anchors = n_anchors
        self.anchors = anchors
        self.squared = squared
        self.bandwidth = bandwidth
        self.power = power
        self.rows = rows
        self.centred = centred
        self.bias = bias
        self.dtype = dtype
        self.random_state = random_state

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_terms", None)  # recomputed when needed
        return state

    @property
    def width(self) -> int:
        return int(self.anchors_.shape[0]) + self.bias

    def width_for(self, X: Matrix | RemoteRows) -> int:
        return min(self.n_anchors, int(X.shape[0])) + self.bias

    def _column_means(self, X: Matrix | RemoteRows) -> Array:
        if self.power not in (1, 0.5):
            raise ValueError(f"power is {self.power!r}; expected 1 or 0.5")
        if self.power == 1:
            return super()._column_means(X)
        total = self._sum(X, _root_sums, max(1, 2**20 // X.shape[1]))
        return np.asarray(total / X.shape[0])

    def _prepared(self, X: Matrix, rows: slice | Array) -> Matrix:
        if self.power == 1:
            return super()._prepared(X, rows)
        block = signed_roots(X[rows])
        return super()._prepared(block, slice(0, block.shape[0]))

    def _prepare(self, X: Matrix) -> None:
        n = X.shape[0]
        k = check_int(self.n_anchors, "n_anchors", at_least=1)
        if k > n:
            warnings.warn(f"{k} anchors asked for, {n} items there: using all {n}", UserWarning, stacklevel=6)
            k = n
        check_choice(self.anchors, "anchors", ("random", "kmeans"))
        drawn = self._prepared(X, draw(X, k, root_seed(self.random_state)))
        drawn = drawn.toarray() if sparse.issparse(drawn) else drawn
        self.anchors_ = drawn if self.anchors == "random" else _centres(self._prepared(X, slice(0, n)), drawn)
        self._terms = {}  # drop the terms of previous anchors
        if isinstance(self.bandwidth, str):
            self.bandwidth_ = self._mean_distance(X)
        else:
            self.bandwidth_ = check_number(self.bandwidth, "bandwidth", positive=True)

    def _mean_distance(self, X: Matrix) -> float:
        """Return s or δ from the mean over all items and anchors, or over all pairs of items."""
        check_choice(self.bandwidth, "bandwidth", ("anchors", "pairs"))
        n = X.shape[0]
        if self.squared or self.bandwidth == "pairs":
            # mean |x|² + mean |a|² − 2 mean x · mean a needs no distances
            total, squares = self._sum(X, _moments, max(1, 2**20 // X.shape[1]))
            mean = total / n
            A = (self.anchors_ if sparse.issparse(X) else self._shifted(self.anchors_)).astype(np.float64)
            if self.bandwidth == "pairs":
                result = float(squares) / n - float(mean @ mean)  # v / 2
                if not self.squared:  # exp(−d / 2δ²) = exp(−d / √v)
                    result = float(np.sqrt(np.sqrt(2 * max(0.0, result)) / 2))
            else:
                result = float(squares) / n + float(np.einsum("ij,ij->", A, A)) / len(A)
                result -= 2 * float(mean @ A.mean(axis=0))
        else:
            total = self._sum(X, _distance_sum, max(1, 2**22 // len(self.anchors_)))
            result = float(total) / (n * len(self.anchors_))
        if not result > 0:
            raise ValueError("AnchorKernel: all items are equal; there is no distance to scale by")
        return result

    def _sum(self, X: Matrix | RemoteRows, work: Callable[[Matrix, AnchorKernel], Any], size: int) -> Any:
        """Return the sum of ``work`` over all rows, ``size`` rows at a time if they are local."""
        if isinstance(X, RemoteRows):
            return X.total(work, shared=(self,))
        return ordered_sum(work(X[rows], self) for rows in row_slices(X.shape[0], size))

    def _shifted(self, block: Matrix) -> Matrix:
        """Subtract the mean from raw dense rows, where differences of squares lose the fewest digits."""
        return block - self.origin_ if self.rows == "raw" and not sparse.issparse(block) else block

    def _distances(self, block: Matrix) -> Array:
        """Return ‖x − a‖², clipped at 0."""
        out, norms, squares = self._products(block)
        out -= norms
        out -= squares
        return np.negative(np.minimum(out, 0, out=out), out=out)

    def _products(self, block: Matrix, scale: float = 1.0) -> tuple[Array, Array, Array]:
        """Return 2 xᵀa, ‖x‖² and ‖a‖², each times ``scale``. CSR rows stay sparse unless they are dense in values."""
        from_csr = sparse.issparse(block)
        if from_csr:
            norms = _squared_lengths(block)
            if block.nnz > DENSE * block.shape[0] * block.shape[1]:
                block = block.toarray()
        else:
            block = self._shifted(block)
            norms = np.einsum("ij,ij->i", block, block)
        anchors, squares = self._anchor_terms(from_csr, scale)
        return block @ anchors, (norms * scale).astype(self.anchors_.dtype)[:, None], squares

    def _anchor_terms(self, for_csr: bool, scale: float) -> tuple[Array, Array]:
        """Return 2·scale·Aᵀ and scale·‖a‖², cached because computing them costs more than a single query."""
        terms = self.__dict__.setdefault("_terms", {})  # missing in a loaded map
        if (for_csr, scale) not in terms:
            A = self.anchors_ if for_csr else self._shifted(self.anchors_)
            squares = (np.einsum("ij,ij->i", A, A) * scale).astype(A.dtype)
            terms[for_csr, scale] = np.ascontiguousarray(A.T * A.dtype.type(2 * scale)), squares
        return terms[for_csr, scale]

    def _map(self, block: Matrix, mean: Array) -> Array:
        if self.squared:
            out, norms, squares = self._products(block, scale=0.5 / self.bandwidth_)
        else:
            out = self._distances(block)
        zeros = np.zeros_like(mean)  # a row, because numpy's minimum with a scalar is not vectorised
        # work in strips that stay in the cache
        for rows in row_slices(len(out), max(1, STRIP_BYTES // (out.itemsize * out.shape[1]))):
            strip = out[rows]
            if self.squared:
                strip -= norms[rows]
                strip -= squares
                np.minimum(strip, zeros, out=strip)
            else:
                np.sqrt(strip, out=strip)
                strip *= out.dtype.type(-0.5 / self.bandwidth_**2)
            np.exp(strip, out=strip)
            strip -= mean
        return out


def signed_roots(X: Matrix) -> Matrix:
    """Return sign(x) √|x| of every value, as a new matrix."""
    if not sparse.issparse(X):
        return np.sign(X) * np.sqrt(np.abs(X))
    roots = X.copy()
    roots.data = signed_roots(roots.data)
    return roots


def _squared_lengths(rows: sparse.csr_array) -> Array:
    """Return ‖x‖² of CSR rows without building a matrix, which would dominate the time of a single query."""
    squares = rows.data * rows.data
    if not rows.has_canonical_format or not squares.all():
        return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
    out = np.zeros(rows.shape[0], dtype=squares.dtype)
    filled = np.flatnonzero(rows.indptr[1:] > rows.indptr[:-1])
    out[filled] = np.add.reduceat(squares, rows.indptr[filled]) if len(filled) else 0
    return out


def _centres(rows: Matrix, start: Array) -> Array:
    """Return the k-means centres from these starting points; equal points are merged, so there may be fewer."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    start = np.unique(start, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than centres
        found = KMeans(len(start), init=start, n_init=1, max_iter=KMEANS_ITER, random_state=0).fit(rows)
    return np.ascontiguousarray(found.cluster_centers_.astype(start.dtype))


def _root_sums(rows: Matrix, kernel: AnchorKernel) -> Array:
    return np.asarray(signed_roots(rows).sum(axis=0, dtype=np.float64)).ravel()


def _moments(rows: Matrix, kernel: AnchorKernel) -> tuple[Array, float]:
    """Return the column sums of prepared rows, and the sum of all their squares."""
    block = kernel._shifted(kernel._prepared(rows, slice(None))).astype(np.float64)
    squares = block.multiply(block) if sparse.issparse(block) else block * block
    return np.asarray(block.sum(axis=0)).ravel(), float(squares.sum())


def _distance_sum(rows: Matrix, kernel: AnchorKernel) -> float:
    return float(np.sqrt(kernel._distances(kernel._prepared(rows, slice(None)))).sum(dtype=np.float64))
