"""Configuration files: every folder that modalhash writes has a JSON file that says what it is, with its own digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DIGEST = "digest_of_this"
"""The key of a configuration's own digest, which is compared if it is there."""
NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What following a file may raise whose content is not what modalhash writes, whatever it is instead."""


def config_bytes(config: Mapping[str, Any]) -> bytes:
    """Return a configuration as it is written, with its own digest."""
    signed = {**config, DIGEST: _digest(config)}
    try:
        return f"{json.dumps(signed, indent=1, ensure_ascii=False)}\n".encode()
    except UnicodeEncodeError:  # half of a UTF-16 pair, which JSON can hold and UTF-8 cannot
        return f"{json.dumps(signed, indent=1)}\n".encode("ascii")


def read_config(
    path: Path, *, kind: str, format: int, required: Iterable[str], error: type[Exception]
) -> dict[str, Any]:
    """Read a configuration and check that it is one that this version understands.

    Parameters
    ----------
    path : Path
        The JSON file; messages speak of the folder it lies in.
    kind : str
        What its ``"kind"`` has to be, e.g. ``"modalhash model"``.
    format : int
        The newest ``"format"`` that can be read.
    required : iterable of str
        Keys that it must have.
    error : type
        The exception to raise; its message says what is wrong and what to do.
    """
    what = kind.removeprefix("modalhash ")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise error(f"{path.parent} holds no {what}: {path.name} is missing") from None
    except (ValueError, RecursionError) as problem:  # not UTF-8, not JSON, a number of too many digits, too deep
        raise error(f"{path} is truncated or not JSON: {problem}") from None
    own = config.get("kind") if isinstance(config, dict) else None
    if own != kind and str(own).startswith("modalhash "):
        raise error(f"{path.parent} holds no {what}: it is a {own}, by its {path.name}")
    if own != kind:
        raise error(f"{path} was not written by modalhash (no 'kind': {kind!r} in it)")
    if not isinstance(config.get("format"), int) or config["format"] > format:
        raise error(
            f"{path} has format {config.get('format')!r}; this version reads up to {format}. "
            "Install a newer version of modalhash"
        )
    expected = config.pop(DIGEST, None)
    try:
        own_digest = None if expected is None else _digest(config)
    except RecursionError:  # deeper than can be written, though not than can be read
        own_digest = ""
    if expected != own_digest:
        raise error(f"{path} was damaged or changed since modalhash wrote it: its digest is another. Copy it anew")
    if lacking := sorted(set(required) - config.keys()):
        raise error(
            f"{path} lacks {', '.join(lacking)}: it is damaged, or an unreleased version of modalhash made it. Make it "
            "again"
        )
    return dict(config)


def _digest(config: Mapping[str, Any]) -> str:
    """Return the digest of what a configuration says, however it is written."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
