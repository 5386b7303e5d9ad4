"""Model selection of scikit-learn on data that is not paired."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from modalhash import AMSH, TrainingItems
from modalhash.data import generate


@pytest.fixture(scope="module")
def data():
    return generate(n_items=240, n_queries=1, noise=2.0, seed=2)


def test_every_contiguous_part_has_its_share_of_each_modality():
    X = {"image": np.arange(300.0)[:, None], "text": sparse.csr_array(np.arange(1.0, 31.0)[:, None])}
    items = TrainingItems(X, {name: np.ones((x.shape[0], 1)) for name, x in X.items()})
    assert items.shape == (330,)
    for start in range(0, 330, 66):
        part = items[start : start + 66]
        assert {name: x.shape[0] for name, x in part.X.items()} == {"image": 60, "text": 6}
        assert {name: len(y) for name, y in part.Y.items()} == {"image": 60, "text": 6}
    again = np.concatenate([items[list(range(s, s + 66))].X["image"] for s in range(0, 330, 66)])
    np.testing.assert_array_equal(again, X["image"])
    assert list(items[items._rows["text"] < 0].X) == ["image"]


def test_pairs_stay_together():
    X = {"image": np.arange(10.0)[:, None], "text": -np.arange(10.0)[:, None]}
    items = TrainingItems(X, pairs="aligned")
    assert len(items) == 10
    part = items[np.array([7, 2])]
    assert part.X["image"].ravel().tolist() == [7, 2]
    assert part.X["text"].ravel().tolist() == [-7, -2]
    assert part.Y is None
    with pytest.raises(ValueError, match="the same number of items"):
        TrainingItems({"image": np.ones((3, 1)), "text": np.ones((2, 1))}, pairs="aligned")


def test_cross_validation_and_grid_search_work(data):
    items = TrainingItems(
        {"image": data.X["image"], "text": data.X["text"][:150]}, data.Y | {"text": data.Y["text"][:150]}
    )
    model = AMSH(n_bits=12, n_anchors=60, random_state=0)
    scores = cross_val_score(model, items, cv=KFold(3))
    assert scores.shape == (3,)
    assert scores.min() > 0.5
    search = GridSearchCV(model, {"inter": [0.0, 0.1], "n_bits": [8]}, cv=3).fit(items)
    assert search.best_params_ == {"inter": 0.1, "n_bits": 8}  # unaligned modalities find nothing
    assert search.best_estimator_.codes_["text"].shape == (150, 1)


def test_score_is_the_mean_over_directions(data):
    from modalhash.evaluation import mean_average_precision

    model = AMSH(n_bits=12, n_anchors=60, random_state=0).fit(data.X, data.Y)
    codes = model.transform(data.X)
    expected = [
        mean_average_precision(codes[q], data.Y[q], codes[d], data.Y[d], n_bits=12)
        for q, d in (("image", "text"), ("text", "image"))
    ]
    assert model.score(data.X, data.Y) == pytest.approx(np.mean(expected))
    with pytest.raises(ValueError, match="score needs labels"):
        model.score(data.X)
