"""RLH: its posteriors, likelihood and gradient against a slow reference, and what holds whatever the data."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

from modalhash import AMSH, RLH, load
from modalhash.core.codes import pack_signs
from modalhash.core.features import AnchorKernel, Linear
from modalhash.data import generate
from modalhash.evaluation import mean_average_precision
from modalhash.methods.base import TrainingItems
from modalhash.methods.label_oracle import LabelOracle
from modalhash.methods.rlh import codes, codes as own_codes
from modalhash.methods.rlh.codes import Relevance
from modalhash.methods.rlh.posteriors import (
    Folds,
    LabelSpace,
    fold_sums,
    label_patterns,
    leading_directions,
    out_of_fold,
    regress_labels,
    solve_folds,
)
from reference import rlh as reference


def small(**parameters):
    quick = {"n_bits": 12, "n_anchors": 50, "random_state": 3, "steps": 120, "own_steps": 60, "batch_size": 64}
    return RLH(**quick | parameters)


@pytest.fixture(scope="module")
def data():
    return generate(n_items=300, n_queries=60, seed=1)


def same(model, other, names=None):
    """Whether two models are equal to the last bit."""
    for name, theirs in (names or {name: name for name in model.codes_}).items():
        np.testing.assert_array_equal(model.codes_[name], other.codes_[theirs])
        np.testing.assert_array_equal(model.functions_[name], other.functions_[theirs])
    np.testing.assert_array_equal(model.label_functions_, other.label_functions_)
    np.testing.assert_array_equal(model.objective_["codes"], other.objective_["codes"])


class Regressed:
    """Features, sums and weights of one modality."""

    def __init__(self, X, Y, feature_map, ridge=0.01, *, memory=None):
        labels = sparse.csr_array(np.asarray(Y, dtype=bool))
        self.space = LabelSpace({"it": labels}, 512, 0)
        self.folds = Folds.of(X, labels, 5, 0)
        self.phi = self.folds.features(X, feature_map, memory)
        self.member = self.space.members["it"][self.folds.order]
        self.gram, self.weights = solve_folds(*fold_sums(self.phi, self.member, self.space, self.folds), ridge)
        self.weights = self.weights.astype(self.phi.dtype)

    def posteriors(self, count=1000):
        return out_of_fold(self.phi, self.member, self.folds, self.weights, count)


# -- posteriors


@pytest.mark.parametrize("memory", [None, 50_000])
@pytest.mark.parametrize("kernel", ["anchors", "linear"])
def test_posteriors_are_those_of_regressions_without_the_fold(data, memory, kernel):
    X, Y = data.X["image"].astype(np.float64), data.Y["image"]
    feature_map = AnchorKernel(40, bias=True, dtype="float64", random_state=0) if kernel == "anchors" else None
    feature_map = feature_map or Linear(bias=True, dtype="float64")
    part = Regressed(X, Y, feature_map, memory=memory)
    folds = part.folds
    S, member = part.posteriors()
    fold = folds.fold_of_rows()
    assert np.bincount(fold).tolist() == [60] * 5
    slow = reference.posteriors(feature_map.transform(X[folds.order]), Y[folds.order], fold, 0.01)
    np.testing.assert_allclose(S, slow, atol=1e-5)
    assert len(member) == 300
    few, patterns = part.posteriors(100)  # the first 20 rows of every fold
    rows = np.concatenate([np.arange(20) + 60 * f for f in range(5)])
    np.testing.assert_allclose(few, slow[rows], atol=1e-5)
    np.testing.assert_array_equal(patterns, member[rows])


def test_single_precision_posteriors_are_near(data):
    X, Y = data.X["image"], data.Y["image"]
    maps = [AnchorKernel(60, bias=True, dtype=dtype, random_state=0) for dtype in ("float32", "float64")]
    single, double = (Regressed(X, Y, feature_map).posteriors()[0] for feature_map in maps)
    np.testing.assert_allclose(single, double, atol=1e-3)


def test_the_sums_of_the_folds_give_the_gram_matrix_of_step_2(data):
    X, Y = data.X["image"].astype(np.float64), data.Y["image"]
    feature_map = AnchorKernel(40, bias=True, dtype="float64", random_state=0)
    part = Regressed(X, Y, feature_map, ridge=0.5)
    phi = feature_map.transform(X)
    np.testing.assert_allclose(part.gram, phi.T @ phi, rtol=1e-9, atol=1e-9)
    everything = np.linalg.solve(phi.T @ phi + 0.5 * np.eye(41), phi.T @ reference.unit(Y))
    assert len(part.weights) == len(part.folds) + 1
    np.testing.assert_allclose(part.weights[-1], everything, atol=1e-7)


def test_items_without_labels_are_in_no_sum(data):
    X, Y = data.X["image"].astype(np.float64), data.Y["image"].copy()
    Y[np.random.default_rng(0).permutation(300)[:77]] = 0
    feature_map = Linear(bias=True, dtype="float64")
    part = Regressed(X, Y, feature_map, memory=1)
    folds = part.folds
    assert folds.n == 223
    assert Y[folds.order[:223]].any(axis=1).all()
    phi = feature_map.transform(X[folds.order[:223]])
    np.testing.assert_allclose(part.gram, phi.T @ phi, rtol=1e-9, atol=1e-9)
    slow = reference.posteriors(phi, Y[folds.order[:223]], folds.fold_of_rows()[:223], 0.01)
    np.testing.assert_allclose(part.posteriors()[0], slow, atol=1e-5)


@pytest.mark.parametrize("n", [2, 7, 299, 5000, 100_003])
@pytest.mark.parametrize("n_folds", [2, 5, 9])
def test_blocks_fit_into_folds_at_any_memory(n, n_folds):
    labels = sparse.csr_array(np.ones((n, 1), dtype=bool))
    folds = Folds.of(np.random.default_rng(0).random((n, 2)), labels, n_folds, 0)
    sizes = np.bincount(folds.fold_of_rows())
    assert len(sizes) == len(folds) <= n_folds
    assert sizes[:-1].tolist() == [folds.size] * (len(folds) - 1)
    assert n < 700 or sizes[-1] > 0.9 * folds.size
    for memory in (1, 10**7, 10**9, None):
        assert folds.size % folds.block_rows(6004, memory) == 0


def test_copies_of_an_item_share_a_fold():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 4))[np.arange(400) % 40], rng.random((400, 5)) < 0.5
    folds = Folds.of(X, sparse.csr_array(Y | (np.arange(5) == 0)), 5, 0)
    fold = np.empty(400, dtype=int)
    fold[folds.order] = folds.fold_of_rows()
    split = [item for item in range(40) if len(set(fold[item::40])) > 1]
    assert len(split) <= 4  # at the borders


# -- the label space


def test_label_patterns_are_the_distinct_rows():
    rng = np.random.default_rng(0)
    Y = rng.random((500, 9)) < 0.2
    patterns, member = label_patterns(sparse.csr_array(Y))
    dense = patterns.toarray()
    assert len(np.unique(dense, axis=0)) == len(dense)
    np.testing.assert_array_equal(member < 0, ~Y.any(axis=1))
    np.testing.assert_array_equal(dense[member[member >= 0]], Y[member >= 0])
    again, _ = label_patterns(sparse.csr_array(Y[::-1]))
    np.testing.assert_array_equal(again.toarray(), dense)  # whatever the order of the items


def test_leading_directions_are_singular_vectors():
    rng = np.random.default_rng(0)
    Y = rng.random((200, 6)) @ rng.random((6, 40)) > 1.9
    Y[:, 0] = True
    Lt, counts = sparse.csr_array(reference.unit(Y).astype(np.float32)), rng.integers(1, 9, size=200)
    V = leading_directions(Lt, counts, 8, rng)
    _, _, exact = np.linalg.svd(np.sqrt(counts)[:, None] * Lt.toarray(), full_matrices=False)
    np.testing.assert_allclose(V.T @ V, np.eye(8), atol=1e-4)
    np.testing.assert_allclose(np.linalg.svd(exact[:4] @ V, compute_uv=False), 1, atol=1e-2)


@pytest.mark.parametrize("n_classes", [5, 32, 33, 300, 2000])
def test_relevance_is_sharing_a_label(n_classes):
    rng = np.random.default_rng(0)
    Y = rng.random((60, n_classes)) < 2 / n_classes
    Y[np.arange(60), rng.integers(n_classes, size=60)] = True
    patterns = sparse.csr_array(Y)
    first, second = rng.integers(60, size=20), rng.integers(60, size=30)
    shared = np.array([[(Y[i] & Y[j]).any() for j in second] for i in first])
    overlap = np.array([[(Y[i] & Y[j]).sum() / (Y[i] | Y[j]).sum() for j in second] for i in first])
    np.testing.assert_array_equal(Relevance(patterns)(first, second), shared)
    found = Relevance(patterns, 0.25)(first, second)
    np.testing.assert_allclose(found, shared * (0.75 + 0.25 * overlap), rtol=1e-6)


# -- step 1


def sources(rng, n_modalities, *, k=6, n=30):
    Y = rng.random((n, k)) < 0.3
    Y[np.arange(n), rng.integers(k, size=n)] = True
    patterns, member = label_patterns(sparse.csr_array(Y))
    modalities = [
        codes.Source.of(reference.unit(Y) + 0.3 * rng.normal(size=Y.shape), member) for _ in range(n_modalities)
    ]
    counts = np.bincount(member)
    labels = codes.Source.of(3 * reference.unit(patterns.toarray()), np.arange(len(counts)), counts)
    return modalities, labels, patterns


def problem(rng, n_modalities, graded=0.0):
    modalities, labels, patterns = sources(rng, n_modalities)
    return codes.RelevanceProblem(modalities, labels, Relevance(patterns, graded), [0]), patterns


def schedule(*, cross=1.0, mixed=1.0, labels=1.0, steps=1, batch_size=64):
    return codes.Schedule(cross, mixed, labels, steps, batch_size, learning_rate=0.02, sharpness=4.0)


@pytest.mark.parametrize("n_modalities", [1, 2, 3])
@pytest.mark.parametrize("step", [0, 5])
@pytest.mark.parametrize("graded", [0.0, 0.4])
def test_gradient_and_objective_are_the_references(n_modalities, step, graded):
    rng = np.random.default_rng(n_modalities)
    found, patterns = problem(rng, n_modalities, graded)
    draw = codes.Sampler(found, schedule(cross=0.5, mixed=1.0, labels=2.0), 7, rng)
    n_kinds = len(codes.kinds_of(n_modalities))
    model = codes.Model.start(6, 5, n_kinds, rng)
    model.b[:], model.gain[:] = rng.normal(size=5), rng.uniform(1, 6, size=n_kinds)
    batch, L = draw(step), patterns.toarray()
    assert len(batch.blocks) == 3

    def loss(values):
        A, b = values[:30].reshape(6, 5), values[30:35]
        gain, offset = np.split(values[35:], 2)
        kinds = [
            (batch.S[i], L[batch.member[i]], batch.S[j], L[batch.member[j]], gain[kind], offset[kind], weight)
            for i, j, kind, weight, _ in batch.blocks
        ]
        return reference.loss(A, b, 1.7, kinds, graded)

    assert codes.objective_of(model, batch, 1.7) == pytest.approx(loss(model.values.astype(float)))
    slope = codes.gradient(model, batch, 1.7)
    np.testing.assert_allclose(slope, reference.slope(loss, model.values), rtol=1e-4, atol=1e-6)


def test_adam_is_the_references():
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(30, 4))
    adam, values = codes.Adam(4), np.zeros(4, dtype=np.float32)
    for slope in slopes:
        adam(values, slope.astype(np.float32), 0.02)
    np.testing.assert_allclose(values, [reference.adam(column, 0.02) for column in slopes.T], rtol=1e-4)


def test_every_kind_of_pair_has_its_turn_and_no_item_meets_itself():
    rng = np.random.default_rng(0)
    for n_modalities in (1, 2, 3, 4):
        found, _ = problem(rng, n_modalities)
        draw = codes.Sampler(found, schedule(), 5, rng)
        seen = {block.kind for step in range(12) for block in draw(step).blocks}
        assert len(seen) == max(1, n_modalities * (n_modalities - 1) // 2) + n_modalities + 1
    alone = found.modalities[0]
    assert not set(alone.draw(500, rng, 0)) & set(alone.draw(500, rng, 1))
    assert set(alone.draw(500, rng, 0)) | set(alone.draw(500, rng, 1)) == set(range(30))


def test_patterns_are_drawn_as_often_as_items_carry_them():
    source = codes.Source.of(np.zeros((3, 2)), np.arange(3), np.array([1, 0, 3]))
    share = np.bincount(source.draw(20_000, np.random.default_rng(0)), minlength=3) / 20_000
    np.testing.assert_allclose(share, [0.25, 0, 0.75], atol=0.02)


def test_the_likelihood_of_items_held_out_rises(data):
    """Pairs of queries, which no part of the fit has seen, by posteriors of theirs."""
    part = Regressed(data.X["image"], data.Y["image"], AnchorKernel(60, bias=True, dtype="float32", random_state=0))
    S, member = part.posteriors()
    space, patterns = part.space, np.arange(len(part.space.counts))
    labels = codes.Source.of(space.coordinates(patterns) * 3, patterns, space.counts)
    Xq, Yq = data.queries[0]["image"], data.queries[1]["image"]
    new_patterns, new_member = label_patterns(sparse.csr_array(Yq))
    new = codes.Source.of(4 * part.phi._compute(Xq, slice(None)) @ part.weights[-1], new_member)
    new_labels = codes.Source.of(3 * reference.unit(new_patterns.toarray()), np.arange(new_patterns.shape[0]))
    unseen = codes.RelevanceProblem([new], new_labels, Relevance(new_patterns), [0])
    draw = codes.Sampler(unseen, schedule(), 60, np.random.default_rng(1))
    held_out = [draw(step) for step in range(4)]
    seen = codes.RelevanceProblem([codes.Source.of(4 * S, member)], labels, Relevance(space.patterns), [0])
    ends = []
    for steps in (1, 60, 400):
        model, trace = codes.learn_codes(seen, 16, schedule(steps=steps))
        ends.append(np.mean([codes.objective_of(model, batch, 4.0) for batch in held_out]))
    assert ends[0] > ends[1] > ends[2]
    assert trace[-1] < 0.6 * trace[0]
    assert len(trace) == 21


# -- step 3


@pytest.mark.slow
@pytest.mark.parametrize("n_modalities", [1, 2, 3])
def test_gradient_of_own_codes_is_the_references(n_modalities, monkeypatch):
    monkeypatch.setattr(own_codes, "BATCH", 7)
    rng = np.random.default_rng(n_modalities)
    found, patterns = problem(rng, n_modalities, 0.3)
    kinds = codes.cross_kinds(n_modalities)
    number, cross = len(kinds) - 1, kinds[-1]
    own = own_codes.OwnCodes(n_modalities, len(kinds), 6, 5)
    own.values[:] = rng.normal(size=len(own.values))
    B = np.sign(rng.normal(size=(len(found.labels.S), 5))).astype(np.float32)
    slope = own_codes.own_gradient(found, own, B, cross, number, 1.3, np.random.default_rng(5))

    again, L = np.random.default_rng(5), patterns.toarray()
    halves = (0, 1) if n_modalities == 1 else (None, None)
    names = (cross.first, cross.second)
    rows = [found.modalities[m].draw(7, again, half) for m, half in zip(names, halves, strict=True)]
    drawn = [found.labels.draw(7, again) for _ in names]
    sides = [(m, found.modalities[m].S[i], L[found.modalities[m].member[i]]) for m, i in zip(names, rows, strict=True)]

    def loss(values):
        size = n_modalities * 7 * 5
        functions, gains = values[:size].reshape(n_modalities, 7, 5), values[size:].reshape(-1, 2)
        U = [np.tanh(1.3 * (S @ functions[m, :-1] + functions[m, -1])) for m, S, _ in sides]
        total = reference.pair_loss(U[0], sides[0][2], U[1], sides[1][2], *gains[number], graded=0.3)
        for u, (m, _, own_labels), some in zip(U, sides, drawn, strict=True):
            other = L[found.labels.member[some]]
            total += reference.pair_loss(u, own_labels, B[some], other, *gains[len(kinds) + m], graded=0.3)
        return total

    np.testing.assert_allclose(slope, reference.slope(loss, own.values), rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_own_codes_start_at_those_of_step_1_and_fit_the_posteriors_better():
    rng = np.random.default_rng(0)
    found, patterns = problem(rng, 2)
    model, _ = codes.learn_codes(found, 8, schedule(steps=60))
    for A, b in own_codes.learn_own_codes(found, model, steps=0, sharpness=4.0):
        np.testing.assert_array_equal(A, model.A)
        np.testing.assert_array_equal(b, model.b)
    own = own_codes.learn_own_codes(found, model, steps=200, sharpness=4.0)
    B, L = np.sign(found.labels.S @ model.A + model.b), patterns.toarray()
    for source, (A, b) in zip(found.modalities, own, strict=True):
        losses = []
        for functions in ((model.A, model.b), (A, b)):
            U = codes.smooth_codes(*functions, source.S, 4.0)
            gains = ((gain, offset) for gain in (2, 4, 6, 8) for offset in (-3, -2, -1, 0, 1))
            losses.append(min(reference.pair_loss(U, L[source.member], B, L, *pair) for pair in gains))
        assert losses[1] < losses[0]


# -- the estimator


def unseen(model, data, query="image", database="text"):
    X, Y = data.queries
    found = model.transform({name: X[name] for name in {query, database}})
    return mean_average_precision(found[query], Y[query], found[database], Y[database], n_bits=model.n_bits)


@pytest.mark.slow
def test_it_is_ahead_of_amsh_on_generated_data():
    data = generate(n_items=1500, n_queries=400, n_classes=12, labels_per_item=2.0, noise=2.5, seed=0)
    scores = {}
    for method in (RLH, AMSH):
        model = method(16, n_anchors=200, random_state=0).fit(data.X, data.Y)
        scores[method.__name__] = unseen(model, data) + unseen(model, data, "text", "image")
    assert scores["RLH"] > scores["AMSH"], scores


@pytest.mark.slow
def test_shuffled_labels_leave_unseen_items_at_chance():
    data = generate(n_items=400, n_queries=200, seed=2)
    rng = np.random.default_rng(0)
    scores, chance = [], []
    for seed in range(3):
        Y = {name: rng.permutation(values) for name, values in data.Y.items()}
        model = small(random_state=seed).fit(data.X, Y)
        scores.append(unseen(model, data))
        X, Yq = data.queries
        found = model.transform(X)
        for _ in range(5):
            L = rng.permutation(Yq["image"])
            chance.append(mean_average_precision(found["image"], L, found["text"], Yq["text"], n_bits=12))
    assert abs(np.mean(scores) - np.mean(chance)) < 0.03, (scores, chance)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"functions": "posterior"}, {"n_posteriors": 90}, {"precision": "float64"}])
def test_permuting_items_permutes_codes(data, parameters):
    order = np.random.default_rng(5).permutation(300)
    plain = small(**parameters).fit(data.X, data.Y)
    shuffled = small(**parameters).fit(
        {"image": data.X["image"], "text": data.X["text"][order]},
        {"image": data.Y["image"], "text": data.Y["text"][order]},
    )
    np.testing.assert_array_equal(shuffled.codes_["text"], plain.codes_["text"][order])
    shuffled.codes_["text"] = plain.codes_["text"]
    same(plain, shuffled)


def test_neither_names_nor_order_of_modalities_matter(data):
    plain = small().fit(data.X, data.Y)
    renamed = small().fit(
        {"ant": data.X["text"], "zebra": data.X["image"]}, {"zebra": data.Y["image"], "ant": data.Y["text"]}
    )
    same(plain, renamed, {"image": "zebra", "text": "ant"})


@pytest.mark.slow
def test_threads_and_memory_change_nothing(data):
    models = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            models.append(small().fit_path(data.X, data.Y, n_bits=(8, 16)))
    for bits, one in models[0].items():
        same(one, models[1][bits])
    whole = models[0][16]
    limited = small(n_bits=16, memory_limit=30_000).fit(data.X, data.Y)
    for name in data.X:
        np.testing.assert_array_equal(limited.codes_[name], whole.codes_[name])
        np.testing.assert_array_equal(limited.transform(data.X)[name], whole.transform(data.X)[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters", [{}, {"functions": "posterior"}, {"functions": "margin"}, {"tol": 1e-3}, {"kernel": None}]
)
def test_a_path_is_what_separate_fits_give(data, parameters):
    model = small(**parameters)
    path = model.fit_path(data.X, data.Y, n_bits=(6, 20, 12))
    assert list(path) == [6, 20, 12]
    assert not hasattr(model, "codes_")
    for bits, found in path.items():
        alone = small(**parameters, n_bits=bits).fit(data.X, data.Y)
        assert found.get_params() == alone.get_params()
        assert found.n_iter_ == alone.n_iter_
        np.testing.assert_array_equal(found.label_functions_, alone.label_functions_)
        for name in data.X:
            np.testing.assert_array_equal(found.codes_[name], alone.codes_[name])
            np.testing.assert_allclose(found.functions_[name], alone.functions_[name], rtol=1e-3, atol=1e-4)


def test_lengths_share_posteriors(data, monkeypatch):
    seen = []

    def watched(phi, *args, **options):
        seen.append(phi.n)
        return regress_labels(phi, *args, **options)

    monkeypatch.setattr("modalhash.methods.rlh.regress_labels", watched)
    small(steps=5).fit_path(data.X, data.Y, n_bits=(6, 20, 12))
    assert len(seen) == 2  # one for each modality


def test_a_path_takes_items_and_refuses_wrong_lengths(data):
    assert set(small(steps=5).fit_path(TrainingItems(data.X, data.Y), n_bits=[4, 8])) == {4, 8}
    for wrong in ((), (8, 8)):
        with pytest.raises(ValueError, match="expected code lengths, each once"):
            small().fit_path(data.X, data.Y, n_bits=wrong)


def test_one_modality_three_modalities_and_unequal_numbers(data):
    alone = small().fit({"image": data.X["image"]}, {"image": data.Y["image"]})
    assert unseen(alone, data, "image", "image") > 0.6
    third = generate(n_items=120, n_queries=60, n_features={"sound": 20}, seed=7)
    three = small().fit(data.X | third.X, data.Y | third.Y)
    assert {name: len(found) for name, found in three.codes_.items()} == {"image": 300, "text": 300, "sound": 120}
    queries = tuple(a | b for a, b in zip(data.queries, third.queries, strict=True))
    data = type(data)(data.X, data.Y, queries)
    for pair in (("image", "text"), ("sound", "text"), ("image", "sound")):
        assert unseen(three, data, *pair) > 0.6


def test_learned_codes_are_functions_of_the_labels(data):
    model = small().fit(data.X, data.Y)
    for name, Y in data.Y.items():
        values = reference.unit(Y) @ model.label_functions_ + model.bias_
        clear = np.abs(values).min(axis=1) > 1e-4
        np.testing.assert_array_equal(pack_signs(values)[clear], model.codes_[name][clear])


@pytest.mark.slow
def test_functions_are_the_average_of_both_kinds(data):
    models = {functions: small(functions=functions).fit(data.X, data.Y) for functions in ("margin", "posterior")}
    both = small().fit(data.X, data.Y)
    assert models["posterior"].objective_["functions"] == {}
    for name, X in data.X.items():
        scaled = []
        for model in models.values():
            np.testing.assert_array_equal(model.codes_[name], both.codes_[name])  # step 1 is the same
            projections = model.decision_function({name: X})[name]
            scaled.append(projections / np.abs(projections).mean())
        np.testing.assert_allclose(both.decision_function({name: X})[name], sum(scaled), rtol=1e-3, atol=1e-3)
    assert all(unseen(model, data) > 0.6 for model in (both, *models.values()))


def test_own_codes_change_hashed_codes_alone(data):
    plain, tuned = small(own_steps=0).fit(data.X, data.Y), small().fit(data.X, data.Y)
    np.testing.assert_array_equal(plain.label_functions_, tuned.label_functions_)
    assert not np.array_equal(plain.functions_["text"], tuned.functions_["text"])


def test_the_kernel_may_differ_by_modality(data):
    model = small(kernel={"image": "laplace-sqrt", "text": None}).fit(data.X, data.Y)
    kernel = AnchorKernel(50, squared=False, bandwidth="pairs", power=0.5, dtype="float32", random_state=3)
    assert model.maps_["image"].bandwidth_ == pytest.approx(kernel.fit(data.X["image"]).bandwidth_)
    assert isinstance(model.maps_["text"], Linear)


@pytest.mark.slow
def test_label_sets_that_share_a_label_keep_codes_of_their_own():
    """Groups of subgroups: without grading, the subgroups of a group have nothing to tell them apart."""
    rng = np.random.default_rng(0)
    group, sub = rng.integers(4, size=600), rng.integers(6, size=600)
    Y = np.zeros((600, 28), dtype=bool)
    Y[np.arange(600), group] = Y[np.arange(600), 4 + 6 * group + sub] = True
    X = Y @ rng.normal(size=(28, 20)) + 0.5 * rng.normal(size=(600, 20))
    found = {}
    for graded in (0.0, 0.3):
        model = small(n_bits=64, graded=graded, steps=300).fit(
            {"image": X, "text": X[::-1]}, {"image": Y, "text": Y[::-1]}
        )
        found[graded] = len(np.unique(model.codes_["image"], axis=0))
    assert found[0.3] == 24 > found[0.0]


@pytest.mark.slow
def test_ablations_change_what_they_are_about(data):
    full = small().fit(data.X, data.Y)
    kinds = ({"cross_weight": 0}, {"mixed_weight": 0}, {"label_weight": 0}, {"posterior_ridge": 1.0})
    for parameters in (*kinds, {"graded": 0.0}, {"kernel": "rbf"}):
        assert not np.array_equal(small(**parameters).fit(data.X, data.Y).label_functions_, full.label_functions_)
    ridge = small(margins=False).fit(data.X, data.Y)
    assert ridge.n_iter_["functions"] == {"image": 1, "text": 1}
    np.testing.assert_array_equal(ridge.codes_["text"], full.codes_["text"])


@pytest.mark.slow
def test_many_sparse_labels_take_little_memory():
    """6,000 items with 3,000 labels: as dense float32 they would take 72 MB a modality."""
    rng = np.random.default_rng(0)
    n, c = 6000, 3000
    topic = rng.integers(40, size=n)
    words = topic[:, None] * 75 + rng.integers(75, size=(n, 4))
    rows = np.repeat(np.arange(n), 4)
    Y = sparse.csr_array((np.ones(4 * n), (rows, words.ravel())), shape=(n, c))
    Y.data[:] = 1
    centres = rng.normal(size=(40, 16))
    X = (centres[topic] + 0.3 * rng.normal(size=(n, 16))).astype(np.float32)
    model = small(n_bits=32, label_rank=64, n_posteriors=2000, memory_limit="2MB", kernel="rbf", posterior_ridge=0.01)
    tracemalloc.start()
    model.fit({"image": X[:4000], "text": X[4000:]}, {"image": Y[:4000], "text": Y[4000:]})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6
    assert model.label_functions_.shape == (3000, 32)
    np.testing.assert_array_equal(model.classes_, np.arange(3000))
    queries = (X + 0.3 * rng.normal(size=X.shape)).astype(np.float32)[:300]
    found = mean_average_precision(
        *(model.transform({"image": queries})["image"], np.eye(40)[topic[:300]]),
        *(model.codes_["text"], np.eye(40)[topic[4000:]]),
        n_bits=32,
    )
    assert found > 0.5


@pytest.mark.slow
def test_a_label_rank_above_the_labels_changes_nothing_and_one_below_little(data):
    full = small().fit(data.X, data.Y)
    same(full, small(label_rank=8).fit(data.X, data.Y))
    fewer = small(label_rank=7).fit(data.X, data.Y)
    assert unseen(fewer, data) > unseen(full, data) - 0.1


@pytest.mark.slow
def test_csr_features_and_labels_give_what_dense_ones_do(data):
    dense = small().fit(data.X, data.Y)
    X, Y = ({name: sparse.csr_array(values) for name, values in part.items()} for part in (data.X, data.Y))
    same(dense, small().fit(data.X, Y))
    found = small().fit(X, Y)
    for name in X:
        assert np.unpackbits(found.codes_[name] ^ dense.codes_[name]).mean() < 0.01
    with pytest.raises(ValueError, match=r"'text': labels contain .*2.*only 0 and 1"):
        small().fit(X, Y | {"text": 2 * Y["text"]})
    with pytest.raises(ValueError, match="'image': 8, 'text': 5"):
        small().fit(X, Y | {"text": Y["text"][:, :5]})
    with pytest.raises(ValueError, match="'text': 299 label rows for 300 items"):
        small().fit(X, Y | {"text": Y["text"][:299]})


def few_labels(data, share, seed=0):
    rng = np.random.default_rng(seed)
    return {name: labels * (rng.random(len(labels)) < share)[:, None] for name, labels in data.Y.items()}


@pytest.mark.parametrize("mode", ["allow", "posterior"])
@pytest.mark.parametrize("functions", ["average", "margin", "posterior"])
def test_items_without_labels_are_hashed_from_their_features(data, mode, functions):
    Y = {name: labels * (np.arange(300) > 5)[:, None] for name, labels in data.Y.items()}
    with pytest.warns(UserWarning, match="6 of 300 items have no label; they get codes from their features"):
        model = small(unlabelled=mode, functions=functions).fit(data.X, Y)
    for name in data.X:
        np.testing.assert_array_equal(model.codes_[name][:6], model.transform(data.X)[name][:6])
        labelled = reference.unit(Y[name][6:]) @ model.label_functions_ + model.bias_ > 0
        assert np.mean(np.unpackbits(model.codes_[name][6:], axis=1)[:, :12] != labelled) < 0.001
    with pytest.raises(ValueError, match="none of the 300 items has a label"):
        small(unlabelled=mode).fit(data.X, {name: labels * 0 for name, labels in data.Y.items()})


@pytest.mark.filterwarnings("ignore:.*have no label")
def test_items_left_out_change_nothing_but_anchors_and_means(data):
    X = {name: np.vstack([values, -values]) for name, values in data.X.items()}  # the mean is 0 either way
    Y = {name: np.vstack([labels, labels]) for name, labels in data.Y.items()}
    more_X = {name: np.vstack([values, 2 * values]) for name, values in X.items()}
    more_Y = {name: np.vstack([labels, labels & False]) for name, labels in Y.items()}
    options = {"kernel": None, "precision": "float64", "unlabelled": "allow", "memory_limit": None}
    plain, more = small(**options).fit(X, Y), small(**options).fit(more_X, more_Y)
    for name in X:
        wrong = np.unpackbits(plain.transform(X)[name] ^ more.transform(X)[name]).mean()
        assert wrong < 0.001


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*have no label", "ignore:fewer items than anchors")
def test_with_few_labels_the_other_items_help():
    gains = []
    for seed in range(2):
        data = generate(n_items=1500, n_queries=400, n_classes=12, labels_per_item=2.0, noise=2.0, seed=seed)
        Y = few_labels(data, 0.1, seed)
        known = {name: labels.any(axis=1) for name, labels in Y.items()}
        options = {"n_anchors": 150, "n_bits": 24, "steps": 300, "kernel": "rbf", "functions": "margin"}
        alone = small(**options).fit(*({name: part[name][known[name]] for name in Y} for part in (data.X, Y)))
        together = small(**options, unlabelled="posterior").fit(data.X, Y)
        gains.append(unseen(together, data) - unseen(alone, data))
    assert min(gains) > 0.01, gains


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*have no label")
@pytest.mark.parametrize("parameters", [{}, {"n_posteriors": 40}])
def test_few_labels_in_any_order_and_memory(data, parameters):
    Y = few_labels(data, 0.4)
    order = np.random.default_rng(5).permutation(300)
    model = small(unlabelled="posterior", **parameters)
    plain = model.fit_path(data.X, Y, n_bits=(8, 12))[12]
    shuffled = model.fit({name: values[order] for name, values in data.X.items()}, {n: v[order] for n, v in Y.items()})
    for name in Y:
        np.testing.assert_array_equal(shuffled.codes_[name], plain.codes_[name][order])
    np.testing.assert_array_equal(plain.label_functions_, shuffled.label_functions_)
    limited = small(unlabelled="posterior", memory_limit=30_000, **parameters).fit(data.X, Y)
    for name in Y:
        np.testing.assert_array_equal(limited.codes_[name], plain.codes_[name])
    alone = small(unlabelled="posterior").fit({"text": data.X["text"]}, {"text": Y["text"]})
    assert unseen(alone, data, "text", "text") > 0.5


def test_degenerate_data_give_no_warning_and_no_nan():
    rng = np.random.default_rng(0)
    X = {"image": rng.normal(size=(20, 3)), "text": rng.normal(size=(20, 2))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for Y in (np.ones((20, 1)), np.eye(20)):  # all share the only label; none shares any
            model = small(n_bits=4, n_anchors=10).fit(X, {"image": Y, "text": Y})
            assert all(np.isfinite(F).all() for F in model.functions_.values())
            assert np.isfinite(model.objective_["codes"]).all()


def test_a_saved_model_keeps_what_was_learned(data, tmp_path):
    model = small().fit(data.X, data.Y)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    same(model, again)
    np.testing.assert_array_equal(model.transform(data.X)["image"], again.transform(data.X)["image"])


def test_anchors_are_capped_with_one_warning():
    data = generate(n_items=40, n_queries=5, seed=0)
    with pytest.warns(UserWarning, match="fewer items than anchors asked for, all are used: 'image' 1500 -> 40"):
        RLH(n_bits=8, n_anchors={"image": 1500, "text": 30}, steps=5, random_state=0).fit(data.X, data.Y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cross_weight": 0, "mixed_weight": 0, "label_weight": 0}, "are all 0; expected one above 0"),
        ({"graded": 1.5}, "graded is 1.5; expected a finite number ≥ 0 and ≤ 1"),
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0}, "learning_rate is 0"),
        ({"sharpness": 0.5}, "sharpness is 0.5"),
        ({"n_folds": 1}, "n_folds is 1"),
        ({"n_posteriors": 0}, "n_posteriors is 0"),
        ({"label_rank": 0}, "label_rank is 0"),
    ],
)
def test_wrong_parameters_are_refused(data, parameters, message):
    model = small(**parameters)
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(data.X, data.Y)
    assert not hasattr(model, "codes_")


@pytest.mark.slow
def test_codes_of_labels_are_the_learned_codes_and_new_label_sets_have_some_too():
    data = generate(n_items=150, seed=1)
    for model in (RLH(n_bits=24, n_anchors=50, random_state=0), LabelOracle(n_bits=24, random_state=0)):
        model.fit(data.X, data.Y)
        for name, labels in data.Y.items():
            np.testing.assert_array_equal(model.label_codes(labels), model.codes_[name])
            np.testing.assert_array_equal(model.label_codes(sparse.csr_array(labels)), model.codes_[name])
        every = np.ones((1, len(model.classes_)), dtype=bool)
        assert model.label_codes(every).shape == (1, 3)
        with pytest.raises(ValueError, match=r"columns; expected \d+, as in training"):
            model.label_codes(every[:, :-1])
        with pytest.raises(ValueError, match="has no label"):
            model.label_codes(~every)
    assert AMSH(n_bits=8, n_anchors=50, random_state=0).fit(data.X, data.Y).label_codes(every) is None
