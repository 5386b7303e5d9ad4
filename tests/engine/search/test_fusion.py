"""Words beside codes: what an engine's own texts say is found, also where its encoder knows nothing of it."""

from __future__ import annotations

import warnings

import pytest

from modalhash import Engine
from modalhash.engine import Hit, SearchOptions
from modalhash.engine.search.ordering import reciprocal_rank_fusion


def search(engine, text, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the encoder knows none of these words
        return engine.search(text=text, **options)


def hits(*ids, by="code"):
    return [Hit(id, 3, "text", found_by=(by,)) for id in ids]


def test_reciprocal_ranks_are_added():
    """A first place in both is best; one in both behind that beats a first place in one."""
    found = reciprocal_rank_fusion(hits("both", "a", "late"), hits("both", "late", "b", by="words"), k=4)
    assert [hit.id for hit in found] == ["both", "late", "a", "b"]
    assert [hit.found_by for hit in found] == [("code", "words"), ("code", "words"), ("code",), ("words",)]
    assert [hit.id for hit in reciprocal_rank_fusion(hits("a"), hits("b"), k=2)] == ["b", "a"], (
        "between equals, the words"
    )
    assert reciprocal_rank_fusion(hits("a", "b"), [], k=1) == hits("a")


@pytest.mark.slow
def test_a_dinosaur_is_found_by_its_name(engine):
    engine.add([{"id": "dino", "text": "a dinosaur in the museum"}])
    first = search(engine, "dinosaur")[0]
    assert [first.id, "words" in first.found_by] == ["dino", True]
    assert first.to_dict()["found_by"][-1] == "words"
    plain = {hit.id: hit for hit in search(engine, "dinosaur", k=500, hybrid=False)}
    assert first.distance == plain["dino"].distance
    assert not any("words" in hit.found_by for hit in plain.values())
    assert search(engine, "dinosaur", where="id = dino")[0].id == "dino"
    assert "dino" not in {hit.id for hit in search(engine, "dinosaur", where="not id = dino", k=500)}
    engine.remove(["dino"])
    assert search(engine, "dinosaur") == search(engine, "dinosaur", hybrid=False)


@pytest.mark.slow
def test_where_no_text_has_the_words_those_of_like_meaning_are_searched_for(engine, monkeypatch):
    encoder = engine.encoders["text"]
    monkeypatch.setattr(encoder, "in_known_words", lambda texts: ["dinosaur"] * len(texts), raising=False)
    engine.add([{"id": "dino", "text": "a dinosaur in the museum"}])
    first = search(engine, "Saurier")[0]
    assert [first.id, first.found_by[-1]] == ["dino", "meaning"]
    assert not any("meaning" in hit.found_by for hit in search(engine, "Saurier", k=500, hybrid=False))
    engine.add([{"id": "word", "text": "ein Saurier"}])
    hits = search(engine, "Saurier", k=500)
    assert [hits[0].id, hits[0].found_by[-1]] == ["word", "words"], "its own word is there"
    assert not any("meaning" in hit.found_by for hit in hits)
    engine.remove(["dino", "word"])


def test_where_no_texts_have_the_words_nothing_changes(engine):
    for options in ({"want": "image"}, {"radius": 4}):
        assert search(engine, "a red dinosaur", hybrid=False, **options) == search(engine, "a red dinosaur", **options)
    by_item = engine.search(id="photos/1.png")
    assert by_item == engine.search(id="photos/1.png", hybrid=False)


def test_many_queries_have_words_of_their_own(engine):
    engine.add([{"id": "dino", "text": "a dinosaur"}, {"id": "heron", "text": "a heron"}])
    with pytest.warns(UserWarning, match="2 of 2 queries are hardly known"):
        found = engine.search_many(text=["dinosaur", "heron"], k=3)
    assert [some[0].id for some in found] == ["dino", "heron"]
    assert engine.answer(engine.prepare(text=["dinosaur"]), SearchOptions(k=1))[0][0].id == "dino"


@pytest.mark.slow
def test_the_fields_that_are_searched_are_a_setting(world, tmp_path):
    lines = [
        {"path": str(world / f"photos/{n}.png"), "labels": ["red", "blue"][n % 2], "name": f"heron{n}", "title": "gull"}
        for n in range(12)
    ] + [{"text": f"a {word} ball {n}", "labels": word} for word in ("red", "blue") for n in range(6)]
    options = {"n_bits": 4, "overwrite": True, "on_problem": lambda _: None}
    with Engine.train(lines, tmp_path / "engine", **options) as engine:
        assert engine.config["searched_fields"] == ["title", "caption", "description", "picture_text"]
        assert not any("words" in hit.found_by for hit in search(engine, "heron3", k=50))
    with Engine.train(lines, tmp_path / "engine", searched_fields=["name"], **options) as engine:
        assert [hit.extra["name"] for hit in search(engine, "heron3") if "words" in hit.found_by] == ["heron3"]
    with Engine.train(lines, tmp_path / "engine", searched_fields=[], **options) as engine:
        assert not any("words" in hit.found_by for hit in search(engine, "heron3 gull", k=50))
    with pytest.raises(TypeError, match="searched_fields is 'name'"):
        Engine.train(lines, tmp_path / "engine", searched_fields="name", **options)


def test_the_items_of_all_words_are_read_together(engine, monkeypatch):
    records, sizes = engine.store.records, []
    monkeypatch.setattr(
        engine.store, "records", lambda numbers, **more: sizes.append(len(numbers)) or records(numbers, **more)
    )
    engine.search_many(text=["a red ball", "a blue box", "green"])
    assert len(sizes) == 2, "those of the words, and those that the codes found"
