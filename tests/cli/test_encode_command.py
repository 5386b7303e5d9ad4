"""``modalhash encode``, and ``modalhash add`` of what it wrote, as typed."""

from __future__ import annotations

import json

import pytest

from command_line import run
from little_world import make_world
from modalhash import Engine
from modalhash.cli.common import rate_and_time_left
from modalhash.core.progress import Progress

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    Engine.train(folder / "items.csv", folder / "engine", n_bits=16).close()
    make_world(folder / "new", 10)
    (folder / "new" / "photos").rename(folder / "new" / "more")
    return folder


@pytest.mark.slow
def test_encode_then_add(world):
    engine, photos, codes = world / "engine", world / "new" / "more", world / "codes"
    done = run("encode", engine, photos, "--out", codes, "--part-size", "4")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"10 inputs encoded into 3 files in {codes}" in done.stderr
    again = run("encode", engine, photos, "--out", codes, "--part-size", "4")
    assert "0 inputs encoded into 0 files" in again.stderr
    assert "3 files existed already" in again.stderr

    added = run("add", engine, *sorted(codes.glob("*.parquet")))
    assert added.exit_code == 0, added.output
    assert f"10 items added; {engine} holds 130" in added.stderr
    found = run("search", engine, "a red ball", "--want", "image", "--json")
    assert any(hit["id"].startswith("more/") for hit in json.loads(found.stdout)["hits"])
    lines = (world / "engine.audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["what"] for line in lines] == ["add", "add"]

    twice = run("add", engine, *sorted(codes.glob("*.parquet")), codes.joinpath("*.parquet"))
    assert twice.exit_code == 1
    assert "skipped from" in twice.stderr
    assert "and 1 more:" in twice.stderr


@pytest.mark.slow
def test_problems_are_shown_and_the_exit_code_says_so(world, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no picture")
    done = run("encode", world / "engine", tmp_path / "photos", "--out", tmp_path / "codes", "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert (told["inputs"], told["problems"], told["first_problems"][0]["code"]) == (1, 1, "unreadable")
    assert "broken.jpg: not a picture" in done.stderr
    said = run("encode", world / "engine", tmp_path / "photos", "--out", tmp_path / "other").stderr
    assert "0 of 1 inputs encoded into 1 files" in said


def test_errors_are_one_line(world, tmp_path):
    for arguments in [("nosuch",), (world / "new" / "more", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1")]:
        done = run("encode", world / "engine", *arguments, "--out", tmp_path / "codes")
        assert done.exit_code == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "codes").exists()


def test_rate_and_time_left():
    assert rate_and_time_left(Progress("encode", 0, 100, 0.0)) == ""
    assert rate_and_time_left(Progress("encode", 3000, 10_000, 2.0)) == "1,500 a second, 5 s left"
    assert rate_and_time_left(Progress("encode", 3000, 30_000_000, 2.0)) == "1,500 a second, 5 h 33 min left"
    assert rate_and_time_left(Progress("encode", 3000, 3000, 2.0)) == "1,500 a second"
