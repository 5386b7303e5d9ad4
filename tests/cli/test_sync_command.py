"""modalhash sync, as typed."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
from PIL import Image

from command_line import run
from modalhash import Engine


@pytest.fixture
def place(world, tmp_path):
    for name in ("engine", "photos"):
        shutil.copytree(world / name, tmp_path / name)
    return tmp_path


def paint(path, colour="red"):
    Image.new("RGB", (40, 40), colour).save(path)


@pytest.mark.slow
def test_sync_says_what_it_did(place):
    engine, photos = place / "engine", place / "photos"
    paint(photos / "new.png")
    (photos / "1.png").unlink()
    (photos / "bad.png").write_bytes(b"no picture")
    done = run("sync", engine, photos, "--dry-run")
    assert done.stdout.splitlines() == ["added\tphotos/bad.png", "added\tphotos/new.png", "gone\tphotos/1.png"]
    assert "2 added, 0 changed, 1 gone, 59 as before" in done.stderr
    assert "nothing was changed" in done.stderr
    done = run("sync", engine, photos)
    assert done.exit_code == 1
    assert "1 added, 0 changed, 1 gone, 59 as before; 1 left out:" in done.stderr
    assert "bad.png: not a picture" in done.stderr
    (photos / "bad.png").unlink()
    done = run("sync", engine, photos, "--json")
    assert done.exit_code == 0
    nothing = {"added": [], "changed": [], "moved": [], "gone": [], "waiting": 0, "problems": []}
    assert json.loads(done.stdout) == {**nothing, "unchanged": 60}
    lines = [json.loads(line) for line in (place / "engine.audit.jsonl").read_text().splitlines()]
    ends = [(line["added"], line["gone"]) for line in lines if line["what"] == "sync" and line["state"] == "done"]
    assert ends == [(1, 1)]  # what changed nothing is no change


@pytest.mark.slow
def test_an_unmounted_disk_drops_nothing(place):
    (place / "photos").rename(place / "away")
    done = run("sync", place / "engine", place / "photos")
    assert done.exit_code == 2
    assert "no such folder, and the engine has 60 items from it" in done.stderr
    assert run("sync", place / "engine", place / "photos", "--watch").exit_code == 2
    done = run("sync", place / "engine", place / "photos", "--allow-empty")
    assert (done.exit_code, "60 gone" in done.stderr) == (0, True)
    assert run("sync", place / "engine", place / "away", "--watch", "--dry-run").exit_code == 2


@pytest.mark.slow
def test_watch_follows_until_it_is_interrupted(place, monkeypatch):
    engine, photos = place / "engine", place / "photos"

    def retrain():
        with Engine.open(engine) as opened:
            opened.retrain().close()

    steps = iter(
        [
            lambda: paint(photos / "new.png"),
            lambda: None,
            lambda: photos.rename(place / "away"),  # the disk is unmounted, which is reported once
            lambda: None,
            lambda: (place / "away").rename(photos),
            retrain,
            lambda: (photos / "1.png").unlink(),
        ]
    )

    def sleep(seconds):
        assert seconds == 2
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr("modalhash.cli.maintenance.time", SimpleNamespace(sleep=sleep))
    done = run("sync", engine, photos, "--watch", "--interval", "2")
    assert (done.exit_code, done.exception) == (0, None)
    told = [line.removeprefix(f"{photos}: ") for line in done.stderr.splitlines()]
    assert told[0] == f"watching {photos} every 2 s; stop with Ctrl-C"
    assert told[1] == "0 added, 0 changed, 0 gone, 60 as before"
    assert told[2] == "1 added, 0 changed, 0 gone, 60 as before"
    assert "waiting: " in told[3]
    assert "no such folder" in told[3]
    assert told[4:] == ["0 added, 0 changed, 1 gone, 60 as before", "stopped"]
