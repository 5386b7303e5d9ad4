"""The AMSH estimator: what holds whatever the data."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

from modalhash import AMSH
from modalhash.core.parallel import blas_threads
from modalhash.data import generate, twin
from modalhash.evaluation import mean_average_precision
from modalhash.methods.base import TrainingItems


def small(**parameters):
    return AMSH(**{"n_bits": 12, "n_anchors": 50, "random_state": 3, "precision": "float64"} | parameters)


@pytest.fixture(scope="module")
def data():
    return generate(n_items=300, n_queries=40, seed=1)


def multi_label_data(n=900, seed=0):
    """Many label patterns, each carried by several items."""
    rng = np.random.default_rng(seed)
    pool = rng.random((80, 10)) < 0.3
    pool[np.arange(80), rng.integers(10, size=80)] = True
    X, Y = {}, {}
    for name in ("image", "text"):
        Y[name] = pool[rng.integers(80, size=n)]
        X[name] = Y[name] @ rng.normal(size=(10, 12)) + 0.3 * rng.normal(size=(n, 12))
    return X, Y


@pytest.mark.parametrize("init", ["random", "pca"])
@pytest.mark.parametrize("solver", ["samples", "patterns"])
def test_permuting_items_permutes_codes(init, solver):
    X, Y = multi_label_data()
    order = np.random.default_rng(5).permutation(900)
    plain = small(init=init, solver=solver).fit(X, Y)
    shuffled = small(init=init, solver=solver).fit(
        {"image": X["image"], "text": X["text"][order]}, {"image": Y["image"], "text": Y["text"][order]}
    )
    np.testing.assert_array_equal(shuffled.codes_["text"], plain.codes_["text"][order])
    np.testing.assert_array_equal(shuffled.codes_["image"], plain.codes_["image"])
    np.testing.assert_array_equal(shuffled.transform(X)["text"], plain.transform(X)["text"])


def test_names_do_not_matter(data):
    plain = small().fit(data.X, data.Y)
    renamed = small().fit(
        {"zebra": data.X["image"], "ant": data.X["text"]}, {"ant": data.Y["text"], "zebra": data.Y["image"]}
    )
    np.testing.assert_array_equal(plain.codes_["image"], renamed.codes_["zebra"])
    np.testing.assert_array_equal(plain.codes_["text"], renamed.codes_["ant"])


@pytest.mark.parametrize("first", [True, False])
def test_another_modality_keeps_the_others_anchors(data, first):
    rng = np.random.default_rng(0)
    extra = {"sound": rng.normal(size=(120, 5))}
    labels = {"sound": np.eye(8)[rng.integers(8, size=120)]}
    X, Y = ({**extra, **data.X}, {**labels, **data.Y}) if first else ({**data.X, **extra}, {**data.Y, **labels})
    two, three = small().fit(data.X, data.Y), small().fit(X, Y)
    for name in data.X:
        np.testing.assert_array_equal(two.maps_[name].anchors_, three.maps_[name].anchors_)


def test_one_modality_is_enough(data):
    model = small().fit({"image": data.X["image"]}, {"image": data.Y["image"]})
    queries = model.transform({"image": data.queries[0]["image"]})["image"]
    found = mean_average_precision(queries, data.queries[1]["image"], model.codes_["image"], data.Y["image"], n_bits=12)
    assert found > 0.6


def test_pairs_are_accepted_and_change_nothing(data):
    plain = small().fit(data.X, data.Y)
    paired = small().fit(data.X, data.Y, pairs="aligned")
    some = small().fit(data.X, data.Y, pairs=np.array([[0, 5], [7, 2]]))
    for name in data.X:
        np.testing.assert_array_equal(plain.codes_[name], paired.codes_[name])
        np.testing.assert_array_equal(plain.codes_[name], some.codes_[name])
    with pytest.raises(ValueError, match="pairs is 'alined'"):
        small().fit(data.X, data.Y, pairs="alined")


def test_auto_takes_patterns_where_they_are_many_and_shared(data):
    X, Y = multi_label_data()
    assert len(np.unique(Y["text"], axis=0)) >= 48
    assert small().fit(X, Y).solver_ == "patterns"
    assert small(n_bits=30).fit(X, Y).solver_ == "samples"  # fewer than 4 × 30 patterns
    few = {name: values[:100] for name, values in Y.items()}
    assert small().fit({n: v[:100] for n, v in X.items()}, few).solver_ == "samples"  # more than half
    assert small(n_bits=90, solver="patterns").fit(X, Y).codes_["text"].shape == (900, 12)  # more bits than patterns


def test_both_solvers_find_alike():
    scores = {}
    for solver in ("samples", "patterns"):
        X, Y = multi_label_data(n=1200)
        train = {n: v[:900] for n, v in X.items()}, {n: v[:900] for n, v in Y.items()}
        model = small(solver=solver).fit(*train)
        queries = model.transform({"image": X["image"][900:]})["image"]
        scores[solver] = mean_average_precision(
            queries, Y["image"][900:], model.codes_["text"], train[1]["text"], n_bits=12
        )
    assert abs(scores["samples"] - scores["patterns"]) < 0.03, scores


def test_frequent_patterns_get_several_rows():
    """A few label patterns hold most items here; with a row for each of them the objective ends .03 to .05 higher."""
    dataset = twin("nuswide10", seed=0, scale=0.03)
    training = dataset.split.apply(dataset).training
    ends = {}
    for solver in ("samples", "patterns"):
        model = AMSH(16, solver=solver, n_anchors=10, function_iter=1, random_state=0)
        ends[solver] = model.fit(training.features, training.labels).objective_["codes"][-1]
    assert ends["patterns"] < 1.02 * ends["samples"]


@pytest.mark.parametrize("parameters", [{}, {"init": "pca"}, {"solver": "patterns"}, {"tol": 1e-3}, {"kernel": None}])
def test_a_path_is_what_separate_fits_give(parameters):
    X, Y = multi_label_data()
    model = small(**parameters)
    path = model.fit_path(X, Y, n_bits=(6, 20, 12))
    assert list(path) == [6, 20, 12]
    assert not hasattr(model, "codes_")
    assert model.n_bits == 12
    for bits, found in path.items():
        alone = small(**parameters, n_bits=bits).fit(X, Y)
        assert found.get_params() == alone.get_params()
        assert found.solver_ == alone.solver_
        assert found.n_iter_ == alone.n_iter_
        np.testing.assert_allclose(found.objective_["codes"], alone.objective_["codes"], rtol=1e-9)
        for name in X:
            np.testing.assert_array_equal(found.codes_[name], alone.codes_[name])
            np.testing.assert_allclose(found.functions_[name], alone.functions_[name], rtol=1e-6, atol=1e-9)


def test_a_path_takes_items_and_refuses_wrong_lengths(data):
    items = TrainingItems(data.X, data.Y)
    assert set(small().fit_path(items, n_bits=[4, 8])) == {4, 8}
    for wrong in ((), (8, 8)):
        with pytest.raises(ValueError, match="expected code lengths, each once"):
            small().fit_path(data.X, data.Y, n_bits=wrong)
    with pytest.raises(ValueError, match="n_bits is 300, but there are only 300 items"):
        small().fit_path(data.X, data.Y, n_bits=(8, 300))
    with pytest.raises(TypeError, match="n_bits is 'eight'"):
        small().fit_path(data.X, data.Y, n_bits=("eight",))


def test_threads_change_nothing(data):
    models = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            models.append(small(precision="float32").fit_path(data.X, data.Y, n_bits=(8, 16)))
    for bits, one in models[0].items():
        for name in data.X:
            np.testing.assert_array_equal(one.codes_[name], models[1][bits].codes_[name])
            np.testing.assert_allclose(one.functions_[name], models[1][bits].functions_[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stage", ["codes", "features", "functions"])
def test_an_error_in_any_step_ends_the_fit_and_leaves_the_model_as_it_was(data, threads, stage):
    def stop(progress):
        if progress.stage.startswith(stage):
            raise InterruptedError(progress.stage)

    model = small()
    with threadpool_limits(threads, user_api="blas"):
        with pytest.raises(InterruptedError, match=stage):
            model.fit(data.X, data.Y, callback=stop)
        assert blas_threads() == threads
    assert not hasattr(model, "codes_")


def test_a_large_step_1_finds_the_same_with_several_threads(data, monkeypatch):
    with threadpool_limits(2, user_api="blas"):
        one = small().fit(data.X, data.Y)
        monkeypatch.setattr("modalhash.methods.amsh.codes.ONE_THREAD_BELOW", 1)
        several = small().fit(data.X, data.Y)
    for name in data.X:
        np.testing.assert_array_equal(one.codes_[name], several.codes_[name])


def test_traces_and_counts(data):
    model = small(code_iter=4, function_iter=6, accelerated=False).fit(data.X, data.Y)
    assert model.n_iter_ == {"codes": 4, "functions": {"image": 6, "text": 6}}
    assert model.objective_["codes"].shape == (4,)
    assert np.all(np.diff(model.objective_["codes"]) <= 0)
    for trace in model.objective_["functions"].values():
        assert trace.shape == (6,)
        assert np.all(np.diff(trace) <= 0)
    assert small(code_iter=200, tol=1e-3).fit(data.X, data.Y).n_iter_["codes"] < 200


def test_ablations_are_parameters(data):
    full = small().fit(data.X, data.Y)
    without = {
        "s": small(intra=0.0),
        "t": small(inter=0.0),
        "k": small(kernel=None),
        "m": small(margins=False),
        "label margins": small(margins="bits"),
        "bit margins": small(margins="labels"),
    }
    for name, model in without.items():
        model.fit(data.X, data.Y)
        same = np.array_equal(model.functions_["text"], full.functions_["text"])
        assert not same, f"{name} changes nothing"
    assert without["k"].functions_["text"].shape == (32, 12)
    # codes come from step 1, which knows of label margins only; functions from step 2, of bit margins only
    np.testing.assert_array_equal(without["bit margins"].codes_["text"], full.codes_["text"])
    np.testing.assert_array_equal(without["m"].codes_["text"], without["label margins"].codes_["text"])
    assert without["bit margins"].n_iter_["functions"] == {"image": 1, "text": 1}


def test_parameters_by_modality(data):
    model = small(
        n_anchors={"image": 20, "text": 30},
        kernel={"image": "rbf-unsquared", "text": None},
        ridge={"image": 1, "text": 2},
    ).fit(data.X, data.Y)
    assert model.functions_["image"].shape == (20, 12)
    assert model.functions_["text"].shape == (32, 12)
    with pytest.raises(ValueError, match="n_anchors is given for 'image'; expected one value, or a dict with"):
        small(n_anchors={"image": 20}).fit(data.X, data.Y)


def test_ordered_pairs_are_twice_the_weight(data):
    ordered = small(inter=0.01, cross_pairs="ordered").fit(data.X, data.Y)
    doubled = small(inter=0.02).fit(data.X, data.Y)
    np.testing.assert_array_equal(ordered.codes_["text"], doubled.codes_["text"])


def test_memory_limit_and_precision_change_rounding_only(data):
    whole = small().fit(data.X, data.Y)
    for variant in (small(memory_limit=20_000), small(memory_limit=None)):
        variant.fit(data.X, data.Y)
        np.testing.assert_array_equal(variant.codes_["image"], whole.codes_["image"])
        np.testing.assert_allclose(variant.functions_["image"], whole.functions_["image"], rtol=1e-6, atol=1e-8)
    single = small(precision="float32").fit(data.X, data.Y)
    np.testing.assert_array_equal(single.codes_["image"], whole.codes_["image"])
    assert np.unpackbits(single.transform(data.X)["text"] ^ whole.transform(data.X)["text"]).mean() < 0.01


def test_few_items_cap_the_anchors_and_it_is_said_once():
    data = generate(n_items=40, n_queries=5, seed=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = AMSH(n_bits=8, n_anchors={"image": 1500, "text": 30}, random_state=0).fit(data.X, data.Y)
    assert [str(w.message) for w in said] == ["fewer items than anchors asked for, all are used: 'image' 1500 -> 40"]
    assert len(model.maps_["image"].anchors_) == 40


def test_unlabelled_items_can_be_allowed_and_it_is_said(data):
    Y = {name: labels * (np.arange(300) > 5)[:, None] for name, labels in data.Y.items()}
    with pytest.warns(UserWarning, match="6 of 300 items have no label; kept"):
        small(unlabelled="allow").fit(data.X, Y)
    with pytest.raises(ValueError, match="none of the 300 items has a label"):
        small(unlabelled="allow").fit(data.X, {name: labels * 0 for name, labels in data.Y.items()})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"solver": "fast"}, "solver is 'fast'; expected one of 'auto', 'samples', 'patterns'"),
        ({"kernel": "linear"}, "kernel is 'linear'"),
        ({"ridge": np.nan}, "ridge is nan"),
        ({"code_iter": 0}, "code_iter is 0"),
        ({"n_anchors": 0}, "n_anchors is 0"),
        ({"random_state": "x"}, "random_state is str"),
    ],
)
def test_wrong_parameters_are_refused(data, parameters, message):
    model = small(**parameters)
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(data.X, data.Y)
    assert not hasattr(model, "codes_")


def test_sparse_text_is_never_densified_whole(data):
    X = data.X | {"text": sparse.random_array((300, 5000), density=0.01, random_state=0, format="csr")}
    model = small().fit(X, data.Y)
    assert model.transform({"text": X["text"][:3]})["text"].shape == (3, 2)


def test_more_bits_than_directions_start_as_noise():
    rng = np.random.default_rng(0)
    X = {"image": rng.normal(size=(100, 3)), "text": rng.normal(size=(90, 2))}
    Y = {name: np.eye(4)[rng.integers(4, size=len(values))] for name, values in X.items()}
    assert small(kernel=None, n_bits=20, init="pca").fit(X, Y).codes_["text"].shape == (90, 3)


def test_fit_path_refuses_weights_that_are_not_finite(monkeypatch):
    data = generate(n_items=60, seed=0)
    learn = AMSH._fit

    def spoiled(self, data, report):
        learned = learn(self, data, report)
        if data.n_bits == 16:
            learned["functions_"]["text"][0, 0] = np.nan
        return learned

    monkeypatch.setattr(AMSH, "_fit", spoiled)
    with pytest.raises(ValueError, match="AMSH: functions_/text has NaN or infinite values"):
        AMSH(n_anchors=20, random_state=0).fit_path(data.X, data.Y, n_bits=(8, 16))
