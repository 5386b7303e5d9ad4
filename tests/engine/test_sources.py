"""What is wrong with an item has a code, whatever the sentence says; and ids for what has none."""

from __future__ import annotations

import json
import shutil

import pytest

from little_world import make_world
from modalhash import Engine
from modalhash.data import Dataset
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
