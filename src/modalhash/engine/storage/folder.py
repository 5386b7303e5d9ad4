"""An engine on disk: its folder, which is created and replaced atomically.

==========================  =======================================================================================
``config.json``             format, generation, code length, modalities with name, version, dimension and digest of
                            their encoders
``model/``                  the hasher, written by :mod:`modalhash.methods.fitted`
``encoders/``               fitted encoders, written by :mod:`modalhash.encoders.encoder`: ``0/``, ``1/`` …
``refinement.safetensors``  refinement vectors, see :mod:`modalhash.engine.search.refinement`
``items.sqlite``            the items (:class:`modalhash.store.SqliteStore`), unless they are in a database
``index.snapshot``          a copy of the index, so that a large engine opens quickly
``features.sqlite``         a cache of picture features, see :mod:`modalhash.engine.storage.ingest`
``prints.npy``              small copies of photos for finding duplicates
``media/``                  pictures that were added as bytes
``synced.json``             sizes, times and digests of the files that ``sync`` has seen
==========================  =======================================================================================

The *generation* is a unique id, by which processes notice that an engine was replaced. Where the items are is in
:mod:`modalhash.engine.storage.location`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from modalhash import __version__
from modalhash.core.files import (
    config_bytes,
    read_config as _read_config,
    recover_folder,
    replace_folder,
    write_atomically,
)
from modalhash.engine.items import urls
from modalhash.engine.search.confidence import (
    FILE as CONFIDENCE,
    Confidence,
    ConfidenceError,
    load_confidence,
    save_confidence,
)
from modalhash.engine.search.picture_prints import FILE as PRINTS
from modalhash.engine.search.refinement import (
    FILE as REFINEMENT,
    Refinement,
    RefinementError,
    load_refinement,
    save_refinement,
)
from modalhash.methods.registry import info as method_info
from modalhash.store import StoreUnavailableError

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.methods.base import CrossModalHasher
    from modalhash.methods.fitted import FittedHasher, SavedModel

FORMAT = 1
KIND = "modalhash engine"
CONFIG, MODEL, ENCODERS, ITEMS, MEDIA = "config.json", "model", "encoders", "items.sqlite", "media"
SNAPSHOT, SYNCED = "index.snapshot", "synced.json"
FEATURES = "features.sqlite"
PARTS = (CONFIG, MODEL, ENCODERS, REFINEMENT, CONFIDENCE)
"""Files and folders without which there is no engine, except its items."""
WORDS = "words"
"""Subfolder of the encoder for words, if texts are not a modality."""
_REQUIRED = (
    *("generation", "modalhash", "n_bits", "model", "modalities", "method", "codes", "labels", "class_names"),
    *("searched_fields", "expected", "trained_on", "created", "seconds", "refinement"),
)
_MEDIA_SUFFIXES = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
"""File suffixes by first bytes, as a hint to people and other programs."""


class EngineError(ValueError):
    """A folder is not an engine that this version can use; the message gives the reason."""


class EngineReplacedError(EngineError):
    """The open engine was replaced; the last change is not in the new one."""


class Generation:
    """Identifies the engine in a folder, to detect that it was replaced.

    A copy has the same generation, and is recognized by the inode of its items file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths = str(folder / ITEMS), str(folder / CONFIG)  # computed once; a service checks them often
        self._items, self._config = _status(self._paths[0])[:2], _status(self._paths[1])
        self.id = _read_generation(folder)

    def is_current(self) -> bool:
        """Return whether the folder has the same engine; reads the status of two files, if unchanged."""
        items, config_file = self._paths
        if _status(items)[:2] != self._items:
            return False
        config = _status(config_file)
        if config == self._config:
            return True
        same = _read_generation(self._folder) == self.id
        if same:
            self._config = config
        return same

    def check(self) -> None:
        """Raise :class:`EngineReplacedError` if the engine was replaced or deleted."""
        if not self.is_current():
            what = "now has another engine" if (self._folder / CONFIG).exists() else "is gone"
            raise EngineReplacedError(
                f"{self._folder} {what}: it was replaced or moved while it was open. The last change is not in it, "
                "unless it was being retrained; open it again and repeat the change"
            )


@dataclass(frozen=True)
class EngineFiles:
    """The parts of an engine other than its items."""

    config: dict[str, Any]
    saved_model: SavedModel
    hasher: FittedHasher
    encoders: dict[str, Encoder]
    refinement: Refinement
    confidence: Confidence | None = None
    words: Encoder | None = None
    """Encoder for words in the space of the pictures, if texts are not a modality."""

    @property
    def reads(self) -> dict[str, str]:
        """What a query of each modality is, and ``text`` if words find the pictures of an engine without texts."""
        reads = {modality: encoder.reads for modality, encoder in self.encoders.items()}
        return reads if self.refinement.word_codes is None else {**reads, "text": "text"}

    @cached_property
    def model(self) -> CrossModalHasher:
        """The fitted method, for all but hashing; loading it may take scikit-learn."""
        with _model_errors(self.saved_model.folder):
            return self.saved_model.model


@contextmanager
def new_folder(target: Path, *, overwrite: bool, keep_media: bool = True) -> Iterator[Path]:
    """Give a scratch folder that atomically replaces ``target`` at the end of the block; delete it on errors.

    Processes that have the previous engine open notice by its generation. ``keep_media`` keeps its saved pictures, of
    which there may be no other copy.
    """
    target = target.absolute()
    recover_engine(target)
    if target.exists() and not _replaceable(target):
        raise FileExistsError(f"{target} exists and is not an engine; it is not changed. Give another folder")
    if target.exists() and not overwrite and any(target.iterdir()):
        raise FileExistsError(f"{target} exists; give another folder, or replace it with overwrite=True (--overwrite)")
    with replace_folder(target, carry=(MEDIA, SYNCED) if keep_media else ()) as fresh:
        yield fresh
        if target.exists() and not overwrite and any(target.iterdir()):
            raise FileExistsError(f"{target} was created by another process meanwhile; give another folder")


def write_parts(
    folder: Path,
    model: CrossModalHasher,
    encoders: Mapping[str, Encoder],
    more: Mapping[str, Any],
    refinement: Refinement,
    confidence: Confidence | None = None,
    words: Encoder | None = None,
) -> None:
    from modalhash.encoders import describe, save_encoder

    model.save(folder / MODEL)
    described = {}
    for number, (modality, encoder) in enumerate(encoders.items()):  # a modality may not be a valid file name
        save_encoder(encoder, folder / ENCODERS / str(number))
        described[modality] = describe(encoder)
    config = {
        "kind": KIND,
        "format": FORMAT,
        "generation": new_generation(),
        "modalhash": __version__,
        "n_bits": int(model.n_bits),
        "model": json.loads((folder / MODEL / CONFIG).read_bytes())["sha256"],
        "modalities": described,
        **more,
        "refinement": save_refinement(refinement, folder),
    }
    if words is not None:
        save_encoder(words, folder / ENCODERS / WORDS)
        config["words"] = describe(words)
    if confidence is not None:
        config["confidence"] = save_confidence(confidence, folder)
    write_config(folder, config)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    write_atomically(folder / CONFIG, config_bytes(config))


def new_generation() -> str:
    return secrets.token_hex(8)


def recover_engine(folder: Path) -> None:
    """Put back an engine whose replacement was killed, with a warning."""
    if recover_folder(folder):
        warnings.warn(
            f"{folder}: a process that was replacing this engine was killed; the previous engine was put back",
            UserWarning,
            stacklevel=3,
        )


def read_parts(folder: Path, *, trust: bool = False) -> EngineFiles:
    """Read model, encoders and configuration of an engine, and check that they match."""
    from modalhash.methods.fitted import read_model

    config = read_config_with_items(folder)
    with _model_errors(folder / MODEL):
        model = read_model(folder / MODEL, trust=trust)
        hasher = model.hasher
    if model.config["sha256"] != config["model"] or hasher.n_bits != config["n_bits"]:
        raise EngineError(
            f"{folder / MODEL} is not the model this engine was trained with, so the codes of its items are not valid. "
            "Restore the right one, or train again"
        )
    if not isinstance(config["modalities"], dict):
        raise EngineError(f"{folder / CONFIG}: modalities are not an object; the file was not written by modalhash")
    encoders = {
        modality: _read_encoder(folder, number, modality, expected, trust)
        for number, (modality, expected) in enumerate(config["modalities"].items())
    }
    words = None
    if "words" in config:
        words = _read_encoder(folder, WORDS, "words", config["words"], trust)
    in_space = {**encoders, **({} if words is None else {"text": words})}
    try:
        refinement = load_refinement(folder, config["refinement"], hasher, in_space)
        saved = config.get("confidence")
        confidence = None if saved is None else load_confidence(folder, saved)
    except (RefinementError, ConfidenceError) as error:
        raise EngineError(f"{folder} cannot be used: {error}. Copy it again, or train again") from error
    return EngineFiles(config, model, hasher, encoders, refinement, confidence, words)


@contextmanager
def _model_errors(folder: Path) -> Iterator[None]:
    from modalhash.methods.fitted import ModelFileError

    try:
        yield
    except ModelFileError as error:
        raise EngineError(f"{folder.parent} cannot be used: {error}") from error


def _read_encoder(folder: Path, number: int | str, modality: str, expected: dict[str, Any], trust: bool) -> Encoder:
    from modalhash.encoders import EncoderFileError, load_encoder, mismatch

    try:
        encoder = load_encoder(folder / ENCODERS / str(number), trust=trust)
        problems = mismatch(encoder, expected)
    except EncoderFileError as error:
        raise EngineError(f"the encoder of {modality!r}: {error}") from error
    except (KeyError, TypeError) as error:
        raise EngineError(f"{folder / CONFIG}: the entry of {modality!r} is not valid: {error}") from None
    if problems:
        raise EngineError(
            f"{folder}: the encoder of {modality!r} is not the one the engine was trained with: {'; '.join(problems)}. "
            "Install the version of that time, or train again"
        )
    return encoder


def built_in_reads(folder: Path, config: Mapping[str, Any]) -> dict[str, str] | None:
    """Return :attr:`Engine.reads` without loading the encoders; None if one is of another package."""
    from modalhash.encoders import saved_reads

    reads = {name: saved_reads(folder / ENCODERS / str(number)) for number, name in enumerate(config["modalities"])}
    if "word_codes" in config["refinement"]["state"]:
        reads = {**reads, "text": "text"}
    known = {name: kind for name, kind in reads.items() if kind is not None}
    return known if len(known) == len(reads) else None


def read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise EngineError(
            f"{folder} {what}; expected an engine. Create one with `modalhash train MANIFEST -o {folder}`"
        )
    return _read_config(folder / CONFIG, kind=KIND, format=FORMAT, required=_REQUIRED, error=EngineError)


def read_config_with_items(folder: Path) -> dict[str, Any]:
    """Read the configuration, or raise EngineError if the items should be in the folder and are not."""
    config = read_config(folder)
    if "store" not in config and not (folder / ITEMS).is_file():
        raise EngineError(f"{folder / ITEMS} is missing; the engine was not copied completely")
    return config


def model_digest(config: Mapping[str, Any]) -> str:
    """Return a digest of all that determines codes and vectors, from the configuration."""
    encoders = {name: encoder.get("digest") for name, encoder in config["modalities"].items()}
    made_by = [config["model"], encoders, config["refinement"]["sha256"]]
    return hashlib.sha256(json.dumps(made_by).encode()).hexdigest()[:16]


def why_no_confidence(config: Mapping[str, Any]) -> str | None:
    """Return the reason that hits have no confidence; None if they have one."""
    if config.get("confidence") is not None:
        return None
    if config["labels"] == "none":
        return "this engine learned without labels, so the probability of a shared label is unknown"
    if not method_info(config["method"]).supervised:
        return f"{config['method']} does not learn from labels, so the probability of a shared label is unknown"
    return "this engine has no confidence; retrain it, with more labelled items of each modality if it has few"


def describe_engine(
    folder: Path, config: Mapping[str, Any], counts: Mapping[tuple[str, str], int], reads: Mapping[str, str]
) -> dict[str, Any]:
    """Return a summary of an engine; ``counts`` are numbers of items by modality and kind of code."""
    return {
        "path": str(folder),
        "items": sum(counts.values()),
        "n_bits": int(config["n_bits"]),
        "method": config["method"],
        "codes": config["codes"],
        "classes": len(config["class_names"]),
        "labels": config["labels"],
        "named_labels": config.get("named_labels"),
        "notes": config.get("notes", []),
        "label_overlap": config.get("label_overlap"),
        "label_sets": config.get("label_sets"),
        "collisions": config.get("collisions"),
        "expected": config["expected"],
        "modalities": {
            modality: {
                "items": {kind: counts.get((modality, kind), 0) for kind in ("learned", "hashed")},
                "trained_on": config["trained_on"].get(modality),
                "encoder": dict(encoder),
            }
            for modality, encoder in config["modalities"].items()
        },
        "created": config["created"],
        "generation": config["generation"],
        "store": config.get("store", {"kind": "sqlite"}),
        "seconds": config["seconds"],
        "bytes": _n_bytes(folder),
        "format": config["format"],
        "modalhash": config["modalhash"],
        "reads": reads,
        "why_no_confidence": why_no_confidence(config),
    }


def save_media(folder: Path, data: bytes, url: str | None = None) -> str:
    """Write a picture atomically into the engine's folder, and to a URL; return its path relative to the folder."""
    suffix = next((suffix for start, suffix in _MEDIA_SUFFIXES.items() if data.startswith(start)), "")
    uri = f"{MEDIA}/{secrets.token_hex(16)}{suffix}"  # random, because an id may not be a valid file name
    write_atomically(folder / uri, data)
    if url is not None:
        try:
            urls.write_whole(urls.join(url, PurePosixPath(uri).name), data)
        except OSError as error:
            (folder / uri).unlink()
            raise StoreUnavailableError(f"{url} cannot be written ({error}); nothing was changed, try again") from error
    return uri


def delete_media(folder: Path, uri: str | None, url: str | None = None) -> None:
    """Delete a picture that :func:`save_media` wrote; ignore other files."""
    parts = PurePosixPath(uri or "").parts
    if len(parts) == 2 and parts[0] == MEDIA:
        folder.joinpath(*parts).unlink(missing_ok=True)
        if url is not None:
            with suppress(OSError):  # what stays there takes space, no more
                urls.remove(urls.join(url, parts[1]))


def is_saved_media(name: str) -> bool:
    """Return whether a file name is one of :func:`save_media`."""
    return re.fullmatch(r"[0-9a-f]{32}(\.[a-z]+)?", name) is not None


def _n_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(path, name)).st_size
    return total


def _status(path: str | Path) -> tuple[int, ...]:
    """Return device, inode, modification time and size of a file; empty if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _read_generation(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / CONFIG).read_bytes())["generation"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _replaceable(target: Path) -> bool:
    """Return whether a folder is empty or an engine, even a damaged or a newer one."""
    if not target.is_dir():
        return False
    names = {entry.name for entry in target.iterdir()}
    own = {CONFIG, MODEL, ENCODERS, ITEMS, f"{ITEMS}-wal", f"{ITEMS}-shm", MEDIA, REFINEMENT, CONFIDENCE, SNAPSHOT}
    own |= {FEATURES, f"{FEATURES}-journal", SYNCED, PRINTS}
    own |= {name for name in names if name.startswith(".")}  # left by a killed process
    return not names or (names <= own and (ITEMS in names or {CONFIG, MODEL} <= names))
