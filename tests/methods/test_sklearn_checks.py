"""scikit-learn's common checks over every method.

Checks of constructor and parameters run on the methods as they are. Those that pass an array and classes run through
:class:`TwoViews`, which gives the array as both modalities. What does not apply is listed with the reason; where only
the words of an error differ, ours are expected instead.
"""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils import TransformerTags, estimator_checks

from contract import ALL, block_data, make
from modalhash import AMSH, TrainingItems
from modalhash.evaluation import evaluate
from modalhash.methods.registry import METHODS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*anchors asked for"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of checks that feed extremes
]

OF_PARAMETERS = [
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]
OWN_WORDS = {
    "check_complex_data": "got values of type complex128; expected real numbers",
    "check_dtype_object": "got values of type object; expected real numbers",
    "check_estimators_empty_data_messages": "got an empty array of shape",
    "check_fit2d_1sample": "all 1 items are equal; there is nothing to learn from",
    "check_fit2d_predict1d": r"For a single item use x\.reshape\(1, -1\)",
    "check_requires_y_none": "is supervised: pass labels",
    "check_transformer_data_not_an_array": "got a _NotAnArray; expected a 2-D numpy array",
}
"""Checks that fail by the words of an error alone, and the words that stand there instead."""
NOT_APPLICABLE = {
    "check_array_api_input": "arrays are numpy's; the check skips itself where SCIPY_ARRAY_API is not set",
    "check_array_api_input_and_values": "the same, by the name of other versions",
    "check_n_features_in_after_fitting": "it looks for other words; the width is checked by a test of its own below",
    "check_transformer_general": "fit_transform returns the learned codes, made from labels, not fit(X).transform(X)",
    "check_transformer_preserve_dtypes": "codes are uint8 whatever comes in",
}
IN_FLOAT32 = ("amsh", "rlh", "gsph", "seph", "dcmh", "prdh", "aadah", "ucch")
"""Methods whose projections are float32: a row's product may depend on its position by 1e-6, which two checks refuse."""
OF_ONE_METHOD = {
    **{(name, "check_methods_subset_invariance"): "compared in float32 below" for name in IN_FLOAT32},
    **{(name, "check_methods_sample_order_invariance"): "compared in float32 below" for name in IN_FLOAT32},
    ("cca-itq", "check_fit2d_1feature"): "one feature, given twice, is dependent on itself; CCA says so in its words",
}


class TwoViews(BaseEstimator):
    """A method as scikit-learn's checks call it: one array, of which both modalities are made, and classes."""

    def __init__(self, hasher):
        self.hasher = hasher

    def fit(self, X, y=None):
        Y = None if y is None else np.asarray(y)
        if Y is not None:
            Y = Y[:, None] == np.unique(Y) if Y.ndim == 1 else Y > 0
            Y = {"image": Y, "text": Y}
        pairs = "aligned" if self.hasher.needs_pairs else None
        self.model_ = clone(self.hasher).fit({"image": X, "text": X}, Y, pairs=pairs)
        self.n_features_in_ = self.model_.n_features_in_["image"]
        if hasattr(self.model_, "feature_names_in_"):
            self.feature_names_in_ = np.asarray(self.model_.feature_names_in_["image"], dtype=object)
        return self

    def transform(self, X):
        return getattr(self, "model_", self.hasher).transform({"image": X})["image"]

    def decision_function(self, X):
        return getattr(self, "model_", self.hasher).decision_function({"image": X})["image"]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        own = self.hasher.__sklearn_tags__()
        tags.input_tags.sparse, tags.target_tags.required = own.input_tags.sparse, own.target_tags.required
        tags.transformer_tags = TransformerTags(preserves_dtype=[])
        return tags


@pytest.mark.parametrize("check", OF_PARAMETERS)
@pytest.mark.parametrize("method", ALL)
def test_parameters(method, check):
    getattr(estimator_checks, check)(type(make(method)).__name__, make(method))


def quick(method):
    """Return the method with few steps: the checks look at what it takes and gives, not at how good it is."""
    wanted = {"steps": 20, "own_steps": 20, "max_iter": 3, "max_epochs": 2}
    known = make(method).get_params()
    return make(method, 8, **{name: value for name, value in wanted.items() if name in known})


def checks_of(method):
    """Return all that scikit-learn would run, by name; some run more than once."""
    found = {}
    for _, check in estimator_checks.estimator_checks_generator(TwoViews(quick(method))):
        found.setdefault(check.func.__name__, []).append(check)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
def test_data(method):
    estimator, ran = TwoViews(quick(method)), 0
    for name, checks in checks_of(method).items():
        if name in NOT_APPLICABLE or (method.name, name) in OF_ONE_METHOD:
            continue
        for check in checks:
            if name in OWN_WORDS:
                with pytest.raises(Exception, match=OWN_WORDS[name]):
                    check(clone(estimator))
            else:
                try:
                    check(clone(estimator))
                except Exception as error:
                    raise AssertionError(f"{name}: {error}") from error
            ran += 1
    assert ran > 30


@pytest.mark.parametrize("method", [method for method in ALL if method.values[0].name in IN_FLOAT32])
def test_rows_do_not_depend_on_each_other(method):
    rng = np.random.default_rng(0)
    X, order = rng.normal(size=(60, 4)), rng.permutation(60)
    model = TwoViews(quick(method)).fit(X, rng.integers(3, size=60))
    whole = model.decision_function(X)
    tolerance = 1e-5 * np.abs(whole).max()
    np.testing.assert_allclose(model.decision_function(X[order]), whole[order], rtol=0, atol=tolerance)
    np.testing.assert_allclose([model.decision_function(row[None])[0] for row in X], whole, rtol=0, atol=tolerance)


def test_the_lists_name_checks_that_there_are():
    known = {*checks_of(METHODS["amsh"]), *dir(estimator_checks)}
    used = [*OF_PARAMETERS, *OWN_WORDS, *(name for _, name in OF_ONE_METHOD)]
    assert not [name for name in used if name not in known]


# -- what the checks cannot see of a dict by modality


@pytest.fixture(scope="module")
def data():
    return block_data(METHODS["batch"], n=90, n_query=12)


@pytest.mark.parametrize("method", ALL)
def test_the_width_and_names_of_codes_are_known(method):
    data = block_data(method, n=90, n_query=12)
    model = make(method, 12)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        model.get_feature_names_out()
    model.fit(data.X, data.Y, **data.fit)
    names = model.get_feature_names_out()
    prefix = type(model).__name__.lower()
    assert names.tolist() == [f"{prefix}0", f"{prefix}1"]
    assert all(len(names) == codes.shape[1] for codes in model.transform(data.Xq).values())
    for call in (model.transform, model.decision_function):
        with pytest.raises(ValueError, match=r"29 features; .*30"):
            call({"image": data.Xq["image"][:, :29]})


def test_frames_come_out_where_they_are_asked_for(data):
    pd = pytest.importorskip("pandas", reason="pandas is not installed (extra test-all)")
    model = AMSH(n_bits=12, n_anchors=30, random_state=0).fit(data.X, data.Y)
    plain = model.transform(data.Xq)
    frames = {name: pd.DataFrame(rows, index=[f"i{at}" for at in range(len(rows))]) for name, rows in data.Xq.items()}
    model.set_output(transform="pandas")
    assert clone(model)._sklearn_output_config == {"transform": "pandas"}
    for given in (data.Xq, frames):
        for name, codes in model.transform(given).items():
            np.testing.assert_array_equal(codes.to_numpy(), plain[name])
            assert codes.columns.tolist() == ["amsh0", "amsh1"]
            assert codes.dtypes.eq(np.uint8).all()
    assert model.transform(frames)["text"].index.tolist() == frames["text"].index.tolist()
    assert isinstance(model.fit_transform(data.X, data.Y)["image"], pd.DataFrame)
    result = evaluate(model, (data.Xq, data.Yq), (data.X, data.Y), protocol="mAP@all database=hashed")
    model.set_output(transform="default")
    plainly = evaluate(model, (data.Xq, data.Yq), (data.X, data.Y), protocol="mAP@all database=hashed")
    assert result.map == plainly.map
    assert model.set_output() is model
    with pytest.raises(ValueError, match="transform"):
        model.set_output(transform="excel")


def test_the_configuration_of_scikit_learn_counts(data):
    pl = pytest.importorskip("polars", reason="polars is not installed (extra test-all)")
    model = AMSH(n_bits=12, n_anchors=30, random_state=0).fit(data.X, data.Y)
    plain = model.transform(data.Xq)["text"]
    with sklearn.config_context(transform_output="polars"):
        found = model.transform(data.Xq)["text"]
        assert isinstance(found, pl.DataFrame)
        assert model.score(data.X, data.Y) > 0.5
    np.testing.assert_array_equal(found.to_numpy(), plain)


def test_pairs_are_routed_to_fit(data):
    seen = []

    class Watched(type(make(METHODS["batch"]))):
        def fit(self, X, Y=None, *, pairs=None, callback=None):
            seen.append(pairs)
            return super().fit(X, Y, pairs=pairs, callback=callback)

    model = Watched(n_bits=8, n_anchors=20, random_state=0)
    items = TrainingItems(data.X, data.Y, pairs="aligned")
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(model.set_fit_request(pairs=True), {"ridge": [0.01, 1.0]}, cv=2)
        search.fit(items, pairs="aligned")
        assert seen == ["aligned"] * 5
        with pytest.raises(Exception, match="pairs"):
            GridSearchCV(model.set_fit_request(pairs=None), {"ridge": [0.01]}, cv=2).fit(items, pairs="aligned")
    assert search.best_score_ > 0.5


@pytest.mark.parametrize("method", ALL)
def test_a_grid_is_searched_through_items(method):
    data = block_data(method, n=60, n_query=6)
    items = TrainingItems(data.X, data.Y, pairs=data.fit.get("pairs"))
    search = GridSearchCV(make(method), {"n_bits": [8]}, cv=2, error_score="raise").fit(items)
    assert 0 < search.best_score_ <= 1
