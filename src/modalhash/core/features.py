r"""Feature maps, which transform the raw features of a modality for a method, and the choice of a kernel.

Both maps are scikit-learn transformers, take dense or CSR input and process it in row blocks. This module learns them;
:mod:`modalhash.core.maps` has what maps new items.

Which distance separates labels best depends on the features: histograms gain from square roots, sharp features from a
Laplacian. ``kernel="auto"`` tries the :data:`CANDIDATES` on a sample of the labelled items of a modality. With features
φ of a candidate, a ridge regression that has not seen the fold f predicts the labels of its items,

.. math:: W_{-f} = (G - G_f + \rho I)^{-1}(C - C_f), \qquad \hat s = W_{-f}^T\phi(x)

and the candidate with the highest mean average precision wins: predictions :math:`\hat s` search the labels of the
fold, and labels search predictions. Squared errors of the predictions order the candidates differently, and worse.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, Self

import numpy as np
import scipy
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
from modalhash.core.linalg import RidgeFactor
from modalhash.core.maps import FittedKernel, FittedLinear, FittedMap, signed_roots
from modalhash.core.parallel import parallel_map
from modalhash.core.randomness import draw, draw_by_key, root_seed, row_keys
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import check_choice, check_features, check_int, check_number, per_modality

NAME = "X"
ROWS = ("raw", "unit", "centred unit")
KMEANS_ITER = 100


def anchors_by_modality(n_anchors: PerModality[int], X: Mapping[str, Matrix]) -> dict[str, int]:
    """Return the number of anchors of each modality, capped at its items with one warning for all."""
    wanted = per_modality(n_anchors, X, "n_anchors")
    given = {name: min(check_int(k, "n_anchors", at_least=1), X[name].shape[0]) for name, k in wanted.items()}
    if capped := [f"{name!r} {wanted[name]} -> {k}" for name, k in given.items() if k < wanted[name]]:
        warnings.warn(
            f"fewer items than anchors asked for, all are used: {', '.join(capped)}", UserWarning, stacklevel=5
        )
    return given


class FeatureMap(TransformerMixin, BaseEstimator, FittedMap):
    """Base of the maps, which are learned in one pass over blocks that the caller can keep using."""

    def fit(self, X: Any, y: Any = None) -> Self:
        self.fit_blocks(check_features({NAME: X})[NAME], memory_limit=1)
        return self

    def fit_blocks(
        self, X: Matrix, *, memory_limit: int | None = None, block_rows: int | None = None, run_rows: int | None = None
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

    @abstractmethod
    def width_for(self, X: Matrix | RemoteRows) -> int:
        """Return the number of mapped features after learning from these rows."""

    @abstractmethod
    def _prepare(self, X: Matrix) -> None:
        """Learn everything but the mean."""


class Linear(FeatureMap, FittedLinear):
    """The features themselves, centred.

    Parameters
    ----------
    rows : "raw", "unit" (length 1) or "centred unit" (training mean subtracted, then length 1)
    centred : subtract the training mean, after ``rows`` is applied
    bias : append a column of ones
    dtype : of the result; None keeps that of the input
    """

    def width_for(self, X: Matrix | RemoteRows) -> int:
        return int(X.shape[1]) + self.bias

    def _prepare(self, X: Matrix) -> None:
        """Learn nothing; only the mean is needed."""


class AnchorKernel(FeatureMap, FittedKernel):
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

    def width_for(self, X: Matrix | RemoteRows) -> int:
        return min(self.n_anchors, int(X.shape[0])) + self.bias

    def _column_means(self, X: Matrix | RemoteRows) -> Array:
        if self.power not in (1, 0.5):
            raise ValueError(f"power is {self.power!r}; expected 1 or 0.5")
        if self.power == 1:
            return super()._column_means(X)
        total = self._sum(X, _root_sums, max(1, 2**20 // X.shape[1]))
        return np.asarray(total / X.shape[0])

    def _prepare(self, X: Matrix) -> None:
        n = X.shape[0]
        k = check_int(self.n_anchors, "n_anchors", at_least=1)
        if k > n:
            warnings.warn(f"{k} anchors asked for, {n} items there: using all {n}", UserWarning, stacklevel=6)
            k = n
        check_choice(self.anchors, "anchors", ("random", "kmeans"))
        drawn = self._prepared(X, draw(X, k, root_seed(self.random_state)))
        drawn = drawn.toarray() if scipy.sparse.issparse(drawn) else drawn
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
            A = (self.anchors_ if scipy.sparse.issparse(X) else self._shifted(self.anchors_)).astype(np.float64)
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
    squares = block.multiply(block) if scipy.sparse.issparse(block) else block * block
    return np.asarray(block.sum(axis=0)).ravel(), float(squares.sum())


def _distance_sum(rows: Matrix, kernel: AnchorKernel) -> float:
    return float(np.sqrt(kernel._distances(kernel._prepared(rows, slice(None)))).sum(dtype=np.float64))


KERNELS: dict[str, dict[str, Any]] = {
    "rbf": {},
    "rbf-unsquared": {"squared": False},
    "rbf-narrow": {"bandwidth": "pairs"},
    "laplace": {"squared": False, "bandwidth": "pairs"},
    "rbf-sqrt": {"power": 0.5},
    "rbf-narrow-sqrt": {"bandwidth": "pairs", "power": 0.5},
    "laplace-sqrt": {"squared": False, "bandwidth": "pairs", "power": 0.5},
}
"""Parameters of :class:`~modalhash.core.features.AnchorKernel` by the name of the kernel."""
CANDIDATES = ("rbf-narrow", "laplace", "rbf-narrow-sqrt", "laplace-sqrt")
"""Kernels that ``"auto"`` chooses from."""
DEFAULT = "rbf"
"""Kernel for fewer than :data:`FEWEST` labelled items."""
SAMPLE, ANCHORS, FOLDS, QUERIES = 3000, 750, 3, 400
FEWEST = 60
RIDGES = (0.03, 0.3)
"""The better one counts. With a smaller ridge, the Laplacian scores worse on a sample than on all items."""
MOST_LABELS = 512
"""Number of the most frequent labels that are predicted; relevance counts all labels."""


def kernel_maps(
    X: Mapping[str, Matrix],
    Y: Mapping[str, Any] | None,
    *,
    kernel: PerModality[str | None],
    n_anchors: PerModality[int],
    seed: int,
    paper: Mapping[str, Any] | None = None,
    linear: str = "raw",
    **options: Any,
) -> dict[str, FeatureMap]:
    """Return the feature map of each modality, not yet fitted.

    Parameters
    ----------
    X, Y : features and labels by modality; only "auto" needs labels
    kernel : a name in :data:`KERNELS`, "auto", or None for the features themselves; or a dict by modality
    n_anchors : anchors of the kernel, at most the number of items; or a dict by modality
    seed : of the anchors and of the sample for "auto"
    paper : parameters of the method's own kernel, which is then called "paper"
    linear : ``rows`` of :class:`~modalhash.core.features.Linear` for features without a kernel
    **options : of all maps: ``centred``, ``bias``, ``dtype``
    """
    known = KERNELS if paper is None else {"paper": paper, **KERNELS}
    names = per_modality(kernel, X, "kernel")
    wanted, mapped = per_modality(n_anchors, X, "n_anchors"), [name for name in X if names[name] is not None]
    anchors = anchors_by_modality({name: wanted[name] for name in mapped}, {name: X[name] for name in mapped})
    for name in names.values():
        check_choice(name, "kernel", (*known, "auto", None))
    automatic = [name for name in names if names[name] == "auto"]
    if automatic and Y is None:
        raise ValueError("kernel='auto' needs labels; without them name a kernel, e.g. kernel='rbf'")
    labels = [scipy.sparse.csr_array(Y[name]) for name in automatic] if Y else []
    chosen = parallel_map(choose_kernel, [X[name] for name in automatic], labels, repeat(seed))
    names |= dict(zip(automatic, chosen, strict=True))
    return {
        modality: Linear(rows=linear, **options)
        if name is None
        else AnchorKernel(anchors[modality], **known[name], **options, random_state=seed)
        for modality, name in names.items()
    }


def pair_features(
    X: Mapping[str, Matrix],
    L: Array,
    kernel: PerModality[str | None],
    n_anchors: PerModality[int],
    seed: int,
    **options: Any,
) -> tuple[dict[str, FeatureMap], dict[str, Array]]:
    """Return the fitted maps of :func:`kernel_maps` for pairs with labels L, and their features in float64."""
    labels, options = dict.fromkeys(X, L), {"dtype": "float64", **options}
    maps = kernel_maps(X, labels, kernel=kernel, n_anchors=n_anchors, seed=seed, **options)
    return maps, {name: maps[name].fit_blocks(X[name]).whole() for name in X}


def choose_kernel(X: Matrix, Y: scipy.sparse.csr_array, seed: int) -> str:
    """Return the candidate whose out-of-fold predictions rank the labels of a sample best."""
    labelled = np.flatnonzero(np.diff(Y.indptr))
    if len(labelled) < FEWEST:
        return DEFAULT
    keys = row_keys(X, seed)[labelled]
    drawn = draw_by_key(keys ^ row_keys(Y[labelled], seed), SAMPLE)
    rows, folds = labelled[drawn], (keys[drawn] % np.uint64(FOLDS)).astype(int)  # copies of an item share a fold
    sample, labels = X[rows], Y[rows].astype(np.float32)
    scores = []
    for name in CANDIDATES:
        anchors = min(ANCHORS, sample.shape[0])
        kernel = AnchorKernel(anchors, **KERNELS[name], bias=True, dtype="float32", random_state=seed)
        scores.append(ranking_score(kernel.fit_blocks(sample).whole(), labels, folds))
    return CANDIDATES[int(np.argmax(scores))]


def ranking_score(phi: Array, labels: scipy.sparse.csr_array, folds: Array) -> float:
    """Return the mean average precision of predicted labels and labels searching each other, with the better ridge.

    Parameters
    ----------
    phi : (n, d) features with a bias
    labels : (n, c) CSR of 0 and 1
    folds : (n,) fold of each item
    """
    frequent = np.argsort(-labels.sum(axis=0), kind="stable")[:MOST_LABELS]
    T = labels[:, np.sort(frequent)].toarray()
    T /= np.sqrt(np.maximum(1, np.diff(labels.indptr)))[:, None].astype(np.float32)  # rows of length 1
    held = [rows for fold in range(FOLDS) if len(rows := np.flatnonzero(folds == fold))]  # a fold may be empty
    sums = [(phi[rows].T @ phi[rows], phi[rows].T @ T[rows]) for rows in held]
    G, C = (np.sum(parts, axis=0, dtype=np.float64) for parts in zip(*sums, strict=True))
    scores = np.zeros(len(RIDGES))
    for rows, (own_G, own_C) in zip(held, sums, strict=True):
        few = rows[:QUERIES]
        relevant = (labels[few] @ labels[rows].T).toarray() > 0
        for i, ridge in enumerate(RIDGES):
            S = phi[rows] @ RidgeFactor(G - own_G, ridge).solve(C - own_C).astype(np.float32)
            scores[i] += mean_average_precision(S[: len(few)] @ T[rows].T, relevant)
            scores[i] += mean_average_precision(T[few] @ S.T, relevant)
    return float(scores.max()) / (2 * len(held))


def mean_average_precision(scores: Array, relevant: Array) -> float:
    """Return the mean average precision of rankings by descending float32 score, over queries with a relevant item.

    The lowest bit of a score carries its relevance through the sort, which takes a quarter of the time of an argsort.
    """
    marked = (-scores).view(np.uint32) & ~np.uint32(1) | relevant
    hits = (np.sort(marked.view(np.float32), axis=1).view(np.uint32) & np.uint32(1)).astype(np.float32)
    found = np.cumsum(hits, axis=1)
    precision = (hits * found) @ (1 / np.arange(1, hits.shape[1] + 1, dtype=np.float32))
    some = found[:, -1] > 0
    return float(np.mean(precision[some] / found[some, -1])) if some.any() else 0.0
