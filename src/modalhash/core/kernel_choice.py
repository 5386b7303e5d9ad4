r"""Kernels by name, and the choice of one per modality by how well it ranks held-out items.

Which distance separates labels best depends on the features: histograms gain from square roots, sharp features from a
Laplacian. ``kernel="auto"`` tries the :data:`CANDIDATES` on a sample of the labelled items of a modality. With features
φ of a candidate, a ridge regression that has not seen the fold f predicts the labels of its items,

.. math:: W_{-f} = (G - G_f + \rho I)^{-1}(C - C_f), \qquad \hat s = W_{-f}^T\phi(x)

and the candidate with the highest mean average precision wins: predictions :math:`\hat s` search the labels of the
fold, and labels search predictions. Squared errors of the predictions order the candidates differently, and worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.features import AnchorKernel, FeatureMap, Linear, anchors_by_modality
from modalhash.core.linalg import RidgeFactor
from modalhash.core.parallel import parallel_map
from modalhash.core.randomness import draw_by_key, row_keys
from modalhash.core.typing import Array, Matrix, PerModality
from modalhash.core.validation import check_choice, per_modality

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
    labels = [sparse.csr_array(Y[name]) for name in automatic] if Y else []
    chosen = parallel_map(choose_kernel, [X[name] for name in automatic], labels, repeat(seed))
    names |= dict(zip(automatic, chosen, strict=True))
    return {
        modality: Linear(rows=linear, **options)
        if name is None
        else AnchorKernel(anchors[modality], **known[name], **options, random_state=seed)
        for modality, name in names.items()
    }


def choose_kernel(X: Matrix, Y: sparse.csr_array, seed: int) -> str:
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


def ranking_score(phi: Array, labels: sparse.csr_array, folds: Array) -> float:
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
