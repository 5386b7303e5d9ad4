r"""ITQ: iterative quantization. Codes from features alone, without labels and without pairs.

Principal directions of the features, turned until the signs lose the least. Within one modality it needs nothing but
features. Across modalities it needs one space: vectors of an encoder that puts pictures and texts beside each other,
such as CLIP; then all modalities have the same directions and the same rotation, and their codes can be compared.

==========================  =======================  =================================================================
Gong and Lazebnik (2011)    here                     is
==========================  =======================  =================================================================
:math:`X`                   ``X[name]`` (n, d)       features, rows of length 1, less the mean of their modality
:math:`W`                   ``W`` (d, p)             leading eigenvectors of XᵀX
:math:`V = XW`              ``V`` (n, p)             the items in these directions
:math:`R`                   ``R`` (p, r)             the rotation, RRᵀ = I
:math:`B`                   ``B`` (n, r)             codes, ±1
==========================  =======================  =================================================================

Departures. Rows have length 1 first: inner products of encoders' vectors are cosines. In a shared space every modality
has a mean of its own, and its covariance counts with a total variance of 1: pictures and texts lie in two clouds apart
from each other (Liang et al. 2022), and one direction would otherwise do nothing but tell them apart. The rotation is
learned from at most 20,000 items of each modality. With more bits than directions R is wide, and bits are signs in a
tight frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.preprocessing import normalize

from modalhash.core.codes import pack_signs
from modalhash.core.linalg import RANK_TOLERANCE, orthogonal_procrustes, sign
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, draw, root_seed
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import choice, integer
from modalhash.methods.base import CrossModalHasher, Training

MAX_DENSE = 2048
"""Features up to which a covariance matrix is formed; of more, products with it are enough."""
ROTATION_SAMPLE = 20_000
"""Items of a modality that the rotation is learned from."""


@dataclass(eq=False, repr=False)
class ITQ(CrossModalHasher):
    r"""Iterative quantization (Gong and Lazebnik 2011): unsupervised, for one modality or several in one space.

    .. math:: \min_{B, R}\; \lVert B - XWR\rVert^2 \quad\text{subject to}\quad B = \pm 1,\; RR^T = I

    Both steps are exact minimisers: the objective never rises.

    Parameters
    ----------
    n_bits : length of the codes
    space : ``"own"``: each modality has directions of its own, and its codes can be compared within it only.
        ``"shared"``: the features of all modalities are vectors in one space, as many for each, and so are the codes.
        Never guessed from equal numbers of features
    max_iter : sweeps of the rotation
    random_state : int, Generator or None. The start of the rotation, and what it is learned from

    Attributes
    ----------
    codes_ : codes of the training items, by modality; the same as ``transform`` gives
    objective_ : trace of the objective per item after every sweep, by modality; of a shared space under ``"shared"``
    functions_ : W R, by modality
    centres_ : projection of the training mean, by modality
    n_features_in_ : features by modality

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = {"image": rng.normal(size=(80, 24)), "text": rng.normal(size=(60, 24))}
    >>> model = ITQ(n_bits=16, space="shared", random_state=0).fit(X)
    >>> bool((model.functions_["image"] == model.functions_["text"]).all())
    True

    References
    ----------
    Y. Gong, S. Lazebnik. Iterative Quantization: A Procrustean Approach to Learning Binary Codes. CVPR 2011.

    W. Liang et al. Mind the Gap: Understanding the Modality Gap in Multi-modal Contrastive Representation Learning.
    NeurIPS 2022.
    """

    supervised: ClassVar[bool] = False
    _parameter_constraints: ClassVar = {
        "space": choice("own", "shared"),
        "max_iter": integer(),
    }

    n_bits: int = 64
    _: KW_ONLY
    space: str = "own"
    max_iter: int = 50
    random_state: RandomState = None

    centres_: dict[str, Array] = field(init=False)

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        seed = root_seed(self.random_state)
        X = {name: _unit_rows(values) for name, values in data.X.items()}
        groups = {name: [name] for name in X}
        if self.space == "shared":
            _check_one_space(X)
            groups = {"shared": list(X)}
        functions, centres, traces = {}, {}, {}
        for step, (group, names) in enumerate(groups.items()):
            clouds = [_Cloud(X[name]) for name in names]
            W = leading_directions(clouds, data.n_bits, seed)
            V = np.concatenate([cloud.project(W, draw(cloud.X, ROTATION_SAMPLE, seed)) for cloud in clouds])
            R, traces[group] = _rotation(V, data.n_bits, self.max_iter, np.random.default_rng(seed))
            for name, cloud in zip(names, clouds, strict=True):
                functions[name] = W @ R
                centres[name] = cloud.mean @ functions[name]
            report("directions and rotation", step + 1, len(groups))
        codes = {name: pack_signs(X[name] @ functions[name] - centres[name]) for name in X}
        return {"codes_": codes, "functions_": functions, "centres_": centres, "objective_": traces}

    def _project(self, name: str, X: Matrix) -> Array:
        return np.asarray(_unit_rows(X) @ self.functions_[name] - self.centres_[name])

    def _width(self, name: str) -> int:
        return self.n_features_in_[name]


class _Cloud:
    """The items of one modality about their mean, with a total variance of 1. CSR stays CSR."""

    def __init__(self, X: Matrix) -> None:
        self.X = X
        self.mean = np.asarray(X.mean(axis=0)).ravel()
        squares = X.multiply(X).sum() if sparse.issparse(X) else np.vdot(X, X)
        variance = float(squares) / X.shape[0] - float(self.mean @ self.mean)
        self.scale = 1 / np.sqrt(max(variance, np.finfo(float).tiny))

    def covariance(self, Q: Array) -> Array:
        """Return the covariance matrix times Q."""
        product = self.X.T @ (self.X @ Q) / self.X.shape[0] - np.multiply.outer(self.mean, self.mean @ Q)
        return np.asarray(self.scale**2 * product)

    def project(self, W: Array, rows: Array) -> Array:
        """Return some items in directions W."""
        return np.asarray(self.scale * (self.X[rows] @ W - self.mean @ W))


def leading_directions(clouds: list[_Cloud], n: int, seed: int) -> Array:
    """Return the leading eigenvectors of the sum of covariances as columns, at most n of them; signs made unique."""
    d = len(clouds[0].mean)
    k = min(n, d)
    if d <= max(MAX_DENSE, k + 1):
        C = np.sum([cloud.covariance(np.eye(d)) for cloud in clouds], axis=0)
        values, U = np.linalg.eigh((C + C.T) / 2)
        values, U = values[::-1][:k], U[:, ::-1][:, :k]
    else:

        def times(q: Array) -> Array:
            return np.asarray(np.sum([cloud.covariance(q) for cloud in clouds], axis=0))

        start = np.random.default_rng(seed).standard_normal(d)
        values, U = eigsh(LinearOperator((d, d), matvec=times, dtype=np.float64), k=k, which="LA", v0=start)
        values, U = values[::-1], U[:, ::-1]
    W = U[:, values > RANK_TOLERANCE * max(values[0], np.finfo(float).tiny)]
    return np.asarray(W * np.sign(W[np.abs(W).argmax(axis=0), np.arange(W.shape[1])]))


def _rotation(V: Array, n_bits: int, max_iter: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the rotation that signs lose least by, and the trace of what they lose per item."""
    R = orthogonal_procrustes(rng.standard_normal((V.shape[1], n_bits)))
    B, trace = np.zeros((len(V), n_bits)), []
    for _ in range(max_iter):
        before, B = B, sign(V @ R)  # the signs nearest to the items
        R = orthogonal_procrustes(V.T @ B)  # the rotation nearest to the signs
        trace.append(float(np.linalg.norm(B - V @ R)) ** 2 / len(V))
        if np.array_equal(B, before):
            break
    return R, np.array(trace)


def _unit_rows(X: Matrix) -> Matrix:
    """Return rows of length 1 in float64; a row of zeros stays zero."""
    return normalize(X.astype(np.float64))


def _check_one_space(X: Mapping[str, Matrix]) -> None:
    widths = {name: values.shape[1] for name, values in X.items()}
    if len(set(widths.values())) > 1:
        said = ", ".join(f"{name!r} has {width}" for name, width in widths.items())
        raise ValueError(
            f"space='shared' takes vectors of one space, and {said} features. Take one encoder for all modalities, "
            "or space='own', whose codes cannot be compared across modalities"
        )
