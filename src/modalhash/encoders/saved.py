"""Encoders on disk: ``encoder.json`` and, where there are arrays, ``encoder.safetensors``. No pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from modalhash._config import read_config
from modalhash._files import write_atomically
from modalhash.encoders.base import Encoder, State
from modalhash.encoders.lookup import ENCODERS, encoder_class, name_of

FORMAT = 1
KIND = "modalhash encoder"
CONFIG, ARRAYS = "encoder.json", "encoder.safetensors"


class EncoderFileError(ValueError):
    """A folder is not an encoder that this version can read; the message says why."""


def save_encoder(encoder: Encoder, folder: str | Path) -> None:
    """Write an encoder into a folder; one that is there is replaced.

    The JSON, which carries the digest of everything, is written last: loading detects a copy that was interrupted.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    state = encoder.state
    description = {
        "format": FORMAT,
        "kind": KIND,
        "encoder": name_of(encoder),
        **describe(encoder),
        "config": dict(state.config),
    }
    arrays = save({key: np.ascontiguousarray(values) for key, values in state.arrays.items()})
    write_atomically(folder / ARRAYS, arrays)
    write_atomically(folder / CONFIG, (json.dumps(description, ensure_ascii=False, indent=1) + "\n").encode())


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
    """Return how an encoder differs from a description in name, version, dim or digest; empty if it does not."""
    return [
        f"{key} is {_short(value)}, expected {_short(description[key])}"
        for key, value in describe(encoder).items()
        if value != description[key]
    ]


def describe(encoder: Encoder) -> dict[str, Any]:
    """Return what a model remembers of its encoder; see :func:`mismatch`."""
    return {"name": encoder.name, "version": encoder.version, "dim": encoder.dim, "digest": encoder.digest}


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 24 else repr(value)
