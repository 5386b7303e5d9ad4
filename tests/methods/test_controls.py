"""The controls are what they claim: chance is chance, the oracle is a ceiling, CCA is CCA."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from contract import block_data, make
from modalhash.core.codes import unpack_signs
from modalhash.core.linalg import canonical_directions
from modalhash.evaluation import mean_average_precision
from modalhash.methods.cca_itq import CCAITQ
from modalhash.methods.chance import Chance
from modalhash.methods.label_oracle import LabelOracle, balanced_class_codes
from modalhash.methods.registry import METHODS, info


def score(model, data, query="image", database="text"):
    queries = model.transform({query: data.Xq[query]})[query]
    return mean_average_precision(
        queries, data.Yq[query], model.codes_[database], data.Y[database], n_bits=model.n_bits
    )


def test_controls_are_marked():
    assert {name for name, method in METHODS.items() if method.control} == {"chance", "cca-itq", "label-oracle"}
    assert all(method.year is None for method in METHODS.values() if method.control)


def test_chance_is_chance():
    data = block_data(info("chance"), n=600)
    found = [score(Chance(32, random_state=seed).fit(data.X), data) for seed in range(5)]
    assert np.mean(found) == pytest.approx(1 / 6, abs=0.02)


@pytest.mark.parametrize("n_bits", [10, 64, 130])
def test_chance_gives_an_item_one_code_and_fair_bits(rng, n_bits):
    X = rng.normal(size=(4000, 5))
    model = Chance(n_bits, random_state=3).fit({"text": X, "image": X})
    codes = model.codes_["text"]
    np.testing.assert_array_equal(model.transform({"text": X[7:9]})["text"], codes[7:9])
    np.testing.assert_array_equal(model.transform({"text": sparse.csr_array(X)})["text"], codes)
    bits = unpack_signs(codes, n_bits)
    assert np.abs(bits.mean(axis=0)).max() < 0.08
    correlation = bits.T @ bits / len(bits) - np.eye(n_bits)
    assert np.abs(correlation).max() < 0.1
    other = unpack_signs(model.codes_["image"], n_bits)  # equal features in another modality: unrelated codes
    assert abs((bits * other).mean()) < 0.02
    assert (Chance(n_bits, random_state=4).fit({"text": X}).codes_["text"] != codes).any()


def test_canonical_directions_are_those_of_the_definition(rng):
    shared = rng.normal(size=(400, 2))
    X = np.hstack([shared, rng.normal(size=(400, 3))]) @ rng.normal(size=(5, 5))
    Y = np.hstack([shared + 0.3 * rng.normal(size=(400, 2)), rng.normal(size=(400, 2))]) @ rng.normal(size=(4, 4))
    X, Y = X - X.mean(axis=0), Y - Y.mean(axis=0)
    Wx, Wy, correlations = canonical_directions(X, Y, 10, 0.0)
    assert correlations.shape == (4,)
    P, Q = X @ Wx, Y @ Wy
    np.testing.assert_allclose(P.T @ P / 400, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(Q.T @ Q / 400, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(P.T @ Q / 400, np.diag(correlations), atol=1e-9)
    # cosines of the angles between the column spaces, found another way
    angles = np.linalg.svd(np.linalg.qr(X)[0].T @ np.linalg.qr(Y)[0], compute_uv=False)
    np.testing.assert_allclose(correlations, angles, atol=1e-9)


def test_dependent_features_without_a_ridge_are_refused(rng):
    X = np.repeat(rng.normal(size=(50, 1)), 2, axis=1)
    with pytest.raises(ValueError, match="linearly dependent"):
        canonical_directions(X - X.mean(axis=0), X - X.mean(axis=0), 2, 0.0)


@pytest.mark.parametrize("n_bits", [4, 16, 40])  # below, at about and above the number of directions
def test_cca_itq_rotation_falls_and_finds_the_blocks(n_bits):
    data = block_data(info("cca-itq"))
    model = CCAITQ(n_bits, random_state=0).fit(data.X, pairs="aligned")
    assert (np.diff(model.objective_) <= 1e-9 * model.objective_[:-1]).all()
    assert len(model.correlations_) == min(n_bits, 18)
    assert score(model, data) > (0.6 if n_bits == 4 else 0.8)


def multi_label(rng, n, c=30):
    L = rng.random((n, c)) < rng.uniform(0.01, 0.2, size=c)
    L[np.arange(n), rng.integers(c, size=n)] = True
    return L


def test_class_codes_are_balanced(rng):
    for n_classes in (6, 7, 30):
        assert (np.abs(np.sign(balanced_class_codes(n_classes, 24, rng)).sum(axis=0)) == n_classes % 2).all()


def test_the_oracle_is_perfect_with_one_label_per_item():
    data = block_data(info("label-oracle"))
    data.X, data.Xq = data.Y, data.Yq  # labels as features: a ceiling for queries, too
    assert score(make(info("label-oracle")).fit(data.X, data.Y), data) == pytest.approx(1)


def test_the_oracle_improves_with_many_labels(rng):
    Y, Yq = ({"image": multi_label(rng, n), "text": multi_label(rng, n + 20)} for n in (500, 100))
    found = {}
    for max_iter in (0, 10):
        oracle = LabelOracle(16, max_iter=max_iter, random_state=0).fit(Y, Y)
        queries = oracle.transform(Yq)["image"]
        found[max_iter] = mean_average_precision(queries, Yq["image"], oracle.codes_["text"], Y["text"], n_bits=16)
    assert found[10] > found[0] + 0.05
    assert (np.diff(oracle.objective_) <= 1e-9 * np.abs(oracle.objective_[:-1])).all()


def test_oracle_codes_are_functions_of_the_labels(rng):
    Y = {"image": multi_label(rng, 200), "text": multi_label(rng, 200)}
    X = {name: rng.normal(size=(200, 5)) for name in Y}
    Y["text"][:50] = Y["image"][:50]
    codes = LabelOracle(16, random_state=0).fit(X, Y).codes_
    np.testing.assert_array_equal(codes["image"][:50], codes["text"][:50])
