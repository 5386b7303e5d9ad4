"""A fit on Dask workers is the fit in memory, bit for bit; what cannot be fitted there is refused with what to do."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dask_cluster import need_dask
from modalhash import AMSH, load
from modalhash.data import generate
from modalhash.distributed import ClusterError
from modalhash.methods.cca_itq import CCAITQ
from modalhash.methods.rlh import RLH

pytestmark = pytest.mark.slow

need_dask_installed = pytest.fixture(autouse=True)(need_dask)

N = 2600
LIMIT = "16MB"  # blocks of 1 MiB, 524 rows: several parts of several blocks, which all fit
METHODS = {
    "AMSH": AMSH(16, n_anchors=500, function_iter=3, code_iter=3, memory_limit=LIMIT, random_state=0),
    "AMSH, little memory": AMSH(16, n_anchors=500, function_iter=3, code_iter=3, memory_limit=1, random_state=0),
    "AMSH, from features": AMSH(
        16,
        n_anchors={"image": 500, "text": 300},
        init="pca",
        function_iter=2,
        code_iter=2,
        memory_limit=LIMIT,
        random_state=0,
    ),
    "AMSH, linear": AMSH(16, kernel=None, function_iter=2, code_iter=2, random_state=0),
    "AMSH, as printed": AMSH(16, kernel="rbf-unsquared", n_anchors=100, function_iter=2, code_iter=2, random_state=0),
    "RLH": RLH(16, n_anchors=500, steps=40, memory_limit=LIMIT, random_state=0),
    "RLH, few posteriors": RLH(16, n_anchors=500, steps=40, n_posteriors=500, memory_limit=LIMIT, random_state=0),
    "RLH, posterior": RLH(16, n_anchors=200, steps=20, functions="posterior", random_state=0),
}


@pytest.fixture(scope="module")
def data():
    drawn = generate(n_items=N, seed=3)
    drawn.X["text"] = drawn.X["text"][: N - 300]
    drawn.Y["text"] = drawn.Y["text"][: N - 300]
    return drawn


def chunked(values, rows, columns=-1):
    import dask.array as da

    return da.from_array(values, chunks=(rows, columns))


def as_dask(data):
    X = {"image": chunked(data.X["image"], 700, 40), "text": chunked(data.X["text"], (1, 999, 0, N - 1300))}
    return X, {name: chunked(labels, 1000) for name, labels in data.Y.items()}


@pytest.mark.parametrize("name", METHODS)
def test_the_fit_is_that_in_memory(dask_cluster, data, name):
    here, there = METHODS[name], type(METHODS[name])(**METHODS[name].get_params())
    here.fit(data.X, data.Y)
    there.fit(*as_dask(data))
    queries = data.queries[0]
    for modality, codes in here.codes_.items():
        assert there.codes_[modality].chunks[0] == as_dask(data)[0][modality].chunks[0]
        np.testing.assert_array_equal(there.codes_[modality].compute(), codes)
        np.testing.assert_array_equal(there.functions_[modality], here.functions_[modality])
        np.testing.assert_array_equal(there.transform(queries)[modality], here.transform(queries)[modality])
    assert there.objective_["functions"].keys() == here.objective_["functions"].keys()
    for modality, trace in here.objective_["functions"].items():
        np.testing.assert_array_equal(there.objective_["functions"][modality], trace)


def test_items_without_labels_get_the_codes_of_memory(dask_cluster, data):
    model = RLH(16, n_anchors=100, steps=20, unlabelled="posterior", random_state=0)
    Y = {name: labels.copy() for name, labels in data.Y.items()}
    Y["image"][::3] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        here = model.fit(data.X, Y).codes_
        there = model.fit(as_dask(data)[0], Y).codes_
    for name in here:
        np.testing.assert_array_equal(there[name].compute(), here[name])


def test_several_lengths(dask_cluster, data):
    model = AMSH(n_anchors=100, function_iter=2, code_iter=2, random_state=0)
    here, there = model.fit_path(data.X, data.Y, n_bits=(8, 16)), model.fit_path(*as_dask(data), n_bits=(8, 16))
    for bits in (8, 16):
        np.testing.assert_array_equal(there[bits].codes_["text"].compute(), here[bits].codes_["text"])
        np.testing.assert_array_equal(there[bits].functions_["text"], here[bits].functions_["text"])


def test_a_model_fitted_on_workers_is_saved_and_loaded(dask_cluster, data, tmp_path):
    model = AMSH(16, n_anchors=50, function_iter=1, code_iter=1, random_state=0).fit(*as_dask(data))
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.codes_["image"], model.codes_["image"].compute())


def test_codes_of_a_dask_array_are_lazy(data):
    import dask

    model = CCAITQ(8).fit({n: x[:2000] for n, x in data.X.items()}, pairs="aligned")
    read = []

    def noticed(block):
        read.append(len(block))
        return block

    X = chunked(data.X["image"], (500, 0, 2100), 32).map_blocks(
        noticed, dtype=np.float32, meta=np.empty((0, 0), np.float32)
    )
    codes, projections = model.transform({"image": X})["image"], model.decision_function({"image": X})["image"]
    assert not read
    assert codes.shape == (N, 1)
    assert codes.dtype == np.uint8
    assert codes.chunks[0] == X.chunks[0]
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(codes.compute(), model.transform({"image": data.X["image"]})["image"])
        np.testing.assert_allclose(
            projections.compute(), model.decision_function({"image": data.X["image"]})["image"], rtol=1e-4, atol=1e-5
        )


def test_without_a_client_it_says_what_to_do(data, monkeypatch):
    import distributed

    def nobody():
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "default_client", nobody)
    with pytest.raises(ClusterError, match=r"Make one before the fit: client = distributed.Client\("):
        AMSH(8).fit(*as_dask(data))


def refused(data, change):
    X, Y = as_dask(data)
    change(X, Y)
    return X, Y


REFUSED = {
    "unknown chunk sizes": (lambda X, Y: X.update(text=X["text"][X["text"][:, 0] > 0]), ValueError, r"compute_chunk_sizes\(\)"),
    "unknown sizes of labels": (lambda X, Y: Y.update(text=Y["text"][X["text"][:, 0] > 0]), ValueError, r"compute_chunk_sizes\(\)"),
    "an array among dask arrays": (lambda X, Y: X.update(text=X["text"].compute(scheduler="synchronous")), TypeError, "'text' is not one"),
    "one dimension": (lambda X, Y: X.update(text=X["text"][:, 0]), ValueError, r"'text': got 1 dimension\(s\)"),
    "complex": (lambda X, Y: X.update(text=X["text"].astype(complex)), TypeError, "complex128; expected real numbers"),
    "labels of other items": (lambda X, Y: Y.update(text=Y["text"][:5]), ValueError, f"'text': 5 label rows for {N - 300} items"),
    "equal items": (lambda X, Y: X.update(text=X["text"] * 0 + 1), ValueError, "'text': all 2300 items are equal"),
    "tiny": (lambda X, Y: X.update(text=X["text"] * np.float32(1e-20)), ValueError, "'text': no feature is larger than"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_fitted_is_refused(dask_cluster, data, what):
    change, error, message = REFUSED[what]
    model = AMSH(8, n_anchors=20)
    with pytest.raises(error, match=message):
        model.fit(*refused(data, change))
    assert not hasattr(model, "codes_")


def test_a_broken_row_is_named_by_its_number_among_all(dask_cluster, data):
    X, Y = as_dask(data)
    broken = data.X["image"].copy()
    broken[1500, 7] = np.nan
    with pytest.raises(ValueError, match="'image': row 1500, feature 7 is NaN"):
        AMSH(8).fit({**X, "image": chunked(broken, 700)}, Y)


def test_other_methods_say_that_they_take_arrays(data):
    with pytest.raises(TypeError, match="CCAITQ takes arrays in memory"):
        CCAITQ(8).fit(as_dask(data)[0], pairs="aligned")
