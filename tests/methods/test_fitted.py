"""Models on disk: every later version must read what this one wrote, and refuse what it cannot read."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from contract import OUTSIDE
from modalhash import AMSH, load
from modalhash.core import files as _files
from modalhash.core.files import DIGEST
from modalhash.data import generate
from modalhash.methods.fitted import CONFIG, TENSORS, ModelFileError
from toy_method import ClassCodes

GOLDEN = Path(__file__).parents[1] / "golden" / "model-1"


@pytest.fixture
def saved(tmp_path):
    data = generate(n_items=60, n_queries=5, seed=0)
    model = AMSH(n_bits=6, n_anchors=10, random_state=0).fit(data.X, data.Y)
    model.save(tmp_path / "model")
    return tmp_path / "model"


def test_format_1_is_read_for_ever():
    model = load(GOLDEN)
    expected = json.loads((GOLDEN.parent / "model-1.expected.json").read_text())
    assert type(model).__name__ == expected["class"]
    for name, queries in expected["queries"].items():
        projections = model.decision_function({name: np.array(queries)})[name]
        np.testing.assert_allclose(projections, expected["projections"][name], atol=1e-5)
        assert model.codes_[name].tolist() == expected["codes"][name]
    assert model.n_iter_ == expected["n_iter"]


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_model_is_refused(saved, keep):
    for file in (TENSORS, CONFIG):
        copy = saved.with_name("copy")
        shutil.copytree(saved, copy, dirs_exist_ok=True)
        content = (saved / file).read_bytes()
        (copy / file).write_bytes(content[:keep])
        if file == CONFIG and keep == -1:
            continue  # only the final newline is lost
        with pytest.raises(ModelFileError, match="truncated"):
            load(copy)


def edit(folder, **changes):
    """Write a configuration with these changes, and without what is None, as if it had always been so."""
    config = json.loads((folder / CONFIG).read_text()) | changes | {DIGEST: None}
    (folder / CONFIG).write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2; this version reads up to 1. Install a newer version"),
        ({"format": "x"}, "has format 'x'"),
        ({"kind": "something else"}, "was not written by modalhash"),
        ({"state": None}, "lacks state"),
        ({"method": "nosuch"}, "unknown method 'nosuch'"),
        ({"parameters": {"bits": 3}}, "cannot be read as a 'amsh' model"),
        ({"state": {"functions_": {"array": "missing"}}}, "cannot be read"),
        ({"state": [1]}, "cannot be read"),
        ({"state": {"functions_": "array"}}, "cannot be read"),
        ({"sha256": 7}, "is truncated or not the file"),
        ({"state": {"maps_": {"map": "os.system", "parameters": {}, "state": {}}}}, "unknown feature map"),
    ],
)
def test_a_foreign_or_newer_model_is_refused(saved, changes, message):
    edit(saved, **changes)
    with pytest.raises(ModelFileError, match=message):
        load(saved)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"holds no model: config\.json is missing"):
        load(tmp_path)
    with pytest.raises(ModelFileError, match="holds no model"):
        load(tmp_path / "nowhere")
    (tmp_path / CONFIG).write_text("[1, 2]")
    with pytest.raises(ModelFileError, match="was not written by modalhash"):
        load(tmp_path)


def test_tensors_must_be_there_and_belong(saved):
    (saved / TENSORS).rename(saved / "other")
    with pytest.raises(ModelFileError, match="is missing"):
        load(saved)


def test_saving_replaces_a_model_and_nothing_else(saved, tmp_path):
    load(saved).set_params(random_state=5).save(saved)
    assert load(saved).random_state == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a model folder"):
        load(saved).save(saved)
    assert (saved / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("broken", ["write", "exchange"])
def test_a_failed_save_leaves_the_old_model(saved, tmp_path, monkeypatch, broken):
    model = load(saved).set_params(random_state=9)
    calls = []

    def full_disk(*args):
        calls.append(args)
        if broken == "exchange" or len(calls) == 2:
            raise OSError(28, "No space left on device")
        return original(*args)

    owner, name = {"write": (Path, "write_bytes"), "exchange": (_files, "_exchange")}[broken]
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, full_disk)
    with pytest.raises(OSError, match="No space left"):
        model.save(saved)
    monkeypatch.undo()
    assert load(saved).random_state == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_generators_are_not_saved(tmp_path):
    data = generate(n_items=40, n_queries=5, seed=0)
    AMSH(n_bits=4, n_anchors=9, random_state=np.random.default_rng(0)).fit(data.X, data.Y).save(tmp_path / "m")
    assert load(tmp_path / "m").random_state is None


@pytest.fixture
def outside(tmp_path):
    """Return the folder of a model whose method is outside the package."""
    data = generate(n_items=60, n_queries=5, seed=0)
    ClassCodes(n_bits=6, random_state=0).fit(data.X, data.Y).save(tmp_path / "outside")
    return tmp_path / "outside"


def test_a_method_outside_the_package_is_imported_only_if_trusted(outside):
    assert json.loads((outside / CONFIG).read_text())["method"] == OUTSIDE
    with pytest.raises(ModelFileError, match=r"'toy_method:ClassCodes', which is not part of modalhash.*trust=True"):
        load(outside)
    assert type(load(outside, trust=True)) is ClassCodes


def test_nothing_is_imported_without_trust(outside, tmp_path, monkeypatch):
    (tmp_path / "runs_code.py").write_text("raise SystemExit('code was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    edit(outside, method="runs_code:Mine")
    with pytest.raises(ModelFileError, match="trust=True"):
        load(outside)
    with pytest.raises(SystemExit, match="code was run"):
        load(outside, trust=True)


def test_trust_does_not_make_anything_a_method(outside):
    for path, message in (("os:system", "expected a class"), ("nowhere_at_all:Mine", "no module")):
        edit(outside, method=path)
        with pytest.raises(ModelFileError, match=message):
            load(outside, trust=True)


def test_a_method_that_a_package_registers_needs_no_trust(outside, monkeypatch):
    monkeypatch.setattr("modalhash.methods.registry.installed", lambda: {"toy": OUTSIDE})
    load(outside, trust=True).save(outside)
    assert json.loads((outside / CONFIG).read_text())["method"] == "toy"
    assert type(load(outside)) is ClassCodes
    monkeypatch.undo()
    with pytest.raises(ModelFileError, match="unknown method 'toy'"):
        load(outside)


class Linear(ClassCodes):
    """Has the name of one of modalhash's feature maps."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trees_": {"image": object()}}, r"trees_/image is a object, which a saved model cannot hold"),
        ({"map_": Linear()}, "map_ is a Linear, which a saved model cannot hold"),
        ({"counts_": {1: 2}}, "counts_ has the key 1; a saved model can hold dicts by text only"),
        ({"ridge": {0: 1.0}}, "the parameter ridge has the key 0"),
        ({"ridge": {"image": print}}, r"the parameter ridge\['image'\] is a builtin_function"),
    ],
)
def test_what_cannot_be_saved_is_named(outside, changes, message, tmp_path):
    model = load(outside, trust=True)
    vars(model).update(changes)
    with pytest.raises(TypeError, match=message):
        model.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_class_of_the_program_itself_is_saved_with_a_warning(outside, monkeypatch):
    model = load(outside, trust=True)
    monkeypatch.setattr(ClassCodes, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "ClassCodes", ClassCodes, raising=False)
    with pytest.warns(UserWarning, match="Put the class into a module"):
        model.save(outside)
