r"""RLH: Relevance-Likelihood Hashing, a method of this project.

An item is relevant to a query if they share a label. RLH learns codes whose Hamming distance gives the probability of
that, by maximum likelihood over pairs of items. Labels and posteriors, the labels that features predict (each from a
regression that has not seen the item), are vectors of one space, which aligns modalities without pairs.

=====================================  ==================================  ========================================
symbol                                 here                                where
=====================================  ==================================  ========================================
:math:`r`                              ``n_bits``
:math:`\phi`                           ``kernel``                          :mod:`modalhash.core.features`
:math:`\tilde l`                       label patterns                      :mod:`.posteriors`
:math:`\hat s, W, \rho`                posteriors, ``posterior_ridge``     :mod:`.posteriors`
:math:`R, A, b, \gamma, \delta, \alpha`  relevance, step 1                  :mod:`.codes`
:math:`F, M`                           step 2                              :mod:`modalhash.methods.amsh.functions`
:math:`A_m, b_m`                       step 3                              :mod:`.codes`
=====================================  ==================================  ========================================

AMSH (Luo et al., 2023) fits balanced codes to the cosines of label vectors. RLH drops both, because balance ignores the
frequencies of labels, and a ranking by relevance does not need cosines.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import repeat
from typing import Annotated, Any, Literal

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from modalhash.core.blocks import FeatureRows, row_slices
from modalhash.core.codes import pack_signs
from modalhash.core.features import kernel_maps
from modalhash.core.parallel import parallel_map, submit, worker_threads
from modalhash.core.progress import Reporter
from modalhash.core.randomness import RandomState, root_seed
from modalhash.core.typing import Array, Codes, Matrix, PerModality
from modalhash.core.validation import (
    Count,
    Flag,
    MemoryLimit,
    NonNegative,
    Positive,
    Share,
    check_label_rows,
    check_memory,
    check_sparse,
    integer,
    number,
    per_modality,
)
from modalhash.methods.amsh.functions import HashFunctions, learn_functions, sample_rows
from modalhash.methods.base import CrossModalHasher, Training, TrainingItems
from modalhash.methods.rlh.codes import (
    Model,
    Relevance,
    RelevanceProblem,
    Schedule,
    Source,
    learn_codes,
    learn_own_codes,
)
from modalhash.methods.rlh.posteriors import Folds, LabelRegression, LabelSpace, regress_labels, unit_label_rows

UNLABELLED_ROWS = 4096
"""Unlabelled items per block of hashing."""
RELIABLE = 0.5
"""For unlabelled items, a bit is reliable if |projection| ≥ RELIABLE × the modality's mean |projection| (chosen by
benchmarks/quality/rlh_few_labels.py on folds)."""
SCALE_ROWS = 2000
"""Items from which the scales of averaged hash functions are estimated."""


@dataclass(eq=False, repr=False)
class RLH(CrossModalHasher):
    r"""Relevance-Likelihood Hashing: Hamming distances give the probability that two items share a label.

    Modalities need no pairs. Step 1 minimises, over the code functions A and b of the label space and γ, δ of every
    kind of pair,

    .. math::
        -\sum_{kind} w_{kind}\,\operatorname{mean}_{(i,j)\in kind}
        \Bigl[R_{ij}\log p_{ij} + (1-R_{ij})\log(1-p_{ij})\Bigr],
        \qquad p_{ij} = \sigma\Bigl(\gamma_{kind}\tfrac{u_i^Tu_j}{r} + \delta_{kind}\Bigr),
        \quad u = \tanh\bigl(\alpha(A^Ts + b)\bigr)

    with R = 0 if two items share no label, else :math:`1 - g + g\,|i\cap j|/|i\cup j|`; s is the label vector (unit
    length) of an item or its posterior :math:`\hat s = E[\tilde l\mid x]` from a regression that has not seen it, and
    α increases to ``sharpness``. Kinds are posteriors of two modalities (``cross``), posteriors and labels (``mixed``),
    labels and labels. Learned codes are :math:`B = \operatorname{sgn}(A^T\tilde l + b)`.

    Step 2 is AMSH's: :math:`\min\sum\max(0, 1 - B\circ\Phi F)^2 + \rho\lVert F\rVert^2` for each modality. Step 3
    adapts the code functions to the posteriors of each modality, :math:`A_m, b_m`. Hash functions are the average of
    those of step 2 and of :math:`WA_m`, each scaled to a mean projection of 1.

    The cost of steps 1 and 3 does not depend on the number of items. CSR labels stay CSR; no dense matrix of labels by
    labels or items by labels is formed.

    Limitations: items without a common label are unrelated, even if their labels are similar in meaning; without labels
    nothing is learned; pairs are not used. Codes are not balanced, so a frequent label may take a bit of its own.

    Parameters
    ----------
    cross_weight, mixed_weight, label_weight : weights of the three kinds of pairs, at least one of them above 0
    graded : g, from 0 to 1, the fraction of R that depends on the number of common labels. With 0, items that share one
        of several labels may get the same code
    steps : gradient steps of step 1
    batch_size : items drawn from each source per step; all pairs of them are used
    learning_rate : learning rate of Adam at the first step; it decays linearly to a tenth
    sharpness : α at the last step, 1 at the first; with a larger α, tanh is closer to the sign
    posterior_ridge : ρ of the posteriors; or a dict by modality
    n_folds : folds of the posteriors
    n_posteriors : approximate number of posteriors of each modality, and of label patterns, in steps 1 and 3
    label_rank : largest number of labels that are coordinates themselves; with more, step 1 uses the ``label_rank``
        leading directions
    functions : "average" of both; "margin", step 2 alone, as in AMSH; or "posterior", :math:`WA_m` alone
    own_steps : gradient steps of step 3; with 0, :math:`A_m = A` and :math:`b_m = b`
    margins : margins of step 2; False is plain ridge regression
    ridge : of step 2; or a dict by modality
    function_iter : accelerated iterations of step 2
    tol : of step 2, as for the base class
    precision : "float32" or "float64", of kernel features, posteriors and step 2; steps 1 and 3 are float32 in both
    unlabelled : how to treat items without any label: "error"; "allow", codes from their features without training on
        them; or "posterior", train step 2 on the reliable bits of their posteriors' codes, whose projections are at
        least half the mean magnitude
    n_bits, kernel, n_anchors, memory_limit, random_state : as for :class:`~modalhash.methods.base.CrossModalHasher`

    Attributes
    ----------
    objective_ : ``{"codes": trace of step 1, "functions": {modality: trace of step 2}}``. The first is the negative
        log-likelihood of a fixed sample of pairs at the final sharpness, at the start, after every twentieth step and
        at the end
    label_functions_, bias_ : A for label vectors of length 1 (n_classes, n_bits), and b

    Examples
    --------
    >>> from modalhash.data import generate
    >>> data = generate(n_items=200, seed=0)
    >>> model = RLH(n_bits=16, n_anchors=100, random_state=0).fit(data.X, data.Y)
    >>> model.codes_["image"].shape, model.transform({"text": data.X["text"][:5]})["text"].shape
    ((200, 2), (5, 2))
    """

    distributed = True
    shares_lengths = True

    n_bits: int = 64
    _: KW_ONLY
    cross_weight: NonNegative = 1.0
    mixed_weight: NonNegative = 1.0
    label_weight: NonNegative = 1.0
    graded: Share = 0.2
    steps: Count = 600
    batch_size: Count = 128
    learning_rate: Positive = 0.02
    sharpness: Annotated[float, number(1)] = 4.0
    posterior_ridge: PerModality[NonNegative] = 0.1
    n_folds: Annotated[int, integer(2)] = 5
    n_posteriors: Annotated[int, integer(2)] = 20_000
    label_rank: Count = 512
    functions: Literal["average", "margin", "posterior"] = "average"
    own_steps: Annotated[int, integer(0)] = 600
    margins: Flag = True
    kernel: PerModality[str | None] = "auto"
    n_anchors: PerModality[int] = 1500
    ridge: PerModality[NonNegative] = 0.003
    function_iter: Count = 2
    tol: NonNegative = 0.0
    precision: Literal["float32", "float64"] = "float32"
    memory_limit: MemoryLimit = "2GB"
    unlabelled: Literal["error", "allow", "posterior"] = "error"
    random_state: RandomState = None

    def label_codes(self, Y: Any) -> Codes:
        """Return the learned codes of label rows, seen in training or not, the signs of Aᵀl̃ + b."""
        check_is_fitted(self, "label_functions_")
        labels = check_label_rows(Y, len(self.classes_))
        return pack_signs(_code_signs(unit_label_rows(labels), self.label_functions_, self.bias_))

    @worker_threads()
    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        """Learn codes from labels and posteriors, then hash functions; submitted calls run concurrently."""
        ridge, schedule = per_modality(self.ridge, data.X, "ridge"), self._schedule()
        seed = data.once("seed", root_seed, self.random_state)
        space, parts = data.once("posteriors", self._posteriors, data, seed, report)  # l̃; φ, W and ŝ of each modality
        problem = data.once("problem", self._problem, space, parts, seed)
        step_1 = submit(learn_codes, problem, data.n_bits, schedule, partial(report, "codes"))
        inverses = data.once("inverses", lambda: {name: submit(parts[name].inverse, ridge[name]) for name in parts})
        model, trace = step_1()  # A, b, γ, δ
        codes = LabelCodes(space, model)  # B = sgn(Aᵀl̃ + b)
        step_3 = submit(learn_own_codes, problem, model, self._own_steps(), schedule.sharpness)
        functions, traces = {}, {}
        for name, part in parts.items():
            if self.functions != "posterior":
                B = codes.targets(part, unlabelled=self.unlabelled == "posterior")
                step_2 = self._learn_functions(name, part, B, inverses[name], ridge[name], report)
                functions[name], traces[name] = [step_2.F], np.array(step_2.trace)
        if self.functions != "margin":
            for (name, part), (A, b) in zip(parts.items(), step_3(), strict=True):  # A_m, b_m
                functions.setdefault(name, []).append(part.code_functions(A, b))
        F = {name: average_functions(parts[name].phi, functions[name]).astype(self.precision) for name in data.X}
        traces = {name: traces[name] for name in data.X if name in traces}
        return {
            "codes_": {name: _item_codes(codes, space, parts[name], data.X[name], F[name], name) for name in data.X},
            "label_functions_": codes.A,
            "bias_": codes.b,
            "maps_": {name: parts[name].feature_map for name in data.X},
            "functions_": F,
            "objective_": {"codes": trace, "functions": traces},
            "n_iter_": {"codes": self.steps, "functions": {name: len(values) for name, values in traces.items()}},
        }

    def _posteriors(self, data: Training, seed: int, report: Reporter) -> tuple[LabelSpace, dict[str, LabelRegression]]:
        """Return the label space, and the posteriors of the modalities, ordered by content instead of name."""
        X, Y = data.X, {name: sparse.csr_array(labels) for name, labels in (data.Y or {}).items()}
        options: dict[str, Any] = {"seed": seed, "bias": True, "dtype": self.precision}
        maps = kernel_maps(X, Y, kernel=self.kernel, n_anchors=self.n_anchors, **options)
        space, memory = LabelSpace(Y, self.label_rank, seed), check_memory(self.memory_limit)
        share = None if memory is None else memory // len(maps)  # step 1 needs every modality
        ridge = per_modality(self.posterior_ridge, X, "posterior_ridge")
        split = parallel_map(Folds.of, X.values(), Y.values(), repeat(self.n_folds), repeat(seed))
        folds, parts = dict(zip(X, split, strict=True)), {}
        for name in sorted(folds, key=lambda name: folds[name].key):
            phi = folds[name].features(X[name], maps[name], share)
            report("features", 1, 1)
            member, unlabelled = space.members[name][folds[name].order], self.unlabelled == "posterior"
            parts[name] = regress_labels(
                phi, maps[name], folds[name], member, space,
                ridge=ridge[name], n_posteriors=self.n_posteriors, all_items=unlabelled,
            )  # fmt: skip
            report(f"posteriors: {name}", 1, 1)
        return space, parts

    def _problem(self, space: LabelSpace, parts: dict[str, LabelRegression], seed: int) -> RelevanceProblem:
        seeds = [seed, sum(part.folds.key for part in parts.values())]
        rows, counts = space.sample(self.n_posteriors, np.random.default_rng([*seeds, 0]))
        labels = Source.of(space.coordinates(rows) * np.float32(space.scale), rows, counts)
        return RelevanceProblem(
            [part.source for part in parts.values()], labels, Relevance(space.patterns, self.graded), seeds
        )

    def _learn_functions(
        self, name: str, part: LabelRegression, B: Array, inverse: Callable[[], Array], ridge: float, report: Reporter
    ) -> HashFunctions:
        targets = len(part.member) if self.unlabelled == "posterior" else part.folds.n
        return learn_functions(
            part.phi,
            B,
            inverse,
            max_iter=self.function_iter,
            tol=self.tol,
            report=partial(report, f"functions: {name}"),
            ridge=ridge,
            margins=self.margins,
            sample=sample_rows(targets),
        )

    def _own_steps(self) -> int:
        return 0 if self.functions == "margin" else self.own_steps

    def _schedule(self) -> Schedule:
        if not (self.cross_weight or self.mixed_weight or self.label_weight):
            raise ValueError("cross_weight, mixed_weight and label_weight are all 0; expected one above 0")
        return Schedule(
            cross=self.cross_weight,
            mixed=self.mixed_weight,
            labels=self.label_weight,
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            sharpness=self.sharpness,
        )

    def _check(self, X: Any, Y: Any, pairs: Any) -> Training:
        """Check as all methods do, but keep CSR labels and warn about items without labels."""
        model = copy(self)
        model.unlabelled = "error" if self.unlabelled == "error" else "allow"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*have no label; kept")  # true of AMSH, not of RLH
            data = model._check_labels(X, Y, pairs)
        for name, labels in (data.Y or {}).items():
            if count := int((labels.sum(axis=1) == 0).sum()):
                warnings.warn(
                    f"{name!r}: {count} of {labels.shape[0]} items have no label; they get codes from their features",
                    UserWarning,
                    stacklevel=3,
                )
        return data

    def _check_labels(self, X: Any, Y: Any, pairs: Any) -> Training:
        if isinstance(X, TrainingItems):
            X, Y, pairs = X.X, X.Y if Y is None else Y, X.pairs if pairs is None else pairs
        if not (isinstance(Y, Mapping) and Y and all(sparse.issparse(values) for values in Y.values())):
            return super()._check(X, Y, pairs)
        labels = {name: _sparse_labels(values, str(name)) for name, values in Y.items()}
        if len({values.shape[1] for values in labels.values()}) > 1:
            return super()._check(X, Y, pairs)  # raises with their names
        marks = {name: (np.diff(values.indptr) > 0)[:, None] for name, values in labels.items()}
        data = super()._check(X, marks, pairs)
        return replace(data, Y={name: labels[name] for name in data.X})


class LabelCodes:
    """Learned codes of the label patterns.

    Attributes
    ----------
    A, b : code functions of label rows of length 1 (n_classes, r), and (r,)
    positive : (patterns, r), True where a bit is 1
    """

    def __init__(self, space: LabelSpace, model: Model) -> None:
        self.A, self.b, self._model = space.in_classes(model.A * np.float32(space.scale)), model.b.copy(), model
        self.positive = _code_signs(space.Lt, self.A, self.b)

    def targets(self, part: LabelRegression, *, unlabelled: bool) -> Array:
        """Return B of every row, with 0 for items without labels, which are then ignored.

        With ``unlabelled``, these items have the reliable bits of their posteriors' codes.
        """
        B = np.where(self.positive, np.int8(1), np.int8(-1))
        B = np.vstack([B, np.zeros_like(B[:1])])[part.member]
        if unlabelled:
            own = part.phi.project(part.code_functions(self._model.A, self._model.b))
            reliable = np.abs(own) >= RELIABLE * np.abs(own).mean(dtype=np.float64)
            np.copyto(B, (np.sign(own) * reliable).astype(np.int8), where=(part.member < 0)[:, None])
        return B


def average_functions(phi: FeatureRows, functions: list[Array]) -> Array:
    """Return the sum of hash functions of the same features, each scaled to a mean projection of 1."""
    if len(functions) == 1:
        return functions[0]
    rows = phi.take(np.arange(0, phi.n, max(1, phi.n // SCALE_ROWS)))
    first, second = (F / float(np.abs(rows @ F.astype(rows.dtype)).mean()) for F in functions)
    return first + second


def _item_codes(codes: LabelCodes, space: LabelSpace, part: LabelRegression, X: Matrix, F: Array, name: str) -> Codes:
    """Return the learned codes of the items of a modality, or hashed codes for items without labels."""
    found = pack_signs(codes.positive)[space.members[name]]
    unlabelled = part.folds.order[part.folds.n :]
    for some in row_slices(len(unlabelled), UNLABELLED_ROWS):
        rows = unlabelled[some]
        found[rows] = pack_signs(part.feature_map.map(X[rows]) @ F)
    return found


def _code_signs(Lt: sparse.csr_array, A: Array, b: Array) -> Array:
    """Return True where a bit of the learned code is 1, for label rows of length 1."""
    positive: Array = Lt @ A + b > 0
    return positive


def _sparse_labels(values: Any, name: str) -> sparse.csr_array:
    """Return checked labels as canonical boolean CSR without stored zeros."""
    check_sparse(values, f"{name!r}, labels")
    labels = sparse.csr_array(values)
    if labels.shape[1] == 0:
        raise ValueError(f"{name!r}: labels have no columns; expected at least one class")
    if not labels.has_canonical_format:
        labels = labels.copy()
        labels.sum_duplicates()
    wrong = (labels.data != 0) & (labels.data != 1)
    if wrong.any():
        raise ValueError(
            f"{name!r}: labels contain {labels.data[wrong][0]!r}; expected only 0 and 1. "
            "Threshold weights or counts first, e.g. Y > 0"
        )
    labels = labels.astype(bool)
    labels.eliminate_zeros()
    return labels
