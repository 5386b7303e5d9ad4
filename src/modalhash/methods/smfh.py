"""SMFH: two methods of one name, both of 2016, both supervised matrix factorisations of pairs.

``variant="tang"`` (:mod:`._smfh_tang`, Tang, Wang & Shao, TIP): CMFH's factorisation with a graph over the
pairs, made of nearest neighbours in both modalities and of shared labels, that pulls linked pairs together.
``variant="liu"`` (:mod:`._smfh_liu`, Liu, Ji, Wu & Hua, IJCAI): a non-negative factorisation with
multiplicative updates and the label graph on a fresh sample of pairs in every sweep. Which of the two the
AMSH paper compares with is not known; its expansion of the name fits the first.

=================  ==================  ==================  ==================================
here               Tang                Liu                 is
=================  ==================  ==================  ==================================
``balance``        α = 0.5             λ = 0.5             first modality's share
``coupling``       β = 100             μ = 40              how closely S (V) follows X P
``graph``          γ = 1               α = 2               weight of the graph
``ridge``          λ = 0.01            γ = 1e-4
``n_neighbors``    5                   --                  of the feature graphs
``orthogonality``  --                  γ1 = 1e-4           weight of ‖VᵀV − I‖²
``smoothness``     --                  η = 1e-3            weight of the graph over X P
``n_samples``      --                  N_s = 1000          pairs drawn in every sweep
=================  ==================  ==================  ==================================

Departures. Tang: step 2 is solved without the dense n × n matrices of the authors' code (equal to it in a
test); an item is never its own neighbour. Liu: features below 0, on which the authors' code diverges, are
refused, or clipped at 0 if asked. A database holds the learned codes, as in both papers; the re-packaged
demo of Tang's code hashes it, which is ``transform``. Both threshold at the mean of the latent rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix
from modalhash.features import Linear
from modalhash.linalg import unit_rows
from modalhash.methods import _smfh_liu, _smfh_tang
from modalhash.methods._factors import OwnSpace, fit_rows
from modalhash.methods._paired import PairedHasher
from modalhash.methods._smfh_graph import Graph
from modalhash.progress import Reporter
from modalhash.randomness import RandomState, root_seed
from modalhash.validation import check_choice, check_int, check_number

DEFAULTS: dict[str, dict[str, float]] = {
    "tang": {"coupling": 100.0, "graph": 1.0, "ridge": 0.01, "tol": 1.0, "max_iter": 500},
    "liu": {"coupling": 40.0, "graph": 2.0, "ridge": 1e-4, "tol": 0.1, "max_iter": 50},
}
"""What the authors' codes use; Tang's has no cap on the sweeps (10 on Wiki, 44 on IAPR TC-12)."""


class SMFH(PairedHasher):
    r"""Codes from a joint factorisation of paired modalities and their labels, after Tang or Liu et al. (2016).

    ``"tang"`` minimises, with 𝓛 the Laplacian of neighbours and shared labels,

    .. math::
        \sum_t \alpha_t\lVert X_t - SU_t\rVert^2 + \beta\lVert S - X_tP_t\rVert^2
        + \lambda(\lVert U_t\rVert^2 + \lVert P_t\rVert^2) + \gamma\,\mathrm{tr}(S^T\mathcal LS)
        + \lambda\lVert S\rVert^2,

    and ``"liu"`` reduces, with U, V ≥ 0 and Ŝ the labels,

    .. math::
        \sum_t \lambda_t\lVert X_t - VU_t^T\rVert^2 + \mu\lVert V - X_tP_t\rVert^2 + \gamma\lVert P_t\rVert^2
        + \eta\,\mathrm{tr}(P_t^TX_t^T\hat LX_tP_t)
        + \alpha\,\mathrm{tr}(V^T(D - \hat S\hat S^T)V) + \gamma_1\lVert V^TV - I\rVert^2.

    Parameters
    ----------
    n_bits : length of the codes, below the number of pairs
    variant : "tang" or "liu"
    balance : share of the first modality's factorisation, between 0 and 1, both excluded
    coupling, graph, ridge : weights, see the table above; None is the variant's own
    n_neighbors : "tang" only
    orthogonality, smoothness, n_samples : "liu" only; all pairs are taken where they are fewer than n_samples.
        Its authors advise coupling=100, graph=10 for many features, and 5000 to 10000 samples for large data
    negative : "liu" only: "error" refuses features below 0, "clip" sets them to 0, in queries too
    max_iter : sweeps at most; None is 500 for "tang", 50 for "liu"
    tol : stop when the objective falls by less than this ("liu": not before sweep 6, then also when the graph
        term is small); 0 never stops early, None is 1 for "tang", 0.1 for "liu", as in the authors' codes
    random_state : int, Generator or None

    Attributes
    ----------
    codes_ : learned codes of the training items, by modality
    objective_ : one value per sweep: the objective above for "tang", its unsquared norms for "liu"
    n_iter_ : sweeps done
    maps_, projections_, thresholds_ : feature map and P by modality; mean of the latent rows
    classes_, n_features_in_ : label columns; features by modality

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Y = np.eye(3, dtype=int)[rng.integers(3, size=200)]
    >>> X = {"image": Y @ rng.normal(size=(3, 20)), "text": Y @ rng.normal(size=(3, 9))}
    >>> model = SMFH(n_bits=16, random_state=0).fit(X, {"image": Y, "text": Y}, pairs="aligned")
    >>> model.transform({"text": X["text"][:5]})["text"].shape
    (5, 2)

    References
    ----------
    J. Tang, K. Wang, L. Shao. Supervised Matrix Factorization Hashing for Cross-Modal Retrieval. IEEE
    Transactions on Image Processing 25(7), 2016.
    H. Liu, R. Ji, Y. Wu, G. Hua. Supervised Matrix Factorization for Cross-Modality Hashing. IJCAI 2016.
    """

    objective_: Array
    n_iter_: int
    maps_: dict[str, Linear]
    projections_: dict[str, Array]
    thresholds_: Array

    def __init__(
        self,
        n_bits: int = 64,
        *,
        variant: str = "tang",
        balance: float = 0.5,
        coupling: float | None = None,
        graph: float | None = None,
        ridge: float | None = None,
        n_neighbors: int = 5,
        orthogonality: float = 1e-4,
        smoothness: float = 1e-3,
        n_samples: int = 1000,
        negative: str = "error",
        max_iter: int | None = None,
        tol: float | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.variant = variant
        self.balance = balance
        self.coupling = coupling
        self.graph = graph
        self.ridge = ridge
        self.n_neighbors = n_neighbors
        self.orthogonality = orthogonality
        self.smoothness = smoothness
        self.n_samples = n_samples
        self.negative = negative
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _fit_pairs(
        self, X: dict[str, Matrix], L: Array | None, n_bits: int, report: Reporter
    ) -> tuple[Array, dict[str, Any]]:
        assert L is not None  # base checked
        check_choice(self.variant, "variant", tuple(DEFAULTS))
        max_iter, tol = check_int(self._value("max_iter"), "max_iter", at_least=1), self._number("tol")
        rng = np.random.default_rng([root_seed(self.random_state), 0])
        options = {
            "max_iter": max_iter,
            "tol": tol,
            "report": lambda *done: report("sweeps", done[0], max_iter, done[1]),
        }
        maps, latent, P, trace = (self._tang if self.variant == "tang" else self._liu)(X, L, n_bits, rng, options)
        thresholds = latent.mean(axis=0)
        return latent - thresholds, {
            "maps_": maps,
            "projections_": dict(zip(X, P, strict=True)),
            "thresholds_": thresholds,
            "objective_": np.array(trace),
            "n_iter_": len(trace),
        }

    def _project(self, name: str, X: Matrix) -> Array:
        if self.variant == "liu" and self.negative == "clip":
            X = clipped(X)
        projected: Array = self.maps_[name].map(X) @ self.projections_[name]
        projected -= self.thresholds_
        return projected

    def _tang(
        self, X: dict[str, Matrix], L: Array, n_bits: int, rng: np.random.Generator, options: dict[str, Any]
    ) -> tuple[dict[str, Linear], Array, list[Array], list[float]]:
        w = _smfh_tang.TangWeights(
            self._balance(), self._number("coupling", True), self._number("graph"), self._number("ridge", True)
        )
        graph = Graph(list(X.values()), L, check_int(self.n_neighbors, "n_neighbors", at_least=1))
        maps = {name: Linear(dtype="float64") for name in X}
        phi = [fit_rows(maps[name], values) for name, values in X.items()]
        spaces = [OwnSpace.of(values) for values in phi]
        S = rng.random((len(L), n_bits))
        P = [space.enter(rng.random((values.width, n_bits))) for space, values in zip(spaces, phi, strict=True)]
        state = _smfh_tang.TangState([space.rows for space in spaces], graph, S, P, w)
        trace = _smfh_tang.learn_tang(state, **options)
        return maps, state.S, [space.leave(P) for space, P in zip(spaces, state.P, strict=True)], trace

    def _liu(
        self, X: dict[str, Matrix], L: Array, n_bits: int, rng: np.random.Generator, options: dict[str, Any]
    ) -> tuple[dict[str, Linear], Array, list[Array], list[float]]:
        w = _smfh_liu.LiuWeights(
            self._balance(),
            self._number("coupling", True),
            self._number("graph"),
            self._number("ridge", True),
            self._number("orthogonality"),
            self._number("smoothness"),
        )
        n_samples = min(check_int(self.n_samples, "n_samples", at_least=1), len(L))
        X = self._non_negative(X)
        maps = {name: Linear(rows="unit", centred=False, dtype="float64") for name in X}
        phi = [fit_rows(maps[name], values) for name, values in X.items()]
        V = rng.random((len(L), n_bits))
        U, P = ([rng.random((values.width, n_bits)) for values in phi] for _ in range(2))
        state = _smfh_liu.LiuState(phi, unit_rows(L), V, U, P, w)
        V, P, trace = _smfh_liu.learn_liu(state, n_samples, rng, **options)
        return maps, V, P, trace

    def _non_negative(self, X: dict[str, Matrix]) -> dict[str, Matrix]:
        check_choice(self.negative, "negative", ("error", "clip"))
        if self.negative == "clip":
            return {name: clipped(values) for name, values in X.items()}
        for name, values in X.items():
            if (lowest := values.min()) < 0:
                raise ValueError(
                    f"{name!r}: the lowest feature is {lowest:.3g}; variant='liu' factorises features ≥ 0 and diverges "
                    "on others. Shift them, or pass negative='clip' to set those below 0 to 0, or take variant='tang'"
                )
        return X

    def _value(self, name: str) -> Any:
        value = getattr(self, name)
        return DEFAULTS[self.variant][name] if value is None and name in DEFAULTS[self.variant] else value

    def _number(self, name: str, positive: bool = False) -> float:
        return check_number(self._value(name), name, positive=positive)

    def _balance(self) -> tuple[float, float]:
        balance = check_number(self.balance, "balance", positive=True)
        if balance >= 1:
            raise ValueError(f"balance is {balance}; expected a number between 0 and 1, the first modality's share")
        return balance, 1 - balance


def clipped(X: Matrix) -> Matrix:
    """Features below 0 set to 0."""
    return X.maximum(0) if sparse.issparse(X) else np.maximum(X, 0)
