"""An engine: trained, opened, added to, searched, and refused where it is not whole."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

from little_world import BAD_CODES, BAD_LINES, make_bad_manifest
from modalhash import Engine, HammingIndex
from modalhash.data import Dataset, generate
from modalhash.encoders import TfidfEncoder
from modalhash.engine import EngineError, ProblemCode, engine_info
from modalhash.engine.storage.folder import CONFIG, ITEMS
from modalhash.store import Record

SPELLINGS = ["Café Noir", "cafe\u0301 noir", " CAFÉ  NOIR"]


@pytest.fixture
def spelled(tmp_path):
    """An engine that was trained with three spellings of one label."""
    items = [{"id": f"c{n}", "text": f"black coffee {n}", "labels": [SPELLINGS[n % 3]]} for n in range(12)]
    items += [{"id": f"b{n}", "text": f"a boat at sea {n}", "labels": ["boat"]} for n in range(12)]
    with Engine.train(items, tmp_path / "engine", n_bits=16) as opened:
        yield opened


def test_spellings_of_a_label_are_one_in_training_searches_and_changes(spelled):
    assert spelled.config["class_names"] == ["Café Noir", "boat"]
    assert spelled.labels() == {"Café Noir": 12, "boat": 12}
    (note,) = [note for note in spelled.config["notes"] if "one label" in note]
    assert note.startswith("'Café Noir', 'cafe\u0301 noir' and 'CAFÉ  NOIR' are one label")
    assert note.endswith("shown as 'Café Noir'")
    for spelling in SPELLINGS:
        assert len(spelled.search(text="coffee", k=50, labels=[spelling])) == 12
        assert len(spelled.search(text="coffee", k=50, where={"label": spelling})) == 12
        spelled.check_filter({"label": spelling})
    added = spelled.add([{"id": "n1", "text": "espresso", "labels": [SPELLINGS[1], "New"]}])
    added = spelled.add([{"id": "n2", "text": "espresso", "labels": ["NEW "]}])
    assert added.notes == ("'New' and 'NEW' are one label: shown as 'New'",)
    assert [spelled.get(id).labels for id in ("n1", "n2")] == [("Café Noir", "New"), ("New",)]
    done = spelled.relabel([{"id": "n2", "labels": [SPELLINGS[2]]}, {"id": "b1", "labels": ["BOAT"]}])
    assert (done.learned, done.unchanged, dict(done.unknown_labels)) == (1, 1, {})
    assert spelled.get("n2").labels == ("Café Noir",)
    assert spelled.get("n2").code == spelled.get("c1").code
    spelled.retrain()
    with spelled.reopen() as again:
        assert again.labels() == {"Café Noir": 14, "boat": 12, "New": 1}


def test_a_retraining_joins_spellings_that_an_earlier_version_kept_apart(spelled):
    record = spelled.store.get("c1", modality="text")
    numbers = spelled.store.row_ids([record.key])
    spelled.store.update({numbers[record.key]: replace(record, labels=("CAFE\u0301 noir",))})
    with sqlite3.connect(spelled.path / ITEMS) as connection:  # what earlier versions kept for filters
        connection.execute("UPDATE label SET folded = ? WHERE name = ?", ("cafe\u0301 noir", "CAFE\u0301 noir"))
    connection.close()
    assert len(spelled.search(text="coffee", k=50, labels=["café noir"])) == 12
    spelled.retrain()
    with spelled.reopen() as again:
        assert again.labels() == {"Café Noir": 12, "boat": 12}
        assert again.get("c1").labels == ("Café Noir",)


def shares(hits, *labels):
    return np.mean([set(labels) <= set(hit.labels) for hit in hits])


@pytest.mark.slow
def test_words_find_pictures_and_pictures_find_texts(engine, world):
    hits = engine.search(text="a red ball", want="image", k=5)
    assert {hit.modality for hit in hits} == {"image"}
    assert shares(hits, "red", "circle") == 1
    assert hits[0].uri.endswith(".png")
    assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
    picture = engine.get("photos/0.png")
    for content in (picture.uri, (world / "photos" / "0.png").read_bytes()):
        found = engine.search(image=content, want="text", k=5)
        assert shares(found, *picture.labels) == 1
        assert found[0].text


def test_within_a_modality_and_across_all(engine):
    assert {hit.modality for hit in engine.search(text="a blue box", want="text", k=3)} == {"text"}
    assert len(engine.search(text="a blue box", k=500)) == len(engine)
    assert engine.search(text="a blue box", want=["text", "image"], k=9) == engine.search(text="a blue box", k=9)
    assert {hit.modality for hit in engine.search(text="a blue box", radius=16)} == {"image", "text"}


def test_by_an_item(engine):
    own = engine.get("photos/3.png")
    hits = engine.search(id="photos/3.png", want="image", k=59)
    assert "photos/3.png" not in {hit.id for hit in hits}
    assert len(hits) == 59
    assert hits[0].labels == own.labels
    with pytest.raises(KeyError, match="nosuch"):
        engine.search(id="nosuch")


def test_many_at_once_are_the_same_as_one_by_one(engine):
    words = ["red ball", "green box", "blue ball today"] * 40
    for options in ({"k": 4}, {"radius": 3}, {"k": 4, "asymmetric": True, "want": "image"}):
        together = engine.search_many(text=words, **options)
        for query, hits in zip(words[:3], together[:3], strict=True):
            alone = engine.search(text=query, **options)
            assert [(hit.id, hit.distance) for hit in alone] == [(hit.id, hit.distance) for hit in hits]
    assert engine.search_many(text=[]) == []


def test_hits_are_those_of_brute_force(engine):
    records = list(engine.items())
    codes = np.stack([np.frombuffer(record.code, np.uint8) for record in records])
    features = engine.encoders["text"].encode(["a green ball"])
    projection = engine.model.decision_function({"text": features})["text"][0]
    bits = np.unpackbits(codes, axis=1)[:, :16].astype(bool)
    distances = (bits != (projection > 0)).sum(axis=1)
    expected = np.argsort(distances, kind="stable")[:30]
    plain = engine.search(text="a green ball", k=30, refine=False, hybrid=False)
    assert [hit.distance for hit in plain] == distances[expected].tolist()
    assert [(h.modality, h.id) for h in plain] == [records[i].key for i in expected]
    scores = np.where(bits, 1, -1) @ projection
    best = engine.search(text="a green ball", k=10, asymmetric=True, shortlist=len(records), hybrid=False)
    np.testing.assert_allclose([hit.score for hit in best], np.sort(scores)[::-1][:10], rtol=1e-4)


@pytest.mark.slow
def test_learned_and_hashed_codes_are_told_apart(world, engine, tmp_path):
    assert {record.kind for record in engine.items()} == {"learned"}
    engine.add([{"text": "a red ball in the rain"}])
    assert engine.store.counts() == {("image", "learned"): 60, ("text", "learned"): 60, ("text", "hashed"): 1}
    with Engine.train(world / "items.csv", tmp_path / "hashed", n_bits=16, codes="hashed") as hashed:
        assert {record.kind for record in hashed.items()} == {"hashed"}


def test_each_bad_line_is_reported_and_the_rest_is_there(world, engine):
    told = []
    done = engine.add(make_bad_manifest(world), on_problem=told.append)
    assert tuple(told) == done.problems
    found = sorted(done.problems, key=lambda problem: problem.line)
    for problem, (line, id, part), code in zip(found, BAD_LINES, BAD_CODES, strict=True):
        assert (problem.line, problem.id, problem.code) == (line, id, code)
        assert part in problem.reason
    assert done.added == 3
    assert engine.get("twice").text == "a red ball"
    assert engine.get("fine").labels == ()
    assert engine.get("good").extra == {"place": "Graz"}
    with pytest.raises(ValueError, match=r"bad.jsonl, line 1: .*missing.jpg: no such file"):
        engine.add(world / "bad.jsonl", strict=True)


@pytest.mark.slow
def test_training_survives_bad_lines_too(world, tmp_path):
    good = [json.loads(line) for line in _as_json_lines(world / "items.csv")]
    bad = make_bad_manifest(world).read_text()
    path = world / "both.jsonl"
    path.write_text(bad + "".join(json.dumps(line) + "\n" for line in good))
    with pytest.warns(UserWarning, match="7 items were left out; the first: both.jsonl, line 1"):
        engine = Engine.train(path, tmp_path / "engine", n_bits=16)
    with engine:
        assert sorted(problem.line for problem in engine.problems) == [line for line, _, _ in BAD_LINES]
        assert len(engine) == 123
        assert engine.get("fine").kind == "hashed"  # it has no label
        assert engine.get("twice").kind == "learned"
    with pytest.raises(ValueError, match=r"both.jsonl, line 1: "):
        Engine.train(path, tmp_path / "strict", n_bits=16, strict=True)
    assert not (tmp_path / "strict").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["engine"], "nothing is left behind"


def _as_json_lines(manifest):
    import csv

    with manifest.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield json.dumps({key: value for key, value in row.items() if value})


def test_add_replace_remove(engine):
    assert engine.add([{"id": "x", "text": "a red ball"}]).added == 1
    again = engine.add([{"id": "x", "text": "a blue box"}], on_problem=lambda problem: None)
    assert (again.added, len(again.problems)) == (0, 1)
    assert "already in the engine" in str(again.problems[0])
    assert again.problems[0].code is ProblemCode.EXISTS
    done = engine.add([{"id": "x", "text": "a blue box"}], replace=True)
    assert (done.added, done.replaced) == (1, 1)
    assert engine.search(text="a blue box", want="text", k=1, radius=None)[0].labels in ((), ("blue", "square"))
    with pytest.raises(KeyError, match="nothing was removed"):
        engine.remove(["x", "nosuch"])
    assert engine.remove(["x", "nosuch"], missing="ignore") == 1
    assert len(engine) == 120
    assert "x" not in {hit.id for hit in engine.search(text="a blue box", k=500)}


def test_a_pair_is_one_id_in_two_modalities(engine, world):
    photo = str(world / "photos" / "0.png")
    assert engine.add([{"id": "pair", "path": photo, "text": "a red ball"}]).added == 2
    with pytest.raises(ValueError, match="image and text; say which"):
        engine.get("pair")
    assert engine.get("pair", modality="text").text == "a red ball"
    assert engine.remove(["pair"], modality="text") == 1
    assert engine.get("pair").modality == "image"


@pytest.mark.slow
def test_what_another_process_does_is_seen(engine):
    before = len(engine.search(text="red ball", k=1000))
    code = (
        "import sys; from modalhash import Engine\n"
        "with Engine.open(sys.argv[1]) as engine:\n"
        "    engine.add([{'id': str(i), 'text': 'a red ball'} for i in range(5)]); engine.remove(['photos/0.png'])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(engine.path)], check=True)
    assert len(engine.search(text="red ball", k=1000)) == before + 4


@pytest.mark.slow
def test_export_can_be_trained_on(engine, tmp_path):
    lines = list(engine.export())
    assert len(lines) == 120
    assert len(lines[0]["code"]) == 4
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Engine.train(path, tmp_path / "again", n_bits=16) as again:
        assert [record.code for record in again.items()] == [record.code for record in engine.items()]
        assert not any(record.extra for record in again.items())


def test_export_carries_refinement_vectors(engine):
    engine.store.add([Record("with", "text", b"\0\0", refinement=b"\x01\xff"), Record("none", "text", b"\0\0")])
    lines = {line["id"]: line for line in engine.export() if line["modality"] == "text"}
    assert base64.b64decode(lines["with"]["refinement"]) == b"\x01\xff"
    assert "refinement" not in lines["none"]


def test_info(engine):
    facts = json.loads(json.dumps(engine.info()))
    assert facts["items"] == 120
    assert facts["classes"] == 5
    assert facts["modalities"]["text"]["items"] == {"learned": 60, "hashed": 0}
    assert facts["modalities"]["image"]["encoder"]["dim"] == engine.encoders["image"].dim
    assert engine_info(engine.path) == engine_info(engine.path, read_only=True) == engine.info()
    (engine.path / ITEMS).unlink()
    with pytest.raises(EngineError, match=r"items\.sqlite is missing"):
        engine_info(engine.path)


def test_info_while_somebody_removes_pictures(engine, monkeypatch):
    """One is gone after it was seen, one before it is looked at."""
    stat, before = os.stat, engine.info()["bytes"]
    (engine.path / "media").mkdir()
    (engine.path / "media" / "gone").symlink_to("nowhere")
    (engine.path / "media" / "going").write_bytes(b"")

    def going(path, **options):
        status = stat(path, **options)
        if os.path.basename(os.fspath(path)) == "going":
            os.unlink(path)
        return status

    monkeypatch.setattr(os, "stat", going)
    assert engine.info()["bytes"] == before


def test_unknown_words_are_told(engine):
    with pytest.warns(UserWarning, match="None of these words is known"):
        engine.search(text="zzqqxx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.search(text="red")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "no query"),
        ({"image": b"", "id": "1"}, TypeError, "image and id"),
        ({"query": "red"}, TypeError, "modality="),
        ({"text": "red", "want": "sound"}, ValueError, "no modality 'sound'; it has 'image', 'text'"),
        ({"text": "red", "k": 0}, ValueError, "k is 0"),
        ({"text": "..."}, ValueError, "no word"),
        ({"text": ""}, ValueError, "^the query is empty; expected some words"),
        ({"text": " \n"}, ValueError, "^the query is only white space; expected some words"),
        ({"image": "nosuch.jpg"}, ValueError, r"nosuch.jpg: no such file"),
    ],
)
def test_a_query_that_is_none(engine, arguments, error, message):
    with pytest.raises(error, match=message):
        engine.search(**arguments)


@pytest.mark.slow
def test_a_folder_of_pictures_and_a_table_of_texts(world, tmp_path):
    photos = tmp_path / "album"
    texts = ["id,text,labels"]
    for line in map(json.loads, _as_json_lines(world / "items.csv")):
        if "path" in line:
            place = photos.joinpath(*line["labels"].split(";"), line["path"].removeprefix("photos/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(world / line["path"], place)
        else:
            texts.append(f"{len(texts)},{line['text']},{line['labels']}")
    (photos / "notes.txt").write_text("no picture")
    (photos / ".hidden.png").write_text("no picture")
    (photos / "broken.png").write_text("no picture")
    (tmp_path / "texts.csv").write_text("\n".join([*texts, "1,again,red", "x,too,many,columns"]))
    with pytest.warns(UserWarning, match="3 items"):
        engine = Engine.train([photos, tmp_path / "texts.csv"], tmp_path / "engine", n_bits=16)
    with engine:
        assert len(engine) == 120
        assert sorted(map(str, engine.problems))[1:] == [
            "texts.csv, line 62: 1: the id '1' is already in line 2; the first one is used",
            "texts.csv, line 63: not 3 columns as in line 1 but 4; is a text with ',' in it not within quotes?",
        ]
        hits = engine.search(text="a red ball", want="image", k=5)
        assert shares(hits, "red", "circle") == 1
        assert hits[0].id.startswith("album/red/circle/")
        told = []
        assert engine.add(photos, on_problem=told.append).added == 0
        assert len(told) == 61


# -- data sets and arrays


@pytest.mark.slow
def test_a_data_set_of_features(tmp_path):
    data = generate(n_items=200, seed=0)
    names = [f"class {number}" for number in range(data.Y["image"].shape[1])]
    dataset = Dataset(data.X, data.Y, class_names=names, name="made up")
    with Engine.train(dataset, tmp_path / "engine", n_bits=16) as engine:
        own = engine.get("7", modality="text")
        hits = engine.search(features=data.X["text"][7], modality="text", want="image", k=10)
        assert np.mean([bool(set(hit.labels) & set(own.labels)) for hit in hits]) > 0.5
        assert len(engine.search_many(features=data.X["image"][:3], modality="image", k=2)) == 3
        with pytest.raises(ValueError, match="trained on given features"):
            engine.search(text="words")
        with pytest.raises(ValueError, match="only its code is stored"):
            engine.search(id="7", modality="text", asymmetric=True)
        told = []
        engine.add([{"text": "words"}], on_problem=told.append)
        assert "add a Dataset" in told[0].reason
        assert told[0].code is ProblemCode.NEEDS_FEATURES
        more = Dataset({"text": data.X["text"][:4]}, ids={"text": np.array(list("abcd"))}, name="more")
        assert engine.add(more).added == 4


@pytest.mark.slow
def test_a_split_holds_items_out(world, tmp_path):
    lines = [json.loads(line) for line in _as_json_lines(world / "items.csv")]
    for number, line in enumerate(lines):
        line["split"] = "test" if number % 10 < 2 else "train"
    path = world / "split.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Engine.train(path, tmp_path / "engine", n_bits=16) as engine:
        assert engine.config["trained_on"] == {"image": 48, "text": 48}
        assert engine.store.counts()[("image", "hashed")] == 12
    with Engine.train(path, tmp_path / "all", n_bits=16, learn_from="all") as engine:
        assert engine.config["trained_on"] == {"image": 60, "text": 60}
        assert ("image", "hashed") not in engine.store.counts()
    with pytest.raises(ValueError, match="learn_from"):
        Engine.train(path, tmp_path / "none", n_bits=16, learn_from="test")


@pytest.mark.slow
def test_own_encoders_and_field_names(world, tmp_path):
    lines = [json.loads(line) for line in _as_json_lines(world / "items.csv")]
    path = world / "named.jsonl"
    named = [{"file": line.get("path"), "caption": line.get("text"), "tags": line["labels"]} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in named))
    with Engine.train(
        path,
        tmp_path / "engine",
        n_bits=16,
        fields={"image": "file", "text": "caption", "labels": "tags"},
        encoders={"text": TfidfEncoder(pieces=None, min_df=1)},
        parameters={"ridge": 1.0},
    ) as engine:
        assert engine.encoders["text"].pieces is None
        assert engine.model.ridge == 1.0
        assert len(engine) == 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bits": 64}, "n_bits is 64, but there are only 60 items"),
        ({"method": "nosuch"}, "unknown method"),
        ({"parameters": {"nosuch": 1}}, "rlh has no parameter 'nosuch'"),
        ({"encoders": {"text": "tfdf"}}, "Did you mean 'tfidf'"),
        ({"codes": "both"}, "codes is 'both'"),
        ({"fields": {"text": "nosuch"}}, "the columns are path, text, labels"),
    ],
)
def test_training_that_cannot_be(world, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        Engine.train(world / "items.csv", tmp_path / "engine", **{"n_bits": 16, **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_nothing_is_overwritten_unasked(world, engine, tmp_path):
    before = (engine.path / CONFIG).read_bytes()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        Engine.train(world / "items.csv", engine.path, n_bits=8)
    assert (engine.path / CONFIG).read_bytes() == before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "diary.txt").write_text("dear diary")
    with pytest.raises(FileExistsError, match="is not an engine; it is not changed"):
        Engine.train(world / "items.csv", mine, n_bits=8, overwrite=True)
    Engine.train(world / "items.csv", engine.path, n_bits=8, overwrite=True).close()
    assert json.loads((engine.path / CONFIG).read_text())["n_bits"] == 8


def test_names_at_the_top():
    assert isinstance(HammingIndex(8), HammingIndex)
    assert Engine.__module__ == "modalhash.engine.engine"
