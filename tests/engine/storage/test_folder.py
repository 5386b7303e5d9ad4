"""Folders that are no engines, or are not whole, or have other encoders: refused, with the reason."""

from __future__ import annotations

import json
import shutil

import pytest

from modalhash import Engine
from modalhash.core.files import DIGEST
from modalhash.encoders import TfidfEncoder
from modalhash.engine.storage.folder import CONFIG, ITEMS, EngineError
from modalhash.store import SqliteStore, StoreError


def _edit(path, **changes):
    """Write a configuration with these changes as if it had always been so."""
    config = json.loads((path / CONFIG).read_text())
    config.pop(DIGEST)
    (path / CONFIG).write_text(json.dumps({**config, **changes}))


def _leave_out(path, name):
    """Write a configuration without an entry as if it had never been there."""
    config = json.loads((path / CONFIG).read_text())
    (path / CONFIG).write_text(json.dumps({key: config[key] for key in config if key not in (DIGEST, name)}))


def _damage(path):
    """Change one letter of a value, which leaves a configuration that can be read."""
    text = path.read_text()
    path.write_text(text.replace('"name": "', '"name": "x', 1) if '"name": "' in text else text.replace('"r', '"R', 1))


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: shutil.rmtree(path), "does not exist; expected an engine. Create one with `modalhash train"),
        (lambda path: (path / CONFIG).unlink(), "holds no engine: config.json is missing"),
        (lambda path: _cut(path / CONFIG), "truncated or not JSON"),
        (lambda path: _damage(path / CONFIG), "config.json was damaged or changed"),
        (lambda path: _damage(path / "model" / CONFIG), "config.json was damaged or changed"),
        (lambda path: _damage(path / "encoders" / "0" / "encoder.json"), "encoder.json was damaged or changed"),
        (lambda path: _cut(path / "refinement.safetensors"), "refinement.safetensors is truncated"),
        (lambda path: _edit(path, kind="something"), "was not written by modalhash"),
        (lambda path: _edit(path, format=99), "has format 99; this version reads up to 1"),
        (lambda path: _leave_out(path, "generation"), "lacks generation: .* an unreleased version .* Make it again"),
        (lambda path: _leave_out(path, "refinement"), "lacks refinement: .* an unreleased version .* Make it again"),
        (lambda path: _edit(path, modalities=[1]), "modalities are not an object"),
        (lambda path: _edit(path, modalities={"image": 1, "text": 2}), "the entry of 'image' is not valid"),
        (lambda path: _edit(path, refinement=["x"]), "refinement.safetensors is truncated or not the file"),
        (lambda path: _edit(path, confidence="x"), "confidence.json is missing"),
        (lambda path: (path / ITEMS).unlink(), "items.sqlite is missing"),
        (lambda path: _cut(path / "model" / "model.safetensors"), "cannot be used: .*truncated"),
        (lambda path: _edit(path, model="0" * 64), "is not the model this engine was trained with"),
        (lambda path: _cut(path / "encoders" / "1" / "encoder.safetensors"), "the encoder of 'text'"),
        (
            lambda path: _swap_encoders(path),
            "the encoder of 'image' is not the one .* name is 'tfidf', expected 'image'",
        ),
    ],
)
def test_a_folder_that_is_no_engine(world, tmp_path, spoil, message):
    path = tmp_path / "engine"
    shutil.copytree(world / "engine", path)
    spoil(path)
    with pytest.raises(EngineError, match=message):
        Engine.open(path)


def _swap_encoders(path):
    (path / "encoders" / "0").rename(path / "encoders" / "2")
    (path / "encoders" / "1").rename(path / "encoders" / "0")
    (path / "encoders" / "2").rename(path / "encoders" / "1")


def test_an_encoder_of_another_version(world, monkeypatch):
    monkeypatch.setattr(TfidfEncoder, "version", 2)
    with pytest.raises(EngineError, match=r"the encoder of 'text'.* version is 2, expected 1"):
        Engine.open(world / "engine")


@pytest.mark.slow
def test_an_encoder_of_somebody_else_runs_only_if_trusted(world, tmp_path, monkeypatch):
    path = tmp_path / "engine"
    with Engine.train(world / "items.csv", path, n_bits=16, encoders={"text": "little_world:Lengths"}) as engine:
        assert engine.search(text="a red ball", k=1)
    with pytest.raises(EngineError, match="trust=True"):
        Engine.open(path)
    Engine.open(path, trust=True).close()
    monkeypatch.setattr("little_world.Lengths.digest", "another")
    with pytest.raises(EngineError, match="digest"):
        Engine.open(path, trust=True)


def test_a_store_that_is_cut(world, tmp_path):
    path = tmp_path / "engine"
    shutil.copytree(world / "engine", path)
    (path / ITEMS).write_bytes(b"not a database, " * 100)
    with pytest.raises(StoreError, match="is not a store"):
        Engine.open(path)


def test_an_engine_that_cannot_be_opened_leaves_no_store_open(world, monkeypatch):
    opened = []

    class Watched(SqliteStore):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            opened.append(self)

        def revision(self):
            raise StoreError("unreadable")

    monkeypatch.setattr("modalhash.engine.storage.location.SqliteStore", Watched)
    with pytest.raises(StoreError, match="unreadable"):
        Engine.open(world / "engine")
    with pytest.raises(StoreError, match="is closed"):
        opened[0].count()


def test_a_store_of_other_codes(world, tmp_path):
    path = tmp_path / "engine"
    shutil.copytree(world / "engine", path)
    (path / ITEMS).unlink()
    SqliteStore(path / ITEMS, n_bits=8).close()
    with pytest.raises(EngineError, match="holds codes of 8 bits, the model makes 16"):
        Engine.open(path)
