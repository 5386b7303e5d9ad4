r"""RLH: Relevance-Likelihood Hashing, a method of this project.

Retrieval asks whether an item shares a label with the query; RLH learns codes whose Hamming distance tells the
probability of just that, by maximum likelihood over pairs of items. Labels, and what features know of labels
(posteriors, each from a regression that has not seen the item), are vectors of one space, which ties modalities
together without any pair.

==================  ============================================  =======================================
symbol              here                                          where
==================  ============================================  =======================================
:math:`r`           ``n_bits``
:math:`\phi`        ``kernel``                                    :mod:`modalhash.kernel_choice`
:math:`\tilde l, R`  label patterns, relevance                    :mod:`.label_space`
:math:`\hat s, W, \rho`  posteriors, ``posterior_ridge``          :mod:`.posteriors`
:math:`A, b, \gamma, \delta, \alpha`  step 1                      :mod:`.codes`
:math:`F, M`        step 2                                        :mod:`modalhash.methods._amsh_functions`
:math:`A_m, b_m`    step 3                                        :mod:`.own_codes`
==================  ============================================  =======================================

AMSH (Luo et al., 2023) asks balanced codes to reproduce cosines of label vectors. Balance forgets that some labels are
frequent, and a cosine is not what a ranking by relevance needs: both are gone here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import repeat
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from modalhash._parallel import parallel_map
from modalhash._typing import Array, Codes, Matrix, PerModality
from modalhash.base import CrossModalHasher, Training
from modalhash.blocks import row_slices
from modalhash.codes import pack_signs
from modalhash.features import FeatureMap
from modalhash.items import Items
from modalhash.kernel_choice import kernel_maps
from modalhash.methods._amsh_functions import learn_functions, sample_rows
from modalhash.methods._background import background
from modalhash.methods.rlh.codes import Model, Problem, Schedule, Source, learn_codes
from modalhash.methods.rlh.label_space import LabelSpace, Relevance, unit_label_rows
from modalhash.methods.rlh.own_codes import learn_own_codes
from modalhash.methods.rlh.posteriors import Folds, LabelRegression, regress_labels
from modalhash.progress import Callback, Reporter
from modalhash.randomness import RandomState, root_seed
from modalhash.validation import (
    check_choice,
    check_int,
    check_label_rows,
    check_memory,
    check_number,
    check_sparse,
    per_modality,
)

UNLABELLED_ROWS = 4096
"""Items without labels that are hashed at once."""
RELIABLE = 0.5
"""For unlabelled items, a bit is reliable if its projection is at least RELIABLE times the mean projection of the
modality, in magnitude (chosen on folds by benchmarks/quality/rlh_few_labels.py)."""
SCALE_ROWS = 2000
"""Items by which the two parts of averaged hash functions are brought to one scale."""


class RLH(CrossModalHasher):
    r"""Learn codes whose Hamming distance tells how likely two items share a label; modalities need no pairing.

    Step 1 minimises, over the code functions A and b of the label space and γ, δ of every kind of pair,

    .. math::
        -\sum_{kind} w_{kind}\,\operatorname{mean}_{(i,j)\in kind}
        \Bigl[R_{ij}\log p_{ij} + (1-R_{ij})\log(1-p_{ij})\Bigr],
        \qquad p_{ij} = \sigma\Bigl(\gamma_{kind}\tfrac{u_i^Tu_j}{r} + \delta_{kind}\Bigr),
        \quad u = \tanh\bigl(\alpha(A^Ts + b)\bigr)

    with R = 0 where two items share no label and :math:`1 - g + g\,|i\cap j|/|i\cup j|` where they do; s is the label
    vector (unit length) of an item or its posterior :math:`\hat s = E[\tilde l\mid x]` from a regression that has not
    seen it, and α rises to ``sharpness``. Kinds are posteriors of two modalities (``cross``), posteriors and labels
    (``mixed``), labels and labels. Learned codes are :math:`B = \operatorname{sgn}(A^T\tilde l + b)`.

    Step 2 is AMSH's: :math:`\min\sum\max(0, 1 - B\circ\Phi F)^2 + \rho\lVert F\rVert^2` for each modality. Step 3 tunes
    code functions :math:`A_m, b_m` of each modality's own for its posteriors. Hash functions are the average of those
    of step 2 and of :math:`WA_m`, each scaled to a mean projection of 1.

    The cost of steps 1 and 3 does not depend on the number of items. No matrix is dense in labels by labels or items by
    labels; CSR labels stay CSR.

    What it cannot do: items that share no label are unrelated, however near their labels are in meaning; without labels
    it learns nothing; given pairs are not used. Codes are not balanced: a frequent label may hold a bit for itself.

    Parameters
    ----------
    n_bits : length of the codes, below the number of items of every modality
    cross_weight, mixed_weight, label_weight : of the three kinds of pairs; at least one is above 0
    graded : g, from 0 to 1: the share of R that depends on how many of their labels two items share. With 0, label sets
        that share one label of several may get the same code
    steps : gradient steps of step 1
    batch_size : items drawn of each source per step; all are paired with all
    learning_rate : of Adam at the first step; it falls linearly to a tenth
    sharpness : α at the last step; it starts at 1. The larger, the nearer is tanh to the sign
    posterior_ridge : ρ of the posteriors; or a dict by modality
    n_folds : folds of the posteriors
    n_posteriors : items of a modality, about, whose posteriors steps 1 and 3 draw from; and label patterns likewise
    label_rank : labels up to which each is a coordinate of its own; with more, step 1 sees their leading ``label_rank``
        directions
    functions : "average" of both; "margin", step 2 alone, as AMSH has it; or "posterior", :math:`WA_m` alone
    own_steps : gradient steps of step 3; with 0 the posteriors keep the A and b of step 1
    margins : of step 2; False is plain ridge regression
    kernel : "auto", chosen for each modality by how well it ranks held-out items; a name in
        :data:`modalhash.kernel_choice.KERNELS`, e.g. "rbf"; None for the features themselves; or a dict by modality
    n_anchors : anchors of the kernel, at most the number of items; or a dict by modality
    ridge : of step 2; or a dict by modality
    function_iter : iterations of step 2, accelerated as AMSH's are
    tol : stop step 2 when its objective falls by less than this share; 0 never stops early
    precision : "float32" or "float64", of kernel features, posteriors and step 2; steps 1 and 3 are float32 in both
    memory_limit : bytes, or a text such as "2GB", for kernel features of all modalities held during the fit; the rest
        is recomputed in every pass. None for no limit. On a Dask cluster it holds for each worker
    unlabelled : for items without any label: "error"; "allow", which leaves them out and gives them codes from their
        features; or "posterior", by which they take part in step 2 with the reliable bits of their posteriors' codes,
        those at least half as far from 0 as the mean bit
    random_state : int, Generator or None

    Attributes
    ----------
    codes_ : learned codes of the training items, by modality; functions of the labels
    objective_ : ``{"codes": trace of step 1, "functions": {modality: trace of step 2}}``. The first is the negative
        log-likelihood of pairs drawn before the first step, with the final sharpness: at the start, after every
        twentieth step and at the end
    n_iter_ : iterations done, keyed like ``objective_``
    label_functions_, bias_ : A in units of label vectors of length 1 (n_classes, n_bits), and b
    maps_, functions_ : feature map and F, by modality
    classes_, n_features_in_ : label columns; features by modality

    Examples
    --------
    >>> from modalhash.data import generate
    >>> data = generate(n_items=200, seed=0)
    >>> model = RLH(n_bits=16, n_anchors=100, random_state=0).fit(data.X, data.Y)
    >>> model.codes_["image"].shape, model.transform({"text": data.X["text"][:5]})["text"].shape
    ((200, 2), (5, 2))

    References
    ----------
    Step 2: K. Luo, C. Zhang, H. Li, X. Jia, C. Chen. Adaptive Marginalized Semantic Hashing for Unpaired Cross-Modal
    Retrieval. IEEE Transactions on Multimedia, 2023. Step 1 is of this project.
    """

    distributed = True

    objective_: dict[str, Any]
    n_iter_: dict[str, Any]
    label_functions_: Array
    bias_: Array
    maps_: dict[str, FeatureMap]
    functions_: dict[str, Array]

    def __init__(
        self,
        n_bits: int = 64,
        *,
        cross_weight: float = 1.0,
        mixed_weight: float = 1.0,
        label_weight: float = 1.0,
        graded: float = 0.2,
        steps: int = 600,
        batch_size: int = 128,
        learning_rate: float = 0.02,
        sharpness: float = 4.0,
        posterior_ridge: PerModality[float] = 0.1,
        n_folds: int = 5,
        n_posteriors: int = 20_000,
        label_rank: int = 512,
        functions: str = "average",
        own_steps: int = 600,
        margins: bool = True,
        kernel: PerModality[str | None] = "auto",
        n_anchors: PerModality[int] = 1500,
        ridge: PerModality[float] = 0.003,
        function_iter: int = 2,
        tol: float = 0.0,
        precision: str = "float32",
        memory_limit: int | str | None = "2GB",
        unlabelled: str = "error",
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.cross_weight = cross_weight
        self.mixed_weight = mixed_weight
        self.label_weight = label_weight
        self.graded = graded
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.sharpness = sharpness
        self.posterior_ridge = posterior_ridge
        self.n_folds = n_folds
        self.n_posteriors = n_posteriors
        self.label_rank = label_rank
        self.functions = functions
        self.own_steps = own_steps
        self.margins = margins
        self.kernel = kernel
        self.n_anchors = n_anchors
        self.ridge = ridge
        self.function_iter = function_iter
        self.tol = tol
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
        """Return one fitted model for each code length; features, Gram matrices and posteriors are computed once.

        All lengths see the same batches in step 1 and share every pass over the data in step 2. The models are those
        that :meth:`fit` gives at each length with the same int as ``random_state``. This estimator stays as it was.

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
        >>> models = RLH(n_anchors=100, random_state=0).fit_path(data.X, data.Y, n_bits=(8, 16))
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

    def label_codes(self, Y: Any) -> Codes:
        """Return the learned codes of label rows, seen in training or not: the signs of Aᵀl̃ + b.

        Examples
        --------
        >>> from modalhash.data import generate
        >>> data = generate(n_items=200, seed=0)
        >>> model = RLH(n_bits=16, n_anchors=100, random_state=0).fit(data.X, data.Y)
        >>> bool((model.label_codes(data.Y["image"]) == model.codes_["image"]).all())
        True
        """
        check_is_fitted(self, "label_functions_")
        labels = check_label_rows(Y, len(self.classes_))
        return pack_signs(_code_signs(unit_label_rows(labels), self.label_functions_, self.bias_))

    def _fit(self, data: Training, report: Reporter) -> dict[str, Any]:
        return self._fit_lengths(data, [data.n_bits], report)[data.n_bits]

    def _fit_lengths(self, data: Training, lengths: list[int], report: Reporter) -> dict[int, dict[str, Any]]:
        """Return the learned attributes for every code length."""
        seed, ridges, schedule = root_seed(self.random_state), self._ridges("ridge", data.X), self._schedule()
        options: dict[str, Any] = {"seed": seed, "bias": True, "dtype": self.precision}
        Y = {name: sparse.csr_array(labels) for name, labels in (data.Y or {}).items()}
        maps = kernel_maps(data.X, Y, kernel=self.kernel, n_anchors=self.n_anchors, **options)  # φ
        space = LabelSpace(Y, check_int(self.label_rank, "label_rank", at_least=1), seed)  # l̃
        with background() as submit:
            parts = self._regressions(data.X, Y, maps, space, seed, report)  # Φ, W, ŝ
            problem = self._problem(space, parts, seed)
            step_1 = submit(self._learn_codes, problem, lengths, schedule, report)
            inverses = {name: submit(part.inverse, ridges[name]) for name, part in parts.items()}  # for step 2
            codes = [_Codes(space, model, trace, schedule.steps) for model, trace in step_1()]  # A, b, B
            step_3 = submit(self._learn_own_codes, problem, [found.model for found in codes], schedule.sharpness)
            if self.functions != "posterior":
                for name, part in parts.items():
                    self._learn_margin_functions(name, part, inverses[name], ridges[name], codes, report)  # step 2: F
            if self.functions != "margin":
                for found, own in zip(codes, step_3(), strict=True):  # A_m, b_m
                    for (name, part), functions in zip(parts.items(), own, strict=True):
                        found.add_functions(name, part, part.code_functions(*functions))
        return {found.model.r: found.attributes(data.X, maps, parts, self.precision) for found in codes}

    def _regressions(
        self,
        X: dict[str, Matrix],
        Y: dict[str, sparse.csr_array],
        maps: dict[str, FeatureMap],
        space: LabelSpace,
        seed: int,
        report: Reporter,
    ) -> dict[str, LabelRegression]:
        """Learn the posteriors of every modality; modalities are ordered by content, whatever they are called."""
        n_folds, memory = check_int(self.n_folds, "n_folds", at_least=2), check_memory(self.memory_limit)
        count = check_int(self.n_posteriors, "n_posteriors", at_least=2)
        share = None if memory is None else memory // len(maps)  # step 1 holds every modality in memory
        ridges = self._ridges("posterior_ridge", X)
        folds = dict(zip(X, parallel_map(Folds.of, X.values(), Y.values(), repeat(n_folds), repeat(seed)), strict=True))
        parts: dict[str, LabelRegression] = {}
        for name in sorted(folds, key=lambda name: folds[name].key):
            phi = folds[name].features(X[name], maps[name], share)
            report("features", 1, 1)
            parts[name] = regress_labels(
                phi,
                folds[name],
                space.members[name][folds[name].order],
                space,
                ridge=ridges[name],
                n_posteriors=count,
                all_items=self.unlabelled == "posterior",
            )
            report(f"posteriors: {name}", 1, 1)
        return parts

    def _problem(self, space: LabelSpace, parts: dict[str, LabelRegression], seed: int) -> Problem:
        """Return the sources of steps 1 and 3: posteriors of every modality, and label patterns."""
        seeds = [seed, sum(part.folds.key for part in parts.values())]
        rows, counts = space.sample(self.n_posteriors, np.random.default_rng([*seeds, 0]))
        labels = Source.of(space.coordinates(rows) * np.float32(space.scale), rows, counts)
        relevance = Relevance(space.patterns, float(self.graded))
        return Problem([part.source for part in parts.values()], labels, relevance, seeds)

    def _learn_codes(
        self, problem: Problem, lengths: list[int], schedule: Schedule, report: Reporter
    ) -> list[tuple[Model, Array]]:
        """Step 1 at every code length, with one BLAS thread because products are small and must round alike."""
        with threadpool_limits(1, user_api="blas"):
            return learn_codes(
                problem, lengths, schedule, lambda step, value: report("codes", step, schedule.steps, value)
            )

    def _learn_own_codes(
        self, problem: Problem, models: list[Model], sharpness: float
    ) -> list[list[tuple[Array, Array]]]:
        """Step 3 at every code length: A and b of each modality."""
        steps = check_int(self.own_steps, "own_steps", at_least=0)
        if self.functions == "margin":
            return []
        with threadpool_limits(1, user_api="blas"):
            return [learn_own_codes(problem, model, steps=steps, sharpness=sharpness) for model in models]

    def _learn_margin_functions(
        self,
        name: str,
        part: LabelRegression,
        inverse: Callable[[], Array],
        ridge: float,
        codes: list[_Codes],
        report: Reporter,
    ) -> None:
        """Step 2 for the codes of all lengths at once: each pass over the data serves all of them."""
        steps, unlabelled = check_int(self.function_iter, "function_iter", at_least=1), self.unlabelled == "posterior"
        margin = learn_functions(
            part.phi,
            [found.targets(part, unlabelled=unlabelled) for found in codes],
            inverse,
            ridge=ridge,
            max_iter=steps,
            tol=check_number(self.tol, "tol"),
            margins=self.margins,
            sample=sample_rows(len(part.member) if unlabelled else part.folds.n),  # rows that have targets
            report=lambda step, value: report(f"functions: {name}", step, steps, value),
        )
        for found, (F, trace) in zip(codes, margin, strict=True):
            found.add_functions(name, part, F)
            found.traces[name] = np.array(trace)

    def _check(self, X: Any, Y: Any, pairs: Any) -> Training:
        """Check as all methods do, but leave CSR labels as they are and say what becomes of items without labels."""
        check_choice(self.unlabelled, "unlabelled", ("error", "allow", "posterior"))
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
        if isinstance(X, Items):
            X, Y, pairs = X.X, X.Y if Y is None else Y, X.pairs if pairs is None else pairs
        if not (isinstance(Y, Mapping) and Y and all(sparse.issparse(values) for values in Y.values())):
            return super()._check(X, Y, pairs)
        labels = {name: _sparse_labels(values, str(name)) for name, values in Y.items()}
        if len({values.shape[1] for values in labels.values()}) > 1:
            return super()._check(X, Y, pairs)  # says which
        marks = {name: (np.diff(values.indptr) > 0)[:, None] for name, values in labels.items()}
        data = super()._check(X, marks, pairs)
        return replace(data, Y={name: labels[name] for name in data.X})

    def _schedule(self) -> Schedule:
        """Return the checked parameters of step 1; others that are only choices are checked here as well."""
        check_choice(self.functions, "functions", ("average", "margin", "posterior"))
        check_choice(self.margins, "margins", (True, False))
        check_choice(self.precision, "precision", ("float32", "float64"))
        if check_number(self.graded, "graded") > 1:
            raise ValueError(f"graded is {self.graded}; expected a share from 0 to 1")
        schedule = Schedule(
            cross=check_number(self.cross_weight, "cross_weight"),
            mixed=check_number(self.mixed_weight, "mixed_weight"),
            labels=check_number(self.label_weight, "label_weight"),
            steps=check_int(self.steps, "steps", at_least=1),
            batch_size=check_int(self.batch_size, "batch_size", at_least=1),
            learning_rate=check_number(self.learning_rate, "learning_rate", positive=True),
            sharpness=check_number(self.sharpness, "sharpness", at_least=1.0),
        )
        if not (schedule.cross or schedule.mixed or schedule.labels):
            raise ValueError("cross_weight, mixed_weight and label_weight are all 0; expected one above 0")
        return schedule

    def _ridges(self, parameter: str, X: Mapping[str, Any]) -> dict[str, float]:
        values = per_modality(getattr(self, parameter), X, parameter)
        return {name: check_number(value, parameter) for name, value in values.items()}


class _Codes:
    """What is learned at one code length: functions of labels first, then of the features of each modality."""

    def __init__(self, space: LabelSpace, model: Model, trace: Array, steps: int) -> None:
        self.model, self.trace, self.steps = model, trace, steps
        self.A = space.in_classes(model.A * np.float32(space.scale))
        self.positive = _code_signs(space.Lt, self.A, model.b)  # of every label pattern
        self.members = space.members
        self.functions: dict[str, Array] = {}
        self.traces: dict[str, Array] = {}

    def targets(self, part: LabelRegression, *, unlabelled: bool) -> Array:
        """Return B of every row, and zeros for items without labels, which then pull nowhere.

        With ``unlabelled`` these have the reliable bits of their posteriors' codes instead.
        """
        B = np.where(self.positive, np.int8(1), np.int8(-1))
        B = np.vstack([B, np.zeros_like(B[:1])])[part.member]
        if unlabelled:
            own = part.phi.project(part.code_functions(self.model.A, self.model.b))
            reliable = np.abs(own) >= RELIABLE * np.abs(own).mean(dtype=np.float64)
            np.copyto(B, (np.sign(own) * reliable).astype(np.int8), where=(part.member < 0)[:, None])
        return B

    def add_functions(self, name: str, part: LabelRegression, F: Array) -> None:
        """Take these hash functions, or their average with those of a modality that has some already."""
        if name in self.functions:
            rows = part.phi.take(np.arange(0, part.phi.n, max(1, part.phi.n // SCALE_ROWS)))
            first, second = (M / float(np.abs(rows @ M.astype(rows.dtype)).mean()) for M in (self.functions[name], F))
            F = first + second
        self.functions[name] = F

    def attributes(
        self, X: Mapping[str, Matrix], maps: dict[str, FeatureMap], parts: dict[str, LabelRegression], precision: str
    ) -> dict[str, Any]:
        """Return the attributes of the estimator; items without labels get their codes from their features."""
        functions = {name: self.functions[name].astype(precision) for name in X}
        codes = {name: pack_signs(self.positive)[self.members[name]] for name in X}
        for name, part in parts.items():
            unlabelled = part.folds.order[part.folds.n :]
            for some in row_slices(len(unlabelled), UNLABELLED_ROWS):
                rows = unlabelled[some]
                codes[name][rows] = pack_signs(maps[name].map(X[name][rows]) @ functions[name])
        traces = {name: self.traces[name] for name in X if name in self.traces}
        return {
            "codes_": codes,
            "label_functions_": self.A,
            "bias_": self.model.b.copy(),
            "maps_": maps,
            "functions_": functions,
            "objective_": {"codes": self.trace, "functions": traces},
            "n_iter_": {"codes": self.steps, "functions": {name: len(trace) for name, trace in traces.items()}},
        }


def _code_signs(Lt: sparse.csr_array, A: Array, b: Array) -> Array:
    """Return which bits of the learned codes are 1, for label rows of length 1."""
    positive: Array = Lt @ A + b > 0
    return positive


def _sparse_labels(values: Any, name: str) -> sparse.csr_array:
    """Checked labels as canonical CSR of truth values, without zeros."""
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
