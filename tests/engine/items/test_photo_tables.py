"""A table about the photos of a folder: a row and the photo that it names are one item."""

from __future__ import annotations

import json
import unicodedata
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modalhash import Engine
from modalhash.cli import app
from modalhash.engine.items.item import ProblemCode, ReadOptions
from modalhash.engine.items.sources import open_source, read_batches

READS = {"image": "image", "text": "text"}
PHOTOS = ("sea/1.jpg", "sea/2.jpg", "town/1.jpg", "top.jpg")


@pytest.fixture
def folder(tmp_path):
    for name in PHOTOS:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"only its name is read")
    return tmp_path


class Read:
    """What is read of a folder and a table."""

    def __init__(self, folder: Path, table: str, name: str = "labels.csv", photos: str = "photos") -> None:
        (folder / name).write_text(table, encoding="utf-8")
        self.problems, self.notes = [], []
        opened = open_source([folder / photos, folder / name])
        how = ReadOptions(note=self.notes.append)
        batches = list(read_batches(opened, READS, self.problems.append, how))
        self.items = {(item.modality, item.id): item for batch in batches for item in batch.items}
        self.images = {item.id: item for item in self.items.values() if item.modality == "image"}

    def labels(self, id: str) -> tuple[str, ...]:
        return self.images[id].labels


@pytest.mark.parametrize(
    "name",
    [
        "photos/sea/2.jpg",
        "sea/2.jpg",
        "2.jpg",
        "2",
        "SEA/2.JPG",
        r"C:\pictures\sea\2.jpg",
        "/home/other/photos/sea/2.jpg",
        "./photos/../photos/sea/2.jpg",
        "{folder}/photos/sea/2.jpg",
    ],
)
def test_ways_to_name_a_photo(folder, name):
    found = Read(folder, f"path,labels,place\n{name.format(folder=folder)},beach;people,Nice\n")
    assert found.problems == []
    assert set(found.images) == {f"photos/{name}" for name in PHOTOS}
    assert found.labels("photos/sea/2.jpg") == ("beach", "people", "sea")
    assert found.images["photos/sea/2.jpg"].extra == {"place": "Nice"}
    assert found.images["photos/sea/2.jpg"].line == 2
    assert found.notes == ["labels.csv: 1 of 1 rows name photos of photos/"]


@pytest.mark.parametrize("column", ["file", "filename", "file_name", "image", "photo", "name", "id"])
def test_a_column_of_another_name(folder, column):
    found = Read(folder, f"{column},labels\nsea/2.jpg,beach\n")
    assert found.problems == []
    assert found.labels("photos/sea/2.jpg") == ("beach", "sea")
    assert found.images["photos/sea/2.jpg"].extra == {}


def test_lines_of_json(folder):
    found = Read(folder, json.dumps({"id": "2", "labels": ["beach"]}) + "\n", "labels.jsonl")
    assert found.labels("photos/sea/2.jpg") == ("beach", "sea")


def test_an_id_of_the_row_is_kept(folder):
    found = Read(folder, "id,path,labels\n17,sea/2.jpg,beach\n")
    assert found.labels("17") == ("beach", "sea")
    assert "photos/sea/2.jpg" not in found.images


def test_a_row_without_labels_leaves_those_of_the_folder(folder):
    assert Read(folder, "path,labels\n2.jpg,\n").labels("photos/sea/2.jpg") == ("sea",)


def test_a_row_that_is_held_out(folder):
    found = Read(folder, "path,labels,split\n2.jpg,beach,test\n")
    assert not found.images["photos/sea/2.jpg"].training
    assert found.images["photos/sea/1.jpg"].training


def test_one_name_of_several_photos(folder):
    found = Read(folder, "path,labels\n1.jpg,beach\ntown/1.jpg,street\n")
    assert [problem.code for problem in found.problems] == [ProblemCode.AMBIGUOUS]
    assert "2 photos (photos/sea/1.jpg, photos/town/1.jpg)" in found.problems[0].reason
    assert found.labels("photos/town/1.jpg") == ("street", "town")
    assert found.labels("photos/sea/1.jpg") == ("sea",)
    assert found.notes == ["labels.csv: 1 of 2 rows name photos of photos/; 1 names several"]


def test_a_photo_in_the_folder_itself_is_meant_by_its_name_alone(folder):
    (folder / "photos" / "sea" / "top.jpg").write_bytes(b"another")
    assert Read(folder, "path,labels\ntop.jpg,summit\n").labels("photos/top.jpg") == ("summit",)


def test_rows_that_name_no_photo(folder):
    (folder / "elsewhere.jpg").write_bytes(b"a photo")
    found = Read(folder, "path,labels\n2.jpg,beach\nlost.jpg,beach\nmoon/2.jpg,beach\nelsewhere.jpg,hill\n")
    assert [(problem.line, problem.code) for problem in found.problems] == [
        (3, ProblemCode.MISSING_FILE),
        (4, ProblemCode.MISSING_FILE),
    ]
    assert found.problems[0].reason == "no such file, and photos/ has no photo of this name"
    assert found.labels("elsewhere.jpg") == ("hill",)
    assert found.notes == ["labels.csv: 1 of 4 rows name photos of photos/; 3 name no photo there"]


def test_a_photo_in_two_rows(folder):
    found = Read(folder, "path,labels\n2.jpg,beach\nsea/2.jpg,boat\n")
    assert [problem.code for problem in found.problems] == [ProblemCode.DUPLICATE]
    assert "is already in line 2" in found.problems[0].reason
    assert found.labels("photos/sea/2.jpg") == ("beach", "sea")


def test_a_caption_is_a_text_of_its_own(folder):
    found = Read(folder, "id,path,text,labels\na,2.jpg,waves and sand,beach\n")
    assert found.items["text", "a"].text == "waves and sand"
    assert found.labels("a") == ("beach", "sea")


def test_texts_about_photos_by_their_ids(folder):
    found = Read(folder, "id,text,labels\nsea/2.jpg,waves,beach\nsea/2.jpg,sand,dune\nother,hills,hill\n")
    assert found.labels("sea/2.jpg") == ("beach", "sea", "dune")
    assert {id for modality, id in found.items if modality == "text"} == {"sea/2.jpg", "other"}
    assert [(problem.modality, problem.code) for problem in found.problems] == [("text", ProblemCode.DUPLICATE)]
    assert found.notes == ["labels.csv: 2 of 3 rows name photos of photos/"]


def test_texts_with_the_number_of_a_photo_are_not_about_it(folder):
    found = Read(folder, "id,text,labels\n2,waves,beach\n")
    assert found.labels("photos/sea/2.jpg") == ("sea",)
    assert found.notes == found.problems == []


def test_accents_stored_in_two_ways(folder):
    (folder / "photos" / unicodedata.normalize("NFD", "Café.jpg")).write_bytes(b"a photo")
    found = Read(folder, f"path,labels\n{unicodedata.normalize('NFC', 'café')}.jpg,coffee\n")
    assert found.problems == []
    assert any(item.labels == ("coffee",) for item in found.images.values())


def test_photos_in_an_archive(folder):
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for name in PHOTOS:
            archive.writestr(name, b"a photo")
    found = Read(folder, "path,labels\nsea/2.jpg,beach\nphotos.zip!/town/1.jpg,street\n", photos="photos.zip")
    assert found.problems == []
    assert found.labels("photos.zip/sea/2.jpg") == ("beach", "sea")
    assert found.labels("photos.zip/town/1.jpg") == ("street", "town")


def test_a_table_that_names_nothing_is_still_refused(folder):
    with pytest.raises(ValueError, match="the columns are title, labels; expected path or text"):
        Read(folder, "title,labels\nwaves,beach\n")


@pytest.mark.slow
def test_check_train_and_add(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    colours = {"red": (220, 30, 30), "blue": (30, 40, 220)}
    for name in ("photos", "more"):
        (tmp_path / name).mkdir()
        for row in range(24):
            colour = list(colours.values())[row % 2]
            image.new("RGB", (16, 16), tuple(max(0, part - 2 * row) for part in colour)).save(
                tmp_path / name / f"{name}{row}.png"
            )
    rows = "".join(f"photos{row}.png,{list(colours)[row % 2]}\n" for row in range(20))
    (tmp_path / "labels.csv").write_text(f"file,labels\n{rows}", encoding="utf-8")
    (tmp_path / "new.csv").write_text("file,labels\nmore1.png,blue\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = "labels.csv: 20 of 20 rows name photos of photos/"
    checked = CliRunner().invoke(app, ["check", "photos", "labels.csv"])
    assert (checked.exit_code, said in " ".join(checked.output.split())) == (0, True)
    trained = CliRunner().invoke(app, ["train", "photos", "labels.csv", "-o", "engine", "--bits", "8"])
    assert (trained.exit_code, said in trained.output) == (0, True)
    added = CliRunner().invoke(app, ["add", "engine", "more", "new.csv", "--json"])
    assert (added.exit_code, "new.csv: 1 of 1 rows name photos of more/" in added.output) == (0, True)
    with Engine.open("engine") as engine:
        assert engine.info()["notes"] == [said]
        assert len(engine) == 48
        assert engine.get("photos/photos1.png").labels == ("blue",)
        assert engine.get("more/more1.png").labels == ("blue",)
