"""Digests, configuration files and atomic writing of files and folders.

A process that writes a temporary file or folder holds a lock on it, which the system releases when the process ends.
A temporary name without a lock is therefore a leftover that :func:`sweep` may remove.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

DIGEST = "digest_of_this"
"""Key of a configuration's own digest, which is checked if present."""
NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions raised when the content of a file is not what modalhash writes."""


def config_bytes(config: Mapping[str, Any]) -> bytes:
    """Return a configuration as written to disk, with its own digest."""
    signed = {**config, DIGEST: _digest(config)}
    try:
        return f"{json.dumps(signed, indent=1, ensure_ascii=False)}\n".encode()
    except UnicodeEncodeError:  # a surrogate, which JSON can hold and UTF-8 cannot
        return f"{json.dumps(signed, indent=1)}\n".encode("ascii")


def read_config(
    path: Path, *, kind: str, format: int, required: Iterable[str], error: type[Exception]
) -> dict[str, Any]:
    """Read a configuration and check that this version can read it.

    Parameters
    ----------
    path : the JSON file; messages name its folder
    kind : expected ``"kind"``, e.g. ``"modalhash model"``
    format : newest ``"format"`` that can be read
    required : keys that it must have
    error : exception type to raise; its message says what is wrong and what to do
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
    except RecursionError:  # too deep to write, although it could be read
        own_digest = ""
    if expected != own_digest:
        raise error(f"{path} was damaged or changed since modalhash wrote it: its digest differs. Copy it again")
    if missing := sorted(set(required) - config.keys()):
        raise error(
            f"{path} lacks {', '.join(missing)}: it is damaged, or an unreleased version of modalhash made it. Make it "
            "again"
        )
    return dict(config)


def _digest(config: Mapping[str, Any]) -> str:
    """Return the digest of the content of a configuration, independent of its layout."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


try:
    import fcntl
except ImportError:  # Windows: without locks no leftover can be recognised, so none is removed
    fcntl = None  # type: ignore[assignment]

_TEMPORARY = re.compile(r"\.(?P<target>.+)\.[a-z0-9_]{8}\.mh-part")


def sha256_of(paths: Sequence[Path]) -> str:
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def write_atomically(path: str | Path, content: bytes | Callable[[BinaryIO], None], *, sync: bool = True) -> None:
    """Write a file atomically: readers see the old file or the complete new one.

    Parameters
    ----------
    path : of the file; its folder is created if missing
    content : the bytes, or a function that writes them to an open file
    sync : wait until the file is on disk, so that it survives a power failure. False for many small files that can be
        recreated
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = _locked_temporary(path)
    try:
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()  # before the rename, so that the name never has an incomplete file
            if sync:
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)  # mkstemp creates files with mode 0600
            if os.name != "nt":
                os.replace(temporary, path)  # while locked, so that it does not look like a leftover
        if os.name == "nt":  # an open file cannot be renamed
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
    """Yield a new folder to fill; it is renamed to ``target`` on success and removed on failure.

    An existing folder is replaced by one atomic exchange of names, so that one of the two always exists. Entries of it
    named in ``carry`` are in the new one too, as hard links. All data are on disk before the names change. If the file
    system cannot exchange names, the old folder is moved away first; :func:`recover_folder` restores it if the process
    was killed in between.
    """
    target = Path(target).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target) as scratch:
        fresh, old = scratch / "new", scratch / "old"
        try:
            fresh.mkdir()  # with default permissions, unlike mkdtemp
            yield fresh
            for name in carry:
                link_tree(target / name, fresh / name)
            sync_tree(fresh)
            if not target.exists():
                os.rename(fresh, target)
            elif not _exchange(fresh, target):
                os.rename(target, old)
                os.rename(fresh, target)
            _sync(target.parent)
        finally:
            if old.exists() and not target.exists():
                os.rename(old, target)


def recover_folder(target: str | Path) -> bool:
    """Restore a folder that a killed process had moved away to replace it; return whether there was one.

    If the process that moved it is still running, wait for its rename.
    """
    target = Path(target).absolute()
    if target.exists():
        return False
    for scratch in _leftovers_of(target):
        with _try_lock(scratch, wait=True):
            if not target.exists() and (scratch / "old").is_dir():
                os.rename(scratch / "old", target)
                _sync(target.parent)
                shutil.rmtree(scratch, ignore_errors=True)
                return True
    return False


def scratch_folders(target: str | Path) -> list[Path]:
    """Return the leftovers of :func:`replace_folder` next to ``target``."""
    target = Path(target).absolute()
    if not target.exists():  # it may be in one of them
        return []
    return [scratch for scratch in _leftovers_of(target) if _is_leftover(scratch)]


def abandoned_folders(folder: str | Path, *, target: str | None = None) -> list[Path]:
    """Return the leftovers in a folder of killed processes that created a folder or a backup there.

    ``target`` limits them to those for that name. A leftover that may hold the only copy of its target is excluded;
    :func:`recover_folder` handles it.
    """
    folder, found = Path(folder).absolute(), []
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        for entry in os.scandir(folder):
            name = _TEMPORARY.fullmatch(entry.name)
            if name is None or target not in (None, name["target"]):
                continue
            if entry.is_dir(follow_symlinks=False) and _has_only_scratch(path := Path(entry.path)):
                is_needed = (path / "old").exists() and not (folder / name["target"]).exists()
                if not is_needed and _is_leftover(path):
                    found.append(path)
    return sorted(found)


def is_being_written(path: str | Path) -> bool:
    """Return whether a process is writing this file by :func:`write_atomically`."""
    path = Path(path)
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        names = [(entry.path, _TEMPORARY.fullmatch(entry.name)) for entry in os.scandir(path.parent)]
        own = [Path(temporary) for temporary, name in names if name and name["target"] == path.name]
        return any(one.exists() and not _is_leftover(one) for one in own)
    return False


def temporary_files(folder: str | Path) -> list[Path]:
    """Return the leftovers of :func:`write_atomically` in a folder."""
    folder = Path(folder)
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        files = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        temporary = (Path(entry.path) for entry in files if _TEMPORARY.fullmatch(entry.name))
        return sorted(path for path in temporary if _is_leftover(path))
    return []


def sweep(paths: Sequence[Path]) -> None:
    """Remove leftovers, except those that cannot be removed or are locked again."""
    for path in paths:
        with _try_lock(path) as free:
            if not free:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


@contextmanager
def shared_lock(folder: Path, *, exclusive: bool = False) -> Iterator[bool]:
    """Hold a shared or an exclusive lock on a folder; yield False if another process prevents it.

    An exclusive lock is not waited for. On systems without locks it is never obtained.
    """
    if fcntl is None:
        yield not exclusive
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(handle, wait=not exclusive, shared=not exclusive)
    finally:
        os.close(handle)


def _leftovers_of(target: Path) -> list[Path]:
    """Return the folders of :func:`replace_folder` next to a target, finished or in progress."""
    with suppress(FileNotFoundError, PermissionError):
        folders = [entry for entry in os.scandir(target.parent) if entry.is_dir(follow_symlinks=False)]
        named = [(Path(entry.path), _TEMPORARY.fullmatch(entry.name)) for entry in folders]
        own = [path for path, name in named if name and name["target"] == target.name]
        return sorted(path for path in own if _has_only_scratch(path))
    return []


def _has_only_scratch(folder: Path) -> bool:
    return set(os.listdir(folder)) <= {"new", "old"}


def _is_leftover(path: Path) -> bool:
    with _try_lock(path) as free:
        return free


@contextmanager
def _try_lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold the lock of a temporary file or folder; yield False if it is locked or gone."""
    if fcntl is None:
        yield False
        return
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield _lock(handle, wait=wait)
    finally:
        os.close(handle)


def _locked_temporary(path: Path) -> tuple[int, str]:
    """Return the handle and the name of a new, locked file next to a path."""
    while True:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".mh-part")
        _lock(handle, wait=True)
        if os.path.exists(temporary):
            return handle, temporary
        os.close(handle)  # removed before it was locked


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to a target, for a folder ``new`` or ``old`` in it; it is removed at the end."""
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".mh-part", dir=target.parent))
        if fcntl is None:
            handle = None
            break
        with suppress(FileNotFoundError):  # removed before it was locked
            handle = os.open(scratch, os.O_RDONLY)
            _lock(handle, wait=True)
            if scratch.exists():
                break
            os.close(handle)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if handle is not None:
            os.close(handle)


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield a new folder of the system's temporary files; those that killed processes of this user left are removed."""
    user = os.getuid() if hasattr(os, "getuid") else ""
    target = Path(tempfile.gettempdir()).absolute() / f"{name}-{user}"
    sweep(abandoned_folders(target.parent, target=target.name))
    with scratch_folder(target) as scratch:
        folder = scratch / "new"
        folder.mkdir()
        yield folder


def _lock(handle: int, *, wait: bool, shared: bool = False) -> bool:
    """Lock an open file until it is closed; return False if it is locked and ``wait`` is False."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, so assume that it is in use
        return wait
    return True


def sync_tree(folder: Path) -> None:
    _sync(*folder.rglob("*"), folder)


def link_tree(source: Path, target: Path) -> None:
    """Hard-link a file or the files of a folder to another place, or copy them if that fails."""
    copy_tree(source, target, _link_or_copy)


def copy_tree(source: Path, target: Path, copy: Callable[[str, str], object] = shutil.copy2) -> None:
    """Copy a file or a folder, if there is one; unlike :func:`shutil.copytree`, raise the first error as it is."""
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for name in os.listdir(source):
            copy_tree(source / name, target / name, copy)
    elif source.exists():
        copy(os.fspath(source), os.fspath(target))


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        if os.path.exists(target):
            return
        try:
            shutil.copy2(source, target)
        except FileNotFoundError:  # removed meanwhile
            return


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders atomically; return False if the system cannot."""
    call = _exchange_call()
    if call is None:
        return False
    if call(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _exchange_call() -> Callable[[bytes, bytes], int] | None:
    """Return the system call: ``renameat2`` of Linux or ``renamex_np`` of macOS."""
    if os.name == "nt":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    here, exchange = -100, 2  # AT_FDCWD; RENAME_EXCHANGE, RENAME_SWAP
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return lambda one, other: int(library.renamex_np(one, other, ctypes.c_uint(exchange)))
    if hasattr(library, "renameat2"):
        return lambda one, other: int(library.renameat2(here, one, here, other, ctypes.c_uint(exchange)))
    return None


def _sync(*paths: Path) -> None:
    """Wait until files, and names in folders, are on disk; some systems cannot do that for folders."""
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
