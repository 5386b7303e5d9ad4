"""Scenarios touch the training items and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from modalhash.data import Dataset, Split, missing_labels, noisy_labels, paired, semi_paired, unequal, unpaired

SEEDS = st.integers(0, 2**32)
fast = settings(deadline=None, max_examples=20)


def example(n: int = 50, n_query: int = 10, *, own_database: bool = False) -> Dataset:
    """The features are the id itself, so that any mix-up shows."""
    labels = np.eye(5, dtype=bool)[np.arange(n) % 5] | np.eye(5, dtype=bool)[np.arange(n) % 3]
    ids = np.arange(n) + 100
    both = dict.fromkeys(("image", "text"))
    split = Split(
        dict.fromkeys(both, ids[n_query:]),
        dict.fromkeys(both, ids[:n_query]),
        dict.fromkeys(both, ids[n_query + 5 :]) if own_database else None,
    )
    features = {"image": ids[:, None].astype(float), "text": -ids[:, None].astype(float)}
    return Dataset(features, dict.fromkeys(both, labels), dict.fromkeys(both, ids), name="example", split=split)


def check_rows(data: Dataset, original: Dataset) -> None:
    """Every row still belongs to its id, and the queries are as before."""
    for part in data.parts():
        np.testing.assert_array_equal(part.features["image"][:, 0], part.ids["image"])
        np.testing.assert_array_equal(part.features["text"][:, 0], -part.ids["text"])
    for name in original.modalities:
        np.testing.assert_array_equal(data.parts().query.ids[name], original.parts().query.ids[name])
        np.testing.assert_array_equal(data.parts().query.labels[name], original.parts().query.labels[name])


@fast
@given(seed=SEEDS, own_database=st.booleans())
def test_unpaired(seed, own_database):
    original = example(own_database=own_database)
    data = unpaired(original, seed=seed)
    check_rows(data, original)
    training = data.parts().training
    assert not training.paired
    for name in ("image", "text"):
        assert sorted(training.ids[name]) == sorted(original.parts().training.ids[name])
        assert sorted(data.parts().database.ids[name]) == sorted(original.parts().database.ids[name])
    np.testing.assert_array_equal(unpaired(original, seed=seed).parts().training.ids["text"], training.ids["text"])
    assert paired(data).parts().training.paired


@fast
@given(seed=SEEDS, fraction=st.floats(0, 0.9), own_database=st.booleans())
def test_unequal(seed, fraction, own_database):
    original = example(own_database=own_database)
    data = unequal(original, fraction, seed=seed)
    check_rows(data, original)
    assert data.parts().training.sizes == dict.fromkeys(("image", "text"), 40 - round(fraction * 40))
    if own_database:
        assert data.parts().database.sizes == {"image": 35, "text": 35}
    if 0.1 < fraction < 0.9:
        assert data.parts().training.ids["image"].tolist() != data.parts().training.ids["text"].tolist()


def test_unequal_per_modality():
    data = unequal(example(), {"image": 0.5, "text": 0.0})
    assert data.parts().training.sizes == {"image": 20, "text": 40}
    with pytest.raises(ValueError, match="leaves none"):
        unequal(example(), 1.0)


@fast
@given(seed=SEEDS, share=st.floats(0, 1))
def test_semi_paired(seed, share):
    original = example()
    data, pairs = semi_paired(original, share, seed=seed)
    check_rows(data, original)
    training = data.parts().training
    assert len(pairs) == round(share * 40)
    np.testing.assert_array_equal(training.ids["image"][pairs[:, 0]], training.ids["text"][pairs[:, 1]])


@fast
@given(seed=SEEDS, rate=st.floats(0, 1))
def test_noisy_labels(seed, rate):
    original = example()
    data = noisy_labels(original, rate, seed=seed)
    check_rows(data, original)
    training, before = data.parts().training, original.parts().training
    for name in ("image", "text"):
        np.testing.assert_array_equal(training.labels[name].sum(axis=1), before.labels[name].sum(axis=1))
        np.testing.assert_array_equal(training.relevance[name], before.labels[name])
    moved = (training.labels["image"] & ~before.labels["image"]).sum() / before.labels["image"].sum()
    assert abs(moved - rate) < 0.3


@fast
@given(seed=SEEDS, rate=st.floats(0, 0.9), by=st.sampled_from(["item", "label"]))
def test_missing_labels(seed, rate, by):
    original = example()
    data = missing_labels(original, rate, seed=seed, by=by)
    check_rows(data, original)
    training, before = data.parts().training, original.parts().training
    assert not (training.labels["image"] & ~before.labels["image"]).any()
    if by == "item":
        assert (~training.labels["image"].any(axis=1)).sum() == round(rate * 40)
    np.testing.assert_array_equal(training.relevance["text"], before.labels["text"])


@pytest.mark.parametrize("change", [noisy_labels, missing_labels])
def test_labels_of_a_pair_are_changed_alike_where_that_is_asked_for(change):
    data, pairs = semi_paired(example(), 0.5)  # in another order in each modality
    alike, apart = (change(data, 0.5, shared=shared).parts().training.labels for shared in (True, False))
    np.testing.assert_array_equal(alike["image"][pairs[:, 0]], alike["text"][pairs[:, 1]])
    assert np.any(apart["image"][pairs[:, 0]] != apart["text"][pairs[:, 1]])
    with pytest.raises(ValueError, match="different ids"):
        change(unequal(example(), 0.2), 0.5, shared=True)


def test_without_a_split_everything_is_training():
    whole = example().only("image", "text")
    loose = Dataset(whole.features, whole.labels, whole.ids)
    assert unpaired(loose).sizes == {"image": 50, "text": 50}
    assert not unpaired(loose).paired


def test_adding_a_modality_does_not_change_another():
    data = example()
    alone = unpaired(data.only("text"), seed=3).parts().training.ids["text"]
    np.testing.assert_array_equal(alone, unpaired(data, seed=3).parts().training.ids["text"])


@pytest.mark.parametrize("scenario", [noisy_labels, missing_labels, semi_paired, unequal])
def test_shares_are_checked(scenario):
    with pytest.raises(ValueError, match="from 0 to 1"):
        scenario(example(), 1.5)
    with pytest.raises(ValueError, match="seed is -1"):
        scenario(example(), 0.5, seed=-1)


def test_nothing_in_common():
    data = example()
    apart = Dataset(data.features, ids={"image": np.arange(50), "text": np.arange(50) + 900})
    with pytest.raises(ValueError, match="nothing is paired"):
        paired(apart)
    with pytest.raises(ValueError, match="no labels"):
        noisy_labels(apart)
