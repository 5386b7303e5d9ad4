"""An engine on disk: its folder, which is created and replaced atomically, and the location of its items.

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

The *generation* is a unique id, by which processes notice that an engine was replaced.
The entry ``store`` of the configuration describes a database; without it, the items are in ``items.sqlite``. It
contains the environment variable with the URL of the database, never the URL, which contains a password.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from modalhash import __version__
from modalhash.core.files import (
    abandoned_folders,
    config_bytes,
    read_config as _read_config,
    recover_folder,
    replace_folder,
    sweep,
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
from modalhash.store import SqliteStore, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.methods.base import CrossModalHasher
    from modalhash.methods.fitted import FittedHasher, SavedModel
    from modalhash.store import EngineDatabase, PostgresStore

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


VARIABLE = "MODALHASH_DATABASE_URL"
"""Default environment variable for the URL of the database."""
POSTGRESQL, SQLITE = "postgresql", "sqlite"


@dataclass(frozen=True)
class StoreLocation:
    """Location of the items of one engine."""

    kind: str = SQLITE
    variable: str = VARIABLE
    schema: str | None = None
    replaces: tuple[str, ...] = ()
    """Schemas of replaced engines, which other processes may still have open."""
    database: str | None = None
    """URL of the database; None to read it from the variable."""

    @classmethod
    def of(cls, config: Mapping[str, Any], *, database: str | None = None) -> StoreLocation:
        value = config.get("store", {"kind": SQLITE})
        try:
            place = cls(
                value["kind"], value.get("variable", VARIABLE), value.get("schema"), tuple(value.get("replaces", ()))
            )
        except (TypeError, KeyError, AttributeError):
            raise EngineError(f"{CONFIG}: 'store' is {value!r}; expected an object with its 'kind'") from None
        if place.kind not in (SQLITE, POSTGRESQL) or (place.kind == POSTGRESQL) != isinstance(place.schema, str):
            raise EngineError(f"{CONFIG}: the kind of the store is {place.kind!r}, which this version does not support")
        return replace(place, database=database)

    def to_config(self) -> dict[str, Any]:
        """Return the entry of the configuration; empty for a file, if no schema is left to drop."""
        if self.kind == SQLITE and not self.replaces:
            return {}
        value = {"kind": self.kind, "variable": self.variable, "schema": self.schema, "replaces": list(self.replaces)}
        return {"store": {name: one for name, one in value.items() if one is not None}}

    @property
    def url(self) -> str:
        """URL of the database; EngineError names the variable to set."""
        url = self.database or os.environ.get(self.variable)
        if not url:
            raise EngineError(
                f"the items are in a PostgreSQL database; set the variable {self.variable} to its URL, "
                "postgresql://user:password@host/database"
            )
        return url

    def name(self, folder: Path) -> str:
        return str(folder / ITEMS) if self.kind == SQLITE else f"schema {self.schema} of ${self.variable}"

    def open(
        self,
        folder: Path,
        *,
        searched_fields: Sequence[str] | None = None,
        read_only: bool = False,
        model: str | None = None,
    ) -> SqliteStore | PostgresStore:
        """Open the store; a database with codes of another ``model`` (a digest) raises."""
        if self.kind == SQLITE:
            return SqliteStore(folder / ITEMS, searched_fields=searched_fields, read_only=read_only)
        from modalhash.store import PostgresStore

        assert self.schema is not None
        return PostgresStore(
            self.url, schema=self.schema, searched_fields=searched_fields, read_only=read_only, model=model
        )

    def create(
        self, fresh: Path, *, n_bits: int, searched_fields: Sequence[str], model: str | None = None
    ) -> SqliteStore | PostgresStore:
        if self.kind == SQLITE:
            return SqliteStore(fresh / ITEMS, n_bits=n_bits, searched_fields=searched_fields)
        from modalhash.store import PostgresStore

        assert self.schema is not None
        # written first, so that the schema is found if this process is killed
        write_config(fresh, {"kind": KIND, "format": FORMAT, **self.to_config()})
        return PostgresStore(self.url, schema=self.schema, n_bits=n_bits, searched_fields=searched_fields, model=model)

    def successor(self) -> str | None:
        """Return the schema of the engine that replaced this one on any machine; None if it is the newest."""
        return None if self.schema is None else self.engines.successor(self.schema)

    @property
    def engines(self) -> EngineDatabase:
        from modalhash.store import EngineDatabase

        return EngineDatabase(self.url)

    def drop(self, schema: str, *, only_look: bool = False, unfinished: bool = False) -> bool | None:
        """Drop an unused schema of the same database; see :func:`modalhash.store.drop_schema`."""
        from modalhash.store import drop_schema

        return drop_schema(self.url, schema, only_look=only_look, unfinished=unfinished)


@contextmanager
def create_store(target: Path, store: str | None, *, variable: str | None = None) -> Iterator[StoreLocation]:
    """Choose the location for the items of a new engine; drop its schema if the block fails.

    ``store`` is ``"sqlite"``, the URL of a database, ``"postgresql"`` for the database in the ``variable``, or None for
    the kind of the existing engine in ``target``, or else ``"sqlite"``. Leftovers of
    killed processes are removed first. At the end, the schema of a replaced engine names the new one.
    """
    recover_engine(target)
    old = StoreLocation()
    with suppress(EngineError):
        old = StoreLocation.of(read_config(target))
    place = _choose(store, old, variable)
    sweep_unfinished(target, place)
    left = [*old.replaces, *([] if old.schema is None else [old.schema])]
    if left:
        with suppress(StoreError, EngineError):  # unavailable; they may exist
            left = [schema for schema in left if place.drop(schema, only_look=True) is not None]
        place = replace(place, replaces=tuple(left))
    try:
        yield place
    except BaseException:
        if place.schema is not None:
            with suppress(StoreError, EngineError):  # the first error is more informative
                place.drop(place.schema, unfinished=True)
        raise
    if old.schema is not None and place.schema is not None:  # retraining has done so already
        place.engines.replace(old.schema, place.schema)


def sweep_unfinished(target: Path, place: StoreLocation) -> None:
    """Remove what killed processes left when they created or replaced the engine, with a warning."""
    target = target.absolute()
    left = [path for path in abandoned_folders(target.parent, target=target.name) if drop_leftover(path, place)]
    if left:
        sweep(left)
        warnings.warn(
            f"{target}: a process that was creating or replacing this engine was killed; its leftovers "
            f"({', '.join(path.name for path in left)}) were removed",
            UserWarning,
            stacklevel=4,
        )


def drop_leftover(scratch: Path, place: StoreLocation) -> bool:
    """Drop the schema of an unfinished engine in a scratch folder; return whether none is left.

    ``place`` is the location of the engine's items now.
    """
    try:
        unfinished = _unfinished_location(scratch, place.database)
        return (
            unfinished.schema in (None, place.schema)
            or unfinished.drop(str(unfinished.schema), unfinished=True) is not False
        )
    except (EngineError, StoreError):  # unavailable; it may exist
        return False


def has_schema(scratch: Path) -> bool:
    """Return whether a scratch folder belongs to an engine with a database schema, which must be dropped first."""
    return _unfinished_location(scratch).schema is not None


def _unfinished_location(scratch: Path, database: str | None = None) -> StoreLocation:
    """Return the location of the items of an unfinished engine, of which only the location may be written."""
    path = scratch / "new" / CONFIG
    try:
        config = _read_config(path, kind=KIND, format=FORMAT, required=(), error=EngineError)
        return StoreLocation.of(config, database=database)
    except EngineError:
        return StoreLocation()


def _choose(store: str | None, old: StoreLocation, variable: str | None) -> StoreLocation:
    name = variable or old.variable
    if not name.isidentifier():
        raise ValueError(f"the variable is {name!r}; expected the name of an environment variable")
    if store is None:
        store = old.kind
    if store == SQLITE:
        return StoreLocation(variable=name)
    schema = f"modalhash_{new_generation()}"
    if store == POSTGRESQL:
        return StoreLocation(POSTGRESQL, name, schema)
    if store.startswith(("postgresql://", "postgres://")):
        return StoreLocation(POSTGRESQL, name, schema, database=store)
    raise ValueError("store: expected 'sqlite', 'postgresql', or the URL of a database, postgresql://…")
