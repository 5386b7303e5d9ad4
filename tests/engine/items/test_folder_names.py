"""Names of folders that say nothing are no labels, unless all are to be."""

from __future__ import annotations

import random

import pytest
from typer.testing import CliRunner

from modalhash import Engine
from modalhash.cli import app
from modalhash.engine.items.photos import FolderLabels, says_nothing


@pytest.mark.parametrize(
    "name",
    [
        "2019", "2019-06", "2019_06_14", "20190614", "01", "2019 June", "06-June", "DCIM", "100CANON", "101_PANA",
        "100APPLE", "IMG", "IMG_0001", "New folder", "New folder (2)", "export", "Export 3", "Camera Uploads",
        "Camera Roll", "misc", "Photos from 2019", "Google Photos", "WhatsApp Images", "untitled folder",
        "d41d8cd98f00b204e9800998ecf8427e", "3f2a9c01", "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    ],
)  # fmt: skip
def test_names_that_say_nothing(name):
    assert says_nothing(name)


@pytest.mark.parametrize(
    "name",
    ["holiday", "2019 Nice", "2019-06 holiday", "beach", "may", "old", "camera", "apple", "facade", "n01440764",
     "house-2", "Bilder aus Rom", "hot air balloon", "海", "été"],
)  # fmt: skip
def test_names_that_are_labels(name):
    assert not says_nothing(name)


def test_what_is_below_a_camera_folder_is_its_own_name():
    assert FolderLabels().of(["holiday", "DCIM", "Camera"]) == ("holiday",)


def test_the_note_is_one_line_with_some_of_the_names():
    names = FolderLabels()
    assert names.of(["beach"]) == ("beach",)
    assert names.note() is None
    for year in range(2001, 2011):
        names.of([str(year)])
    assert "2001, 2002, 2003, 2004, 2005, 2006 and 4 more;" in names.note()
    assert "--labels folders" in names.note()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Photos of noise, in folders that say nothing but for one."""
    image = pytest.importorskip("PIL.Image")
    draw = random.Random(0)
    for name in ("2019", "2020", "holiday/2019", "town/DCIM"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(60):
            picture = image.new("RGB", (8, 8))
            picture.putdata([tuple(draw.randbytes(3)) for _ in range(64)])
            picture.save(tmp_path / "photos" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_labels_of_an_engine_and_of_what_is_added(folder):
    run = CliRunner().invoke
    note = "folder names not used as labels because they are uninformative: 2019, 2020, DCIM; labels='folders' (--labels folders)"
    checked = run(app, ["check", "photos"])
    assert note in " ".join(checked.output.split())
    done = run(app, ["train", "photos", "-o", "some", "--bits", "8"])
    assert note in done.output
    assert "warning: the expected quality on new items is near chance" in done.output
    assert run(app, ["train", "photos", "-o", "every", "--bits", "8", "--labels", "folders"]).exit_code == 0
    (folder / "photos").rename(folder / "more")
    for name, own in (("some", {"holiday", "town"}), ("every", {"holiday", "town", "2019", "2020", "DCIM"})):
        assert run(app, ["add", name, "more"]).exit_code == 0
        with Engine.open(name) as engine:
            assert set(engine.labels()) == own
            assert engine.get("more/2019/0.png").labels == (("2019",) if name == "every" else ())
