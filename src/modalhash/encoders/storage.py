"""Encoders on disk: ``encoder.json`` and, where there are arrays, ``encoder.safetensors``. No pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from modalhash._config import read_config
from modalhash.encoders.finding import ENCODERS, encoder_class, name_of
from modalhash.encoders.protocol import Encoder, State

FORMAT = 1
KIND = "modalhash encoder"
CONFIG, ARRAYS = "encoder.json", "encoder.safetensors"


class EncoderFileError(ValueError):
    """A folder is not an encoder that this version can read; the message says why."""


def save_encoder(encoder: Encoder, folder: str | Path) -> None:
    """Write an encoder into a folder, in place of one that is there.

    The JSON, which carries the digest of everything, is written last: a copy that was interrupted is found out.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = encoder.state
    description = {
        "format": FORMAT,
        "kind": KIND,
        "encoder": name_of(encoder),
        **describe(encoder),
        "config": dict(state.config),
    }
    arrays = save({key: np.ascontiguousarray(values) for key, values in state.arrays.items()})
    _write(folder / ARRAYS, arrays)
    _write(folder / CONFIG, (json.dumps(description, ensure_ascii=False, indent=1) + "\n").encode())


def load_encoder(folder: str | Path, *, trust: bool = False) -> Encoder:
    """Read an encoder that :func:`save_encoder` wrote, and check that it is the same.

    Parameters
    ----------
    folder
        where it is
    trust
        import the class that the folder names where it is none of this package's: that runs code
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    folder = Path(folder)
    description = read_config(
        folder / CONFIG,
        kind=KIND,
        format=FORMAT,
        required=("encoder", "name", "version", "dim", "digest", "config"),
        error=EncoderFileError,
    )
    name = description["encoder"]
    if name not in ENCODERS and not trust:
        raise EncoderFileError(
            f"{folder} was written by the encoder {name!r}, which is none of modalhash's. "
            "If you trust it, pass trust=True: its module is then imported"
        )
    try:
        state = State(description["config"], load((folder / ARRAYS).read_bytes()))
        encoder: Encoder = encoder_class(name).restore(state)
        problems = mismatch(encoder, description)
    except FileNotFoundError:
        raise EncoderFileError(f"{folder / ARRAYS} is missing; the encoder was not copied whole") from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise EncoderFileError(f"{folder} cannot be read as the encoder {name!r}: {error}") from error
    if problems:
        raise EncoderFileError(f"{folder} does not give the encoder that was saved: {'; '.join(problems)}")
    return encoder


def mismatch(encoder: Encoder, description: dict[str, Any]) -> list[str]:
    """In what an encoder differs from the description of one: name, version, dim, digest; empty if in nothing."""
    return [
        f"{key} is {_short(value)}, expected {_short(description[key])}"
        for key, value in describe(encoder).items()
        if value != description[key]
    ]


def describe(encoder: Encoder) -> dict[str, Any]:
    """What a model remembers of its encoder; see :func:`mismatch`."""
    return {"name": encoder.name, "version": encoder.version, "dim": encoder.dim, "digest": encoder.digest}


def _write(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 24 else repr(value)
