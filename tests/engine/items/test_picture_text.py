"""The text in pictures: read once, stored with the item, found by words."""

from __future__ import annotations

import io
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from modalhash import Engine
from modalhash.core.imports import MissingExtraError
from modalhash.engine import Hit, PictureTextReader
from modalhash.engine.items.item import Item
from modalhash.engine.items.photos import MAX_PICTURE_TEXT, shortened, with_picture_text
from modalhash.engine.search.ordering import IN_PICTURE, ways_found


class Reader:
    """Stands in for OCR: says what a test put into the picture of each name."""

    def __init__(self, **texts: str) -> None:
        self.texts, self.asked = texts, []

    def __call__(self, source) -> str:
        name = Path(source).stem if isinstance(source, Path) else "data"
        self.asked.append(name)
        return self.texts.get(name, "")


def written(*lines: str) -> Image.Image:
    picture = Image.new("RGB", (640, 120 * len(lines) + 60), (235, 240, 245))
    for number, line in enumerate(lines):
        ImageDraw.Draw(picture).text((40, 30 + 120 * number), line, font=ImageFont.load_default(64), fill="black")
    return picture


def found(engine, text, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the encoder does not know these words
        return engine.search(text=text, **options)


@pytest.mark.slow
def test_words_in_pictures_are_found_and_outlive_retraining(world, tmp_path):
    read = Reader(**{"1": "Wolfgang Bakery\nopen 7 to 19", "2": "pharmacy"})
    with Engine.train(world / "items.csv", tmp_path / "engine", n_bits=16, read_text=read) as engine:
        assert len(read.asked) == 60
        assert engine.get("photos/1.png").extra == {"picture_text": "Wolfgang Bakery\nopen 7 to 19"}
        assert engine.get("photos/3.png").extra == {}
        first = found(engine, "bakery")[0]
        assert (first.id, first.found_by[-1], first.weak) == ("photos/1.png", IN_PICTURE, False)
        with engine.retrain() as again:
            assert len(read.asked) == 60, "nothing is read again"
            assert IN_PICTURE in found(again, "pharmacy", k=1)[0].found_by
            assert found(again, "pharmacy", k=1)[0].id == "photos/2.png"


@pytest.mark.slow
def test_added_and_synced_pictures_are_read(engine, world, tmp_path):
    photos = tmp_path / "new"
    photos.mkdir()
    for name in ("a", "b"):
        shutil.copy(world / "photos" / "0.png", photos / f"{name}.png")
    read = Reader(a="Zwetschgenkuchen", b="Ausfahrt freihalten", data="Notausgang")
    buffer = io.BytesIO()
    written("x").save(buffer, "png")
    engine.add([{"id": "upload", "data": buffer.getvalue()}], keep=True, read_text=read)
    engine.add([{"id": "plain", "path": str(photos / "a.png")}])
    assert read.asked == ["data"]
    assert found(engine, "Notausgang", k=1)[0].id == "upload"
    engine.remove(["plain"])
    engine.sync(photos, read_text=read)
    assert read.asked == ["data", "a", "b"]
    assert found(engine, "Ausfahrt", k=1)[0].id == "new/b.png"
    engine.sync(photos, read_text=read)
    assert len(read.asked) == 3
    written("other").save(photos / "b.png")
    read.texts["b"] = "Einfahrt"
    engine.sync(photos, read_text=read)
    assert engine.get("new/b.png").extra["picture_text"] == "Einfahrt"
    written("another").save(photos / "b.png")
    engine.sync(photos)
    assert "picture_text" not in engine.get("new/b.png").extra, "what was there is not what is there"


def test_what_a_manifest_says_is_not_read_again():
    items = [
        Item("image", "a", path=Path("a.png"), extra={"picture_text": "given"}),
        Item("image", "b", path=Path("b.png")),
    ]
    read, steps = Reader(b="read"), []
    done = with_picture_text(items, read, lambda *step: steps.append(step))
    assert [item.extra["picture_text"] for item in done] == ["given", "read"]
    assert (read.asked, steps) == (["b"], [("read text", 1, 2), ("read text", 2, 2)])


def test_a_reader_that_fails_costs_the_text_alone():
    def fail(source):
        raise RuntimeError("an odd picture")

    items = [Item("image", "a", path=Path("a.png"), extra={"title": "kept"})]
    with pytest.warns(UserWarning, match="the text in 1 pictures could not be read; the first: a: an odd picture"):
        assert with_picture_text(items, fail) == items


def test_a_text_is_stored_without_what_cannot_be_printed_and_with_a_limit():
    assert shortened(" one\0 \t two \n\n three\x1b ") == "one two\nthree"
    assert len(shortened("word " * 1000)) <= MAX_PICTURE_TEXT


def test_hits_say_whether_the_words_are_in_the_picture():
    def ways(query, **fields):
        return ways_found(Hit("photos/1.jpg", 0, "image", **fields), query, "words")

    text = {"picture_text": "Wolfgang Bakeries, open"}
    assert ways("bakery", extra={"caption": "a bakery"}) == ("words",)
    assert ways("Wolfgang", extra=text) == (IN_PICTURE,)
    assert ways("wolf*", extra=text) == (IN_PICTURE,)
    assert ways("opening", extra=text) == (IN_PICTURE,)
    assert ways("Wolfgang", extra={**text, "caption": "Wolfgang at home"}) == ("words",)
    assert ways("open street", extra={**text, "caption": "a street"}) == ("words", IN_PICTURE)
    assert ways("photos", extra=text) == ("words",)


@pytest.mark.slow
def test_an_engine_that_does_not_search_the_field_says_so(world, tmp_path):
    options = {"n_bits": 16, "searched_fields": ["title"]}
    with Engine.train(world / "items.csv", tmp_path / "engine", **options) as engine:
        shutil.copy(world / "photos" / "0.png", tmp_path / "a.png")
        with pytest.warns(UserWarning, match="found after modalhash retrain"):
            engine.add([{"id": "a", "path": str(tmp_path / "a.png")}], read_text=Reader(a="Zwetschgenkuchen"))
        assert found(engine, "Zwetschgenkuchen", k=1)[0].id != "a"
        with engine.retrain() as again:
            assert found(again, "Zwetschgenkuchen", k=1)[0].id == "a"


def test_without_the_extra_nothing_is_begun(engine, world, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'rapidocr'.*'ocr'.*pip install"):
        Engine.train(world / "items.csv", tmp_path / "other", read_text=True)
    assert not (tmp_path / "other").exists()
    with pytest.raises(MissingExtraError, match="rapidocr"):
        engine.add([{"path": str(world / "photos" / "0.png")}], read_text=True)


@pytest.mark.slow
def test_text_is_read_by_the_model(tmp_path):
    pytest.importorskip("rapidocr", reason="the extra 'ocr' is not installed")
    read = PictureTextReader()
    written("Wolfgang Bakery", "open 7 to 19").save(tmp_path / "sign.png")
    assert read(tmp_path / "sign.png") == "Wolfgang Bakery\nopen 7 to 19"
    buffer = io.BytesIO()
    Image.new("RGB", (200, 150), "green").save(buffer, "jpeg")
    assert read(buffer.getvalue()) == ""
