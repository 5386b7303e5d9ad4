"""Pictures that came as bytes and are kept in the engine's own folder, under names that nobody chose."""

from __future__ import annotations

import os
import secrets
from pathlib import Path, PurePosixPath

from modalhash.engine.folder import MEDIA

SUFFIXES = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
"""By how a file begins; only so that people and other programs know what they see."""


def keep(folder: Path, data: bytes) -> str:
    """Write a picture into the engine's folder, whole or not at all; returns its place relative to the folder."""
    suffix = next((suffix for start, suffix in SUFFIXES.items() if data.startswith(start)), "")
    name = f"{secrets.token_hex(16)}{suffix}"
    place = folder / MEDIA
    place.mkdir(exist_ok=True)
    scratch = place / f".{name}"
    try:
        with scratch.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(place / name)
    finally:
        scratch.unlink(missing_ok=True)
    return f"{MEDIA}/{name}"


def is_kept(uri: str | None) -> bool:
    """Whether a place is that of a kept picture."""
    parts = PurePosixPath(uri or "").parts
    return len(parts) == 2 and parts[0] == MEDIA


def forget(folder: Path, uri: str | None) -> None:
    """Delete a kept picture; anything else is left alone."""
    if uri is not None and is_kept(uri):
        (folder / uri).unlink(missing_ok=True)
