"""Kernels by name, and the choice of one by held-out ranking."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.spatial.distance import cdist

from modalhash.core import features
from modalhash.core.features import (
    CANDIDATES,
    KERNELS,
    AnchorKernel,
    Linear,
    choose_kernel,
    kernel_maps,
    ranking_score,
    signed_roots,
)
from modalhash.data import generate
from modalhash.methods import registry
from modalhash.methods.registry import METHODS


def histograms(rng, n=700):
    """Counts whose small bins tell the class and whose large ones are noise: square roots bring the small ones out."""
    labels = rng.integers(6, size=n)
    rates = rng.uniform(0, 3, size=(6, 40))[labels]
    X = np.hstack([rng.poisson(rates), rng.poisson(200, size=(n, 10)) * rng.uniform(0.2, 3, size=(n, 10))])
    return X.astype(np.float64), sparse.csr_array(np.eye(6, dtype=bool)[labels])


def test_a_power_is_a_kernel_of_signed_roots():
    X = np.random.default_rng(0).normal(size=(60, 5))
    kernel = AnchorKernel(12, power=0.5, random_state=1).fit(X)
    roots = np.sign(X) * np.sqrt(np.abs(X))
    plain = AnchorKernel(12, random_state=1).fit(roots)
    rows = [int(np.flatnonzero((roots == anchor).all(axis=1))[0]) for anchor in kernel.anchors_]
    assert kernel.bandwidth_ == pytest.approx((cdist(roots, roots[rows]) ** 2).mean())
    values = np.exp(-(cdist(roots, roots[rows]) ** 2) / (2 * kernel.bandwidth_))
    np.testing.assert_allclose(kernel.transform(X), values - values.mean(axis=0), atol=1e-10)
    assert plain.anchors_.shape == kernel.anchors_.shape
    sparse_X = sparse.csr_array(np.where(np.abs(X) > 0.7, X, 0))
    dense, found = (
        AnchorKernel(12, power=0.5, random_state=1).fit_transform(some) for some in (sparse_X.toarray(), sparse_X)
    )
    np.testing.assert_allclose(found, dense, atol=1e-10)
    assert sparse_X.data.min() < -0.7  # the input keeps its values
    with pytest.raises(ValueError, match=r"power is 2; expected 1 or 0\.5"):
        AnchorKernel(12, power=2).fit(X)


@pytest.mark.parametrize("power", [1, 0.5])
def test_the_laplacian_is_scaled_by_the_distance_of_two_items(power):
    X = np.random.default_rng(0).normal(size=(50, 4))
    kernel = AnchorKernel(50, squared=False, bandwidth="pairs", power=power, centred=False, random_state=0).fit(X)
    rows = X if power == 1 else signed_roots(X)
    D = cdist(rows, rows)
    order = [int(np.flatnonzero((rows == anchor).all(axis=1))[0]) for anchor in kernel.anchors_]
    np.testing.assert_allclose(kernel.transform(X), np.exp(-D / np.sqrt((D**2).mean()))[:, order], atol=1e-7)


@pytest.mark.slow
def test_roots_are_chosen_where_they_tell_labels_better():
    X, Y = histograms(np.random.default_rng(0))
    assert choose_kernel(X, Y, 0).endswith("-sqrt")
    outliers = np.random.default_rng(1).normal(size=(700, 30))
    outliers[:, :6] += 2.5 * Y.toarray()  # here it is the large values that tell the class
    assert not choose_kernel(outliers, Y, 0).endswith("-sqrt")


@pytest.mark.slow
def test_the_choice_does_not_depend_on_the_order_of_the_items():
    X, Y = histograms(np.random.default_rng(3))
    order = np.random.default_rng(1).permutation(len(X))
    scores = []

    def watched(*args):
        scores.append(ranking_score(*args))
        return scores[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "ranking_score", watched)
        for some in (np.arange(len(X)), order):
            choose_kernel(X[some], Y[some], 0)
    assert scores[: len(CANDIDATES)] == scores[len(CANDIDATES) :]


@pytest.mark.slow
def test_items_without_labels_have_no_part_in_the_choice():
    X, Y = histograms(np.random.default_rng(0))
    more = np.vstack([X, 1000 * X[:200]])
    labels = sparse.csr_array(np.vstack([Y.toarray(), np.zeros((200, 6), dtype=bool)]))
    assert choose_kernel(more, labels, 0) == choose_kernel(X, Y, 0)


def test_few_labels_leave_the_usual_kernel():
    X, Y = histograms(np.random.default_rng(0), n=59)
    assert choose_kernel(X, Y, 0) == "rbf"


def test_the_score_is_that_of_explicit_regressions():
    rng = np.random.default_rng(0)
    Y = rng.random((90, 5)) < 0.3
    Y[np.arange(90), rng.integers(5, size=90)] = True
    phi = np.hstack([Y + rng.normal(size=Y.shape), np.ones((90, 1))]).astype(np.float32)
    folds = np.arange(90) % 3
    T = Y / np.sqrt(Y.sum(axis=1, keepdims=True))
    totals = []
    for ridge in features.RIDGES:
        values = []
        for fold in range(3):
            others, own = folds != fold, folds == fold
            P = phi[others].astype(float)
            S = phi[own] @ np.linalg.solve(P.T @ P + ridge * np.eye(6), P.T @ T[others])
            for queries, database in ((S, T[own]), (T[own], S)):
                for query, labels in zip(queries, Y[own], strict=True):
                    hits = (Y[own] & labels).any(axis=1)[np.argsort(-(database @ query), kind="stable")]
                    values.append(np.mean([hits[: k + 1].mean() for k in np.flatnonzero(hits)]))
        totals.append(np.mean(values))
    found = ranking_score(phi, sparse.csr_array(Y.astype(np.float32)), folds)
    assert found == pytest.approx(max(totals), abs=1e-5)


def test_many_labels_are_cut_to_the_most_frequent():
    rng = np.random.default_rng(0)
    words = rng.integers(5000, size=(300, 3))
    Y = sparse.csr_array((np.ones(900, dtype=bool), (np.repeat(np.arange(300), 3), words.ravel())), shape=(300, 5000))
    Y.sum_duplicates()
    assert choose_kernel(rng.normal(size=(300, 8)), Y, 0) in CANDIDATES


def test_maps_by_name():
    data = generate(n_items=80, seed=0)
    kernels = {"image": "rbf-narrow", "text": None}
    maps = kernel_maps(data.X, data.Y, kernel=kernels, n_anchors=20, seed=1, bias=True, dtype="float32")
    assert isinstance(maps["text"], Linear)
    assert (maps["image"].bandwidth, maps["image"].n_anchors, maps["image"].bias) == ("pairs", 20, True)
    for name in KERNELS:
        assert kernel_maps(data.X, None, kernel=name, n_anchors=20, seed=1)["image"].fit_transform(
            data.X["image"]
        ).shape == (80, 20)
    with pytest.raises(ValueError, match="kernel='auto' needs labels"):
        kernel_maps(data.X, None, kernel="auto", n_anchors=20, seed=1)
    with pytest.raises(ValueError, match="kernel is 'poly'"):
        kernel_maps(data.X, data.Y, kernel="poly", n_anchors=20, seed=1)


def kernel_methods(*, supervised):
    found = [name for name, method in METHODS.items() if method.supervised is supervised and "anchors" in method.kernel]
    return [name for name in found if "kernel" in registry.method(name)().get_params()]


@pytest.mark.slow
@pytest.mark.parametrize("name", kernel_methods(supervised=True))
def test_every_supervised_kernel_method_may_choose(name):
    data = generate(n_items=150, n_features={"image": 12, "text": 9}, seed=0)
    X, Y = {key: np.abs(values) for key, values in data.X.items()}, dict.fromkeys(data.X, data.Y["image"])
    cls = registry.method(name)
    model = cls(n_bits=8, n_anchors=40, kernel="auto", random_state=0)
    model.fit(X, Y, pairs="aligned" if cls.needs_pairs else None)
    for key, values in X.items():
        chosen = KERNELS[choose_kernel(values, sparse.csr_array(Y[key]), 0)]
        assert {parameter: getattr(model.maps_[key], parameter) for parameter in chosen} == chosen


def test_all_supervised_methods_with_anchors_are_kernel_methods():
    anchors = {name for name, method in METHODS.items() if method.supervised and "anchors" in method.kernel}
    assert set(kernel_methods(supervised=True)) == anchors


@pytest.mark.parametrize("name", kernel_methods(supervised=False))
def test_without_labels_nothing_is_chosen(name):
    data = generate(n_items=60, seed=0)
    cls = registry.method(name)
    with pytest.raises(ValueError, match="kernel"):
        cls(n_bits=8, n_anchors=20, kernel="auto").fit(data.X, pairs="aligned" if cls.needs_pairs else None)


def test_folds_without_an_item_have_no_part_in_the_score(rng):
    phi, labels = (
        rng.normal(size=(40, 5)).astype(np.float32),
        sparse.csr_array(np.eye(4, dtype=np.float32)[np.arange(40) % 4]),
    )
    some = ranking_score(phi, labels, np.arange(40) % 2)
    assert 0 < some <= 1
