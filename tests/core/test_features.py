from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from modalhash.core.features import AnchorKernel, Linear
from modalhash.core.maps import _squared_lengths


def data(rng, n=80, d=7):
    return rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.6) + 3.0


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("rows", ["raw", "unit", "centred unit"])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_the_kernel_is_its_formula(rng, squared, rows, kind):
    X, new = data(rng), data(rng, n=9)
    kernel = AnchorKernel(12, squared=squared, rows=rows, random_state=1).fit(kind(X))

    def prepared(Z):
        Z = Z - X.mean(axis=0) if rows == "centred unit" else Z
        return Z if rows == "raw" else Z / np.linalg.norm(Z, axis=1, keepdims=True)

    A = kernel.anchors_
    assert all(np.isclose(prepared(X), a).all(axis=1).any() for a in A), "anchors are training items"
    distance = cdist(prepared(X), A)
    if squared:
        assert kernel.bandwidth_ == pytest.approx((distance**2).mean())
        phi = [np.exp(-(cdist(prepared(Z), A) ** 2) / (2 * (distance**2).mean())) for Z in (X, new)]
    else:
        assert kernel.bandwidth_ == pytest.approx(distance.mean())
        phi = [np.exp(-cdist(prepared(Z), A) / (2 * distance.mean() ** 2)) for Z in (X, new)]
    mean = phi[0].mean(axis=0)
    np.testing.assert_allclose(kernel.transform(kind(X)), phi[0] - mean, atol=2e-7)
    np.testing.assert_allclose(kernel.transform(kind(new)), phi[1] - mean, atol=2e-7)


def test_other_bandwidths(rng):
    X = data(rng)
    pairs = AnchorKernel(12, bandwidth="pairs", random_state=1).fit(X)
    assert 2 * pairs.bandwidth_ == pytest.approx((cdist(X, X) ** 2).mean())
    assert AnchorKernel(12, bandwidth=0.5, random_state=1).fit(X).bandwidth_ == 0.5
    with pytest.raises(ValueError, match="bandwidth is 'median'"):
        AnchorKernel(12, bandwidth="median").fit(X)


def test_far_from_the_origin_float32_is_as_good(rng):
    X = (rng.normal(size=(60, 5)) + 1000).astype(np.float32)
    single = AnchorKernel(10, random_state=0).fit_transform(X)
    double = AnchorKernel(10, random_state=0).fit_transform(X.astype(np.float64))
    assert single.dtype == np.float32
    assert double.dtype == np.float64
    np.testing.assert_allclose(single, double, atol=1e-4)


def test_bias_and_centring_can_be_chosen(rng):
    X = data(rng)
    for make in (lambda **o: AnchorKernel(6, random_state=0, **o), Linear):
        phi = make(bias=True).fit_transform(X)
        np.testing.assert_array_equal(phi[:, -1], 1)
        np.testing.assert_allclose(phi[:, :-1].mean(axis=0), 0, atol=1e-12)
        assert np.all(make(centred=False).fit_transform(X).mean(axis=0) > 0.1)
    np.testing.assert_allclose(Linear(rows="unit", centred=False).fit_transform(X)[0], X[0] / np.linalg.norm(X[0]))


def test_anchors_depend_on_content_and_seed_only(rng):
    X = data(rng)
    order = rng.permutation(len(X))
    plain = AnchorKernel(12, random_state=1).fit(X)
    np.testing.assert_array_equal(plain.anchors_, AnchorKernel(12, random_state=1).fit(X[order]).anchors_)
    np.testing.assert_array_equal(plain.anchors_, AnchorKernel(12, random_state=1).fit(sparse.csr_array(X)).anchors_)
    assert not np.array_equal(plain.anchors_, AnchorKernel(12, random_state=2).fit(X).anchors_)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_centres_of_clusters_are_found_whatever_the_order(rng, kind):
    centres = 10.0 * np.eye(4)
    X = np.repeat(centres, 25, axis=0) + 0.1 * rng.normal(size=(100, 4))
    first = AnchorKernel(40, anchors="kmeans", random_state=0).fit(kind(X))
    second = AnchorKernel(40, anchors="kmeans", random_state=0).fit(kind(X[rng.permutation(100)]))
    np.testing.assert_allclose(first.anchors_, second.anchors_, atol=1e-9)
    near = cdist(first.anchors_, centres)
    assert set(near.argmin(axis=1)) == {0, 1, 2, 3}
    assert near.min(axis=1).max() < 0.5
    assert not all(np.isclose(X, anchor).all(axis=1).any() for anchor in first.anchors_), "means, not items"


def test_equal_starting_points_are_one_centre(rng):
    X = np.repeat(rng.normal(size=(5, 3)), 20, axis=0)
    kernel = AnchorKernel(30, anchors="kmeans", random_state=0).fit(X)
    assert len(kernel.anchors_) == 5
    with pytest.raises(ValueError, match="anchors is 'medoids'"):
        AnchorKernel(3, anchors="medoids").fit(X)


def test_they_are_transformers(rng):
    X = data(rng)
    kernel = AnchorKernel(5, random_state=0)
    assert clone(kernel).get_params() == kernel.get_params()
    assert make_pipeline(FunctionTransformer(), kernel).fit_transform(X).shape == (80, 5)
    with pytest.raises(ValueError, match="got 3 features; the model was fitted on 7"):
        kernel.fit(X).transform(X[:, :3])


def test_too_many_anchors_are_capped_with_a_warning(rng):
    with pytest.warns(UserWarning, match="100 anchors asked for, 80 items there: using all 80"):
        assert AnchorKernel(100).fit_transform(data(rng)).shape == (80, 80)


def test_equal_items_have_no_scale():
    with pytest.raises(ValueError, match="all items are equal"):
        AnchorKernel(3).fit(np.ones((9, 2)))


@pytest.mark.parametrize("squared", [True, False])
def test_strips_and_dense_products_change_nothing(rng, monkeypatch, squared):
    X = data(rng).astype(np.float32)
    sparse_rows = sparse.csr_array(X * (rng.random(X.shape) < 0.05))
    kernel = AnchorKernel(12, squared=squared, random_state=0).fit(X)
    whole, csr = kernel.transform(X), kernel.transform(sparse_rows)
    monkeypatch.setattr("modalhash.core.maps.STRIP_BYTES", 1)
    np.testing.assert_array_equal(kernel.transform(X), whole)
    monkeypatch.setattr("modalhash.core.maps.DENSE", 0.0)
    np.testing.assert_allclose(kernel.transform(sparse_rows), csr, atol=1e-5)


def test_input_is_left_as_it_was(rng):
    X = data(rng)
    before = X.copy()
    for rows in ("raw", "unit", "centred unit"):
        for feature_map in (
            AnchorKernel(6, rows=rows, random_state=0),
            Linear(rows=rows),
            Linear(rows=rows, centred=False),
        ):
            out = feature_map.fit(X).transform(X)
            out += 1
            np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_squared_lengths_are_those_of_the_product_of_matrices_to_the_last_bit(rng, dtype):
    values = (rng.normal(size=(40, 300)) * (rng.random((40, 300)) < 0.3)).astype(dtype)
    values[7] = 0
    rows = sparse.csr_array(values)
    with_zero = sparse.csr_array((np.where(rows.data > 1, 0, rows.data), rows.indices, rows.indptr), shape=rows.shape)
    unsorted = sparse.csr_array((rows.data[::-1].copy(), rows.indices[::-1].copy(), rows.indptr), shape=rows.shape)
    for one in (rows, with_zero, rows[[7]], rows[[3]], unsorted):
        expected = np.asarray(one.multiply(one).sum(axis=1)).ravel()
        found = _squared_lengths(one)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
