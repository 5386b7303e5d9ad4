"""What is wrong with an item has a code, whatever the sentence says; and ids for what has none."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from little_world import make_world
from modalhash import Engine
from modalhash.data import Dataset, ReadError
from modalhash.engine import Item, ProblemCode, default_id


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    with Engine.train(folder / "items.csv", folder / "engine", n_bits=16) as opened:
        yield opened


def codes_of(engine, source, **options):
    problems = []
    engine.add(source, on_problem=problems.append, **options)
    return [problem.code for problem in problems]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ({"path": "nosuch.jpg"}, ProblemCode.MISSING_FILE),
        ({"path": "x" * 5000 + ".jpg"}, ProblemCode.MISSING_FILE),
        ({"path": "."}, ProblemCode.NOT_A_FILE),
        ({"path": "https://example.org/a.jpg"}, ProblemCode.NOT_A_FILE),
        ({"text": " "}, ProblemCode.EMPTY),
        ({"text": ""}, ProblemCode.EMPTY),
        ({"text": "..."}, ProblemCode.UNREADABLE),
        ({"data": b"no picture"}, ProblemCode.UNREADABLE),
        ({"words": "a red ball"}, ProblemCode.MALFORMED),
        ({"text": "a red ball", "split": "some"}, ProblemCode.MALFORMED),
        ({"text": "a red ball", "labels": {"red": 1}}, ProblemCode.MALFORMED),
        ({"text": "a red ball", "modality": "image"}, ProblemCode.MALFORMED),
        ({"text": "a red ball", "modality": "sound"}, ProblemCode.UNKNOWN_MODALITY),
        (Item("sound", "1", text="a red ball"), ProblemCode.UNKNOWN_MODALITY),
        (Item("text", "", text="a red ball"), ProblemCode.MALFORMED),
        ({"id": "photos/0.png", "data": b"no picture"}, ProblemCode.EXISTS),
    ],
)
def test_every_problem_has_a_code(engine, line, code):
    assert codes_of(engine, [line]) == [code]
    assert len(engine) == 120


def test_fields_that_are_empty(engine):
    assert codes_of(engine, [{"caption": "", "file": None}], fields={"text": "caption"}) == [ProblemCode.EMPTY]


def test_a_data_set_of_another_modality(engine, rng):
    dataset = Dataset({"sound": rng.random((3, 4))}, name="sounds")
    assert codes_of(engine, dataset) == [ProblemCode.UNKNOWN_MODALITY] * 3


def test_codes_are_words(engine):
    problems = []
    engine.add([{"path": "nosuch.jpg"}], on_problem=problems.append)
    assert json.dumps(problems[0].code) == '"missing_file"'
    assert problems[0].code == "missing_file"


def test_ids_from_contents(engine, tmp_path):
    shutil.copytree(engine.path, tmp_path / "engine")
    picture = engine.path_of(engine.get("photos/0.png")).read_bytes()
    with Engine.open(tmp_path / "engine") as own:
        for line, content in [({"text": "a red ball"}, "a red ball"), ({"data": picture}, picture)]:
            assert own.add([line]).added == 1
            assert own.get(default_id(content)).kind == "hashed"
            assert codes_of(own, [line, line]) == [ProblemCode.DUPLICATE, ProblemCode.EXISTS]
    assert default_id("a red ball").startswith("text-")
    assert default_id(picture).startswith("image-")


# -- what no store can hold


UNSTORABLE = {
    "surrogate in the text": (
        r'{"id": "x", "text": "half \ud83d", "labels": ["red"]}',
        "text has an unpaired surrogate",
    ),
    "surrogate without an id": (r'{"text": "half \ud83d", "labels": ["red"]}', "text has an unpaired surrogate"),
    "surrogate in the id": (r'{"id": "\udfff", "text": "a ball", "labels": ["red"]}', "id has an unpaired surrogate"),
    "surrogate in a label": (
        r'{"id": "x", "text": "a ball", "labels": ["\ud800"]}',
        "labels has an unpaired surrogate",
    ),
    "surrogate in a field": (r'{"id": "x", "text": "a ball", "place": ["\ud800"]}', "extra has an unpaired surrogate"),
    "surrogate in the name of a field": (
        r'{"id": "x", "text": "a ball", "\ud800": 1}',
        "extra has an unpaired surrogate",
    ),
    "surrogate in the path": (
        r'{"id": "x", "path": "\ud800.png", "labels": ["red"]}',
        "no such file|not a path|surrogate",
    ),
    "NUL in the id": (r'{"id": "a\u0000", "text": "a ball", "labels": ["red"]}', "without NUL"),
    "NUL in a label": (r'{"id": "x", "text": "a ball", "labels": ["a\u0000"]}', "has a NUL"),
    "NUL in the path": (r'{"id": "x", "path": "a\u0000.png", "labels": ["red"]}', "is not a path"),
    "the home of nobody": (r'{"id": "x", "path": "~nobody-of-this-name/a.png", "labels": ["red"]}', "is not a path"),
    "NaN": (r'{"id": "x", "text": "a ball", "labels": ["red"], "size": NaN}', "extra cannot be written as JSON"),
    "infinite": (
        r'{"id": "x", "text": "a ball", "labels": ["red"], "size": {"cm": [1e999]}}',
        "extra cannot be written",
    ),
    "too many digits": (f'{{"id": "x", "text": "a ball", "n": {"7" * 5000}}}', "not JSON"),
    "nested": (f'{{"id": "x", "text": "a ball", "n": {"[" * 500}{"]" * 500}}}', "more than 100 nested lists"),
    "data that is no data": (r'{"id": "x", "data": 1000000000000, "labels": ["red"]}', "data is int"),
}


@pytest.mark.parametrize("case", UNSTORABLE)
def test_a_line_that_no_store_can_hold_is_reported_and_the_others_are_added(engine, tmp_path, case):
    line, reason = UNSTORABLE[case]
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"id": "first", "text": "a red ball"}}\n{line}\n{{"id": "last", "text": "a blue box"}}\n')
    problems = []
    done = engine.add(path, replace=True, on_problem=problems.append)
    assert done.added == 2
    (problem,) = problems
    assert (problem.source, problem.line) == ("bad.jsonl", 2)
    assert re.search(reason, problem.reason)
    assert engine.get("last").text == "a blue box"


@pytest.mark.slow
def test_training_goes_on_without_the_lines_that_no_store_can_hold(tmp_path):
    lines = [line for line, _ in UNSTORABLE.values()]
    rows = [
        json.dumps({"id": f"t{i}", "text": f"a {colour} thing {i}", "labels": [colour]})
        for i in range(20)
        for colour in ("red", "blue")
        if (i % 2) == (colour == "red")
    ]
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(lines + rows) + "\n")
    problems = []
    with Engine.train(path, tmp_path / "engine", n_bits=8, on_problem=problems.append) as engine:
        assert [len(engine), len(problems)] == [len(rows), len(lines)]
        assert sorted(problem.line for problem in problems) == list(range(1, len(lines) + 1))


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"id": 10**5000}, "id has too many digits"),
        ({"text": 10**5000}, "text has too many digits"),
        ({"n": 10**5000}, "extra cannot be written as JSON"),
        ({"n": np.arange(3)}, "extra cannot be written as JSON"),
        ({"n": {1, 2}}, "extra cannot be written as JSON"),
    ],
)
def test_a_dict_that_no_store_can_hold_is_reported_and_the_others_are_added(engine, extra, reason):
    problems = []
    given = [
        {"id": "first", "text": "a red ball"},
        {"id": "x", "text": "a ball", **extra},
        {"id": "z", "text": "a box"},
    ]
    assert engine.add(given, replace=True, on_problem=problems.append).added == 2
    assert reason in problems[0].reason


def test_an_item_of_a_data_set_that_no_store_can_hold_is_reported(engine):
    texts = np.array(["a red ball", "half \ud83d", "a blue box"])
    data = Dataset({}, {}, {"text": np.array(["a", "b", "c"])}, class_names=[], name="texts", raw={"text": texts})
    problems = []
    assert engine.add(data, replace=True, on_problem=problems.append).added == 2
    assert [problem.id for problem in problems] == ["b"]


def test_labels_beyond_the_limit_are_refused_before_the_work(tmp_path, monkeypatch):
    path = tmp_path / "many.jsonl"
    lines = [{"id": k, "text": f"a text {k}", "labels": [f"label {k}"]} for k in range(1200)]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    monkeypatch.setenv("MODALHASH_READ_MEMORY", "1MB")
    monkeypatch.setattr("modalhash.encoders.text.TfidfEncoder.fit", lambda *args: pytest.fail("that is the work"))
    with pytest.raises(
        ReadError, match=r"many\.jsonl: a matrix of 1,200 labels of 1,200 items would take 1\.4 MB, .*--read-m"
    ):
        Engine.train(path, tmp_path / "engine", n_bits=8)
    assert not (tmp_path / "engine").exists()
