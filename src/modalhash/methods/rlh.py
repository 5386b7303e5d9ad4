r"""RLH: Relevance-Likelihood Hashing, a method of this project.

Retrieval asks whether an item shares a label with the query; RLH learns codes whose Hamming distance tells the
probability of just that, by maximum likelihood over pairs of items. Labels, and what features know of labels
(posteriors, each from a regression that has not seen the item), are vectors of one space, which ties modalities
together without any pair, and one set of functions makes codes of all of them. Step 2 is AMSH's: hash functions.

==================  ============================================  =======================================
symbol              here                                          where
==================  ============================================  =======================================
:math:`r`           ``n_bits``
:math:`\tilde l, \hat s`  label patterns, posteriors              :mod:`._rlh_posteriors`
:math:`\rho`        ``posterior_ridge``                           :mod:`._rlh_posteriors`
:math:`A, b, \gamma, \delta, \alpha`  step 1                      :mod:`._rlh_codes`
:math:`w_{kind}`    ``cross_weight, mixed_weight, label_weight``  :mod:`._rlh_codes`
:math:`F, M`        step 2                                        :mod:`._amsh_functions`
:math:`\phi`        :class:`modalhash.features.AnchorKernel` and a bias: codes are not balanced
==================  ============================================  =======================================

AMSH (Luo et al., 2023) asks balanced codes to reproduce cosines of label vectors. Balance forgets that some labels are
frequent, and a cosine is not what a ranking by relevance needs: both are gone here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import repeat, zip_longest
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from modalhash._parallel import parallel_map
from modalhash._typing import Array, Codes, PerModality
from modalhash.base import CrossModalHasher, Training
from modalhash.blocks import row_slices
from modalhash.codes import pack_signs
from modalhash.features import AnchorKernel, FeatureMap, Linear, anchors_by_modality
from modalhash.items import Items
from modalhash.linalg import RidgeFactor
from modalhash.methods._amsh_functions import learn_functions, sample_rows
from modalhash.methods._background import background
from modalhash.methods._rlh_codes import LABELS, Model, Relevance, Schedule, Source, Weights, kinds_of, learn
from modalhash.methods._rlh_posteriors import Folds, LabelSpace, Modality, inverse_deviation, unit_label_rows
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
CLEAR = 0.5
"""A bit of an item without labels is clear if its projection is at least so many times the mean of the modality
(chosen on folds: benchmarks/quality/rlh_few_labels.py)."""


@dataclass(frozen=True)
class _Part:
    """What the two steps need of one modality."""

    modality: Modality
    source: Source
    scale: float  # of the posteriors in the source
    mean: Array  # subtracted from them: 0 unless codes are balanced
    W: Array | None  # from features to posteriors, learned from all items
    gram: Array  # G of the features
    ridge: float

    def inverse(self) -> Array:
        """(G + ridge I)⁻¹."""
        return RidgeFactor(self.gram, self.ridge).inverse()

    def code_functions(self, model: Model) -> Array:
        """F of the codes that the posteriors have: A and b after W."""
        assert self.W is not None  # functions="posterior"
        F = self.W.astype(np.float64) @ (model.A.astype(np.float64) * self.scale)
        F[-1] += model.b - self.mean @ model.A  # the last feature is 1
        return F


@dataclass(frozen=True)
class _Begun:
    """What does not depend on the code length."""

    space: LabelSpace
    parts: dict[str, _Part]  # in the order of their content
    labels: Source
    label_scale: float
    label_mean: Array
    relevance: Relevance
    seeds: list[int]  # of step 1's draws

    def learned(self, model: Model) -> tuple[dict[str, Any], Array]:
        """What step 1 learned of one length, as attributes of the estimator; and which bits of every pattern are 1."""
        A = self.space.in_classes(model.A * np.float32(self.label_scale))
        b = model.b - self.label_mean @ model.A
        positive = _code_signs(self.space.Lt, A, b)
        codes = pack_signs(positive)
        return {
            "codes_": {name: codes[member] for name, member in self.space.members.items()},
            "label_functions_": A,
            "bias_": b,
            "relevance_": self.calibration(model),
        }, positive

    def calibration(self, model: Model) -> dict[str, Array]:
        """γ and δ of every kind of pair, by the names of its sources."""
        names = {LABELS: "", **dict(enumerate(self.parts))}
        kinds = [f"{names[kind.first]}+{names[kind.second]}" for kind in kinds_of(len(self.parts))]
        return {kind: np.array(pair) for kind, *pair in zip(kinds, model.gain, model.offset, strict=True)}


class RLH(CrossModalHasher):
    r"""Codes whose Hamming distance tells how likely two items share a label; modalities need no pairing.

    Step 1 minimises, over the code functions A and b of the label space and γ, δ of every kind of pair,

    .. math::
        -\sum_{kind} w_{kind}\,\operatorname{mean}_{(i,j)\in kind}
        \Bigl[R_{ij}\log p_{ij} + (1-R_{ij})\log(1-p_{ij})\Bigr],
        \qquad p_{ij} = \sigma\Bigl(\gamma_{kind}\tfrac{u_i^Tu_j}{r} + \delta_{kind}\Bigr),
        \quad u = \tanh\bigl(\alpha(A^Ts + b)\bigr)

    with R = 0 where two items share no label and :math:`1 - g + g\,|i\cap j|/|i\cup j|` where they do, by how
    many of their labels they share; s is the label vector (unit length) of an item or its posterior
    :math:`\hat s = E[\tilde l\mid x]` from a regression that has not seen it, and α rising to ``sharpness``. Kinds are
    posteriors of two modalities (``cross``), posteriors and labels (``mixed``), labels and labels. Learned codes are
    :math:`B = \operatorname{sgn}(A^T\tilde l + b)`. Step 2 is AMSH's: :math:`\min\sum\max(0, 1 - B\circ\Phi F)^2 +
    \rho\lVert F\rVert^2` for each modality.

    The cost of step 1 does not depend on the number of items. Nothing of it is dense in labels by labels or items by
    labels; CSR labels stay CSR.

    What it cannot do: items that share no label are unrelated, however near their labels are in meaning; how many
    labels two items share counts only as far as posteriors make it; without labels it learns nothing; given pairs are
    not used. Codes are not balanced: a frequent label may hold a bit for itself.

    Parameters
    ----------
    n_bits : length of the codes, below the number of items of every modality
    cross_weight, mixed_weight, label_weight : of the three kinds of pairs; at least one is above 0
    graded : g, from 0 to 1: the share of R that is by how many of their labels two items share. With 0 label sets that
        share one label of several may get the same code
    loss : "logistic", the likelihood; or "squared", :math:`(\gamma u_i^Tu_j/r + \delta - (2R - 1))^2/4`, for comparison
    balance : subtract the mean of every source and leave b out, so that bits are about as often 1 as −1; for comparison
    steps : gradient steps of step 1
    batch_size : items drawn of each source per step; all are paired with all
    learning_rate : of Adam at the first step; it falls linearly to a tenth
    sharpness : α at the last step; it starts at 1. The larger, the nearer is tanh to the sign
    posterior_ridge : ρ of the posteriors; or a dict by modality
    n_folds : folds of the posteriors
    n_posteriors : items of a modality, about, whose posteriors step 1 draws from; and label patterns likewise
    label_rank : labels up to which each is a coordinate of its own; with more, step 1 sees their leading ``label_rank``
        directions
    functions : "margin", step 2 as AMSH has it; or "posterior", the code functions A applied to the posterior: no
        second regression
    margins : of step 2; False is plain ridge regression
    kernel : "rbf", "rbf-unsquared" or None; or a dict by modality
    n_anchors : anchors of the kernel, capped at the number of items; or a dict by modality
    bandwidth : of the kernel, as :class:`modalhash.features.AnchorKernel` takes it; or a dict by modality. "pairs" is a
        narrower kernel, for features that tell labels well
    ridge : of step 2; or a dict by modality
    function_iter : iterations of step 2, accelerated as AMSH's are
    tol : stop step 2 when its objective falls by less than this share; 0 never stops early
    precision : "float32" or "float64", of kernel features, posteriors and step 2; step 1 is float32 in both
    memory_limit : bytes, or a text such as "2GB", for kernel features of all modalities held during the fit; what does
        not fit is computed anew in every pass. None for no limit. On a Dask cluster it holds for each worker
    unlabelled : for items without any label: "error"; "allow", which leaves them out and gives them codes from their
        features; or "posterior", by which they take part in step 2 with those bits of their posteriors' codes that are
        clear: at least half as far from 0 as the mean bit
    random_state : int, Generator or None

    Attributes
    ----------
    codes_ : learned codes of the training items, by modality; functions of the labels
    objective_ : ``{"codes": trace of step 1, "functions": {modality: trace of step 2}}``. The first is the negative
        log-likelihood of pairs drawn before the first step, with the final sharpness: at the start, after every
        twentieth step and at the end
    n_iter_ : iterations done, keyed like ``objective_``
    label_functions_, bias_ : A in units of label vectors of length 1 (n_classes, n_bits), and b
    relevance_ : γ and δ of every kind of pair, keyed ``"image+text"``, ``"image+"`` (posteriors and labels) and ``"+"``
        (labels). They belong to step 1's smooth codes, not to the final ones: no calibrated probabilities
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
    relevance_: dict[str, Array]
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
        loss: str = "logistic",
        balance: bool = False,
        steps: int = 600,
        batch_size: int = 128,
        learning_rate: float = 0.02,
        sharpness: float = 4.0,
        posterior_ridge: PerModality[float] = 0.01,
        n_folds: int = 5,
        n_posteriors: int = 20_000,
        label_rank: int = 512,
        functions: str = "margin",
        margins: bool = True,
        kernel: PerModality[str | None] = "rbf",
        n_anchors: PerModality[int] = 1500,
        bandwidth: PerModality[float | str] = "anchors",
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
        self.loss = loss
        self.balance = balance
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.sharpness = sharpness
        self.posterior_ridge = posterior_ridge
        self.n_folds = n_folds
        self.n_posteriors = n_posteriors
        self.label_rank = label_rank
        self.functions = functions
        self.margins = margins
        self.kernel = kernel
        self.n_anchors = n_anchors
        self.bandwidth = bandwidth
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
        """Return one fitted model for each code length; features, Gram matrices and posteriors are made once for all.

        All lengths see the same batches in step 1. Where the features stay in memory, step 2 of the longest codes goes
        beside step 1 of the others; else all lengths share every pass over the data, in which features are made anew.
        The models are those that :meth:`fit` gives at each length with the same int as ``random_state``. This estimator
        itself stays as it was.

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
        """Learned attributes for every code length."""
        weights, schedule = self._weights(), self._schedule()
        seed = root_seed(self.random_state)
        maps = self._feature_maps(data, seed)
        learned: dict[int, dict[str, Any]] = {}
        with background() as begin:
            begun = self._begin(data, maps, seed, report)
            groups = self._groups(begun, lengths)
            step_1 = begin(self._learn_codes, begun, weights, schedule, groups[0], report)
            inverses: dict[str, Callable[[], Array]] = {}
            if self.functions == "margin":  # step 1 is one thread's work: what step 2 needs is made beside
                inverses = {name: begin(part.inverse) for name, part in begun.parts.items()}
            for group, following in zip_longest(groups, groups[1:]):
                results = step_1()
                if following:  # beside this group's step 2
                    step_1 = begin(self._learn_codes, begun, weights, schedule, following, report)
                codes: list[tuple[Model, Array]] = []
                for n_bits, (model, trace) in zip(group, results, strict=True):
                    learned[n_bits], positive = begun.learned(model)
                    learned[n_bits] |= {
                        "functions_": {},
                        "maps_": maps,
                        "objective_": {"codes": np.array(trace), "functions": {}},
                        "n_iter_": {"codes": schedule.steps, "functions": {}},
                    }
                    codes.append((model, positive))
                for name, X in data.X.items():
                    part = begun.parts[name]
                    functions = self._hash_functions(name, part, inverses.get(name), codes, report)
                    rows = part.modality.folds.order[part.modality.folds.n :]
                    del part
                    if not following:  # features of this modality: the next may need their memory
                        del begun.parts[name]
                    for n_bits, (F, steps) in zip(group, functions, strict=True):
                        found, F = learned[n_bits], F.astype(self.precision)
                        found["functions_"][name] = F
                        if self.functions == "margin":
                            found["objective_"]["functions"][name] = np.array(steps)
                            found["n_iter_"]["functions"][name] = len(steps)
                        for some in row_slices(len(rows), UNLABELLED_ROWS):  # no labels to take a code from
                            found["codes_"][name][rows[some]] = pack_signs(maps[name].map(X[rows[some]]) @ F)
        return learned

    def _groups(self, begun: _Begun, lengths: list[int]) -> list[list[int]]:
        """Return the lengths that go through step 2 together.

        The longest goes first, so that step 1 of the others has its step 2 to go beside; unless every pass over the
        data has features to make, which is then done for all lengths at once.
        """
        longest = max(lengths)
        others = [n_bits for n_bits in lengths if n_bits != longest]
        if not others or not all(part.modality.phi.held for part in begun.parts.values()):
            return [lengths]
        return [[longest], others]

    def _begin(self, data: Training, maps: dict[str, FeatureMap], seed: int, report: Reporter) -> _Begun:
        """Everything that does not depend on the code length: label space, features, their sums, posteriors."""
        Y = {name: sparse.csr_array(labels) for name, labels in (data.Y or {}).items()}
        n_folds, memory = check_int(self.n_folds, "n_folds", at_least=2), check_memory(self.memory_limit)
        count = check_int(self.n_posteriors, "n_posteriors", at_least=2)
        posterior_ridge, ridge = self._ridges("posterior_ridge", data), self._ridges("ridge", data)
        space = LabelSpace(Y, check_int(self.label_rank, "label_rank", at_least=1), seed)
        sorted_items = parallel_map(Folds.of, data.X.values(), Y.values(), repeat(n_folds), repeat(seed))
        folds = dict(zip(Y, sorted_items, strict=True))
        take_part = self.unlabelled == "posterior"
        whole = self.functions == "posterior" or take_part
        share = None if memory is None else memory // len(maps)  # of all modalities at once: step 1 sees them all
        parts: dict[str, _Part] = {}
        for name in sorted(folds, key=lambda name: folds[name].key):  # whatever they are called and in whatever order
            modality = Modality.of(data.X[name], folds[name], space.members[name], space, maps[name], share)
            report("features", 1, 1)
            W, G = modality.solve(posterior_ridge[name], whole=whole, unlabelled=take_part)
            S, member = modality.posteriors(W, count)
            scale = inverse_deviation(float(S.var(dtype=np.float64)))
            source, mean = self._centred(Source.of(S * np.float32(scale), member))
            parts[name] = _Part(modality, source, scale, mean, W[-1] if whole else None, G, ridge[name])
            report(f"posteriors: {name}", 1, 1)
        seeds = [seed, sum(part.modality.folds.key for part in parts.values())]
        rows, counts = space.sample(count, np.random.default_rng([*seeds, 0]))
        scale = space.scale()
        labels, mean = self._centred(Source.of(space.coordinates(rows) * np.float32(scale), rows, counts))
        relevance = Relevance(space.patterns, float(self.graded))
        return _Begun(space, parts, labels, scale, mean, relevance, seeds)

    def _centred(self, source: Source) -> tuple[Source, Array]:
        if self.balance:
            return source.centred()
        return source, np.zeros(source.S.shape[1], dtype=np.float32)

    def _learn_codes(
        self, begun: _Begun, weights: Weights, schedule: Schedule, lengths: list[int], report: Reporter
    ) -> list[tuple[Model, list[float]]]:
        """Step 1 at every code length."""
        with threadpool_limits(1, user_api="blas"):  # products are small; and their rounding is then always the same
            return learn(
                [part.source for part in begun.parts.values()],
                begun.labels,
                begun.relevance,
                lengths,
                weights,
                schedule,
                begun.seeds,
                report=lambda step, value: report("codes", step, schedule.steps, value),
            )

    def _hash_functions(
        self,
        name: str,
        part: _Part,
        inverse: Callable[[], Array] | None,
        codes: list[tuple[Model, Array]],
        report: Reporter,
    ) -> list[tuple[Array, list[float]]]:
        """Step 2 for codes of some lengths: F and the objective's trace for each."""
        if inverse is None:  # functions="posterior"
            return [(part.code_functions(model), []) for model, _ in codes]
        member = part.modality.member
        signs = [np.where(positive, np.int8(1), np.int8(-1)) for _, positive in codes]
        # zeros for items without labels: they pull nowhere, and add the same to every value of the trace
        targets = [np.vstack([B, np.zeros_like(B[:1])])[member] for B in signs]
        if part.W is not None:  # items without labels take part: by the clear bits of their posteriors
            for (model, _), B in zip(codes, targets, strict=True):
                own = part.modality.phi.project(part.code_functions(model))
                clear = np.abs(own) >= CLEAR * np.abs(own).mean(dtype=np.float64)
                np.copyto(B, (np.sign(own) * clear).astype(np.int8), where=(member < 0)[:, None])
        steps, folds = check_int(self.function_iter, "function_iter", at_least=1), part.modality.folds
        return learn_functions(
            part.modality.phi,
            targets,
            inverse,
            ridge=part.ridge,
            max_iter=steps,
            tol=check_number(self.tol, "tol"),
            margins=self.margins,
            sample=sample_rows(folds.n if part.W is None else len(member)),  # rows with targets, which stand by content
            report=lambda step, value: report(f"functions: {name}", step, steps, value),
        )

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

    def _weights(self) -> Weights:
        check_choice(self.functions, "functions", ("margin", "posterior"))
        check_choice(self.margins, "margins", (True, False))
        check_choice(self.balance, "balance", (True, False))
        check_choice(self.precision, "precision", ("float32", "float64"))
        if check_number(self.graded, "graded") > 1:
            raise ValueError(f"graded is {self.graded}; expected a share from 0 to 1")
        weights = Weights(
            cross=check_number(self.cross_weight, "cross_weight"),
            mixed=check_number(self.mixed_weight, "mixed_weight"),
            labels=check_number(self.label_weight, "label_weight"),
        )
        if not (weights.cross or weights.mixed or weights.labels):
            raise ValueError("cross_weight, mixed_weight and label_weight are all 0; expected one above 0")
        return weights

    def _schedule(self) -> Schedule:
        return Schedule(
            steps=check_int(self.steps, "steps", at_least=1),
            batch_size=check_int(self.batch_size, "batch_size", at_least=1),
            learning_rate=check_number(self.learning_rate, "learning_rate", positive=True),
            sharpness=check_number(self.sharpness, "sharpness", at_least=1.0),
            squared=check_choice(self.loss, "loss", ("logistic", "squared")) == "squared",
            balanced=self.balance,
        )

    def _ridges(self, parameter: str, data: Training) -> dict[str, float]:
        values = per_modality(getattr(self, parameter), data.X, parameter)
        return {name: check_number(value, parameter) for name, value in values.items()}

    def _feature_maps(self, data: Training, seed: int) -> dict[str, FeatureMap]:
        kernels = per_modality(self.kernel, data.X, "kernel")
        anchors = anchors_by_modality(self.n_anchors, data.X)
        bandwidths: dict[str, float | str] = per_modality(self.bandwidth, data.X, "bandwidth")
        maps: dict[str, FeatureMap] = {}
        for name, kernel in kernels.items():
            check_choice(kernel, "kernel", ("rbf", "rbf-unsquared", None))
            if kernel is None:
                maps[name] = Linear(bias=True, dtype=self.precision)
            else:
                maps[name] = AnchorKernel(
                    anchors[name],
                    squared=kernel == "rbf",
                    bandwidth=bandwidths[name],
                    bias=True,
                    dtype=self.precision,
                    random_state=seed,
                )
        return maps


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
