from __future__ import annotations

import hashlib
import io
import json
import shutil

import numpy as np
import pytest

from little_world import make_world
from modalhash import Engine
from modalhash.engine import EngineError, SearchOptions, calibration_error, reliability_bins
from modalhash.engine.search import confidence as module
from modalhash.engine.search.confidence import (
    CalibrationCurve,
    Confidence,
    Pair,
    PairFeatures,
    Pairs,
    fit_curve,
    hold_out,
)

UNKNOWN = ["kitten", "xyzzy", "Weihnachten"]


@pytest.fixture(scope="module")
def sure_world(tmp_path_factory):
    """An engine of enough items to learn confidence from."""
    folder = tmp_path_factory.mktemp("sure")
    make_world(folder, 150)
    Engine.train(folder / "items.csv", folder / "engine", n_bits=32).close()
    return folder


@pytest.fixture(scope="module")
def sure(sure_world):
    with Engine.open(sure_world / "engine") as engine:
        yield engine


def as_png(pixels):
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def unrelated_photo():
    from sklearn.datasets import load_sample_image

    return as_png(load_sample_image("china.jpg"))


def noise():
    return as_png(np.random.default_rng(5).integers(0, 256, (90, 120, 3), dtype=np.uint8))


def planted(n_queries=400, n_hits=30, *, familiarity=None, seed=0):
    """Pairs whose probability of a shared label is known: sigmoid(2 agreement + 3 product − 1), or nearer to chance."""
    rng = np.random.default_rng(seed)
    n = n_queries * n_hits
    features = PairFeatures(*rng.normal(size=(5, n)))
    f = np.ones(n) if familiarity is None else np.repeat(familiarity, n_hits)
    p = 1 / (1 + np.exp(-(2 * features.agreement + 3 * features.product - 1)))
    chance = 0.2
    probability = chance + f * (p - chance)
    shared = rng.random(n) < probability
    query, rank = np.repeat(np.arange(n_queries), n_hits), np.tile(np.arange(n_hits), n_queries)
    return Pairs(query, rank, features, f, shared, chance, rank), probability


def test_a_planted_probability_is_found():
    pairs, _ = planted()
    curve = fit_curve(pairs)
    np.testing.assert_allclose(curve.weights, [2, 3, 0, 0, 0, -1], atol=0.15)
    fresh, probability = planted(seed=1)
    found = curve.probability(fresh.features, 1.0)
    assert np.abs(found - probability).mean() < 0.02
    assert calibration_error(reliability_bins(found, fresh.shared)) < 0.02


def test_what_is_not_familiar_has_the_chance_of_any_pair():
    curve = CalibrationCurve((1.0, 1.0, 0.0, 0.0, 0.0, 2.0), 0.3)
    features = PairFeatures(*np.ones((5, 2)))
    values = curve.probability(features, np.array([0.0, 0.5]))
    sure = 1 / (1 + np.exp(-4))
    np.testing.assert_allclose(values, [0.3, 0.3 + 0.5 * (sure - 0.3)])


def test_the_worth_of_unknown_words_is_measured():
    half = np.repeat([1.0, 0.4], 200)  # half of the queries are worth 0.4 …
    pairs, _ = planted(familiarity=half)
    without_words = pairs._replace(familiarity=np.where(pairs.familiarity < 1, 0.0, 1.0))  # … and have no known word
    assert module._unknown_words([without_words]) == pytest.approx(0.4, abs=0.06)
    assert module._unknown_words([pairs._replace(familiarity=np.ones(len(pairs.query)))]) == module.UNKNOWN_WORDS


def test_copies_of_an_item_are_on_one_side():
    X = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    held = hold_out({"image": np.vstack([X, X])}, 0)
    assert {row % 100 for row in held.held_out["image"]}.isdisjoint({row % 100 for row in held.learned["image"]})
    assert len(held.held_out["image"]) + len(held.learned["image"]) == 200


@pytest.mark.slow
def test_known_words_are_believed(sure):
    queries = sure.prepare(text=["a red ball", "a blue box in the corner"])
    assert [(query.known, query.message) for query in queries] == [(1.0, None)] * 2
    for hits in sure.answer(queries, SearchOptions(k=5, want="image")):
        assert all(hit.confidence > 0.9 and not hit.weak for hit in hits)
    first = sure.search(text="a red ball", want="image")[0]
    assert first.to_dict()["confidence"] == first.confidence
    assert not {"weak", "refinement"} & set(first.to_dict())


@pytest.mark.parametrize("word", UNKNOWN)
def test_unknown_words_are_said_to_be_unknown(sure, word):
    (query,) = sure.prepare(text=[word])
    assert query.known == 0
    assert query.message.startswith("None of these words is known")
    with pytest.warns(UserWarning, match="None of these words is known"):
        hits = sure.search(text=word, want="image", k=5)
    believed = sure.search(text="a red ball", want="image", k=5)
    assert max(hit.confidence for hit in hits) < min(hit.confidence for hit in believed)


@pytest.mark.parametrize("picture", [noise, unrelated_photo])
def test_pictures_unlike_all_others_find_weak_hits(sure, picture):
    with pytest.warns(UserWarning, match="unlike all training items"):
        hits = sure.search(image=picture(), want="text", k=5)
    assert all(hit.weak and hit.to_dict()["weak"] for hit in hits)


def test_pictures_like_the_others_are_believed(sure, sure_world, recwarn):
    hits = sure.search(image=sure_world / "photos" / "3.png", want="text", k=5)
    assert not recwarn.list
    assert not any(hit.weak for hit in hits)


def test_what_the_words_found_is_not_weak(sure_world, tmp_path):
    shutil.copytree(sure_world / "engine", tmp_path / "engine")
    with Engine.open(tmp_path / "engine") as engine:
        engine.add([{"id": "new", "text": "kitten"}])
        with pytest.warns(UserWarning, match="None of these words"):
            first = engine.search(text="kitten", k=5)[0]
        assert (first.id, first.weak) == ("new", False)
        assert "words" in first.found_by


def test_least_confidence(sure):
    everything = sure.search(text="a red ball", want="image", k=150)
    likely = sure.search(text="a red ball", want="image", k=150, min_confidence=0.8)
    assert 0 < len(likely) < len(everything)
    assert likely == [hit for hit in everything if hit.confidence >= 0.8]
    with pytest.raises(ValueError, match="min_confidence is 2"):
        sure.search(text="a red ball", min_confidence=2)


def test_confidence_does_not_depend_on_how_hits_are_ordered(sure):
    ways = ({}, {"refine": False}, {"asymmetric": True}, {"radius": 32})
    found = [
        {hit.id: hit.confidence for hit in sure.search(text="a red ball", want="image", k=150, **way)} for way in ways
    ]
    assert all(found[0].items() <= other.items() for other in found[1:])


@pytest.mark.slow
def test_in_a_small_engine_there_is_none(engine):
    assert engine.confidence is None
    assert all(hit.confidence is None and not hit.weak for hit in engine.search(text="a red ball"))
    with pytest.raises(ValueError, match="has no confidence"):
        engine.search(text="a red ball", min_confidence=0.5)


def test_saved_and_read_again(sure):
    again = Confidence.from_config(json.loads(json.dumps(sure.confidence.to_config())))
    assert again.to_config() == sure.confidence.to_config()
    assert Pair("text", "image", "learned") in again.curves


def test_a_damaged_file_is_told(sure_world, tmp_path):
    shutil.copytree(sure_world / "engine", tmp_path / "engine")
    path = tmp_path / "engine" / module.FILE
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(EngineError, match=r"confidence\.json is truncated"):
        Engine.open(tmp_path / "engine")
    path.unlink()
    with pytest.raises(EngineError, match=r"confidence\.json is missing"):
        Engine.open(tmp_path / "engine")


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[" * 100_000, b"{}", b"7", b'{"curves": [], "usual": 7}', b'{"curves": ["x"], "usual": {}}'],
)
def test_a_file_that_is_another_is_told_though_its_digest_fits(tmp_path, content):
    (tmp_path / module.FILE).write_bytes(content)
    with pytest.raises(module.ConfidenceError, match=r"confidence\.json cannot be read"):
        module.load_confidence(tmp_path, {"sha256": hashlib.sha256(content).hexdigest()})
