"""Twins match the measures of Table I."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from modalhash.data import RECIPES, ReadError, twin
from shared_data import shared_data

TABLE_I = {  # query, training, image, text, classes
    "mirflickr25k": (836, 15902, 150, 500, 24),
    "nuswide10": (2000, 184577, 500, 1000, 10),
    "iapr-tc12-255": (2000, 18000, 512, 2912, 255),
}


@pytest.mark.parametrize("name", TABLE_I)
def test_recipes_are_table_one(name):
    recipe = RECIPES[name]
    found = (recipe.n_query, recipe.n_training, recipe.image, recipe.text, len(recipe.frequencies))
    assert found == TABLE_I[name]


@pytest.mark.parametrize("name", TABLE_I)
def test_small_twins(name):
    data = twin(name, scale=0.05, seed=1, root="nowhere")
    recipe = RECIPES[name]
    assert (data.kind, data.provenance["labels"]) == ("twin", "drawn")
    n_query, n_training = round(0.05 * recipe.n_query), round(0.05 * recipe.n_training)
    assert data.parts().query.sizes == {"image": n_query, "text": n_query}
    assert data.parts().training.sizes == {"image": n_training, "text": n_training}
    assert data.features["image"].dtype == np.float32
    assert data.features["image"].shape[1] == recipe.image
    labels = data.labels["image"]
    assert labels.any(axis=1).all()
    aim = np.array(list(recipe.frequencies.values()))
    spread = np.sqrt(aim * (1 - aim) / len(labels))
    assert np.abs(labels.mean(axis=0) - aim).max() < 5 * spread.max() + 0.01
    text = data.features["text"]
    if recipe.tags is None:
        assert isinstance(text, np.ndarray)
    else:
        assert isinstance(text, sparse.csr_array)
        assert set(np.unique(text.data)) == {1}
        assert abs(text.nnz / text.shape[0] - recipe.tags * (1 - recipe.untagged)) < 0.6
        assert abs((np.diff(text.indptr) == 0).mean() - recipe.untagged) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE_I)
def test_features_carry_the_labels(name):
    """Items that share a label are nearer than items that do not, in both modalities."""
    data = twin(name, scale=0.02)
    labels = data.labels["image"].astype(int)
    alike = labels @ labels.T > 0
    np.fill_diagonal(alike, False)
    for values in data.features.values():
        dense = values.toarray() if sparse.issparse(values) else values
        dense = dense - dense.mean(axis=0)
        dense /= np.linalg.norm(dense, axis=1, keepdims=True) + 1e-9
        near = dense @ dense.T
        other = ~alike & ~np.eye(len(alike), dtype=bool)
        assert near[alike].mean() > near[other].mean() + 0.005


def test_seeded():
    first, again, other = (twin("nuswide10", scale=0.002, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.features["image"], again.features["image"])
    assert (first.features["text"] != again.features["text"]).nnz == 0
    assert not np.array_equal(first.features["image"], other.features["image"])


def test_the_twin_of_nuswide_has_real_labels_where_they_are():
    root = shared_data("nuswide").parent
    data = twin("nuswide10", root=root, scale=0.1)
    assert data.provenance["labels"] == "real"
    with np.load(root / "nuswide" / "labels.npz") as file:
        labels, concepts = file["labels"].astype(bool), file["concepts"]
    counts = labels.sum(axis=0)
    top = [list(concepts).index(name) for name in data.class_names]
    assert sorted(counts[top], reverse=True) == sorted(counts, reverse=True)[:10]
    real = labels[:, top][labels[:, top].any(axis=1)]
    assert len(real) == 186577 == sum(RECIPES["nuswide10"].__dict__[size] for size in ("n_query", "n_training"))
    np.testing.assert_allclose(data.labels["image"].mean(axis=0), real.mean(axis=0), atol=0.015)
    np.testing.assert_allclose(real.mean(axis=0), list(RECIPES["nuswide10"].frequencies.values()), atol=1e-6)
    patterns = {row.tobytes() for row in np.packbits(real, axis=1)}
    assert {row.tobytes() for row in np.packbits(data.labels["image"], axis=1)} <= patterns


def test_an_item_with_real_labels_occurs_once(tmp_path):
    (tmp_path / "nuswide").mkdir()
    labels = np.random.default_rng(0).random((600, 12)) < 0.2
    np.savez(tmp_path / "nuswide" / "labels.npz", labels=labels, concepts=[f"concept {k}" for k in range(12)])
    data = twin("nuswide10", root=tmp_path, scale=500 / 186577)
    order = [int(name.split()[1]) for name in data.class_names]
    assert len(data.ids["text"]) == 500
    assert not Counter(map(tuple, data.labels["text"].tolist())) - Counter(map(tuple, labels[:, order].tolist()))
    np.savez(tmp_path / "nuswide" / "labels.npz", labels=labels)
    with pytest.raises(ReadError, match=r"labels\.npz: no variable concepts"):
        twin("nuswide10", root=tmp_path, scale=0.001)


def test_refuses():
    with pytest.raises(ValueError, match="expected one of 'mirflickr25k'"):
        twin("wiki")
    with pytest.raises(ValueError, match="scale"):
        twin("nuswide10", scale=0)
