r"""AMSH: Adaptive Marginalized Semantic Hashing (Luo et al., IEEE TMM 2023).

Two steps. The first makes, from labels alone, balanced and uncorrelated codes for every modality such
that items that share labels get close codes, within and between modalities; no item of one modality has
to be known to belong to an item of another. The second learns, per modality, functions from features to
these codes. Both regressions may overshoot their targets in the right direction: the adaptive margins.

==================  ====================================  =========================================
paper               here                                  where
==================  ====================================  =========================================
:math:`r`           ``n_bits``
:math:`\eta`        ``quantization``                      Eq. (10), ‖B − V‖²
:math:`\lambda`     ``intra``                             Eq. (10), ‖BᵀV − rS‖² within a modality
:math:`\beta`       ``inter``                             Eq. (10), ‖VᵀV − rS‖² between modalities
:math:`V, B, P, E`  :mod:`._amsh_codes`                   step 1, Eqs. (10)-(21)
:math:`F, M`        :mod:`._amsh_functions`               step 2, Eqs. (25)-(27)
:math:`\phi`        :class:`modalhash.features.AnchorKernel`  Eq. (24)
==================  ====================================  =========================================

Where paper and authors' code differ: the kernel takes squared distances and step 2 a ridge as in the code
(``kernel="rbf-unsquared"``, ``ridge=0`` as printed); V starts at random as in the paper (``init="pca"`` as
in the code: the same mAP on IAPR TC-12, up to .03 less on Wiki). Fixed for the better in both: completion
and rank test of Theorem III.1 (see :func:`modalhash.linalg.balanced_procrustes`).
The sum over i ≠ j of Eq. (10) is over unordered pairs, for which the printed updates are exact;
``cross_pairs="ordered"`` counts each pair twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from modalhash._parallel import parallel_map, parallel_threads
from modalhash._typing import Array, Matrix, PerModality
from modalhash.base import CrossModalHasher, Training
from modalhash.blocks import Parts
from modalhash.codes import pack_signs
from modalhash.features import FeatureMap
from modalhash.kernel_choice import kernel_maps
from modalhash.linalg import RidgeFactor
from modalhash.methods._amsh_codes import Start, Weights, learn_codes
from modalhash.methods._amsh_functions import learn_functions, sample_rows
from modalhash.methods._background import Begin, background
from modalhash.progress import Callback, Reporter
from modalhash.randomness import RandomState, root_seed
from modalhash.validation import check_choice, check_int, check_memory, check_number, per_modality

PAPER_WEIGHT, PAPER_ITEMS = 1e-3, 15_000
"""λ and β of the paper, and about the fewest items it was tried on."""
PAPER_STEPS, ACCELERATED_STEPS = 15, 4
"""Iterations of step 2: the paper's, and how many accelerated ones go as low (within .6 %) on all data tried."""
ONE_THREAD_BELOW = 2**23
"""Values of V below which several BLAS threads cost more than they bring, ten times more on a busy machine."""


class AMSH(CrossModalHasher):
    r"""Codes for modalities that need no pairing, after Luo et al. (2023).

    Step 1 minimises Eq. (10),

    .. math::
        \sum_i \lVert L_i + R_i\circ E_i - P_iV_i\rVert^2 + \eta\lVert B_i - V_i\rVert^2
        + \lambda\lVert B_i^TV_i - rS_{ii}\rVert^2 + \beta\sum_{i<j}\lVert V_j^TV_i - rS_{ji}\rVert^2

    subject to E ≥ 0, B = ±1, VVᵀ = nI, V1 = 0; step 2 minimises Eq. (25) with a ridge.

    Parameters
    ----------
    n_bits : length of the codes, below the number of items of every modality
    quantization : η, how closely codes follow the latent representation
    intra : λ, similarity by labels within a modality; 0 is the ablation AMSH-s. The weights do not
        scale with the number of items, so "auto" is the paper's 1e-3 from 15,000 items (its smallest data
        set) up and grows as 15,000 / n below, n being the smallest modality
    inter : β, similarity by labels between modalities, "auto" likewise; 0 is AMSH-t, which leaves
        modalities unaligned
    margins : True; False is AMSH-m; "labels" or "bits" keeps only those of step 1 or of step 2
    kernel : "rbf", "rbf-unsquared" (as the paper prints it), None (AMSH-k), another name in
        :data:`modalhash.kernel_choice.KERNELS`, or "auto", chosen by how well it ranks held-out items; or a dict by
        modality
    n_anchors : anchors of the kernel, capped at the number of items; or a dict by modality
    ridge : ρ of step 2; 0.01 in the authors' code, none in the paper; or a dict by modality
    init : "random" start of V (the paper), or "pca" of the kernel features (the authors' code)
    solver : "samples" (a row of V per item, the paper), "patterns" (items that share their labels share rows,
        far fewer) or "auto": patterns where they are at least ``4 * n_bits`` and their rows fewer than half the
        items, or their rows fewer than a sixteenth of the items, in every modality. ``solver_`` says which it was
    accelerated : steps of step 2 that go as far as pays; False is the paper's plain alternation
    code_iter : iterations of step 1
    function_iter : iterations of step 2; None for the paper's 15 plain ones, or 4 accelerated ones, which go as low
    tol : stop a step when its objective falls by less than this share; 0 never stops early
    cross_pairs : "unordered" or "ordered"
    precision : "float32" or "float64", of the heavy products in step 2; sums are float64 in both
    memory_limit : bytes, or a text such as "2GB", for kernel features held during the fit; what does not
        fit is computed anew in every iteration. None for no limit. On a Dask cluster it holds for each worker
    unlabelled : "error" or "allow", for items without any label
    random_state : int, Generator or None

    Attributes
    ----------
    codes_ : learned codes of the training items, by modality
    objective_ : ``{"codes": trace of Eq. (10), "functions": {modality: trace of Eq. (25)}}``
    n_iter_ : iterations done, keyed like ``objective_``
    solver_ : "samples" or "patterns"
    maps_, functions_ : feature map and F, by modality
    classes_, n_features_in_ : label columns; features by modality

    Examples
    --------
    >>> from modalhash.data import generate
    >>> data = generate(n_items=200, seed=0)
    >>> model = AMSH(n_bits=16, n_anchors=100, random_state=0).fit(data.X, data.Y)
    >>> model.codes_["image"].shape, model.transform({"text": data.X["text"][:5]})["text"].shape
    ((200, 2), (5, 2))

    References
    ----------
    K. Luo, C. Zhang, H. Li, X. Jia, C. Chen. Adaptive Marginalized Semantic Hashing for Unpaired
    Cross-Modal Retrieval. IEEE Transactions on Multimedia, 2023.
    """

    distributed = True

    objective_: dict[str, Any]
    n_iter_: dict[str, Any]
    solver_: str
    maps_: dict[str, FeatureMap]
    functions_: dict[str, Array]

    def __init__(
        self,
        n_bits: int = 64,
        *,
        quantization: float = 1.0,
        intra: float | str = "auto",
        inter: float | str = "auto",
        margins: bool | str = True,
        kernel: PerModality[str | None] = "rbf",
        n_anchors: PerModality[int] = 1500,
        ridge: PerModality[float] = 0.01,
        init: str = "random",
        solver: str = "auto",
        accelerated: bool = True,
        code_iter: int = 15,
        function_iter: int | None = None,
        tol: float = 0.0,
        cross_pairs: str = "unordered",
        precision: str = "float32",
        memory_limit: int | str | None = "2GB",
        unlabelled: str = "error",
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.quantization = quantization
        self.intra = intra
        self.inter = inter
        self.margins = margins
        self.kernel = kernel
        self.n_anchors = n_anchors
        self.ridge = ridge
        self.init = init
        self.solver = solver
        self.accelerated = accelerated
        self.code_iter = code_iter
        self.function_iter = function_iter
        self.tol = tol
        self.cross_pairs = cross_pairs
        self.precision = precision
        self.memory_limit = memory_limit
        self.unlabelled = unlabelled
        self.random_state = random_state

    def fit_path(
        self,
        X: Any,
        Y: Any = None,
        *,
        n_bits: Sequence[int] = (16, 32, 64, 128),
        pairs: Any = None,
        callback: Callback | None = None,
    ) -> dict[int, Self]:
        """Return one fitted model for each code length, from one pass over the data per iteration for all of them.

        Anchors, kernel features and their Gram matrix do not depend on the length and are made once; lengths share
        the cores in step 1 and every pass over the features in step 2. Each bit has iterations of its own; more is
        saved where raw features are wide, or where kernel features do not fit into memory. The models are those that
        :meth:`fit` gives at each length with the same int as ``random_state``, bit for bit where both round alike (with
        the label patterns they did). This estimator itself stays as it was.

        Parameters
        ----------
        X, Y, pairs, callback : as for :meth:`fit`; the callback may be called from several threads
        n_bits : the code lengths, each once

        Returns
        -------
        dict from code length to model, in the order given

        Examples
        --------
        >>> from modalhash.data import generate
        >>> data = generate(n_items=200, seed=0)
        >>> models = AMSH(n_anchors=100, random_state=0).fit_path(data.X, data.Y, n_bits=(8, 16))
        >>> {bits: model.codes_["text"].shape for bits, model in models.items()}
        {8: (200, 1), 16: (200, 2)}
        """
        lengths = [check_int(bits, "n_bits", at_least=1) for bits in n_bits]
        if not lengths or len(set(lengths)) < len(lengths):
            raise ValueError(f"n_bits is {n_bits!r}; expected code lengths, each once, e.g. (16, 32, 64, 128)")
        models = {bits: clone(self).set_params(n_bits=bits) for bits in lengths}
        data = models[max(lengths)]._check(X, Y, pairs)
        for bits, learned in self._fit_lengths(data, lengths, Reporter(callback)).items():
            models[bits]._remember(data, learned)
            models[bits]._check_fitted(data)
        return models

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        return self._fit_lengths(data, [data.n_bits], report)[data.n_bits]

    def _fit_lengths(self, data: Training, lengths: list[int], report: Reporter) -> dict[int, dict[str, Any]]:
        """Learned attributes for every code length."""
        weights, ridge, seed = self._weights(data), self._ridge(data), root_seed(self.random_state)
        options: dict[str, Any] = {"seed": seed, "dtype": self.precision}
        maps = kernel_maps(data.X, data.Y, kernel=self.kernel, n_anchors=self.n_anchors, **options)
        memory = check_memory(self.memory_limit)
        phi: dict[str, Parts] = {}
        learned: dict[int, dict[str, Any]] = {}
        codes: dict[int, dict[str, Array]] = {}
        Y, longest = data.Y or {}, max(lengths)
        with background() as begin:
            if self.init == "pca":  # step 1 begins with the features of all modalities
                share = None if memory is None else memory // len(maps)
                phi = {name: self._features(maps[name], X, share, report) for name, X in data.X.items()}
            rows, features = (data.X[name] for name in Y), (phi.get(name) for name in Y)
            made = parallel_map(Start.of, rows, Y.values(), features, repeat(longest), repeat(seed))
            starts = dict(zip(Y, made, strict=True))
            samples = {name: start.order[sample_rows(len(start.order))] for name, start in starts.items()}
            step_1 = self._begin_codes(starts, weights, lengths, report, begin)
            del starts
            for name, blocks, inverse in self._regressions(data, maps, phi, ridge, memory, report, begin):
                if not learned:  # step 1 went beside the first modality's features
                    for n_bits, (solver, trace, codes[n_bits]) in step_1().items():
                        learned[n_bits] = {
                            "codes_": {modality: pack_signs(B) for modality, B in codes[n_bits].items()},
                            "functions_": {},
                            "maps_": maps,
                            "solver_": solver,
                            "objective_": {"codes": np.array(trace), "functions": {}},
                            "n_iter_": {"codes": len(trace), "functions": {}},
                        }
                own = [codes[n_bits].pop(name) for n_bits in lengths]
                functions = self._hash_functions(name, blocks, own, inverse, ridge[name], samples[name], report)
                del blocks, inverse  # before those of the next modality are made
                for n_bits, (F, steps) in zip(lengths, functions, strict=True):
                    learned[n_bits]["functions_"][name] = F.astype(self.precision)
                    learned[n_bits]["objective_"]["functions"][name] = np.array(steps)
                    learned[n_bits]["n_iter_"]["functions"][name] = len(steps)
        return learned

    def _regressions(
        self,
        data: Training,
        maps: dict[str, FeatureMap],
        phi: dict[str, Parts],
        ridge: dict[str, float],
        memory: int | None,
        report: Reporter,
        begin: Begin,
    ) -> Iterator[tuple[str, Parts, Callable[[], Array]]]:
        """Yield each modality's features and a function that waits for (ΦᵀΦ + ρI)⁻¹; takes those of ``phi`` from it."""
        inverses = {name: begin(_inverse, blocks.gram(), ridge[name]) for name, blocks in phi.items()}
        for name, X in data.X.items():
            if name in phi:
                yield name, phi.pop(name), inverses.pop(name)
            else:
                blocks = self._features(maps[name], X, memory, report)
                yield name, blocks, begin(_inverse, blocks.gram(), ridge[name])
                del blocks

    def _features(self, feature_map: FeatureMap, X: Matrix, memory: int | None, report: Reporter) -> Parts:
        blocks = feature_map.fit_parts(X, memory_limit=memory)  # Eq. (24)
        report("features", 1, 1)
        return blocks

    def _begin_codes(
        self, starts: dict[str, Start], weights: Weights, lengths: list[int], report: Reporter, begin: Begin
    ) -> Callable[[], dict[int, tuple[str, list[float], dict[str, Array]]]]:
        """Begin step 1 at every length, the longest first; return a function that waits for what it finds.

        Where V is large, step 1 is done when this returns, so that its memory is free before features take theirs.
        """
        by_cost = sorted(lengths, reverse=True)
        values = sum(
            start.n_rows(by_cost[0], self._solver(starts, by_cost[0])) * by_cost[0] for start in starts.values()
        )
        large = values >= ONE_THREAD_BELOW
        if large and len(lengths) == 1:
            with threadpool_limits(parallel_threads(), user_api="blas"):
                found = self._learn_codes(starts, weights, lengths[0], report)
            return lambda: {lengths[0]: found}
        waiting = {n_bits: begin(self._learn_codes, starts, weights, n_bits, report) for n_bits in by_cost}
        if large:
            for wait in waiting.values():
                wait()
        return lambda: {n_bits: wait() for n_bits, wait in waiting.items()}

    def _solver(self, starts: dict[str, Start], n_bits: int) -> str:
        if self.solver != "auto":
            return self.solver
        return "patterns" if all(start.worth_sharing(n_bits) for start in starts.values()) else "samples"

    def _learn_codes(
        self, starts: dict[str, Start], weights: Weights, n_bits: int, report: Reporter
    ) -> tuple[str, list[float], dict[str, Array]]:
        """Algorithm 1, lines 2-7: the solver taken, the objective's trace and B by modality."""
        solver = self._solver(starts, n_bits)
        begun = {name: start.view(n_bits, shared=solver == "patterns") for name, start in starts.items()}
        views = [view for view, _ in begun.values()]
        max_iter = check_int(self.code_iter, "code_iter", at_least=1)
        trace = learn_codes(
            views,
            weights,
            max_iter=max_iter,
            tol=check_number(self.tol, "tol"),
            report=lambda step, value: report(f"codes ({solver})", step, max_iter, value),
        )
        return solver, trace, {name: view.B.astype(np.int8)[row] for name, (view, row) in begun.items()}

    def _hash_functions(
        self,
        name: str,
        phi: Parts,
        codes: list[Array],
        inverse: Array | Callable[[], Array],
        ridge: float,
        sample: Array,
        report: Reporter,
    ) -> list[tuple[Array, list[float]]]:
        """Algorithm 1, lines 9-12: F and the objective's trace for each of the codes."""
        steps = self._function_steps()
        return learn_functions(
            phi,
            codes,
            inverse,
            ridge=ridge,
            max_iter=steps,
            tol=check_number(self.tol, "tol"),
            margins=self.margins in (True, "bits"),
            accelerated=self.accelerated,
            sample=sample,
            report=lambda step, value: report(f"functions: {name}", step, steps, value),
        )

    def _function_steps(self) -> int:
        if self.function_iter is None:
            return ACCELERATED_STEPS if self.accelerated else PAPER_STEPS
        return check_int(self.function_iter, "function_iter", at_least=1)

    def _weights(self, data: Training) -> Weights:
        check_choice(self.margins, "margins", (True, False, "labels", "bits"))
        check_choice(self.cross_pairs, "cross_pairs", ("unordered", "ordered"))
        check_choice(self.init, "init", ("pca", "random"))
        check_choice(self.solver, "solver", ("auto", "samples", "patterns"))
        check_choice(self.precision, "precision", ("float32", "float64"))
        smallest = min(X.shape[0] for X in data.X.values())
        automatic = PAPER_WEIGHT * max(1.0, PAPER_ITEMS / smallest)
        intra, inter = (
            automatic if isinstance(value, str) and check_choice(value, name, ("auto",)) else check_number(value, name)
            for name, value in (("intra", self.intra), ("inter", self.inter))
        )
        return Weights(
            quantization=check_number(self.quantization, "quantization"),
            intra=intra,
            # ‖VⱼᵀVᵢ − rSⱼᵢ‖² and its transpose are equal: ordered pairs are twice the weight
            inter=2 * inter if self.cross_pairs == "ordered" else inter,
            label_margins=self.margins in (True, "labels"),
        )

    def _ridge(self, data: Training) -> dict[str, float]:
        values = per_modality(self.ridge, data.X, "ridge")
        return {name: check_number(value, "ridge") for name, value in values.items()}


def _inverse(gram: Array, ridge: float) -> Array:
    return RidgeFactor(gram, ridge).inverse()
