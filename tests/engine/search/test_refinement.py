"""Refinement vectors: what they are made of, on disk, and the order they give to the hits of an engine."""

from __future__ import annotations

import dataclasses
import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from modalhash import AMSH, Engine
from modalhash.data import generate
from modalhash.engine import EngineError
from modalhash.engine.search.ordering import DUPLICATE_SCORE
from modalhash.engine.search.refinement import (
    FILE,
    FOLDED_DIMENSIONS,
    has_features,
    learn_refinement,
    load_refinement,
    save_refinement,
)


@pytest.fixture(scope="module")
def data():
    return generate(n_items=400, n_classes=6, seed=0)


@pytest.fixture(scope="module")
def learned(data):
    model = AMSH(n_bits=16, n_anchors=100, random_state=0).fit(data.X, data.Y)
    return learn_refinement(model, data.X, {name: labels.astype(bool) for name, labels in data.Y.items()})


def shares_label(Y, a, b):
    return (Y[a].astype(int) @ Y[b].T.astype(int)) > 0


def test_posteriors_of_two_modalities_tell_whether_labels_are_shared(data, learned):
    image, text = (learned.posteriors[name] for name in ("image", "text"))
    products, shared = image @ text.T, shares_label(data.Y, "image", "text")
    assert products[shared].mean() > 1.5 * products[~shared].mean()


def test_int8_keeps_inner_products(data, learned):
    made = learned.refinement
    exact = made.posteriors("image", data.X["image"]) @ made.posteriors("text", data.X["text"]).T
    image, text = (made.vectors(name, data.X[name])[:, : made.n_posterior].astype(float) for name in ("image", "text"))
    np.testing.assert_allclose(image @ text.T * made.posterior_step**2, exact, atol=0.02)


def test_a_posterior_in_all_directions_is_that_of_the_labels(data, learned):
    """Six labels fit 64 dimensions: label vectors come back, up to the rounding of int8."""
    scores = learned.refinement.label_scores(learned.refinement.quantised_posteriors(learned.label_posteriors["text"]))
    labels = data.Y["text"] / np.sqrt(data.Y["text"].sum(axis=1, keepdims=True))
    np.testing.assert_allclose(scores, labels, atol=0.02)


def test_no_posterior_has_seen_its_own_labels(data, learned):
    """Of labels that mean nothing, posteriors out of fold know nothing; a regression on all items remembers some."""
    rng = np.random.default_rng(0)
    X = {name: rng.normal(size=(300, 20)).astype(np.float32) for name in ("image", "text")}
    Y = {name: np.eye(4, dtype=bool)[rng.integers(0, 4, 300)] for name in X}
    noise = learn_refinement(None, X, Y)
    for name in X:
        seen = noise.refinement.posteriors(name, X[name]) - noise.refinement.posteriors(name, X[name]).mean(axis=0)
        fair = noise.posteriors[name] - noise.posteriors[name].mean(axis=0)
        truth = noise.label_posteriors[name] - noise.label_posteriors[name].mean(axis=0)
        assert np.corrcoef(seen.ravel(), truth.ravel())[0, 1] > 0.5
        assert abs(np.corrcoef(fair.ravel(), truth.ravel())[0, 1]) < 0.15


@pytest.mark.parametrize("modality", ["image", "text"])
def test_features_that_the_model_has_mapped_already_give_the_same_vectors(data, learned, modality):
    made, X = learned.refinement, data.X[modality]
    projections, mapped = made.model.project(modality, X)
    assert mapped is not None
    np.testing.assert_array_equal(projections, made.model.decision_function({modality: X})[modality])
    np.testing.assert_array_equal(made.vectors(modality, X, mapped=mapped), made.vectors(modality, X))


def test_embeddings_are_nearest_to_themselves(data, learned):
    vectors = learned.refinement.embeddings("image", data.X["image"]).astype(float)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (np.argmax(unit @ unit.T, axis=1) == np.arange(len(unit))).all()
    zero = learned.refinement.centres["image"] @ learned.refinement.components["image"].T  # the mean item
    assert np.abs(learned.refinement.embeddings("image", zero[None]).astype(int)).max() <= 127


def test_many_labels_are_reduced_to_64_directions():
    data = generate(n_items=300, n_classes=90, seed=1)
    made = learn_refinement(None, data.X, {name: labels.astype(bool) for name, labels in data.Y.items()}).refinement
    assert made.basis.shape == (90, 64)
    assert made.width("image") <= 128
    kept = 64 - FOLDED_DIMENSIONS
    np.testing.assert_allclose(made.basis[:, :kept].T @ made.basis[:, :kept], np.eye(kept), atol=1e-5)
    np.testing.assert_allclose(made.basis[:, :kept].T @ made.basis[:, kept:], 0, atol=1e-5)


@pytest.mark.slow
def test_a_rare_label_among_many_is_not_lost():
    """Eight frequent labels, ninety rare ones: the posterior of a rare one is nearer to itself than to any other."""
    rng = np.random.default_rng(0)
    own = np.concatenate([rng.integers(0, 8, 1200), np.repeat(np.arange(8, 98), 4)])
    centres = rng.standard_normal((98, 40))
    X = {name: centres[own] + 0.3 * rng.standard_normal((len(own), 40)) for name in ("a", "b")}
    learned = learn_refinement(None, X, dict.fromkeys(X, np.eye(98, dtype=bool)[own]))
    labels = np.eye(98, dtype=np.float32) @ learned.refinement.basis
    assert (np.argmax(labels @ labels.T, axis=1) == np.arange(98)).all()
    made = learned.refinement.posteriors("a", X["a"][1200:])
    assert np.mean(np.argmax(made @ labels.T, axis=1) == own[1200:]) > 0.9


def test_without_labels_there_is_an_embedding_alone(data):
    made = learn_refinement(None, data.X, None).refinement
    assert made.n_posterior == 0
    assert made.vectors("text", data.X["text"]).shape == (400, made.width("text"))


def test_a_saved_one_makes_the_same_vectors(data, tmp_path):
    made = learn_refinement(None, data.X, {name: labels.astype(bool) for name, labels in data.Y.items()}).refinement
    config = json.loads(json.dumps(save_refinement(made, tmp_path)))
    again = load_refinement(tmp_path, config, None, {})
    for name, values in data.X.items():
        np.testing.assert_array_equal(again.vectors(name, values), made.vectors(name, values))


# -- in an engine


def test_an_engine_keeps_a_vector_for_every_item(engine, world):
    assert all(record.refinement is not None for record in engine.items())
    engine.add([{"id": "new", "text": "a red ball"}])
    (record,) = engine.records(["new"])
    features = engine.encoders["text"].encode(["a red ball"])
    assert record.refinement == engine.refinement.vectors("text", features)[0].tobytes()


def test_an_item_finds_itself_first_and_its_duplicates_beside_it(engine):
    texts = ["a violet tortoise", "a red box", "seven green boats", "a red box"]
    engine.add([{"id": f"new {n}", "text": text} for n, text in enumerate(texts)])
    hits = engine.search(text="a red box", k=5, hybrid=False)
    same = [hit for hit in hits if hit.text == "a red box"]
    assert hits[: len(same)] == same
    assert {"new 1", "new 3"} <= {hit.id for hit in same}
    assert {hit.rank for hit in same} == {1}
    assert all("features" in hit.found_by for hit in same)
    for record in list(engine.items())[:20]:
        content = {"text": record.text} if record.text else {"image": engine.path_of(record)}
        first = engine.search(**content, want=record.modality, k=1)[0]
        assert first.id == record.id or first.text == record.text  # an equal text is as good


def test_scores_order_hits_and_ties_are_ties(engine):
    hits = engine.search(text="a red box", k=30, hybrid=False)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    for before, after in pairwise(hits):
        assert (after.rank == before.rank) == (after.score == before.score)
    assert hits[0].rank == 1
    assert all(hit.rank <= place for place, hit in enumerate(hits, 1))


def test_without_refinement_codes_order(engine):
    hits = engine.search(text="a red box", k=30, refine=False, hybrid=False)
    assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
    assert {hit.score for hit in hits} == {None}
    assert {hit.found_by for hit in hits} == {("code",)}
    ranks = [1 + sum(other.distance < hit.distance for other in hits) for hit in hits]
    assert [hit.rank for hit in hits] == ranks


def test_shared_labels_are_those_of_query_and_hit(engine):
    hits = engine.search(text="a red box", want="image", k=3)
    assert any(hit.shared_labels for hit in hits)
    for hit in hits:
        assert set(hit.shared_labels) <= set(map(str, engine.config["class_names"]))


def test_items_without_a_vector_keep_their_place(engine):
    """An item that was stored without a vector stands where its distance puts it."""
    plain = [hit.id for hit in engine.search(text="a red box", want="text", k=60, refine=False, hybrid=False)]
    bare = plain[4]
    record = engine.records([bare], "text")[0]
    store_without_vector(engine, record)
    hits = engine.search(text="a red box", want="text", k=60, hybrid=False)
    order = [hit.id for hit in engine.search(text="a red box", want="text", k=60, refine=False, hybrid=False)]
    place = [hit.id for hit in hits].index(bare)
    assert hits[place].score is None
    assert place == order.index(bare)
    others = [hit.score for hit in hits if hit.id != bare]
    assert others == sorted(others, reverse=True)


def store_without_vector(engine, record):
    engine.store.add([dataclasses.replace(record, refinement=None)], replace=True)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_file_is_named(world, tmp_path, damage):
    shutil.copytree(world / "engine", tmp_path / "bad")
    file = tmp_path / "bad" / FILE
    content = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(content[:-8])
    with pytest.raises(EngineError, match=FILE):
        Engine.open(tmp_path / "bad")


def test_an_unsupervised_method_orders_within_a_modality(world, tmp_path):
    with Engine.train(world / "items.csv", tmp_path / "engine", n_bits=8, method="rucmh") as engine:
        assert engine.refinement.n_posterior == 0
        record = next(record for record in engine.items() if record.text)
        assert engine.search(text=record.text, want="text", k=1)[0].text == record.text
        across = engine.search(text=record.text, want="image", k=10)
        assert {hit.score for hit in across} == {None}
        assert [hit.distance for hit in across] == sorted(hit.distance for hit in across)


def test_filters_and_radius_keep_the_order(engine):
    everything = engine.search(text="a red box", k=500)
    filtered = engine.search(text="a red box", k=500, kind="learned")
    assert [hit.id for hit in filtered] == [hit.id for hit in everything if hit.kind == "learned"]
    near = engine.search(text="a red box", radius=3)
    assert {(hit.modality, hit.id) for hit in near} == {
        (hit.modality, hit.id) for hit in engine.search(text="a red box", radius=3, refine=False)
    }
    assert [hit.score for hit in near] == sorted((hit.score for hit in near), reverse=True)


def test_what_is_removed_is_not_found(engine):
    first = engine.search(text="a red box", k=1)[0]
    engine.remove([first.id], modality=first.modality)
    assert (first.modality, first.id) not in {(h.modality, h.id) for h in engine.search(text="a red box", k=500)}


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_what_has_no_features_has_no_embedding(data, learned, make):
    X = data.X["image"][:3].copy()
    X[1] = 0
    has = learned.refinement.embeddings("image", make(X)).any(axis=1)
    assert has.tolist() == [True, False, True]


def test_texts_of_unknown_words_are_not_the_same_thing(engine):
    engine.add([{"id": "one", "text": "xyzzy"}, {"id": "two", "text": "plugh"}])
    hits = engine.search(text="frobnicate", want="text", k=500, hybrid=False)
    assert {"one", "two"} <= {hit.id for hit in hits}
    assert max(hit.score for hit in hits) < DUPLICATE_SCORE
    assert all(hit.found_by == ("code",) for hit in hits)


def test_rows_with_features_are_told_from_those_without():
    rows = np.array([[0, 1.0], [0, 0], [2, 0]])
    stored_zero = sparse.csr_array((np.array([1.0, 0, 2]), np.array([1, 0, 0]), np.array([0, 1, 2, 3])), shape=(3, 2))
    for X in (rows, sparse.csr_array(rows), sparse.csc_array(rows), stored_zero):
        assert has_features(X).tolist() == [True, False, True]
