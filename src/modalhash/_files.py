"""Files: digests, and writing that either happens wholly or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def sha256_of(paths: Sequence[Path]) -> str:
    """Return one digest over the contents of some files, in their order."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def write_atomically(path: str | Path, content: bytes | Callable[[BinaryIO], None], *, sync: bool = True) -> None:
    """Write bytes, or what a function writes, so that readers see the old file or the whole new one.

    Parameters
    ----------
    path : of the file; its folder is made where it is missing
    content : the bytes, or a function that writes them to an open file
    sync : wait until the disk has the file, so that it survives a power cut. False for many small files that can be
        made again
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes files that only their owner may read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if sync:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's entries, where the system can do that: Windows cannot."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def cache_folder() -> Path:
    """Return the folder of computed features: ``$XDG_CACHE_HOME/modalhash`` or ``~/.cache/modalhash``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "modalhash"
