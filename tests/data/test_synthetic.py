"""Twins match the measures of Table I."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from modalhash.data import RECIPES, twin

TABLE_I = {  # query, training, image, text, classes
    "mirflickr25k": (836, 15902, 150, 500, 24),
    "nuswide10": (2000, 184577, 500, 1000, 10),
    "iapr-tc12": (2000, 18000, 512, 2912, 255),
}


@pytest.mark.parametrize("name", TABLE_I)
def test_recipes_are_table_one(name):
    recipe = RECIPES[name]
    found = (recipe.n_query, recipe.n_training, recipe.image, recipe.text, len(recipe.frequencies))
    assert found == TABLE_I[name]


@pytest.mark.parametrize("name", TABLE_I)
def test_small_twins(name):
    data = twin(name, scale=0.05, seed=1)
    recipe = RECIPES[name]
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


def test_refuses():
    with pytest.raises(ValueError, match="expected one of 'mirflickr25k'"):
        twin("wiki")
    with pytest.raises(ValueError, match="scale"):
        twin("nuswide10", scale=0)
