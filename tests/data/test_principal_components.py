"""Principal components: as scikit-learn computes them, from the training items of a split alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA

from modalhash.core.linalg import PrincipalComponents
from modalhash.data import Dataset, read, with_split, write_npz
from modalhash.experiments.provenance import digest_of


def words(n=80, width=12) -> sparse.csr_array:
    rng = np.random.default_rng(0)
    matrix = rng.random((n, width)) < np.linspace(0.1, 0.6, width)
    matrix[:, 1] |= matrix[:, 0]
    return sparse.csr_array(matrix.astype(np.float32))


def data(**changes) -> Dataset:
    labels = np.eye(4, dtype=bool)[np.arange(80) % 4]
    features = {"image": np.random.default_rng(1).random((80, 6)), "text": words()}
    given = {"components": {"text": 5}, "split_sizes": {"query": 20}, "name": "words", **changes}
    return Dataset(features, {"image": labels, "text": labels}, **given)


@pytest.mark.parametrize("dense", [False, True])
def test_they_are_those_of_scikit_learn(dense):
    X = words().toarray() if dense else words()
    found = PrincipalComponents.fit(X, 5)
    expected = PCA(5, svd_solver="covariance_eigh").fit(words().toarray().astype(np.float64))
    signs = np.sign((expected.components_.T * found.axes).sum(axis=0))
    np.testing.assert_allclose(found.axes * signs, expected.components_.T, atol=1e-9)
    np.testing.assert_allclose(found.transform(X) * signs, expected.transform(words().toarray()), atol=1e-5)
    assert found.transform(X).dtype == np.float32
    assert (found.axes[np.abs(found.axes).argmax(axis=0), np.arange(5)] > 0).all()


@pytest.mark.parametrize("training", [None, 40])
def test_parts_fit_on_training_items(training):
    sizes = {"query": 20} if training is None else {"query": 20, "training": training}
    whole = with_split(data(split_sizes=sizes), seed=3)
    parts = whole.parts()
    raw = whole.split.apply(replace(whole, components={}))
    fitted = PrincipalComponents.fit(raw.training.features["text"], 5)
    for part, before in zip(parts, raw, strict=True):
        np.testing.assert_array_equal(part.features["text"], fitted.transform(before.features["text"]))
        np.testing.assert_array_equal(part.features["image"], before.features["image"])
        assert part.components == {}
    assert (parts.database is parts.training) == (training is None)
    np.testing.assert_allclose(parts.training.features["text"].mean(axis=0), 0, atol=1e-6)


def test_queries_do_not_change_the_training_part():
    first = with_split(data(), seed=0)
    rows = first.rows_of("text", first.split.query["text"])
    features = first.features["text"].toarray()
    features[rows] = 1
    other = replace(first, features={**first.features, "text": sparse.csr_array(features)})
    np.testing.assert_array_equal(first.parts().training.features["text"], other.parts().training.features["text"])


def test_they_are_said_stored_and_part_of_the_digest(tmp_path):
    whole = data()
    assert whole.widths == {"image": 6, "text": 5}
    assert "text 80×12→5" in repr(whole)
    assert "reduced to 5 principal components of the training items" in whole.describe()
    assert digest_of(whole) != digest_of(data(components={"text": 4})) != digest_of(data(components={}))
    assert digest_of(whole) != digest_of(data(split_sizes={"query": 21}))
    back = read(write_npz(whole, tmp_path / "words.npz"))
    assert (back.components, back.split_sizes) == ({"text": 5}, {"query": 20})
    assert digest_of(back) == digest_of(whole)
    assert whole.only("image").components == {}
    assert whole.only("text").split_sizes == {"query": 20}


def test_too_many_are_refused():
    with pytest.raises(ValueError, match=r"'words', 'text': 13 principal components of 60 training items with 12"):
        with_split(data(components={"text": 13}), seed=0).parts()
    with pytest.raises(ValueError, match="components of 'sound'; features are of 'image', 'text'"):
        data(components={"sound": 3})
