r"""ITQ: iterative quantization. Codes from features alone, without labels and without pairs.

Projects features to their principal directions and rotates these to minimise the quantisation error. Codes can be
compared across modalities only if the features are vectors of one space, for instance of CLIP; all modalities then have
the same directions and the same rotation.

==========================  =======================  =================================================================
Gong and Lazebnik (2011)    here                     is
==========================  =======================  =================================================================
:math:`X`                   ``X[name]`` (n, d)       features, rows of length 1, less the mean of their modality
:math:`W`                   ``W`` (d, p)             leading eigenvectors of XᵀX
:math:`V = XW`              ``V`` (n, p)             the items in these directions
:math:`R`                   ``R`` (p, r)             the rotation, RRᵀ = I
:math:`B`                   ``B`` (n, r)             codes, ±1
==========================  =======================  =================================================================

Departures. Rows are scaled to length 1, because inner products of encoders' vectors are cosines. In a shared space
every modality is centred separately and its covariance is scaled to a total variance of 1; otherwise one direction
would only separate pictures from texts, whose vectors form two distant clusters (Liang et al. 2022). The rotation is
learned from at most 20,000 items of each modality. With more bits than directions R is wide, and bits are signs in a
tight frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.preprocessing import normalize

from modalhash.core.codes import pack_signs
from modalhash.core.linalg import RANK_TOLERANCE, orthogonal_procrustes, sign
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, draw, root_seed
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import Count
from modalhash.methods.base import CrossModalHasher, Training

MAX_DENSE = 2048
"""Number of features up to which a covariance matrix is formed."""
ROTATION_SAMPLE = 20_000
"""Most items of a modality that the rotation is learned from."""


@dataclass(eq=False, repr=False)
class ITQ(CrossModalHasher):
    r"""Iterative quantization (Gong and Lazebnik 2011), unsupervised, for one modality or several in one space.

    .. math:: \min_{B, R}\; \lVert B - XWR\rVert^2 \quad\text{subject to}\quad B = \pm 1,\; RR^T = I

    Both steps are exact minimisers, so the objective never increases.

    Parameters
    ----------
    n_bits : length of the codes
    space : ``"own"``: each modality has its own directions, and its codes are comparable only within it. ``"shared"``:
        the features of all modalities, equal in number, are vectors of one space, and so are the codes. Never guessed
    max_iter : sweeps of the rotation
    random_state : int, Generator or None, for the start of the rotation and the sample it is learned from

    Attributes
    ----------
    objective_ : the objective per item after every sweep, by modality; the key is ``"shared"`` for a shared space
    centres_ : projection of the training mean, by modality

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

    n_bits: int = 64
    _: KW_ONLY
    space: Literal["own", "shared"] = "own"
    max_iter: Count = 50
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
            R, trace = learn_rotation(V, data.n_bits, self.max_iter, np.random.default_rng(seed))
            traces[group] = trace / len(V)
            for name, cloud in zip(names, clouds, strict=True):
                functions[name] = W @ R
                centres[name] = cloud.mean @ functions[name]
            report("directions and rotation", step + 1, len(groups))
        codes = {name: pack_signs(X[name] @ functions[name] - centres[name]) for name in X}
        return {"codes_": codes, "functions_": functions, "centres_": centres, "objective_": traces}

    def _project(self, name: str, X: Matrix) -> Array:
        return np.asarray(_unit_rows(X) @ self.functions_[name] - self.centres_[name])


class _Cloud:
    """Centred items of one modality with a total variance of 1; CSR stays CSR."""

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
        return np.asarray(self.scale * (self.X[rows] @ W - self.mean @ W))


def leading_directions(clouds: list[_Cloud], n: int, seed: int) -> Array:
    """Return up to n leading eigenvectors of the sum of covariances as columns, with unique signs."""
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


def learn_rotation(
    V: Array,
    n_bits: int,
    max_iter: int,
    rng: np.random.Generator,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> tuple[Array, Array]:
    """Return the rotation R with the least quantisation error ‖B − VR‖², and the trace of that error."""
    R = orthogonal_procrustes(rng.standard_normal((V.shape[1], n_bits)))
    B, trace = np.zeros((len(V), n_bits)), []
    for step in range(max_iter):
        before, B = B, sign(V @ R)
        R = orthogonal_procrustes(V.T @ B)
        trace.append(float(np.linalg.norm(B - V @ R)) ** 2)
        report(step + 1, trace[-1])
        if np.array_equal(B, before):
            break
    return R, np.array(trace)


def _unit_rows(X: Matrix) -> Matrix:
    """Return rows of length 1 in float64; a row of zeros stays zero."""
    return normalize(X.astype(np.float64))


def _check_one_space(X: Mapping[str, Matrix]) -> None:
    widths = {name: values.shape[1] for name, values in X.items()}
    if len(set(widths.values())) > 1:
        counts = ", ".join(f"{name!r} has {width}" for name, width in widths.items())
        raise ValueError(
            f"space='shared' needs vectors of one space, but {counts} features. Use one encoder for all modalities, "
            "or space='own', whose codes cannot be compared across modalities"
        )
