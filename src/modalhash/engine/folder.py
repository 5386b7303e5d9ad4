"""An engine on disk: a folder that is whole or not there.

=================  ==========================================================================
``config.json``    format, code length, modalities with name, version, dimension and digest of their encoders
``model/``         the hasher, as :mod:`modalhash.persistence` writes it
``encoders/``      what each encoder learned, as :mod:`modalhash.encoders.storage` writes it: ``0/``, ``1/`` …
``items.sqlite``   the items (:class:`modalhash.store.store.Store`)
``media/``         pictures that came as bytes, if some were kept (:mod:`modalhash.engine.kept`)
=================  ==========================================================================
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modalhash import __version__

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher
    from modalhash.encoders import Encoder

FORMAT = 1
KIND = "modalhash engine"
CONFIG, MODEL, ENCODERS, ITEMS, MEDIA = "config.json", "model", "encoders", "items.sqlite", "media"


class EngineError(ValueError):
    """A folder is not an engine that this version can use; the message says why."""


@dataclass(frozen=True)
class Parts:
    """What an engine is made of, besides its items."""

    config: dict[str, Any]
    model: CrossModalHasher
    encoders: dict[str, Encoder]


@contextmanager
def new_folder(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which takes its place under its name when the block ends well, and goes away if not."""
    target = target.absolute()
    if target.exists() and not _replaceable(target):
        raise FileExistsError(f"{target} exists and is not an engine; it is left alone. Give another folder")
    if target.exists() and not overwrite and any(target.iterdir()):
        raise FileExistsError(f"{target} exists; give another folder, or replace it with overwrite=True (--overwrite)")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    fresh, old = scratch / "new", scratch / "old"
    try:
        fresh.mkdir()  # with the permissions of any new folder, which those of mkdtemp are not
        yield fresh
        _sync(fresh, *fresh.rglob("*"))
        if target.exists():
            if not overwrite and any(target.iterdir()):
                raise FileExistsError(f"{target} was made by somebody else meanwhile; give another folder")
            os.rename(target, old)
            if (old / MEDIA).exists():  # there may be no other copy of these pictures
                os.rename(old / MEDIA, fresh / MEDIA)
        os.rename(fresh, target)
        _sync(target.parent)
    finally:
        if old.exists() and (fresh / MEDIA).exists():
            os.rename(fresh / MEDIA, old / MEDIA)
        if old.exists() and not target.exists():
            os.rename(old, target)
        shutil.rmtree(scratch, ignore_errors=True)


def write_parts(
    folder: Path, model: CrossModalHasher, encoders: Mapping[str, Encoder], more: Mapping[str, Any]
) -> None:
    """Write model, encoders and configuration into a new folder."""
    from modalhash.encoders import describe, save_encoder

    model.save(folder / MODEL)
    described = {}
    for number, (modality, encoder) in enumerate(encoders.items()):  # a modality's name may be no name for a file
        save_encoder(encoder, folder / ENCODERS / str(number))
        described[modality] = describe(encoder)
    config = {
        "kind": KIND,
        "format": FORMAT,
        "modalhash": __version__,
        "n_bits": int(model.n_bits),
        "model": _digest_of_model(folder / MODEL),
        "modalities": described,
        **more,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_parts(folder: Path, *, trust: bool = False) -> Parts:
    """Model, encoders and configuration of an engine, checked against each other."""
    from modalhash.persistence import ModelFileError, load

    config = read_config(folder)
    if not (folder / ITEMS).is_file():
        raise EngineError(f"{folder / ITEMS} is missing; the engine was not copied whole")
    try:
        model = load(folder / MODEL, trust=trust)
    except ModelFileError as error:
        raise EngineError(f"{folder} cannot be used: {error}") from error
    if _digest_of_model(folder / MODEL) != config["model"] or model.n_bits != config["n_bits"]:
        raise EngineError(
            f"{folder / MODEL} is not the model this engine was trained with: codes of its items would mean nothing. "
            "Put the right one back, or train anew"
        )
    encoders = {
        modality: _read_encoder(folder, number, modality, expected, trust)
        for number, (modality, expected) in enumerate(config["modalities"].items())
    }
    return Parts(config, model, encoders)


def _read_encoder(folder: Path, number: int, modality: str, expected: dict[str, Any], trust: bool) -> Encoder:
    from modalhash.encoders import EncoderFileError, load_encoder, mismatch

    try:
        encoder = load_encoder(folder / ENCODERS / str(number), trust=trust)
        problems = mismatch(encoder, expected)
    except EncoderFileError as error:
        raise EngineError(f"the encoder of {modality!r}: {error}") from error
    except KeyError as error:
        raise EngineError(f"{folder / CONFIG}: {modality!r} lacks {error}") from None
    if problems:
        raise EngineError(
            f"{folder}: the encoder of {modality!r} is not the one the engine was trained with: {'; '.join(problems)}. "
            "Install the version of that time, or train anew"
        )
    return encoder


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of an engine, or an error that says what the folder is instead."""
    path = folder / CONFIG
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise EngineError(f"{folder} {what}; expected an engine. Make one with `modalhash train MANIFEST -o {folder}`")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineError(f"{folder} is not an engine: {CONFIG} is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise EngineError(f"{path} is truncated or not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("kind") != KIND:
        hint = " (it is a model: train an engine with it)" if _is_model(config) else ""
        raise EngineError(f"{folder} is not an engine: {CONFIG} does not say 'kind': {KIND!r}{hint}")
    if not isinstance(config.get("format"), int) or config["format"] > FORMAT:
        raise EngineError(
            f"{folder} has format {config.get('format')!r}; this version reads up to {FORMAT}. "
            "Upgrade: pip install --upgrade modalhash"
        )
    if lacking := {"n_bits", "model", "modalities", "method", "codes"} - config.keys():
        raise EngineError(f"{path} lacks {', '.join(sorted(lacking))}")
    return config


def facts_of(folder: Path, config: Mapping[str, Any], counts: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """What an engine is made of, and how much is in it: ``counts`` by modality and kind of code."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {
        "path": str(folder),
        "items": sum(counts.values()),
        "n_bits": int(config["n_bits"]),
        "method": config["method"],
        "classes": len(config.get("class_names", [])),
        "modalities": {
            modality: {
                "items": {kind: counts.get((modality, kind), 0) for kind in ("learned", "hashed")},
                "trained_on": config.get("trained_on", {}).get(modality),
                "encoder": dict(encoder),
            }
            for modality, encoder in config["modalities"].items()
        },
        "created": config.get("created"),
        "seconds": config.get("seconds", {}),
        "bytes": sum(file.stat().st_size for file in files),
        "format": config["format"],
        "modalhash": config["modalhash"],
    }


def _digest_of_model(folder: Path) -> str:
    return str(json.loads((folder / CONFIG).read_text(encoding="utf-8"))["sha256"])


def _is_model(config: Any) -> bool:
    return isinstance(config, dict) and config.get("kind") == "modalhash model"


def _replaceable(target: Path) -> bool:
    """An engine, even a damaged or a newer one, or an empty folder."""
    if not target.is_dir():
        return False
    names = {entry.name for entry in target.iterdir()}
    own = {CONFIG, MODEL, ENCODERS, ITEMS, f"{ITEMS}-wal", f"{ITEMS}-shm", MEDIA}
    return not names or (names <= own and ITEMS in names)


def _sync(*paths: Path) -> None:
    """Wait until files and names are on the disk, as far as the system can do that for folders."""
    for path in paths:
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        with suppress(OSError):
            os.fsync(handle)
        os.close(handle)
