r"""SMFH: two supervised matrix factorisations of pairs with the same name, both of 2016.

``variant="tang"`` (Tang, Wang & Shao, TIP): CMFH's factorisation with a graph over the pairs, of nearest neighbours in
both modalities and of shared labels, that draws linked pairs together. Every update is an exact minimiser, so the
objective never increases. ``variant="liu"`` (Liu, Ji, Wu & Hua, IJCAI): a non-negative factorisation with
multiplicative updates and the label graph on a new sample of pairs in every sweep. It is not known which of the two the
AMSH paper compares with; its expansion of the name fits the first.

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

===================  =====================  ===========================================================
paper, Tang          here (rows are items)  is
===================  =====================  ===========================================================
:math:`X_t`          ``X[t]`` (n, d)        features, centred with the training mean
:math:`S`            ``S`` (n, r)           latent rows; their signs are the codes
:math:`U_t`          ``U[t]`` (r, d)        factors, X ≈ S U
:math:`P_t`          ``P[t]`` (d, r)        projections, S ≈ X P
:math:`\mathcal L`   ``graph``              Laplacian D − W − LLᵀ: W the k-nearest-neighbour graphs of both
                                            modalities, LLᵀ the number of shared labels, D the degrees
===================  =====================  ===========================================================

===================  =====================  ===========================================================
authors' code, Liu   here                   is
===================  =====================  ===========================================================
:math:`X_t`          ``X[t]`` (n, d)        features ≥ 0, rows of length 1, not centred
:math:`\hat S`       ``L`` (n, c)           labels, rows of length 1; similarity is ŜŜᵀ
:math:`V`            ``V`` (n, r)           latent rows ≥ 0, columns of length 1
:math:`U_t`          ``U[t]`` (d, r)        factors ≥ 0, X ≈ V Uᵀ
:math:`P_t^T`        ``P[t]`` (d, r)        projections, V ≈ X P
:math:`N_s, \rho`    ``sample``, ``scale``  rows drawn in every sweep; ρ = N_s^(−0.1)
===================  =====================  ===========================================================

Step 2 of Tang, the Sylvester equation SA + γ𝓛S = C, splits in the eigenvectors of A = QΩQᵀ (r, r) into one system (ω_jI
+ γ𝓛)s_j = c_j per bit. Conjugate gradients solve all of them together. The preconditioner is the same matrix without W,
inverted exactly by Woodbury's identity; because W is small compared with ω ≥ 2β, four to eight steps suffice: 3 s for
64 bits on the 17,664 pairs of IAPR TC-12, where a sparse LU takes 156 s for a single bit.

Departures. Tang: step 2 does not form the dense n × n matrices of the authors' code (a test compares them); an item is
never its own neighbour. Liu: features below 0, on which the authors' code diverges, are refused, or clipped at 0. As
released, only U of the first modality absorbs the scale of V, V may become negative where X P is, and the sweep before
the one that stops is returned. Both: a database holds the learned codes, as in both papers (the re-packaged demo of
Tang's code hashes it, which is ``transform``), and codes are thresholded at the mean of the latent rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
from scipy import sparse

from modalhash.core.features import Linear
from modalhash.core.linalg import RidgeFactor, squared, unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import Count, NonNegative, Positive
from modalhash.methods.base import PairCodes, PairedHasher
from modalhash.methods.cmfh import OwnSpace, Rows, cross, factor_residual, fit_rows, projection_residual


class Graph:
    """Joint Laplacian of features and labels, without an n × n matrix."""

    def __init__(self, X: list[Matrix], L: Array, n_neighbors: int) -> None:
        self.W = sparse.csr_array(sum(neighbours(values, n_neighbors) for values in X))
        self.L = sparse.csr_array(L, dtype=np.float64)
        self.D = self.W.sum(axis=1) + self.L @ self.L.sum(axis=0)

    def laplacian(self, S: Array) -> Array:
        """Return 𝓛S."""
        return np.asarray(self.D[:, None] * S - self.W @ S - self.L @ (self.L.T @ S))

    def sylvester(self, A: Array, C: Array, weight: float, start: Array, *, max_iter: int = 500) -> Array:
        """Return the solution S of S A + weight 𝓛S = C, for A symmetric and positive definite."""
        omega, Q = np.linalg.eigh(A)
        S = conjugate_gradients(
            lambda S: omega * S + weight * self.laplacian(S),
            C @ Q,
            self._without_neighbours(omega, weight),
            start @ Q,
            tol=1e-10,
            max_iter=max_iter,
        )
        return S @ Q.T

    def _without_neighbours(self, omega: Array, weight: float) -> Callable[[Array], Array]:
        """Return the map R ↦ (Δ_j − γLLᵀ)⁻¹ r_j for every column j, where Δ_j = ω_jI + γD.

        Woodbury: Δ⁻¹ + Δ⁻¹L γ(I − γLᵀΔ⁻¹L)⁻¹ LᵀΔ⁻¹, with one (c, c) inverse per column.
        """
        L, inverse = self.L, 1 / (omega + weight * self.D[:, None])
        c = L.shape[1]
        inner = np.empty((len(omega), c, c))
        for j in range(len(omega)):
            scaled = sparse.csr_array((np.repeat(inverse[:, j], np.diff(L.indptr)), L.indices, L.indptr), shape=L.shape)
            inner[j] = np.eye(c) - weight * (L.T @ scaled).toarray()
        inner = weight * np.linalg.inv(inner)

        def apply(R: Array) -> Array:
            Z = inverse * R
            middle = np.einsum("jab,bj->aj", inner, L.T @ Z)
            return np.asarray(Z + inverse * (L @ middle))

        return apply


def neighbours(X: Matrix, k: int) -> sparse.csr_array:
    """Return 1 where either of two items is among the other's k nearest, excluding itself.

    The authors' code drops the nearest item as itself, which is wrong if items are equal.
    """
    from sklearn.neighbors import NearestNeighbors

    if k >= X.shape[0]:
        raise ValueError(f"n_neighbors is {k}, but there are only {X.shape[0]} pairs: take n_neighbors < pairs")
    # brute force has bounded memory, and trees are slower in more than about 15 dimensions
    graph = sparse.csr_array(NearestNeighbors(n_neighbors=k, algorithm="brute").fit(X).kneighbors_graph())
    return graph.maximum(graph.T)


def conjugate_gradients(
    matrix: Callable[[Array], Array],
    right: Array,
    precondition: Callable[[Array], Array],
    start: Array,
    *,
    tol: float,
    max_iter: int,
) -> Array:
    """Solve one positive definite system per column, all columns together."""
    tiny = np.finfo(np.float64).tiny
    X = start.copy()
    R = right - matrix(X)
    size = float(np.linalg.norm(right, axis=0).max())  # over all columns, because one may be rounding error
    Z = precondition(R)
    direction, rz = Z.copy(), np.einsum("ij,ij->j", R, Z)
    for _ in range(max_iter):
        residual = float(np.linalg.norm(R, axis=0).max())
        if residual <= tol * size:
            return X
        image = matrix(direction)
        step = rz / np.maximum(np.einsum("ij,ij->j", direction, image), tiny)
        X += step * direction
        R -= step * image
        Z = precondition(R)
        before, rz = rz, np.einsum("ij,ij->j", R, Z)
        direction = Z + rz / np.maximum(before, tiny) * direction
    worst = residual / max(size, tiny)
    warnings.warn(
        f"conjugate gradients: after {max_iter} steps the relative residual is {worst:.1e}", UserWarning, stacklevel=2
    )
    return X


@dataclass(frozen=True)
class SMFHWeights:
    """Weights of both objectives, named as the parameters; the last two are Liu's."""

    balance: tuple[float, float]
    coupling: float
    graph: float
    ridge: float
    orthogonality: float = 0.0
    smoothness: float = 0.0


@dataclass
class TangState:
    """Variables of Tang's objective, and products of the data."""

    X: list[Rows]
    graph: Graph
    S: Array
    P: list[Array]
    w: SMFHWeights
    U: list[Array] = field(init=False)
    XtS: list[Array] = field(init=False)
    grams: list[Array] = field(init=False)
    ridges: list[RidgeFactor] = field(init=False)  # (XᵀX + (λ/β)I)⁻¹

    def __post_init__(self) -> None:
        self.grams = [X.gram() for X in self.X]
        self.ridges = [RidgeFactor(G, self.w.ridge / self.w.coupling) for G in self.grams]
        self.XtS = [cross(X, self.S) for X in self.X]


def learn_tang(state: TangState, *, max_iter: int, tol: float, report: Callable[[int, float], None]) -> list[float]:
    """Sweep until the objective falls by less than ``tol``; return its trace."""
    trace: list[float] = []
    for sweep in range(1, max_iter + 1):
        update_U_tang(state)  # step 1
        update_S(state)  # step 2
        update_P_tang(state)  # step 3
        trace.append(objective(state))
        report(sweep, trace[-1])
        if tol and sweep > 1 and trace[-2] - trace[-1] < tol:
            break
    return trace


def update_U_tang(state: TangState) -> None:
    """Set U_t = (SᵀS + (λ/α_t)I)⁻¹ SᵀX_t."""
    StS = state.S.T @ state.S
    state.U = [
        RidgeFactor(StS, state.w.ridge / alpha).solve(XtS.T)
        for XtS, alpha in zip(state.XtS, state.w.balance, strict=True)
    ]


def update_S(state: TangState) -> None:
    """Solve S A + γ𝓛S = C with A = Σ α_tU_tU_tᵀ + (2β + λ)I and C = Σ X_t(α_tU_tᵀ + βP_t)."""
    w = state.w
    A = (2 * w.coupling + w.ridge) * np.eye(state.S.shape[1])
    C = np.zeros_like(state.S)
    for X, U, P, alpha in zip(state.X, state.U, state.P, w.balance, strict=True):
        A += alpha * U @ U.T
        C += X.project(alpha * U.T + w.coupling * P)
    state.S = state.graph.sylvester(A, C, w.graph, state.S)
    state.XtS = [cross(X, state.S) for X in state.X]


def update_P_tang(state: TangState) -> None:
    """Set P_t = (X_tᵀX_t + (λ/β)I)⁻¹ X_tᵀS."""
    state.P = [ridge.solve(XtS) for ridge, XtS in zip(state.ridges, state.XtS, strict=True)]


def objective(state: TangState) -> float:
    """Return Σ α_t‖X_t − SU_t‖² + β‖S − X_tP_t‖² + λ(‖U_t‖² + ‖P_t‖²), plus γ tr(Sᵀ𝓛S) + λ‖S‖²."""
    w, S = state.w, state.S
    StS = S.T @ S
    value = w.graph * float(np.vdot(S, state.graph.laplacian(S))) + w.ridge * float(np.trace(StS))
    for G, XtS, U, P, alpha in zip(state.grams, state.XtS, state.U, state.P, w.balance, strict=True):
        value += alpha * factor_residual(G, XtS, StS, U) + w.coupling * projection_residual(G, XtS, StS, P)
        value += w.ridge * (squared(U) + squared(P))
    return value


FIRST_STOP = 6
"""First sweep at which the stopping rules apply."""
SMALL_GRAPH = 100.0
"""The authors stop when ‖Vₛᵀ(D − ŜŜᵀ)Vₛ‖ is below this."""
TINY = 1e-10


@dataclass
class LiuState:
    """Variables of Liu's objective, and products of the data."""

    X: list[Rows]
    L: Array
    V: Array
    U: list[Array]
    P: list[Array]
    w: SMFHWeights
    grams: list[Array] = field(init=False)
    XtV: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        self.grams = [X.gram() for X in self.X]
        self.XtV = [cross(X, self.V) for X in self.X]
        normalise(self)


def learn_liu(
    state: LiuState,
    n_samples: int,
    rng: np.random.Generator,
    *,
    max_iter: int,
    tol: float,
    report: Callable[[int, float], None],
) -> tuple[Array, list[Array], list[float]]:
    """Return V and P of the sweep before the one that stops, and the objective's trace up to it."""
    trace: list[float] = []
    best = state.V, state.P
    for sweep in range(1, max_iter + 1):
        sample = np.sort(rng.choice(len(state.V), n_samples, replace=False))
        update_V(state, sample)  # step 1
        update_U_liu(state)  # step 2
        normalise(state)  # step 3
        update_P_liu(state, sample)  # step 4
        value, graph = watched(state, sample)
        if tol and sweep >= FIRST_STOP and (trace[-1] - value < tol or graph < SMALL_GRAPH):
            break
        best = state.V, state.P
        trace.append(value)
        report(sweep, value)
    return *best, trace


def update_V(state: LiuState, sample: Array) -> None:
    """Set V ← V ∘ numerator / denominator; the label graph acts on the sampled rows."""
    V, w = state.V, state.w
    numerator = 4 * w.orthogonality * V
    inner = 4 * w.orthogonality * (V.T @ V) + 2 * w.coupling * np.eye(V.shape[1])
    for X, U, P, weight in zip(state.X, state.U, state.P, w.balance, strict=True):
        numerator += X.project(weight * U + w.coupling * P)
        inner += weight * (U.T @ U)
    denominator = V @ inner
    L, scale = state.L[sample], w.graph * len(sample) ** -0.1
    numerator[sample] += scale * (L @ (L.T @ V[sample]))
    denominator[sample] += scale * degrees(L)[:, None] * V[sample]
    state.V = V * (numerator / np.maximum(denominator, TINY))


def update_U_liu(state: LiuState) -> None:
    """Set U_t ← U_t ∘ (X_tᵀV) / (U_tVᵀV)."""
    VtV = state.V.T @ state.V
    state.XtV = [cross(X, state.V) for X in state.X]
    state.U = [U * (XtV / np.maximum(U @ VtV, TINY)) for U, XtV in zip(state.U, state.XtV, strict=True)]


def normalise(state: LiuState) -> None:
    """Scale the columns of V to length 1; only the first U absorbs their lengths, as released."""
    lengths = np.maximum(np.linalg.norm(state.V, axis=0), 1e-15)
    state.V = state.V / lengths
    state.XtV = [XtV / lengths for XtV in state.XtV]
    state.U = [state.U[0] * lengths, *state.U[1:]]


def update_P_liu(state: LiuState, sample: Array) -> None:
    """Set P_t = (X_tᵀX_t + ηρ X_sᵀL̂X_s + γI)⁻¹ X_tᵀV with L̂ = I − D^{-1/2}ŜŜᵀD^{-1/2}."""
    L, scale = state.L[sample], state.w.smoothness * len(sample) ** -0.1
    half = L / np.sqrt(degrees(L))[:, None]
    P = []
    for X, G, XtV in zip(state.X, state.grams, state.XtV, strict=True):
        rows = X.take(sample)
        low_rank = half.T @ rows
        P.append(RidgeFactor(G + scale * (rows.T @ rows - low_rank.T @ low_rank), state.w.ridge).solve(XtV))
    state.P = P


def watched(state: LiuState, sample: Array) -> tuple[float, float]:
    """Return the objective in unsquared norms, which the authors watch, and its graph term."""
    w, L, V = state.w, state.L[sample], state.V[sample]
    LtV = L.T @ V
    graph = float(np.linalg.norm(V.T @ (degrees(L)[:, None] * V) - LtV.T @ LtV))
    value, VtV = w.graph * graph, state.V.T @ state.V
    for G, XtV, U, P, weight in zip(state.grams, state.XtV, state.U, state.P, w.balance, strict=True):
        value += weight * np.sqrt(factor_residual(G, XtV, VtV, U.T))
        value += w.coupling * np.sqrt(projection_residual(G, XtV, VtV, P)) + w.ridge * float(np.linalg.norm(P))
    return float(value), graph


def degrees(L: Array) -> Array:
    """Return the row sums of ŜŜᵀ."""
    return np.asarray(L @ L.sum(axis=0))


DEFAULTS: dict[str, dict[str, float]] = {
    "tang": {"coupling": 100.0, "graph": 1.0, "ridge": 0.01, "tol": 1.0, "max_iter": 500},
    "liu": {"coupling": 40.0, "graph": 2.0, "ridge": 1e-4, "tol": 0.1, "max_iter": 50},
}
"""Values of the authors' codes; Tang's has no limit on the sweeps (10 on Wiki, 44 on IAPR TC-12)."""


@dataclass(eq=False, repr=False)
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
    variant : "tang" or "liu"
    balance : share of the first modality's factorisation, > 0 and < 1
    coupling, graph, ridge : weights, see the table of the module; None is the variant's default
    n_neighbors : "tang" only
    orthogonality, smoothness, n_samples : "liu" only; n_samples is capped at the number of pairs. Its authors advise
        coupling=100, graph=10 for many features, and 5000 to 10000 samples for large data
    negative : "liu" only: "error" refuses features below 0, "clip" sets them to 0, in queries too
    max_iter : most sweeps; None is 500 for "tang", 50 for "liu"
    tol : stop when the objective falls by less than this ("liu": not before sweep 6, then also when the graph term is
        small); 0 never stops early, None is 1 for "tang", 0.1 for "liu", as in the authors' codes
    n_bits, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : one value per sweep: the objective above for "tang", its unsquared norms for "liu"
    projections_ : P, by modality
    thresholds_ : mean of the latent rows
    """

    n_bits: int = 64
    _: KW_ONLY
    variant: Literal["tang", "liu"] = "tang"
    balance: Positive = 0.5
    coupling: Positive | None = None
    graph: NonNegative | None = None
    ridge: Positive | None = None
    n_neighbors: Count = 5
    orthogonality: NonNegative = 1e-4
    smoothness: NonNegative = 1e-3
    n_samples: Count = 1000
    negative: Literal["error", "clip"] = "error"
    max_iter: Count | None = None
    tol: NonNegative | None = None
    random_state: RandomState = None

    projections_: dict[str, Array] = field(init=False)
    thresholds_: Array = field(init=False)

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        if self.balance >= 1:
            raise ValueError(f"balance is {self.balance}; expected a number between 0 and 1 (exclusive)")
        max_iter = int(self._value("max_iter"))
        rng = np.random.default_rng([root_seed(self.random_state), 0])
        options = {
            "max_iter": max_iter,
            "tol": self._value("tol"),
            "report": lambda *done: report("sweeps", done[0], max_iter, done[1]),
        }
        maps, latent, P, trace = (self._tang if self.variant == "tang" else self._liu)(X, L, n_bits, rng, options)
        thresholds = latent.mean(axis=0)
        return latent - thresholds, {
            "maps_": maps,
            "projections_": dict(zip(X, P, strict=True)),
            "thresholds_": thresholds,
            "objective_": trace,
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
        graph = Graph(list(X.values()), L, self.n_neighbors)
        maps = {name: Linear(dtype="float64") for name in X}
        phi = [fit_rows(maps[name], values) for name, values in X.items()]
        spaces = [OwnSpace.of(values) for values in phi]
        S = rng.random((len(L), n_bits))
        P = [space.enter(rng.random((values.width, n_bits))) for space, values in zip(spaces, phi, strict=True)]
        state = TangState([space.rows for space in spaces], graph, S, P, self._weights())
        trace = learn_tang(state, **options)
        return maps, state.S, [space.leave(P) for space, P in zip(spaces, state.P, strict=True)], trace

    def _liu(
        self, X: dict[str, Matrix], L: Array, n_bits: int, rng: np.random.Generator, options: dict[str, Any]
    ) -> tuple[dict[str, Linear], Array, list[Array], list[float]]:
        n_samples = min(self.n_samples, len(L))
        X = self._non_negative(X)
        maps = {name: Linear(rows="unit", centred=False, dtype="float64") for name in X}
        phi = [fit_rows(maps[name], values) for name, values in X.items()]
        V = rng.random((len(L), n_bits))
        U, P = ([rng.random((values.width, n_bits)) for values in phi] for _ in range(2))
        state = LiuState(phi, unit_rows(L), V, U, P, self._weights())
        V, P, trace = learn_liu(state, n_samples, rng, **options)
        return maps, V, P, trace

    def _non_negative(self, X: dict[str, Matrix]) -> dict[str, Matrix]:
        if self.negative == "clip":
            return {name: clipped(values) for name, values in X.items()}
        for name, values in X.items():
            if (lowest := values.min()) < 0:
                raise ValueError(
                    f"{name!r}: the lowest feature is {lowest:.3g}; variant='liu' factorises features ≥ 0 and diverges "
                    "on others. Shift them, or pass negative='clip' to set those below 0 to 0, or take variant='tang'"
                )
        return X

    def _weights(self) -> SMFHWeights:
        coupling, graph, ridge = map(self._value, ("coupling", "graph", "ridge"))
        balance = self.balance, 1 - self.balance
        return SMFHWeights(balance, coupling, graph, ridge, self.orthogonality, self.smoothness)

    def _value(self, name: str) -> float:
        """Return the parameter, or the variant's default where it is None."""
        value: float | None = getattr(self, name)
        return DEFAULTS[self.variant][name] if value is None else value


def clipped(X: Matrix) -> Matrix:
    return X.maximum(0) if sparse.issparse(X) else np.maximum(X, 0)
