"""Other labels for items that are there: codes, vectors, counts and filters follow, whoever else is at work."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from modalhash import Engine
from modalhash.engine import EngineError, ProblemCode


def images(engine, *labels):
    """Return the pictures that have just these labels."""
    return [one for one in engine.items() if one.modality == "image" and set(one.labels) == set(labels)]


def posterior(engine, record):
    n = engine.refinement.n_posterior
    return np.frombuffer(record.refinement, np.int8)[:n].astype(int)


def record_of(engine, id, modality="image"):
    return engine.store.get(id, modality=modality)


@pytest.mark.slow
def test_a_label_set_that_was_trained_with_has_its_code_at_once_for_everybody(engine):
    item, peers = images(engine, "red", "circle")[0], images(engine, "blue", "square")
    before = engine.labels()
    with Engine.open(engine.path) as other:
        done = engine.relabel([{"id": item.id, "labels": ["blue", "square"], "note": "ignored"}])
        assert (done.changed, done.unchanged, done.learned, done.hashed) == (1, 0, 1, 0)
        new = record_of(other, item.id)
        assert (new.labels, new.kind, {new.code}) == (("blue", "square"), "learned", {one.code for one in peers})
        assert (new.uri, new.extra) == (item.uri, item.extra)
        assert other.labels() == before | {
            "red": before["red"] - 1,
            "circle": before["circle"] - 1,
            "blue": before["blue"] + 1,
            "square": before["square"] + 1,
        }
        found = other.search(text="a blue box", want="image", where="label = blue and label = square", k=60)
        assert item.id in [hit.id for hit in found]
        assert next(hit for hit in found if hit.id == item.id).distance == min(hit.distance for hit in found)
    again = engine.relabel([{"id": item.id, "labels": ["square", "blue"]}])
    assert (again.changed, again.unchanged) == (0, 1)
    engine.store.check()


def test_refinement_vectors_tell_the_new_labels_and_keep_the_features(engine):
    item = images(engine, "red", "circle")[0]
    engine.relabel([{"id": item.id, "labels": ["blue", "square"]}])
    moved = record_of(engine, item.id)
    peers = np.mean([posterior(engine, one) for one in images(engine, "blue", "square") if one.id != item.id], axis=0)
    assert np.abs(posterior(engine, moved) - peers).max() <= 25  # a tenth of the range is of the features
    n = engine.refinement.n_posterior
    assert moved.refinement[n:] == item.refinement[n:]
    engine.relabel([{"id": item.id, "labels": ["red", "circle"]}])
    assert np.abs(posterior(engine, record_of(engine, item.id)) - posterior(engine, item)).max() <= 1


def test_a_label_set_that_nobody_had_has_a_code_of_the_method(engine):
    item = images(engine, "red", "circle")[0]
    assert engine.relabel([{"id": item.id, "labels": ["red", "blue", "circle"]}]).learned == 1
    row = np.isin(engine.config["class_names"], ["red", "blue", "circle"])[None]
    assert record_of(engine, item.id).code == engine.model.label_codes(row)[0].tobytes()


def test_an_item_that_was_added_gets_the_code_of_its_labels(engine):
    engine.add([{"id": "new", "text": "nothing that anybody knows", "labels": ["red", "circle"]}])
    assert record_of(engine, "new", "text").kind == "hashed"
    assert engine.relabel([{"id": "new", "labels": ["red", "circle"]}]).learned == 1
    new = record_of(engine, "new", "text")
    assert {new.code} == {one.code for one in engine.items() if set(one.labels) == {"red", "circle"}}


def test_without_known_labels_an_item_is_hashed_as_it_was_before_it_had_any(engine):
    item = images(engine, "red", "circle")[0]
    done = engine.relabel([{"id": item.id, "labels": ["crimson", "ball"]}])
    assert (done.learned, done.hashed, dict(done.unknown_labels)) == (0, 1, {"crimson": 1, "ball": 1})
    hashed = record_of(engine, item.id)
    engine.add([{"id": "same", "path": str(engine.path_of(item))}])
    same = record_of(engine, "same")
    assert (hashed.kind, hashed.code, hashed.refinement) == ("hashed", same.code, same.refinement)
    assert engine.labels()["crimson"] == 1
    assert [hit.id for hit in engine.search(text="a red ball", labels=["crimson"])] == [item.id]
    done = engine.relabel([{"id": item.id, "labels": []}])
    assert (done.hashed, dict(done.unknown_labels), record_of(engine, item.id).labels) == (1, {}, ())


def test_a_known_label_beside_an_unknown_one_makes_the_code(engine):
    item = images(engine, "red", "circle")[0]
    done = engine.relabel([{"id": item.id, "labels": ["red", "circle", "holiday"]}])
    assert (done.learned, dict(done.unknown_labels)) == (1, {"holiday": 1})
    assert record_of(engine, item.id).code == item.code


def test_an_item_whose_picture_is_gone_stays_as_it_is_where_it_would_have_to_be_hashed(engine, tmp_path):
    item = images(engine, "red", "circle")[0]
    gone = tmp_path / "gone.png"
    shutil.copy(engine.path_of(item), gone)
    engine.add([{"id": "gone", "path": str(gone), "labels": ["red", "circle"]}])
    gone.unlink()
    assert engine.relabel([{"id": "gone", "labels": ["red", "circle"]}]).learned == 1, "labels need no picture"
    problems = []
    done = engine.relabel([{"id": "gone", "labels": []}], on_problem=problems.append)
    assert (done.changed, problems[0].code) == (0, ProblemCode.UNREADABLE)
    assert "a code cannot be computed from its features" in problems[0].reason
    assert record_of(engine, "gone").labels == ("red", "circle")


def test_what_is_wrong_with_lines(engine, tmp_path):
    id = images(engine, "red", "circle")[0].id
    manifest = tmp_path / "labels.jsonl"
    manifest.write_text(
        f'{{"id": "{id}", "labels": ["blue"]}}\n'
        '{"id": "nobody", "labels": ["blue"]}\n'
        '{"labels": ["blue"]}\n'
        f'{{"id": "{id}", "labels": ["red"]}}\n'
        '{"id": "x"}\n'
        "not json\n"
        f'{{"id": "{id}", "labels": ["red"], "modality": "sound"}}\n'
        f'{{"id": "{id}", "labels": {{"a": 1}}}}\n'
    )
    with pytest.warns(UserWarning, match="7 items were left out"):
        done = engine.relabel(manifest)
    assert done.changed == 1
    assert record_of(engine, id).labels == ("blue",)
    by_line = {problem.line: problem for problem in done.problems}
    assert by_line[2].code is ProblemCode.UNKNOWN_ID
    assert by_line[4].code is ProblemCode.DUPLICATE
    assert by_line[7].code is ProblemCode.UNKNOWN_MODALITY
    assert sorted(by_line) == [2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(ValueError, match="no item has the id 'nobody'"):
        engine.relabel([{"id": "nobody", "labels": []}], strict=True)
    (tmp_path / "photos.csv").write_text("photo,keywords\na,b\n")
    with pytest.raises(ValueError, match=r"the columns are photo, keywords; expected id and labels.*--field id=photo"):
        engine.relabel(tmp_path / "photos.csv")
    with pytest.raises(FileNotFoundError, match="no such file"):
        engine.relabel(tmp_path / "lost.csv")
    with pytest.raises(ValueError, match="expected only id, labels, modality"):
        engine.relabel([], fields={"text": "caption"})


def test_a_table_with_other_names_and_one_id_in_two_modalities(engine, tmp_path):
    picture = images(engine, "red", "circle")[0]
    engine.add([{"id": "both", "text": "a red ball", "path": str(engine.path_of(picture))}])
    table = tmp_path / "labels.tsv"
    table.write_text("photo\tkeywords\nboth\tblue; square\n")
    done = engine.relabel(table, fields={"id": "photo", "labels": "keywords"})
    assert done.changed == 2
    assert {one.modality: one.labels for one in engine.items() if one.id == "both"} == {
        "text": ("blue", "square"),
        "image": ("blue", "square"),
    }
    assert engine.relabel([{"id": "both", "modality": "text", "labels": "red"}]).changed == 1
    assert record_of(engine, "both").labels == ("blue", "square")


def test_an_item_that_is_changed_meanwhile_is_looked_at_again(engine, monkeypatch):
    first, second = images(engine, "red", "circle")[:2]
    update, calls = type(engine.store).update, []

    def late(store, records):
        calls.append(len(records))
        if len(calls) == 1:
            engine.add([{"id": first.id, "path": str(engine.path_of(second)), "year": 2001}], replace=True)
            engine.remove([second.id])
        return update(store, records)

    monkeypatch.setattr(type(engine.store), "update", late)
    done = engine.relabel([{"id": one.id, "labels": ["blue", "square"]} for one in (first, second)])
    assert (done.changed, calls) == (1, [2, 1])
    new = record_of(engine, first.id)
    assert (new.labels, new.kind, dict(new.extra)) == (("blue", "square"), "learned", {"year": 2001})
    assert ("image", second.id) not in engine.store


@pytest.mark.parametrize("method", ["amsh", "itq"])
def test_methods_without_a_function_of_labels(world, tmp_path, method):
    labels = "none" if method == "itq" else "given"
    source = world / "photos" if method == "itq" else world / "items.csv"
    with Engine.train(source, tmp_path / "engine", n_bits=8, method=method, labels=labels) as engine:
        pictures = [one for one in engine.items() if one.modality == "image"]
        if method == "itq":
            done = engine.relabel([{"id": pictures[0].id, "labels": ["red"]}])
            new = record_of(engine, pictures[0].id)
            assert (done.changed, new.labels, new.code, new.kind) == (1, ("red",), pictures[0].code, "hashed")
            return
        item, peers = images(engine, "red", "circle")[0], images(engine, "blue", "square")
        done = engine.relabel([{"id": item.id, "labels": ["blue", "square"]}])
        assert done.learned == 1
        codes = [one.code for one in peers]
        new = record_of(engine, item.id)
        assert codes.count(new.code) == max(map(codes.count, codes)), "the code that most of them have"
        done = engine.relabel([{"id": item.id, "labels": ["blue", "red"]}])
        assert (done.learned, done.hashed, done.without_code) == (0, 1, 1)
        assert record_of(engine, item.id).kind == "hashed"


@pytest.mark.slow
def test_codes_that_are_hashed_for_all_stay(world, tmp_path):
    with Engine.train(world / "items.csv", tmp_path / "engine", n_bits=8, codes="hashed") as engine:
        item = images(engine, "red", "circle")[0]
        done = engine.relabel([{"id": item.id, "labels": ["blue", "sky"]}])
        assert (done.hashed, dict(done.unknown_labels)) == (1, {"sky": 1})
        new = record_of(engine, item.id)
        assert (new.labels, new.code, new.kind) == (("blue", "sky"), item.code, "hashed")


def test_a_read_only_engine_is_not_relabelled(engine):
    with Engine.open(engine.path, read_only=True) as reader, pytest.raises(EngineError, match="read-only"):
        reader.relabel([])
