"""Files and folders at paths or fsspec URLs: listing, reading, atomic writing.

A *location* is an absolute path on a local disk, or a URL (``s3://…``, ``memory://…``).
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from modalhash.core.files import sweep, temporary_files, temporary_folder, write_atomically
from modalhash.core.imports import require

EXTRA = "dask"
_LOCAL = ("file://", "local://")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.mh-part")


class OutsideError(ValueError):
    """A path is outside the permitted folder."""


def location(url: str | os.PathLike[str]) -> str:
    """Return a path or URL as a location.

    Examples
    --------
    >>> location("file:///photos/boats/"), location("s3://bucket/photos/")
    ('/photos/boats', 's3://bucket/photos')
    """
    text = os.fspath(url)
    for prefix in _LOCAL:
        text = text.removeprefix(prefix)
    if is_remote(text):
        return text.rstrip("/") if not text.endswith("://") else text
    return os.path.abspath(os.path.expanduser(text))


def is_remote(where: str) -> bool:
    return "://" in where


def file_system(where: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    core = require("fsspec.core", extra=EXTRA, why=f"reading {where.partition('://')[0]}:// URLs")
    try:
        fs, path = core.url_to_fs(where)
    except ImportError as error:
        raise ImportError(f"{where}: {error}", name=error.name) from error
    return fs, str(path)


def join(folder: str, name: str) -> str:
    return f"{folder}{name}" if folder.endswith("/") else f"{folder}/{name}"


def base_name(where: str) -> str:
    return posixpath.basename(where.rstrip("/")) if is_remote(where) else Path(where).name


def parent(where: str) -> str:
    return where.rpartition("/")[0] if is_remote(where) else str(Path(where).parent)


def inside(root: str, value: str) -> str:
    """Return the location of a path relative to ``root``, or inside it; raise OutsideError otherwise.

    Links on a local disk are resolved.

    Examples
    --------
    >>> inside("s3://bucket/photos", "boats/1.jpg")
    's3://bucket/photos/boats/1.jpg'
    >>> inside("s3://bucket/photos", "../secret.jpg")
    Traceback (most recent call last):
        ...
    modalhash.engine.items.urls.OutsideError: '../secret.jpg' is not inside s3://bucket/photos
    """
    if not is_remote(root):
        text = next((value.removeprefix(prefix) for prefix in _LOCAL if value.startswith(prefix)), value)
        path = Path(root, text).resolve()
        if is_remote(text) or not path.is_relative_to(Path(root).resolve()):
            raise OutsideError(f"{value!r} is not inside {root}")
        return str(path)
    relative = value.removeprefix(join(root, ""))
    parts = unquote(relative).replace("\\", "/").split("/")
    if is_remote(relative) or relative.startswith("/") or ".." in parts or "" in parts:
        raise OutsideError(f"{value!r} is not inside {root}")
    return join(root, posixpath.normpath(relative))


def is_folder(where: str) -> bool:
    if not is_remote(where):
        return os.path.isdir(where)
    fs, path = file_system(where)
    return bool(fs.isdir(path))


def exists(where: str) -> bool:
    if not is_remote(where):
        return os.path.exists(where)
    fs, path = file_system(where)
    return bool(fs.exists(path))


def size_of(where: str) -> int:
    if not is_remote(where):
        return os.path.getsize(where)
    fs, path = file_system(where)
    return int(fs.size(path) or 0)


def names_in(folder: str) -> list[str]:
    """Return the sorted names of the files in a folder; empty if it does not exist."""
    if not is_remote(folder):
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
    fs, path = file_system(folder)
    fs.invalidate_cache()
    return sorted(base_name(name) for name in fs.ls(path, detail=False)) if fs.exists(path) else []


def expand(pattern: str) -> list[str]:
    """Return the sorted locations that match a pattern with ``*``; a location without one is returned as it is."""
    where = location(pattern)
    if "*" not in where or (not is_remote(where) and os.path.exists(where)):
        return [where]
    if is_remote(where):
        fs, path = file_system(where)
        found = sorted(str(fs.unstrip_protocol(one)) for one in fs.glob(path))
    else:
        found = sorted(str(path) for path in Path(Path(where).anchor).glob(where.lstrip("/")))
    if not found:
        raise FileNotFoundError(f"{where}: no such files")
    return found


def relative_files(folder: str) -> Iterator[str]:
    """Yield the sorted relative paths of all files of a remote folder, without hidden ones."""
    fs, path = file_system(folder)
    start = f"{path.rstrip('/')}/"
    for name in sorted(fs.find(path)):
        relative = str(name).removeprefix(start)
        if not any(part.startswith(".") for part in relative.split("/")):
            yield relative


def read_files(wheres: Sequence[str], most: int) -> list[bytes | Exception]:
    """Return up to ``most`` + 1 bytes of each remote file of one file system, or its error."""
    if not wheres:
        return []
    fs, _ = file_system(wheres[0])
    paths = [str(fs._strip_protocol(where)) for where in wheres]
    return list(fs.cat_ranges(paths, 0, most + 1, on_error="return"))


@contextmanager
def opened(where: str) -> Iterator[Any]:
    if is_remote(where):
        fs, path = file_system(where)
        with fs.open(path, "rb") as file:
            yield file
    else:
        with open(where, "rb") as file:
            yield file


@contextmanager
def local_copy(where: str) -> Iterator[Path]:
    """Give a local path of a file: its own, or that of a temporary copy."""
    if not is_remote(where):
        yield Path(where)
        return
    fs, path = file_system(where)
    with temporary_folder("modalhash-copy") as folder:
        target = folder / base_name(where)
        fs.get_file(path, str(target))
        yield target


def read_whole(where: str) -> bytes:
    """Return the bytes of a file."""
    with opened(where) as file:
        return bytes(file.read())


def remove(where: str) -> None:
    """Delete a file; OSError if it does not exist."""
    if is_remote(where):
        fs, path = file_system(where)
        fs.rm_file(path)
    else:
        os.unlink(where)


def write_whole(where: str, data: bytes) -> None:
    if not is_remote(where):
        write_atomically(where, data)
        return
    fs, path = file_system(where)
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.{secrets.token_hex(8)}.mh-part"
    fs.pipe_file(temporary, data)
    try:
        fs.mv(temporary, path)
    except FileNotFoundError:
        if not fs.exists(path):  # else a run that has all files removed ours
            raise


def sweep_folder(folder: str) -> None:
    """Remove the temporary files of killed writers; call it only when all files are written."""
    if not is_remote(folder):
        sweep(temporary_files(folder))
        return
    fs, path = file_system(folder)
    for name in names_in(folder):
        if _TEMPORARY.fullmatch(name):
            fs.rm_file(f"{path.rstrip('/')}/{name}")
