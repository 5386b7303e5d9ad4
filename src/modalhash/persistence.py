"""Fitted models on disk: ``config.json`` and ``model.safetensors``, versioned, no pickle.

The configuration holds format, method, parameters and everything learned that is not an array; arrays
are tensors named by their place, e.g. ``functions_/image``. The digest ties the two files together. A
model is written beside its place and moved there when whole: a killed process leaves the old one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash import registry
from modalhash._typing import Array

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher

FORMAT = 1
CONFIG, TENSORS = "config.json", "model.safetensors"
FEATURE_MAPS = ("AnchorKernel", "Linear")


class ModelFileError(ValueError):
    """A folder is not a model that this version can read; the message says why."""


def save(model: CrossModalHasher, folder: str | Path) -> None:
    """Write a fitted model; an existing model in the same folder is replaced."""
    from safetensors.numpy import save as to_bytes

    target = Path(folder)
    _check_target(target)
    arrays: dict[str, Array] = {}
    learned = {name: value for name, value in vars(model).items() if name.endswith("_")}
    state = {name: _flatten(value, name, arrays) for name, value in learned.items()}
    tensors = to_bytes({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    config = {
        "format": FORMAT,
        "kind": "modalhash model",
        "method": registry.name_of(type(model)),
        "parameters": _parameters(model),
        "state": state,
        "sha256": hashlib.sha256(tensors).hexdigest(),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        fresh = scratch / "new"
        fresh.mkdir()
        _write(fresh / TENSORS, tensors)
        _write(fresh / CONFIG, (json.dumps(config, indent=1, ensure_ascii=False) + "\n").encode())
        if target.exists():
            os.rename(target, scratch / "old")
        os.rename(fresh, target)
    finally:
        if not target.exists() and (scratch / "old").exists():
            os.rename(scratch / "old", target)
        shutil.rmtree(scratch, ignore_errors=True)


def load(folder: str | Path) -> CrossModalHasher:
    """Read a model that :meth:`~modalhash.base.CrossModalHasher.save` wrote."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    folder = Path(folder)
    config = _read_config(folder)
    try:
        tensors = (folder / TENSORS).read_bytes()
    except FileNotFoundError:
        raise ModelFileError(f"{folder / TENSORS} is missing; the model was not copied whole") from None
    digest = hashlib.sha256(tensors).hexdigest()
    if digest != config["sha256"]:
        raise ModelFileError(
            f"{folder / TENSORS} ({len(tensors)} bytes) is truncated or not the file {CONFIG} was written with: "
            f"its SHA-256 starts with {digest[:12]}, expected {config['sha256'][:12]}. Copy or save the model anew"
        )
    try:
        arrays = from_bytes(tensors)
        model = registry.get(config["method"])(**config["parameters"])
        for name, value in config["state"].items():
            setattr(model, name, _restore(value, name, arrays))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{folder} cannot be read as a {config.get('method')!r} model: {error}") from error
    return model


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFileError(f"{folder} holds no model: {CONFIG} is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFileError(f"{path} is truncated or not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("kind") != "modalhash model":
        raise ModelFileError(f"{path} was not written by modalhash (no 'kind': 'modalhash model' in it)")
    if not isinstance(config.get("format"), int) or config["format"] > FORMAT:
        raise ModelFileError(
            f"{path} has format {config.get('format')!r}; this version reads up to {FORMAT}. "
            "Upgrade: pip install --upgrade modalhash"
        )
    if lacking := {"method", "parameters", "state", "sha256"} - config.keys():
        raise ModelFileError(f"{path} lacks {', '.join(sorted(lacking))}")
    return config


def _check_target(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir() or {entry.name for entry in target.iterdir()} - {CONFIG, TENSORS}:
        raise FileExistsError(f"{target} exists and is not a model folder; give a new or empty folder")


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _parameters(model: CrossModalHasher) -> dict[str, Any]:
    parameters = dict(model.get_params(deep=False))
    if isinstance(parameters.get("random_state"), np.random.Generator):
        parameters["random_state"] = None  # a generator's state has moved on: it could not be repeated
    return {name: _plain(value) for name, value in parameters.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _flatten(value: Any, place: str, arrays: dict[str, Array]) -> Any:
    """JSON for ``value``, with arrays moved to ``arrays`` under their place."""
    if isinstance(value, np.ndarray):
        arrays[place] = value
        return {"array": place}
    if isinstance(value, Mapping):
        return {"dict": {key: _flatten(entry, f"{place}/{key}", arrays) for key, entry in value.items()}}
    if type(value).__name__ in FEATURE_MAPS:
        learned = {name: entry for name, entry in vars(value).items() if name.endswith("_")}
        parameters = {name: _plain(entry) for name, entry in value.get_params(deep=False).items()}
        state = {name: _flatten(entry, f"{place}/{name}", arrays) for name, entry in learned.items()}
        return {"map": type(value).__name__, "parameters": parameters, "state": state}
    return {"value": _plain(value)}


def _restore(value: dict[str, Any], place: str, arrays: dict[str, Array]) -> Any:
    if "array" in value:
        return arrays[value["array"]]
    if "dict" in value:
        return {key: _restore(entry, f"{place}/{key}", arrays) for key, entry in value["dict"].items()}
    if "map" in value:
        from modalhash import features

        if value["map"] not in FEATURE_MAPS:
            raise ValueError(f"{place} is the unknown feature map {value['map']!r}")
        feature_map = getattr(features, value["map"])(**value["parameters"])
        for name, entry in value["state"].items():
            setattr(feature_map, name, _restore(entry, f"{place}/{name}", arrays))
        return feature_map
    return value["value"]
