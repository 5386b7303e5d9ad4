"""Files: digests, and writing that either happens wholly or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
        _sync(path.parent)


def cache_folder() -> Path:
    """Return the folder of computed features: ``$XDG_CACHE_HOME/modalhash`` or ``~/.cache/modalhash``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "modalhash"


@contextmanager
def replace_folder(target: str | Path, *, carry: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a new folder to fill; it takes the name ``target`` when the block ends well, and is removed if not.

    A folder that has the name already is replaced as a whole; entries of it that ``carry`` names move into the new
    one. Everything is on the disk before the names change. A process that is killed between the two renames leaves
    the old folder beside it, as ``.<name>.*/old``.
    """
    target = Path(target).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    fresh, old = scratch / "new", scratch / "old"
    carried: list[str] = []
    try:
        fresh.mkdir()  # with the permissions of any new folder, which those of mkdtemp are not
        yield fresh
        _sync(*fresh.rglob("*"), fresh)
        if target.exists():
            os.rename(target, old)
            for name in carry:
                if (old / name).exists():
                    os.rename(old / name, fresh / name)
                    carried.append(name)
        os.rename(fresh, target)
        _sync(target.parent)
    finally:
        if old.exists() and not target.exists():
            for name in carried:
                os.rename(fresh / name, old / name)
            os.rename(old, target)
        shutil.rmtree(scratch, ignore_errors=True)


def _sync(*paths: Path) -> None:
    """Wait until files, and names in folders, are on the disk; some systems cannot do that for folders."""
    for path in paths:
        if path.is_dir():
            with suppress(OSError):
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        else:
            with path.open("r+b") as file:
                os.fsync(file.fileno())
