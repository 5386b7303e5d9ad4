r"""LEMON: Label Embedding Online Hashing (Wang, Luo and Xu, ACM Multimedia 2020).

Training items arrive in chunks. The codes of a chunk agree with its labels and, through a few small products, with the
codes of all earlier chunks, which never change. The hash functions are ridge regressions whose normal equations are
sums over the chunks. So a chunk takes the same time and memory whether it is the second or the thousandth.

=========================  ======================  =================================================================
paper                      here                    is
=========================  ======================  =================================================================
:math:`L, G`               ``L``, ``G`` (n, c)     labels of the chunk, 0/1; the same with rows of length 1
:math:`B, V`               ``B``, ``V`` (n, r)     codes of the chunk, ±1; their real-valued form, VᵀV = nI, Vᵀ1 = 0
:math:`P, R`               ``P`` (r, c), ``R``     L ≈ V P; rotation, B ≈ V R (the paper's R transposed)
:math:`S`                  never formed            2GGᵀ − 11ᵀ, between items of this chunk and of all
:math:`H_1, H_2`           ``H1``, ``H2``          VᵀV and VᵀL of all earlier chunks
:math:`H_3, H_5, H_6`      ``H3``, ``H5``, ``H6``  GᵀB, BᵀV and GᵀV of all earlier chunks
:math:`H_8, H_9`           ``gram[name]``          FᵀF of all items of a modality, F being their mapped features
:math:`H_{10}, H_{11}`     ``cross[name]``         FᵀB of them
:math:`W_x, W_y`           ``functions_[name]``    features → codes
:math:`\alpha, \beta`      ``similarity``, ``label_weight``
:math:`\gamma, \xi`        ``label_ridge``, ``ridge``
=========================  ======================  =================================================================

H₄ = 1ᵀB and H₇ = 1ᵀV are left out because they have no effect: step 2 centres Z, and 1ᵀV = 0.

At the authors' weights the similarity is about 1e5 times larger than label reconstruction and 1e8 times larger than
the rotation, which only breaks ties: within a chunk, learned codes are a function of the labels. Searches of learned
codes are therefore label look-ups; judge the method by hashed codes.

Departures from the authors' code:

- Features are centred, and the regressions have an intercept without a ridge; ``centre=False`` is theirs. Kernels are
  an option. Their feature maps are fixed once they are learned, by ``fit`` from all items and by ``partial_fit`` from
  the first chunk; a stream that drifts may move away from its anchors.
- Pairs are optional. The codes need only labels, so an item without a partner is a row of its own, and any modality
  may be missing in a chunk.
- Step 2 (:func:`modalhash.core.linalg.balanced_procrustes`) keeps the small singular values of Z, whose squares their
  Gram matrix loses when there are more bits than classes. sgn(0) = −1, and where a rotation is not unique, the one
  nearest to the last is taken.
- Classes may appear late: H₂, H₃ and H₆ get zeros for them, which is exact. Their queries find less, because the codes
  of earlier chunks leave them little room.
- A chunk of less than ``SMALL`` rows per bit cannot be balanced. Its codes are sgn(GH₆), the main term of step 4, and
  it adds nothing to H₁, H₂, H₅ and H₆. Items of which all labels are new since the last larger chunk get sgn(GH₃),
  where the first items of a class count with their hashed codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np

from modalhash.core import validation
from modalhash.core.codes import pack_signs
from modalhash.core.features import FeatureMap, kernel_maps
from modalhash.core.frames import is_frame
from modalhash.core.linalg import RidgeFactor, balanced_procrustes, orthogonal_procrustes, sign, unit_rows
from modalhash.core.progress import Callback, Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Codes, Matrix, PerModality
from modalhash.core.validation import Count, Flag, NonNegative, Positive, per_modality
from modalhash.methods.base import CrossModalHasher, Training, shared_labels

SMALL = 4
"""Rows per bit below which a chunk is too small for balanced, uncorrelated codes of its own."""


@dataclass(eq=False, repr=False)
class LEMON(CrossModalHasher):
    r"""Codes that are learned chunk by chunk from labels, after Wang et al. (2020).

    For every chunk, with :math:`\tilde B, \tilde V, \tilde L` of all earlier chunks fixed, minimises

    .. math::
        & \lVert B - VR\rVert^2 + \lVert\tilde B - \tilde VR\rVert^2
        + \alpha\left(\lVert V\tilde B^T - rS\rVert^2 + \lVert\tilde VB^T - rS\rVert^2 + \lVert VB^T - rS\rVert^2\right)

        & + \beta\left(\lVert L - VP\rVert^2 + \lVert\tilde L - \tilde VP\rVert^2 + \gamma\lVert P\rVert^2\right)

    subject to B = ±1, RᵀR = I, VᵀV = nI and Vᵀ1 = 0, where each S has the similarities of its items by labels.

    :meth:`fit` learns from shuffled chunks, :meth:`partial_fit` from one more. Pairs are optional: items of a pair
    share a row of their chunk.

    Parameters
    ----------
    similarity : α
    label_weight : β, which has no visible effect next to the default α
    label_ridge : γ
    ridge : ξ of the hash functions, or a dict by modality. It does not grow with the number of items, as sums do
    kernel : None for the features themselves, as in the paper, a name in :data:`modalhash.core.features.KERNELS`, or
        "auto"; or a dict by modality
    n_anchors : anchors of the kernel, capped at the number of items; or a dict by modality
    centre : centre features and learn intercepts
    chunk_size : rows of a chunk of :meth:`fit`; the last one takes the rest. The authors have 2,000 and 10,000
    max_iter : sweeps of a chunk
    n_bits, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    codes_ : codes of the items of the last call of :meth:`fit` or :meth:`partial_fit`
    state_ : sums over all chunks, from which :meth:`partial_fit` continues, also after saving and loading

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Y = np.eye(4, dtype=int)[rng.integers(4, size=600)]
    >>> X = Y @ rng.normal(size=(4, 9)) + rng.normal(size=(600, 9))
    >>> model = LEMON(16, random_state=0).fit({"image": X[:300]}, {"image": Y[:300]})
    >>> model.partial_fit({"image": X[300:]}, {"image": Y[300:]}).codes_["image"].shape
    (300, 2)
    """

    n_bits: int = 64
    _: KW_ONLY
    similarity: Positive = 1e4
    label_weight: NonNegative = 1e4
    label_ridge: Positive = 0.1
    ridge: PerModality[NonNegative] = 1.0
    kernel: PerModality[str | None] = None
    n_anchors: PerModality[int] = 500
    centre: Flag = True
    chunk_size: Count = 2000
    max_iter: Count = 5
    random_state: RandomState = None

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        state, maps = self._start(data)
        rows, L = rows_of_chunk(data, type(self).__name__)
        order = np.random.default_rng([state["seed"], 0]).permutation(len(L))
        chunks = np.split(order, np.arange(1, len(L) // self.chunk_size) * self.chunk_size)
        B = np.empty((len(L), data.n_bits))
        for step, chunk in enumerate(chunks):
            own = {name: numbers[chunk] for name, numbers in rows.items()}
            B[chunk] = self._learn(state, maps, data.X, own, L[chunk])
            report("chunks", step + 1, len(chunks))
        return {"codes_": codes_of(rows, B), "maps_": maps, "functions_": self._functions(state), "state_": state}

    def partial_fit(
        self,
        X: Mapping[str, Any],
        Y: Mapping[str, Any],
        *,
        pairs: Any = None,
        callback: Callback | None = None,
    ) -> Self:
        """Learn from one more chunk, which is the first one if this estimator is not fitted.

        Codes of earlier chunks remain valid, and those of this one are in ``codes_``. The hash functions change, so
        hashed codes have to be computed again by :meth:`transform`. If the call fails, the estimator is unchanged.

        Parameters
        ----------
        X : features of any of the modalities of the first chunk
        Y : dict of 0/1 label arrays. Columns after those of the earlier chunks are new classes
        pairs, callback : as for :meth:`fit`
        """
        if frames := [name for name, labels in dict(Y).items() if is_frame(labels)]:
            raise TypeError(
                f"{frames[0]!r}: the labels are a frame, whose classes may differ between chunks; expected a 0/1 array "
                "with the same columns in every chunk, new classes last"
            )
        self._check_parameters()
        first = not hasattr(self, "state_")
        data = self._check(X, Y, pairs) if first else self._check_chunk(X, Y, pairs)
        state, maps = self._start(data) if first else (deepcopy(self.state_), self.maps_)
        rows, L = rows_of_chunk(data, type(self).__name__)
        B = self._learn(state, maps, data.X, rows, L)
        learned = {"codes_": codes_of(rows, B), "maps_": maps, "functions_": self._functions(state), "state_": state}
        Reporter(callback)("chunks", 1, 1)
        if first:
            self._remember(data, learned)
            if names := validation.feature_names(X):
                self.feature_names_in_ = names
        else:
            for name, value in {**learned, "classes_": np.arange(L.shape[1])}.items():
                setattr(self, name, value)
        return self

    def label_codes(self, Y: Any) -> Codes:
        """Return the codes that items with these label rows would get in a small chunk; see ``SMALL``."""
        super().label_codes(Y)  # checks that it is fitted
        rows = validation.check_label_rows(Y, len(self.classes_))
        return pack_signs(codes_of_labels(self.state_, unit_rows(rows.toarray())))

    def _check_chunk(self, X: Any, Y: Any, pairs: Any) -> Training:
        features = self._check_new(X)
        validation.check_magnitudes(features)
        labels = validation.check_labels(Y, features)
        n_classes = next(iter(labels.values())).shape[1]
        if n_classes < len(self.classes_):
            raise ValueError(
                f"the labels have {n_classes} columns; expected the {len(self.classes_)} of the earlier chunks first, "
                "then those of new classes"
            )
        return Training(features, labels, validation.check_pairs(pairs, features), self.n_bits)

    def _start(self, data: Training) -> tuple[dict[str, Any], dict[str, FeatureMap]]:
        """Return the state before the first chunk, all zeros, and the feature maps."""
        assert data.Y is not None  # base checked
        seed, r = root_seed(self.random_state), data.n_bits
        maps = kernel_maps(
            data.X,
            data.Y,
            kernel=self.kernel,
            n_anchors=self.n_anchors,
            seed=seed,
            centred=self.centre,
            bias=self.centre,
            dtype="float64",
        )
        for name, X in data.X.items():
            maps[name].fit(X)
        widths = {name: fitted.width for name, fitted in maps.items()}
        state = {
            "seed": seed,
            "chunks": 0,
            "H1": np.zeros((r, r)),
            "H2": np.zeros((r, 0)),
            "H3": np.zeros((0, r)),
            "H5": np.zeros((r, r)),
            "H6": np.zeros((0, r)),
            "gram": {name: np.zeros((d, d)) for name, d in widths.items()},
            "cross": {name: np.zeros((d, r)) for name, d in widths.items()},
        }
        return state, maps

    def _learn(
        self,
        state: dict[str, Any],
        maps: Mapping[str, FeatureMap],
        X: Mapping[str, Matrix],
        rows: Mapping[str, Array],
        L: Array,
    ) -> Array:
        """Return the codes B of a chunk, of which ``rows`` has the items by modality, and add it to the state."""
        add_classes(state, L.shape[1])
        G, there = unit_rows(L), {name: np.flatnonzero(numbers >= 0) for name, numbers in rows.items()}
        there = {name: own for name, own in there.items() if len(own)}
        F = {name: maps[name].map(X[name][rows[name][own]]) for name, own in there.items()}
        r = self.n_bits
        if state["chunks"] == 0 or len(L) >= SMALL * r:
            rng = np.random.default_rng([state["seed"], 1, state["chunks"]])
            B, V = self._sweeps(state, G, L.astype(np.float64), rng)
            for name, product in {"H1": V.T @ V, "H2": V.T @ L, "H5": B.T @ V, "H6": G.T @ V}.items():
                state[name] = state[name] + product
        else:
            B = self._codes_of_small_chunk(state, G, F, there)
        state["H3"] = state["H3"] + G.T @ B
        for name, own in there.items():
            state["gram"][name] += F[name].T @ F[name]
            state["cross"][name] += F[name].T @ B[own]
        state["chunks"] += 1
        return B

    def _sweeps(self, state: Mapping[str, Any], G: Array, L: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return B and V of a chunk."""
        n, r = len(G), self.n_bits
        if n <= r:
            raise ValueError(
                f"LEMON: the first chunk has {n} rows for {r} bits; expected more rows, at best {SMALL * r}"
            )
        B, V = sign(rng.standard_normal((n, r))), rng.standard_normal((n, r))  # V is infeasible until step 2
        R = np.linalg.svd(rng.standard_normal((r, r)))[0]
        for _ in range(self.max_iter):
            P = update_P(state, V, L, self.label_ridge)
            V = update_V(state, B, R, G, self.label_weight * (L @ P.T), self.similarity, rng)
            R = orthogonal_procrustes((state["H5"] + B.T @ V).T, near=R)  # step 3, eqs. (18)-(20)
            B = update_B(state, V, R, G, self.similarity)
        return B, V

    def _codes_of_small_chunk(
        self, state: Mapping[str, Any], G: Array, F: Mapping[str, Array], there: Mapping[str, Array]
    ) -> Array:
        """Return sgn(GH₆), or for new labels the code of the items that have had them first, from their features."""
        functions, hashed = self._functions(state), np.zeros((len(G), self.n_bits))
        for name, own in there.items():
            hashed[own] += F[name] @ functions[name]
        new = ~(G @ state["H6"]).any(axis=1)
        first = ~state["H3"].any(axis=1)  # classes without a code
        return codes_of_labels({**state, "H3": state["H3"] + first[:, None] * (G[new].T @ sign(hashed[new]))}, G)

    def _functions(self, state: Mapping[str, Any]) -> dict[str, Array]:
        """Return W = (FᵀF + ξI)⁻¹ FᵀB, eqs. (24)-(27), without a ridge on the intercept."""
        functions = {}
        for name, ridge in per_modality(self.ridge, state["gram"], "ridge").items():
            penalty = np.full(len(state["gram"][name]), float(ridge))
            if self.centre:
                penalty[-1] = 0
            functions[name] = RidgeFactor(state["gram"][name] + np.diag(penalty), 0.0).solve(state["cross"][name])
        return functions


def update_P(state: Mapping[str, Any], V: Array, L: Array, gamma: float) -> Array:
    """Step 1: P = (H₁ + VᵀV + γI)⁻¹ (H₂ + VᵀL), eqs. (9)-(12)."""
    return RidgeFactor(state["H1"] + V.T @ V, gamma).solve(state["H2"] + V.T @ L)


def update_V(
    state: Mapping[str, Any],
    B: Array,
    R: Array,
    G: Array,
    reconstruction: Array,
    alpha: float,
    rng: np.random.Generator,
) -> Array:
    """Step 2: the balanced V nearest to Z, eqs. (13)-(17); ``reconstruction`` is βLPᵀ."""
    Z = B @ R.T + reconstruction + 2 * alpha * B.shape[1] * (G @ (state["H3"] + G.T @ B))
    return balanced_procrustes(Z, rng)


def update_B(state: Mapping[str, Any], V: Array, R: Array, G: Array, alpha: float) -> Array:
    """Step 4: eqs. (21)-(23)."""
    return sign(2 * alpha * V.shape[1] * (G @ (state["H6"] + G.T @ V)) + V @ R)


def codes_of_labels(state: Mapping[str, Any], G: Array) -> Array:
    """Return sgn(GH₆); where that is 0, because all classes of a row came in small chunks, sgn(GH₃)."""
    scores = G @ state["H6"]
    new = ~scores.any(axis=1)
    scores[new] = G[new] @ state["H3"]
    return sign(scores)


def add_classes(state: dict[str, Any], n_classes: int) -> None:
    """Append zeros for new classes, which no earlier item has."""
    new = n_classes - len(state["H3"])
    state["H2"] = np.pad(state["H2"], ((0, 0), (0, new)))
    for name in ("H3", "H6"):
        state[name] = np.pad(state[name], ((0, new), (0, 0)))


def rows_of_chunk(data: Training, method: str) -> tuple[dict[str, Array], Array]:
    """Return the item of each modality in every row, −1 for none, and the labels of the rows; pairs come first."""
    assert data.Y is not None  # base checked
    pairs = np.zeros((0, len(data.X)), dtype=int) if data.pairs is None else data.pairs
    parts = [pairs]
    labels = [shared_labels(data.Y, dict(zip(data.X, pairs.T, strict=True)), method)]
    for column, (name, X) in enumerate(data.X.items()):
        alone = np.setdiff1d(np.arange(X.shape[0]), pairs[:, column])
        parts.append(np.full((len(alone), len(data.X)), -1))
        parts[-1][:, column] = alone
        labels.append(data.Y[name][alone])
    table = np.concatenate(parts)
    return dict(zip(data.X, table.T, strict=True)), np.concatenate(labels)


def codes_of(rows: Mapping[str, Array], B: Array) -> dict[str, Codes]:
    """Return packed codes by modality, in the order of the items."""
    codes = {}
    for name, numbers in rows.items():
        own = np.flatnonzero(numbers >= 0)
        codes[name] = pack_signs(B[own[np.argsort(numbers[own])]])
    return codes
