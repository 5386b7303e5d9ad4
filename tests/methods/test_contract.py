"""One contract for all methods: whatever is in the registry keeps it, and so does a method outside the package."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from contract import ALL, OUTSIDE, PAIRED, SUPERVISED, UNPAIRED, block_data, fitted, make
from modalhash import load
from modalhash.core.codes import pack_signs
from modalhash.evaluation import mean_average_precision
from modalhash.methods.base import constrained_parameters
from modalhash.methods.fitted import FittedHasher, ModelFileError, flatten, read_model
from modalhash.methods.registry import info

pytestmark = pytest.mark.filterwarnings("ignore:.*anchors asked for")


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("n_bits", [8, 10])
def test_codes_have_the_promised_shape_type_and_packing(method, n_bits):
    data = block_data(method)
    model = make(method, n_bits)
    learned = model.fit_transform(data.X, data.Y, **data.fit)
    hashed = model.transform(data.Xq)
    projections = model.decision_function(data.Xq)
    assert list(learned) == list(hashed) == ["image", "text"]
    for name in data.X:
        assert learned[name] is model.codes_[name]
        for codes, rows in ((learned[name], data.X[name]), (hashed[name], data.Xq[name])):
            assert codes.dtype == np.uint8
            assert codes.shape == (len(rows), -(-n_bits // 8))
            assert not np.any(np.unpackbits(codes, axis=1)[:, n_bits:])  # padding is 0
        assert projections[name].shape == (len(data.Xq[name]), n_bits)
        assert np.issubdtype(projections[name].dtype, np.floating)
        np.testing.assert_array_equal(hashed[name], pack_signs(projections[name]))
    assert model.n_features_in_ == {"image": 30, "text": 18}
    np.testing.assert_array_equal(model.classes_, np.arange(6))


@pytest.mark.parametrize("method", ALL)
def test_same_seed_same_codes(method):
    first, data = fitted(method)
    second = make(method).fit(data.X, data.Y, **data.fit)
    again = make(method, random_state=np.random.default_rng(7)).fit(data.X, data.Y, **data.fit)
    also = make(method, random_state=np.random.default_rng(7)).fit(data.X, data.Y, **data.fit)
    for name in data.X:
        np.testing.assert_array_equal(first.codes_[name], second.codes_[name])
        np.testing.assert_array_equal(first.transform(data.Xq)[name], second.transform(data.Xq)[name])
        np.testing.assert_array_equal(again.codes_[name], also.codes_[name])


@pytest.mark.parametrize("method", ALL)
def test_it_is_a_scikit_learn_estimator(method):
    data = block_data(method)
    model = make(method)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert re.match(rf"{type(model).__name__}\(", repr(model))
    before = dict(model.get_params())
    model.fit(data.X, data.Y, **data.fit)
    assert model.get_params() == before, "fit must not change parameters"
    assert not [name for name in vars(clone(model)) if name.endswith("_")]
    assert model.set_params(n_bits=4).n_bits == 4


@pytest.mark.parametrize("method", ALL)
def test_any_subset_of_modalities_can_be_transformed(method):
    model, data = fitted(method)
    both = model.transform(data.Xq)
    for name in data.Xq:
        alone = model.transform({name: data.Xq[name]})
        assert list(alone) == [name]
        np.testing.assert_array_equal(alone[name], both[name])
        one = model.transform({name: data.Xq[name][:1]})
        np.testing.assert_array_equal(one[name], both[name][:1])


@pytest.mark.parametrize("method", ALL)
def test_a_saved_model_is_the_same_model(method, tmp_path):
    model, data = fitted(method)
    model.save(tmp_path / "model")
    saved = read_model(tmp_path / "model", trust=":" in method.name)
    again = saved.model
    assert type(again) is type(model)
    assert again.get_params() == model.get_params()
    assert {n for n in vars(again) if n.endswith("_")} == {n for n in vars(model) if n.endswith("_")}
    for name in data.X:
        np.testing.assert_array_equal(again.codes_[name], model.codes_[name])
        np.testing.assert_array_equal(again.decision_function(data.Xq)[name], model.decision_function(data.Xq)[name])
        np.testing.assert_array_equal(
            saved.hasher.project(name, data.Xq[name])[0], model.project(name, data.Xq[name])[0]
        )
    own = type(model)._project is not FittedHasher._project or ":" in method.name
    assert type(saved.hasher) is (type(model) if own else FittedHasher)
    for name, value in vars(again).items():
        if name.endswith("_") and spoiled(value):
            again.save(tmp_path / "damaged")
            with pytest.raises(ModelFileError, match=rf"{name}.* has NaN or infinite values"):
                load(tmp_path / "damaged", trust=":" in method.name)
            return
    assert method.name == "chance", "which has no weights"


def spoiled(learned):
    """Whether there is a weight in what was learned, which is NaN from now on."""
    arrays = {}
    flatten(learned, "learned", arrays)
    for values in arrays.values():
        if values.dtype.kind == "f" and values.size:
            values.setflags(write=True)
            values.flat[0] = np.nan
            return True
    return False


@pytest.mark.parametrize("method", ALL)
def test_a_second_fit_forgets_the_first(method):
    old, new = block_data(method, seed=1, n=150), block_data(method, seed=2)
    fresh = make(method).fit(new.X, new.Y, **new.fit)
    refit = make(method).fit(old.X, old.Y, **old.fit).fit(new.X, new.Y, **new.fit)
    for name in new.X:
        np.testing.assert_array_equal(fresh.codes_[name], refit.codes_[name])
        np.testing.assert_array_equal(fresh.transform(new.Xq)[name], refit.transform(new.Xq)[name])


@pytest.mark.parametrize("method", ALL)
def test_a_failed_fit_leaves_nothing_behind(method):
    data = block_data(method)
    model = make(method)
    bad = data.X | {"text": np.where(np.arange(18) == 3, np.nan, data.X["text"])}
    with pytest.raises(ValueError, match=r"'text'.*NaN"):
        model.fit(bad, data.Y, **data.fit)
    assert not [name for name in vars(model) if name.endswith("_")]
    model.fit(data.X, data.Y, **data.fit)
    codes = model.codes_
    with pytest.raises(ValueError, match="NaN"):
        model.fit(bad, data.Y, **data.fit)
    assert model.codes_ is codes


@pytest.mark.parametrize("method", UNPAIRED)
def test_modalities_may_have_different_numbers_of_items(method):
    data = block_data(method)
    X, Y = data.X | {"text": data.X["text"][:100]}, data.Y | {"text": data.Y["text"][:100]}
    model = make(method).fit(X, Y)
    assert {name: len(codes) for name, codes in model.codes_.items()} == {"image": 240, "text": 100}


@pytest.mark.parametrize("method", PAIRED)
def test_pairs_are_asked_for_and_never_guessed(method):
    data = block_data(method)
    with pytest.raises(ValueError, match="pairs='aligned'"):
        make(method).fit(data.X, data.Y)
    X, Y = data.X | {"text": data.X["text"][:100]}, data.Y | {"text": data.Y["text"][:100]}
    with pytest.raises(ValueError, match=r"the same number of items.*'image': 240, 'text': 100"):
        make(method).fit(X, Y, pairs="aligned")


@pytest.mark.parametrize("method", ALL)
def test_float32_float64_integers_and_csr_are_taken(method):
    data = block_data(method)
    X = {name: np.round(values * 8) / 8 for name, values in data.X.items()}  # exact in every type
    Xq = {name: np.round(values * 8) / 8 for name, values in data.Xq.items()}
    expected = make(method).fit(X, data.Y, **data.fit)
    kinds = {
        "float32": lambda values: values.astype(np.float32),
        "csr": sparse.csr_array,
        "csr matrix": sparse.csr_matrix,
        "coo": sparse.coo_array,
    }
    for kind, convert in kinds.items():
        model = make(method).fit({n: convert(v) for n, v in X.items()}, data.Y, **data.fit)
        for name in X:
            agreement = np.unpackbits(model.codes_[name] ^ expected.codes_[name]).mean()
            assert agreement < 0.02, f"{kind}: {agreement:.1%} of the learned bits differ"
            hashed = model.transform({name: convert(Xq[name])})[name]
            assert np.unpackbits(hashed ^ expected.transform({name: Xq[name]})[name]).mean() < 0.02, kind
    labels = {name: sparse.csr_array(values) for name, values in data.Y.items()}
    sparse_labels = make(method).fit(X, labels, **data.fit)
    np.testing.assert_array_equal(sparse_labels.codes_["text"], expected.codes_["text"])


@pytest.mark.parametrize("method", ALL)
def test_the_input_is_left_as_it_was(method):
    data = block_data(method)
    given = [*data.X.values(), *data.Y.values(), *data.Xq.values()]
    before = [values.copy() for values in given]
    for values in given:
        values.flags.writeable = False  # a method that writes fails where it does
    make(method).fit(data.X, data.Y, **data.fit).transform(data.Xq)
    for values, copy in zip(given, before, strict=True):
        np.testing.assert_array_equal(values, copy)


@pytest.mark.parametrize("method", ALL)
def test_blocks_do_not_change_transform(method, monkeypatch):
    model, data = fitted(method)
    whole = model.transform(data.Xq)
    monkeypatch.setattr("modalhash.methods.fitted.BLOCK_VALUES", 500)
    for name, codes in model.transform(data.Xq).items():
        np.testing.assert_array_equal(codes, whole[name])


@pytest.mark.parametrize("method", ALL)
def test_progress_is_reported(method):
    data = block_data(method)
    seen = []
    make(method).fit(data.X, data.Y, **data.fit, callback=seen.append)
    assert seen
    assert all(1 <= p.step <= p.total and p.seconds >= 0 for p in seen)


BAD_FITS = {
    "features not a dict": (lambda X, Y: (X["image"], Y), TypeError, "dict from modality name"),
    "labels not a dict": (lambda X, Y: (X, Y["image"]), TypeError, "dict from modality name"),
    "no modality": (lambda X, Y: ({}, {}), ValueError, "empty dict"),
    "list": (lambda X, Y: (X | {"text": X["text"].tolist()}, Y), TypeError, r"'text': got a list.*numpy\.asarray"),
    "1-D": (lambda X, Y: (X | {"text": X["text"][:, 0]}, Y), ValueError, r"'text': got 1 dimension.*reshape"),
    "infinite": (lambda X, Y: (X | {"text": X["text"] * np.inf}, Y), ValueError, r"'text': row 0, feature \d+ is NaN"),
    "objects": (lambda X, Y: (X | {"text": X["text"].astype(object)}, Y), TypeError, "'text': got values of type object"),
    "labels missing": (lambda X, Y: (X, {"image": Y["image"]}), ValueError, "Y lacks labels for 'text'"),
    "labels unknown": (lambda X, Y: (X, Y | {"sound": Y["image"]}), ValueError, "labels for 'sound'"),
    "label rows": (lambda X, Y: (X, Y | {"text": Y["text"][:-1]}), ValueError, "'text': 239 label rows for 240 items"),
    "label columns": (lambda X, Y: (X, Y | {"text": Y["text"][:, :5]}), ValueError, "'image': 6, 'text': 5"),
    "label values": (lambda X, Y: (X, Y | {"text": Y["text"] * 2}), ValueError, r"'text': labels contain .*2.*only 0 and 1"),
    "class numbers": (lambda X, Y: (X, Y | {"text": Y["text"].argmax(1)}), ValueError, r"'text': labels have shape.*numpy\.eye"),
    "all equal": (lambda X, Y: (X | {"text": np.ones((240, 18))}, Y), ValueError, "'text': all 240 items are equal"),
    "empty": (lambda X, Y: (X | {"text": np.ones((0, 18))}, Y), ValueError, "'text': got an empty array"),
}  # fmt: skip


@pytest.mark.parametrize("method", ALL)
def test_bad_input_is_refused_with_the_reason(method):
    data = block_data(method)
    model = make(method)
    for spoil, error, message in BAD_FITS.values():
        with pytest.raises(error, match=message):
            model.fit(*spoil(data.X, data.Y), **data.fit)
        assert not [name for name in vars(model) if name.endswith("_")]


@pytest.mark.parametrize("method", ALL)
def test_features_of_which_nothing_can_be_learned_are_refused(method):
    data = block_data(method)
    model = make(method)
    for scale in (1e30, 1e200, 1e-30, 1e-200):
        with pytest.raises(ValueError, match=r"'image'.*Scale them"):
            model.fit({name: values * scale for name, values in data.X.items()}, data.Y, **data.fit)
        assert not [name for name in vars(model) if name.endswith("_")]


LARGE_RIDGE = ("lemon", "smfh", "label-oracle", OUTSIDE)
"""Methods whose ridge is larger than features of 1e-10."""


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("scale", [1e14, 1e-10])
def test_codes_tell_items_apart_at_any_magnitude_that_is_taken(method, scale):
    data = block_data(method)
    model = make(method)
    X = {name: values * scale for name, values in data.X.items()}
    if scale == 1e-10 and method.name in LARGE_RIDGE:
        with pytest.raises(ValueError, match=r"same code; .* Scale them"):
            model.fit(X, data.Y, **data.fit)
        return
    model.fit(X, data.Y, **data.fit)
    for name, codes in model.transform({name: values * scale for name, values in data.Xq.items()}).items():
        assert len(np.unique(codes, axis=0)) > 1, name


@pytest.mark.parametrize("method", SUPERVISED)
def test_items_without_labels_are_refused(method):
    data = block_data(method)
    Y = data.Y | {"text": data.Y["text"] * (np.arange(240) > 2)[:, None]}
    with pytest.raises(ValueError, match=r"'text': 3 of 240 items have no label \(first: row 0\)"):
        make(method).fit(data.X, Y, **data.fit)
    with pytest.raises(ValueError, match="supervised"):
        make(method).fit(data.X, **data.fit)


DEGENERATE = {
    "one label": lambda y, n: np.ones((len(y), 1)),
    "all labels on all items": lambda y, n: np.ones((len(y), 4)),
    "the same label on all items": lambda y, n: np.tile([1, 0, 0], (len(y), 1)),
    "a label that no item has": lambda y, n: np.hstack([y, np.zeros((len(y), 1))]),
    "a label per item": lambda y, n: np.eye(n)[: len(y)],
}


WITHOUT_SIMILARITY = {"seph": ["a label per item"], "sapmh": list(DEGENERATE)[:3]}
"""Labels that a method refuses, because all similarities are equal."""


@pytest.mark.slow
@pytest.mark.filterwarnings("error", "ignore:.*anchors asked for")
@pytest.mark.parametrize("labels", DEGENERATE)
@pytest.mark.parametrize("method", SUPERVISED)
def test_labels_that_distinguish_nothing_or_everything_are_learned_or_refused(method, labels):
    data = block_data(method, n=120)
    n = max(map(len, data.Y.values()))
    Y = {name: DEGENERATE[labels](y, n).astype(int) for name, y in data.Y.items()}
    if labels in WITHOUT_SIMILARITY.get(method.name, ()):
        with pytest.raises(ValueError, match="so there is no similarity to learn from"):
            make(method).fit(data.X, Y, **data.fit)
        return
    model = make(method).fit(data.X, Y, **data.fit)
    for projections in model.decision_function(data.Xq).values():
        assert np.isfinite(projections).all()


@pytest.mark.parametrize("method", ALL)
def test_impossible_numbers_of_bits_are_refused(method):
    data = block_data(method)
    for n_bits in (0, -3, 240, 1000, 2.5, "16", True):
        with pytest.raises((ValueError, TypeError), match="n_bits is"):
            make(method, n_bits).fit(data.X, data.Y, **data.fit)


@pytest.mark.parametrize("method", ALL)
def test_impossible_parameters_are_refused(method):
    data = block_data(method)
    for name, hint in constrained_parameters(type(make(method))).items():
        for value in (-1, "nonsense", *[{"image": -1, "text": -1}] * ("Mapping" in str(hint))):
            with pytest.raises((ValueError, TypeError), match=rf"^{name} is "):
                make(method, **{name: value}).fit(data.X, data.Y, **data.fit)


@pytest.mark.parametrize("n_bits", [4, 16, 40])  # below and far above the number of classes
@pytest.mark.parametrize("name", ["alech", "batch", "edmh", "fcmh"])
def test_no_sweep_raises_the_objective(name, n_bits):
    data = block_data(info(name), noise=0.6)
    trace = make(info(name), n_bits, max_iter=8).fit(data.X, data.Y, **data.fit).objective_
    assert trace.shape == (8,)
    assert np.all(np.diff(trace) <= 1e-7 * abs(trace[0]))


@pytest.mark.parametrize("name", ["cre", "edmh", "fmh", "fsh"])
def test_the_order_of_the_items_does_not_matter(name, rng):
    data = block_data(info(name))
    orders = dict.fromkeys(data.X, rng.permutation(240)) if data.fit else {n: rng.permutation(240) for n in data.X}
    X, Y = ({n: values[orders[n]] for n, values in part.items()} for part in (data.X, data.Y))
    model, again = (make(info(name)).fit(*parts, **data.fit) for parts in ((data.X, data.Y), (X, Y)))
    for n in X:
        assert np.unpackbits(again.codes_[n] ^ model.codes_[n][orders[n]]).mean() <= (0.01 if name == "cre" else 0)


@pytest.mark.parametrize("method", ALL)
def test_bad_queries_are_refused(method):
    model, data = fitted(method)
    with pytest.raises(NotFittedError):
        make(method).transform(data.Xq)
    with pytest.raises(ValueError, match=r"'sound'.*fitted on 'image', 'text'"):
        model.transform({"sound": data.Xq["image"]})
    with pytest.raises(ValueError, match="'text': got 30 features; the model was fitted on 18"):
        model.transform({"text": data.Xq["image"]})
    with pytest.raises(ValueError, match="'text': row 0, feature 0 is NaN"):
        model.transform({"text": np.full((2, 18), np.nan)})


def retrieval(model, data, database_labels=None):
    """mAP of both directions, queries hashed, database learned."""
    queries = model.transform(data.Xq)
    labels = database_labels or data.Y
    return {
        f"{q} to {d}": mean_average_precision(queries[q], data.Yq[q], model.codes_[d], labels[d], n_bits=model.n_bits)
        for q, d in (("image", "text"), ("text", "image"))
    }


@pytest.mark.parametrize("method", SUPERVISED)
def test_it_finds_what_is_known_to_be_right(method):
    found = retrieval(*fitted(method))
    assert min(found.values()) >= 0.95, found


@pytest.mark.parametrize("method", SUPERVISED)
def test_shuffled_labels_teach_nothing(method):
    scores, chance = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        data = block_data(method, seed=seed)
        order = rng.permutation(240)
        Y = {name: values[order] for name, values in data.Y.items()}
        model = make(method).fit(data.X, Y, **data.fit)
        scores += retrieval(model, data, Y).values()
        for _ in range(5):  # the same rankings for queries whose labels are random, too
            data.Yq = {name: rng.permutation(values) for name, values in data.Yq.items()}
            chance += retrieval(model, data, Y).values()
    assert np.mean(scores) - np.mean(chance) < 0.06, (np.mean(scores), np.mean(chance))
    assert np.mean(scores) < 0.35
