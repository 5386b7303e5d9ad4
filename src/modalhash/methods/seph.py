r"""SePH: Semantics-Preserving Hashing (Lin, Ding, Hu & Wang, CVPR 2015; IEEE Transactions on Cybernetics 2017).

Step 1 turns the similarity by labels into a probability distribution over pairs of items and finds codes whose Hamming
distances, turned into a distribution by Student's t as in t-SNE, are closest to it. Step 2 fits, per modality and bit,
a kernel logistic regression from features to codes; the two items of a pair vote on its code.

====================  =======================  ==========================================================
paper                 here                     is
====================  =======================  ==========================================================
:math:`A_{ij}`        ``cosines`` L̃ᵢL̃ⱼᵀ        affinity by labels, rows of L̃ have length 1
:math:`P`             ``cosines / labels``     P = A with diagonal 0, divided by its sum
:math:`\hat H`        ``Y`` (rows, r)          relaxed codes; H = sgn(Ĥ)
:math:`Q`             ``1 / (D Z)``            D = 1 + ‖ŷᵢ − ŷⱼ‖²/4, Z = Σ 1/D over i ≠ j
:math:`\alpha`        ``quantization``         of ‖|Ĥ| − 1‖²; divided by r and n
--                    ``w`` (rows,)            items behind each row, see below
:math:`K, K_0`        ``K``, ``K0``            exp(−d²/s) between items and anchors, anchors and anchors
:math:`w^{(k)}`       ``functions_[name]``     logistic regressions, one column per bit (anchors, r)
:math:`\lambda`       ``penalty``
====================  =======================  ==========================================================

Step 1 costs n² per iteration. As the authors for their largest data set, it uses 5,000 pairs (``train_items``); codes
of the other pairs are the votes of the regressions. The n × n matrix is processed in blocks of rows, which are kept
between iterations within ``memory_limit`` and recomputed beyond it: all 17,664 pairs of IAPR TC-12, whose 14,781 label
rows would make a matrix of 874 MB, take half a gigabyte with a limit of 100 MB. With P, D and Z as above and ΣP = 1,

.. math::
    KL(P\Vert Q) &= \sum P\log P + \sum P\log D + \log Z \\
    \nabla_i KL &= \sum_j (P_{ij} - Q_{ij})\,D_{ij}^{-1}(\hat y_i - \hat y_j)

(t-SNE's factor 4 cancels with the quarter in D). One pass computes both, because Z is a factor of one sum.

For one modality, with K the kernel features of its items and K0 those of the anchors, step 2 (shared with GSPH) is

.. math:: \min_W\ \sum\log\left(1 + e^{-B\circ KW}\right) + C\,\mathrm{tr}(W^TK_0W)

The second derivative of a logistic loss is at most 1/4, so M = KᵀK/4 + 2C K0 bounds every Hessian (Böhning and Lindsay,
1988); it is constant and the same for all bits. Therefore

.. math:: W \leftarrow W + M^{-1}\left(K^T(B\circ\sigma(-B\circ KW)) - 2CK_0W\right)

lowers the objective by at least half of ⟨descent direction, step⟩, with one factorisation and one pass over the data
per iteration. With Nesterov's extrapolation 20 to 40 iterations suffice, where the authors' L-BFGS, bit by bit, reaches
its limit of 500.

Departures from the authors' code:

- Items with the same labels have the same start (theirs: separate starts), so that step 1 runs over distinct label rows
  weighted with their numbers of items: 10 rows instead of 2,173 on Wiki. They converge to one point anyway: the
  objective ends as low or lower (four fifths of the training pairs, two seeds: Wiki, 16 bits .139 against .146, 64 bits
  .071 against .077; OpenMoji .155 against .156 and .080 against .082), and the mAP of the held-out fifth differs by no
  more than between seeds.
- The logistic regressions of all bits are solved together, with the same optimum.
- Anchors are drawn, and k-means is run, in each modality separately.
- The paper weights the vote by 1/P(bit). The authors' code computes these weights but does not use them; neither does
  this.
- sgn(0) = −1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

import numpy as np
from scipy import sparse

from modalhash.core.blocks import FeatureBlocks, row_slices
from modalhash.core.codes import pack_signs
from modalhash.core.features import KERNELS, AnchorKernel, kernel_maps
from modalhash.core.linalg import RidgeFactor, sign, squared, unit_rows
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed, row_keys
from modalhash.core.typing import Array, Codes, Matrix, PerModality
from modalhash.core.validation import Count, Flag, MemoryLimit, NonNegative, Positive, check_int, check_memory, choice
from modalhash.methods.amsh.codes import label_patterns
from modalhash.methods.base import CrossModalHasher, PairCodes, PairedHasher
from modalhash.methods.fitted import BLOCK_VALUES


class LogisticHasher(CrossModalHasher):
    """Base of SePH and GSPH, whose hash functions are kernel logistic regressions."""

    kernel: PerModality[Annotated[str, choice(*KERNELS, "auto")]]
    n_anchors: PerModality[int]
    penalty: Positive
    function_iter: Count
    function_tol: NonNegative
    precision: Annotated[str, choice("float32", "float64")]
    memory_limit: MemoryLimit
    maps_: dict[str, AnchorKernel]

    def transform_pairs(self, X: Mapping[str, Any]) -> Codes:
        """Return one hashed code per pair; X has all fitted modalities, and row k of each is pair k."""
        projections = self.decision_function(X)
        if missing := [name for name in self.functions_ if name not in projections]:
            raise ValueError(f"X lacks {missing}; a pair has an item of every modality. For single items use transform")
        sizes = {name: len(values) for name, values in projections.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"pairs need as many items in every modality; got {sizes}")
        return pack_signs(np.add.reduce(list(projections.values())))

    def _kernels(
        self, X: Mapping[str, Matrix], Y: Mapping[str, Any] | None, seed: int, anchors: str = "random"
    ) -> dict[str, AnchorKernel]:
        """Return the kernel of each modality."""
        options: dict[str, Any] = {"seed": seed, "centred": False, "dtype": self.precision}
        maps = kernel_maps(X, Y, kernel=self.kernel, n_anchors=self.n_anchors, **options)
        kernels = {name: found for name, found in maps.items() if isinstance(found, AnchorKernel)}
        for kernel in kernels.values():
            kernel.set_params(anchors=anchors)
        return kernels

    def _regressions(
        self, name: str, kernel: AnchorKernel, X: Matrix, B: Array, report: Reporter
    ) -> tuple[Array, list[float], Array]:
        """Return W, the trace of the objective, and the projections of the items."""
        K = kernel.fit_blocks(X, memory_limit=check_memory(self.memory_limit))
        W, trace = logistic_regressions(
            K,
            kernel.map(kernel.anchors_),
            B.astype(self.precision),
            penalty=float(self.penalty),
            max_iter=self.function_iter,
            tol=self.function_tol,
            report=lambda step, value: report(f"functions: {name}", step, self.function_iter, value),
        )
        W = W.astype(self.precision)
        return W, trace, K.project(W)


def traced(codes: list[float], steps: int, functions: dict[str, list[float]]) -> dict[str, Any]:
    """Return ``objective_`` and ``n_iter_`` of both steps."""
    arrays = {name: np.array(trace) for name, trace in functions.items()}
    lengths = {name: len(trace) for name, trace in functions.items()}
    return {
        "objective_": {"codes": np.array(codes), "functions": arrays},
        "n_iter_": {"codes": steps, "functions": lengths},
    }


def logistic_regressions(
    K: FeatureBlocks,
    K0: Array,
    B: Array,
    *,
    penalty: float,
    max_iter: int,
    tol: float,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> tuple[Array, list[float]]:
    """Return W (anchors, r) and the objective at the start of each iteration.

    Stops when the predicted decrease is less than the share ``tol`` of the objective.
    """
    K0 = (K0 + K0.T).astype(np.float64) / 2
    factor = RidgeFactor(curvature(K, K0, penalty), 0)
    W = point = np.zeros((K.width, B.shape[1]))
    momentum = np.ones(B.shape[1])
    trace: list[float] = []
    for iteration in range(max_iter):
        descent, loss = logistic_pass(K, B, point)
        smooth = K0 @ point
        descent -= 2 * penalty * smooth
        trace.append(loss + penalty * float(np.vdot(point, smooth)))
        report(iteration + 1, trace[-1])
        step = factor.solve(descent)
        previous, W = W, point + step
        if float(np.vdot(descent, step)) <= 2 * tol * trace[-1]:
            break
        point, momentum = extrapolate(W, previous, descent, momentum)
    return W, trace


def extrapolate(W: Array, previous: Array, descent: Array, momentum: Array) -> tuple[Array, Array]:
    """Return Nesterov's extrapolation of W, bit by bit; bits whose momentum points uphill restart."""
    step = W - previous
    downhill = np.einsum("ij,ij->j", descent, step) >= 0
    momentum = np.where(downhill, momentum, 1.0)
    following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
    return W + step * ((momentum - 1) / following), following


def curvature(K: FeatureBlocks, K0: Array, penalty: float) -> Array:
    """Return M = KᵀK/4 + 2C K0.

    KᵀK is in float64, because rounding errors of float32 sums exceed the smallest eigenvalues of M.
    """
    M = 2 * penalty * K0
    for _, block in K:
        block = block.astype(np.float64)
        M += block.T @ block / 4
    return M


def logistic_pass(K: FeatureBlocks, B: Array, W: Array) -> tuple[Array, float]:
    """Return Kᵀ(B∘σ(−B∘KW)) and Σ log(1 + exp(−B∘KW)), in one pass over the data."""
    W = W.astype(K.dtype)
    total, loss = np.zeros(W.shape), 0.0
    for rows, block in K:
        margin = block @ W
        margin *= B[rows]
        e = np.exp(-np.abs(margin))  # ≤ 1, so that nothing overflows
        loss += float(np.log1p(e).sum(dtype=np.float64) - np.minimum(margin, 0).sum(dtype=np.float64))
        R = np.where(margin > 0, e, 1) / (1 + e)  # σ(−margin)
        R *= B[rows]
        total += block.T @ R
    return total, loss


STEP, MOMENTUM, START = 500.0, 0.5, 1e-4
"""The authors' learning rate, constant momentum, and standard deviation of the initial codes."""
GAIN_UP, GAIN_DOWN, MIN_GAIN = 0.2, 0.8, 0.01
BLOCK_BYTES = 2**21
"""Size of one block of the similarity; six arrays of this size fit into the cache."""


@dataclass(eq=False, repr=False)
class SePH(LogisticHasher, PairedHasher):
    r"""Codes of pairs whose distances follow the similarity by labels, after Lin et al. (2015).

    Step 1 minimises

    .. math::
        \sum_{i\ne j}p_{ij}\log\frac{p_{ij}}{q_{ij}} + \frac{\alpha}{rn}\lVert|\hat H| - 1\rVert^2,
        \qquad q_{ij}\propto\left(1 + \tfrac14\lVert\hat h_i - \hat h_j\rVert^2\right)^{-1},

    where p is the cosine of the label rows over its sum, by gradient descent with momentum and adaptive gains. Step 2
    is kernel logistic regressions (see the module). The code of a pair is the sign of the sum of its items' projections
    (log-odds).

    Parameters
    ----------
    anchors : "kmeans" centres (the authors' SePH_km) or "random" items (SePH_rnd)
    quantization : α, how closely relaxed codes approach ±1
    penalty : C > 0 of the logistic regressions
    train_items : pairs that both steps learn from, drawn by content; None for all
    unify : whether learned codes are the votes, from features, as in the paper; False keeps those from labels (step 1)
    max_iter : steps of step 1. The codes are those of the lowest objective
    function_iter, function_tol : of step 2: most iterations, and the least relative decrease that is predicted
    precision : "float32" or "float64", of similarities and kernel features; sums over items are float64 in both
    memory_limit : bytes, or a text such as "2GB", for what is kept between iterations; None for no limit
    n_bits, kernel, n_anchors, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : ``{"codes": trace of step 1, start included, "functions": {modality: trace of step 2}}``
    n_iter_ : iterations, with the keys of ``objective_``
    """

    n_bits: int = 64
    _: KW_ONLY
    anchors: Literal["kmeans", "random"] = "kmeans"
    kernel: PerModality[str] = "rbf-narrow"
    n_anchors: PerModality[int] = 500
    quantization: NonNegative = 0.01
    penalty: float = 0.01
    train_items: int | None = 5000
    unify: Flag = True
    max_iter: Count = 100
    function_iter: int = 100
    function_tol: float = 1e-6
    precision: str = "float32"
    memory_limit: int | str | None = "2GB"
    random_state: RandomState = None

    def _fit_pairs(self, X: dict[str, Matrix], L: Array, n_bits: int, report: Reporter) -> PairCodes:
        seed = root_seed(self.random_state)
        chosen = self._chosen(X, n_bits, seed)
        part = {name: values[chosen] for name, values in X.items()}
        maps = self._kernels(part, dict.fromkeys(part, L[chosen]), seed, self.anchors)

        patterns, items, counts = label_patterns(L[chosen])
        similarity = LabelSimilarity(patterns, counts, self.precision, check_memory(self.memory_limit))
        Y = START * np.random.default_rng([seed, 0]).standard_normal((len(patterns), n_bits))
        Y, codes_trace = learn_codes(  # step 1
            similarity,
            Y,
            alpha=float(self.quantization) / (n_bits * len(chosen)),
            max_iter=self.max_iter,
            report=lambda step, value: report("codes", step, self.max_iter, value),
        )
        H = sign(Y)[items]

        functions, traces = {}, {}
        for name, values in part.items():  # step 2, one modality in memory at a time
            functions[name], traces[name], _ = self._regressions(name, maps[name], values, H, report)
        widest = max(max(values.shape[1], maps[name].width) for name, values in X.items())
        votes = np.concatenate(
            [
                np.add.reduce([maps[name].map(values[rows]) @ functions[name] for name, values in X.items()])
                for rows in row_slices(len(L), max(1, BLOCK_VALUES // widest))
            ]
        )
        if not self.unify:
            votes[chosen] = H
        return votes, {"functions_": functions, "maps_": maps} | traced(codes_trace, len(codes_trace) - 1, traces)

    def _chosen(self, X: dict[str, Matrix], n_bits: int, seed: int) -> Array:
        """Return the rows of the pairs to learn from, independent of the order of the pairs."""
        n = next(iter(X.values())).shape[0]
        most = n if self.train_items is None else check_int(self.train_items, "train_items", at_least=n_bits + 1)
        if n <= most:
            return np.arange(n)
        keys = np.add.reduce([row_keys(values, seed) for values in X.values()])
        return np.sort(np.argsort(keys, kind="stable")[:most])


class LabelSimilarity:
    """P over label patterns with ``w`` items each.

    Two patterns have w_a w_b pairs of items, one pattern w_a (w_a − 1). The latter have distance 0 and D = 1, so they
    contribute only to Z.
    """

    def __init__(self, patterns: Array, w: Array, precision: str, memory_limit: int | None) -> None:
        self.w = np.asarray(w, dtype=np.float64)
        self.n = float(self.w.sum())
        Lt = unit_rows(patterns).astype(precision)
        total = squared(self.w @ Lt) - self.n  # sum of the cosines over i ≠ j
        if not total > 0:
            raise ValueError("SePH: no two pairs share a label, so there is no similarity to learn from")
        self.labels = total
        self._cosines = FeatureBlocks(
            sparse.csr_array(Lt),
            lambda rows, part: (rows[part] @ rows.T).toarray(),
            width=len(Lt),
            dtype=np.dtype(precision),
            memory_limit=memory_limit,
            block_rows=max(1, BLOCK_BYTES // (len(Lt) * np.dtype(precision).itemsize)),
        )

    def entropy(self) -> float:
        """Return Σ P log P, the constant part of the divergence."""
        sums = self._cosines.map(_entropies, shared=[self.w])
        own = float(self.n * -np.log(self.labels))  # of items with themselves, which are not in P
        return (float(self.w @ (sums[:, 0] - np.log(self.labels) * sums[:, 1])) - own) / self.labels

    def divergence(self, Y: Array) -> tuple[float, Array]:
        """Return KL(P‖Q) less Σ P log P, and its gradient for one item of each pattern."""
        r = Y.shape[1]
        dtype = self._cosines.dtype
        size = np.einsum("ij,ij->i", Y, Y)[:, None]
        one = np.ones_like(size)
        left = np.hstack([Y, size / 4, one]).astype(dtype)
        right = np.hstack([-Y / 2, one, 1 + size / 4]).astype(dtype)  # so that left · right = 1 + ‖yᵢ − yⱼ‖²/4
        weighted = np.hstack([self.w[:, None] * Y, self.w[:, None]]).astype(dtype)
        sums = self._cosines.map(_student_sums, per_item=[left], shared=[right.T.copy(), weighted]).astype(np.float64)
        attraction, repulsion, masses, logs = np.split(sums, [r + 1, 2 * r + 2, 2 * r + 3], axis=1)
        Z = float(self.w @ masses[:, 0]) - self.n
        M = attraction / self.labels - repulsion / Z  # Σ_j w_j (P − Q)/D, times y_j and times 1
        value = float(self.w @ logs[:, 0]) / self.labels + np.log(Z)
        return value, M[:, r:] * Y - M[:, :r]


def _student_sums(cosines: Array, left: Array, right: Array, weighted: Array) -> Array:
    """Return, for a block of rows, Σ_j of A/D and of 1/D², times (w y, w); of w/D; and of w A log D."""
    D = left @ right
    np.maximum(D, 1, out=D)  # rounding may give negative distances
    w = weighted[:, -1]
    work = np.log(D)
    work *= cosines
    logs = work @ w
    np.reciprocal(D, out=D)
    masses = D @ w
    np.multiply(D, cosines, out=work)
    attraction = work @ weighted
    D *= D
    return np.column_stack([attraction, D @ weighted, masses, logs])


def _entropies(cosines: Array, w: Array) -> Array:
    """Return, for a block of rows, Σ_j w A log A and Σ_j w A."""
    logs = np.log(np.where(cosines > 0, cosines, 1)) * cosines
    return np.column_stack([logs @ w, cosines @ w])


def learn_codes(
    similarity: LabelSimilarity,
    Y: Array,
    *,
    alpha: float,
    max_iter: int,
    report: Callable[[int, float], None] = lambda step, objective: None,
) -> tuple[Array, list[float]]:
    """Return the relaxed codes with the lowest objective, and the objective before and after every step."""
    w, constant = similarity.w[:, None], similarity.entropy()
    increment, gain = np.zeros_like(Y), np.ones_like(Y)
    best, trace = Y, []
    for iteration in range(max_iter + 1):
        divergence, gradient = similarity.divergence(Y)
        trace.append(constant + divergence + alpha * float((w * (np.abs(Y) - 1) ** 2).sum()))
        if trace[-1] <= min(trace):
            best = Y
        if iteration == max_iter:
            break
        report(iteration + 1, trace[-1])
        gradient += 2 * alpha * (np.abs(Y) - 1) * np.sign(Y)
        # increments point downhill: they agree with a gradient of the opposite sign
        agrees = np.sign(gradient) != np.sign(increment)
        gain = np.maximum(np.where(agrees, gain + GAIN_UP, gain * GAIN_DOWN), MIN_GAIN)
        increment = MOMENTUM * increment - STEP * gain * gradient
        Y = Y + increment
        Y = Y - (w * Y).sum(axis=0) / similarity.n
    return best, trace
