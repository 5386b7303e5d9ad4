"""Files in zip and tar archives, read without unpacking.

A member is named like ``photos.zip!/red/1.jpg``. Archives may be of unknown origin, so the size of a member and the
growth of a compressed tar are limited, and member names are never used as paths. The tables of contents of the last
archives used are cached, because reading that of many thousand photos for each of them would be slow.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
"""Suffixes of readable archives."""
OTHER_ARCHIVES = (".7z", ".rar", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
"""Suffixes of archives that cannot be read."""
MAX_MEMBER_BYTES = 256 * 2**20
"""Limit for a member that is read into memory."""
LEAST_GROWTH, GROWTH_PER_BYTE = 2**30, 32
"""Limits of a compressed tar: 1 GiB, or 32 times its size; photos hardly compress."""
MAX_HEADER_BYTES = 128 * 2**10
"""Limit for the headers of one member of a tar, which are read into memory."""
_KEPT = 8  # tables of contents
_MEMBER = re.compile(r"(.+?(?:\.zip|\.tar|\.tar\.gz|\.tgz))!/(.+)", re.IGNORECASE | re.DOTALL)
_TAR_URL = re.compile(r"tar://(.+)::file://(.+)", re.DOTALL)
_UTF8_NAME, _ENCRYPTED = 0x800, 0x1
_BROKEN = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError,
    ValueError,
)  # fmt: skip
"""Raised by reading a broken archive, in addition to OSError."""
_T = TypeVar("_T")


class ArchiveError(ValueError):
    """An archive or a member cannot be read; ``reason`` is the message without the name of the file."""

    def __init__(self, reason: str, where: object) -> None:
        super().__init__(f"{where}: {reason}")
        self.reason = reason


class MissingMemberError(ArchiveError):
    """The archive or the member does not exist."""


class Refusal(StrEnum):
    """Why a member is not read."""

    OUTSIDE = "its name leads out of the archive"
    LINK = "a link or a special file; expected a file"
    ENCRYPTED = "encrypted; unpack the archive with its password, and give the folder"
    NESTED = "an archive inside the archive; unpack it, and give it by itself"


@dataclass(frozen=True)
class ArchiveMember:
    """One file in an archive."""

    archive: Path
    name: str

    def __str__(self) -> str:
        return f"{self.archive}!/{self.name}"

    def read(self) -> bytes:
        """Return the content; raise ArchiveError if it cannot be read."""
        return self._ask(lambda table: table.read(self.name))

    def size(self) -> int:
        """Return the size in bytes; raise ArchiveError like :meth:`read`."""
        return self._ask(lambda table: table.size(self.name))

    def is_file(self) -> bool:
        try:
            return self.size() >= 0
        except ArchiveError:
            return False

    def _ask(self, question: Callable[[_Table], _T]) -> _T:
        try:
            return question(_contents(self.archive))
        except KeyError:
            raise MissingMemberError("no such file in the archive", self) from None
        except FileNotFoundError:
            raise MissingMemberError("no such archive", self) from None
        except ArchiveError as error:
            raise ArchiveError(error.reason, self) from None
        except (OSError, *_BROKEN) as error:
            raise ArchiveError(_reason(error), self) from error


@dataclass(frozen=True)
class ArchiveEntry:
    """An entry of an archive's table of contents."""

    name: str
    refusal: Refusal | None = None


def is_archive(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(ARCHIVE_SUFFIXES)


def archive_stem(name: str) -> str:
    return next((name[: -len(suffix)] for suffix in ARCHIVE_SUFFIXES if name.lower().endswith(suffix)), name)


def find_member(text: str) -> ArchiveMember | None:
    """Return the member that a text names, or None if it is not the name of a member.

    Examples
    --------
    >>> find_member("photos.zip!/red/1.jpg").name
    'red/1.jpg'
    >>> find_member("photos/red/1.jpg")
    """
    if found := _TAR_URL.fullmatch(text):  # in a tar given as a URL
        return ArchiveMember(Path(found[2]), found[1])
    found = _MEMBER.fullmatch(text)
    if found is None or os.path.exists(text):  # a folder may have this name
        return None
    return ArchiveMember(Path(found[1]), found[2])


def archive_entries(path: Path) -> Iterator[ArchiveEntry]:
    """Yield the visible files of an archive in order; raise ArchiveError where it is damaged."""
    try:
        contents = _contents(path)
    except (OSError, *_BROKEN) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(_reason(error), path) from error
    for name, refusal in contents.entries():
        if is_hidden(name):
            continue
        nested = name.lower().endswith((*ARCHIVE_SUFFIXES, *OTHER_ARCHIVES))
        if leads_out(name):
            refusal = Refusal.OUTSIDE
        elif refusal is None and nested:
            refusal = Refusal.NESTED
        yield ArchiveEntry(name, refusal)
    if contents.damage is not None:
        raise ArchiveError(contents.damage, path)


def is_hidden(name: str) -> bool:
    """Return whether a member is hidden, like ``.DS_Store`` or ``__MACOSX/…``."""
    parts = name.split("/")
    return parts[0] == "__MACOSX" or any(part.startswith(".") and part not in (".", "..") for part in parts)


def leads_out(name: str) -> bool:
    """Return whether a member's name would leave the folder that the archive is unpacked in."""
    return name.startswith("/") or ".." in name.split("/") or re.match(r"[A-Za-z]:", name) is not None


def read_members(items: Any) -> Any:
    """Return items as encoders take them: members of archives become bytes, read on access."""
    if isinstance(items, list) and any(isinstance(item, ArchiveMember) for item in items):
        return _Contents(items)
    return items


class _Contents(Sequence[Any]):
    """Items with members of archives as bytes, each read on access and not kept."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            return _Contents(self._items[rows])
        item = self._items[rows]
        return item.read() if isinstance(item, ArchiveMember) else item


class _Table(Protocol):
    damage: str | None
    """Problem after the listed members, if any."""

    def entries(self) -> Iterator[tuple[str, Refusal | None]]: ...

    def read(self, name: str) -> bytes: ...

    def size(self, name: str) -> int: ...


def _contents(path: Path) -> _Table:
    status = path.stat()
    # the process is part of the key because an inherited open file shares its position
    return _open_archive(path, status.st_mtime_ns, status.st_size, status.st_ino, os.getpid())


@lru_cache(maxsize=_KEPT)
def _open_archive(path: Path, modified: int, n_bytes: int, number: int, process: int) -> _Table:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ArchiveError("a folder; expected an archive", path)
    if path.name.lower().endswith(".zip"):
        return _Zip(path)
    return _Tar(path) if path.name.lower().endswith(".tar") else _CompressedTar(path, n_bytes)


class _Zip:
    damage: str | None = None

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except _BROKEN as error:
            raise ArchiveError(f"not a zip, or it is cut off ({error})", path) from None
        self._infos: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            self._infos.setdefault(_zip_name(info), info)

    def entries(self) -> Iterator[tuple[str, Refusal | None]]:
        for info in self._zip.infolist():
            name, mode = _zip_name(info), info.external_attr >> 16
            if name.endswith("/"):
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                yield name, Refusal.LINK
            else:
                yield name, Refusal.ENCRYPTED if info.flag_bits & _ENCRYPTED else None

    def read(self, name: str) -> bytes:
        info = self._infos[name]
        if info.flag_bits & _ENCRYPTED:
            raise ArchiveError(Refusal.ENCRYPTED, name)
        _check_size(info.file_size, name)
        with self._zip.open(info) as file:  # never returns more than file_size bytes
            return file.read()

    def size(self, name: str) -> int:
        return self._infos[name].file_size


def _zip_name(info: zipfile.ZipInfo) -> str:
    """Return a member's name; some programs write UTF-8 without the flag, and some write backslashes."""
    name = info.filename
    if not info.flag_bits & _UTF8_NAME and not name.isascii():
        with suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/").removeprefix("./")


class _Tar:
    """A plain tar; the file is opened for each member, so that threads do not wait for each other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damage: str | None = None
        self._places: dict[str, tuple[int, int]] = {}
        self._entries: list[tuple[str, Refusal | None]] = []
        with self._file() as file:
            try:
                for _, member in tar_members(file):
                    self._take(member)
            except ArchiveError as error:
                if not self._entries:
                    raise ArchiveError(error.reason, path) from None
                self.damage = error.reason

    def _file(self) -> BinaryIO:
        return self._path.open("rb")

    def _take(self, member: tarfile.TarInfo) -> None:
        name = member.name.removeprefix("./")
        if member.isdir():
            return
        refusal = None if member.isreg() and not member.issparse() else Refusal.LINK
        self._entries.append((name, refusal))
        if refusal is None:
            self._places.setdefault(name, (member.offset_data, member.size))

    def entries(self) -> Iterator[tuple[str, Refusal | None]]:
        return iter(self._entries)

    def read(self, name: str) -> bytes:
        start, size = self._places[name]
        _check_size(size, name)
        data = self._read(start, size)
        if len(data) < size:
            raise ArchiveError("the archive ends within it", name)
        return data

    def size(self, name: str) -> int:
        return self._places[name][1]

    def _read(self, start: int, size: int) -> bytes:
        with self._file() as file:
            file.seek(start)
            return file.read(size)


class _CompressedTar(_Tar):
    """A tar that can only be read forwards; one open file is shared, and restarted to go back."""

    def __init__(self, path: Path, n_bytes: int) -> None:
        self._most = max(LEAST_GROWTH, GROWTH_PER_BYTE * n_bytes)
        super().__init__(path)
        self._open = gzip.open(path, "rb")  # noqa: SIM115 - stays open with this object
        self._lock = threading.Lock()

    def _file(self) -> BinaryIO:
        return _Bounded(gzip.open(self._path, "rb"), self._most)  # type: ignore[return-value]

    def _read(self, start: int, size: int) -> bytes:
        with self._lock:
            self._open.seek(start)
            return self._open.read(size)


class _Bounded:
    """A decompressed file that must not grow beyond ``most`` bytes."""

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._most = file, most

    def __enter__(self) -> _Bounded:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        self._check(self._file.tell() + max(0, size))
        return bytes(self._file.read(size))

    def seek(self, place: int, whence: int = 0) -> int:
        self._check(place)
        return int(self._file.seek(place, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def _check(self, place: int) -> None:
        if place > self._most:
            reason = f"it grows to more than {self._most:,} bytes; unpack it if you trust it, and give the folder"
            raise ArchiveError(reason, "the archive")


class _Headers:
    """A file of which few bytes are read: the headers of one member."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MAX_HEADER_BYTES
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise ArchiveError(f"a member has more than {MAX_HEADER_BYTES:,} bytes of headers", "the archive")
        return bytes(self._file.read(size))


class BoundedTar(tarfile.TarFile):
    """A tar whose headers are limited; members that were returned are not kept."""

    def next(self) -> tarfile.TarInfo | None:
        file = self.fileobj
        self.fileobj = _Headers(file)  # type: ignore[assignment]
        try:
            return super().next()
        finally:
            self.fileobj = file
            vars(self)["members"].clear()
            self.pax_headers.clear()  # type: ignore[attr-defined]


def tar_members(file: Any) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield the members of a seekable tar in order; raise ArchiveError where it is damaged."""
    n_members = 0
    try:
        tar = BoundedTar(fileobj=file, mode="r")
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise ArchiveError(f"not a tar ({error})", "the archive") from None
    try:
        while (member := tar.next()) is not None:
            n_members += 1
            yield tar, member
        file.seek(tar.offset)  # of the block that tarfile took for the end
        damaged = any(file.read(tarfile.BLOCKSIZE))
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile):  # other errors are not caused by the tar
        damaged = True
    if damaged:
        reason = f"the tar is damaged or cut off after {n_members:,} members; what follows is lost"
        raise ArchiveError(reason, "the archive")


def too_large(size: int, most: int) -> str:
    return f"{size:,} bytes, more than the limit of {most:,}"


def _check_size(size: int, name: str) -> None:
    if size > MAX_MEMBER_BYTES:
        raise ArchiveError(too_large(size, MAX_MEMBER_BYTES), name)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, NotImplementedError):
        return f"compressed in a way that cannot be read here ({error}); pack it again, or unpack it"
    return f"damaged in the archive ({error})"
