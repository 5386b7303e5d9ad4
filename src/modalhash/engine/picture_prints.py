"""Prints of an engine's pictures: made of their files when they are first asked for, and kept in its folder.

``prints.npy`` holds them (:data:`~modalhash.engine.same_pictures.PRINT`) by a digest of path, size and time of the
file. It may be deleted at any time; what is missing or changed is read again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np

from modalhash._archives import ArchiveMember
from modalhash._files import write_atomically
from modalhash._imports import MissingExtraError
from modalhash._parallel import pool_map
from modalhash._typing import Array
from modalhash.blocks import row_slices
from modalhash.encoders import ItemError, read_picture
from modalhash.engine.folder import PRINTS
from modalhash.engine.item_files import File
from modalhash.engine.same_pictures import PRINT, SIDE, print_of

READ_TOGETHER = 32
"""Files that one thread reads before it takes others."""
NO_FILE = 0
"""The key of what is not there."""


class PrintKeeper:
    """Makes the prints of files and keeps them.

    Parameters
    ----------
    folder : of the engine; None where nothing may be written, so that they are kept in memory alone
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / PRINTS
        self._known = np.empty(0, PRINT)
        self._loaded = False

    def prints(self, files: Sequence[File | None]) -> Array:
        """Return the prints of files; all zeros where there is no picture that can be read."""
        keys = np.array([_key(file) for file in files], dtype=np.uint64)
        if not self._loaded:
            self._known, self._loaded = self._load(), True
        wanted, rows = np.unique(keys, return_index=True)
        missing = (wanted != NO_FILE) & ~np.isin(wanted, self._known["key"])
        made = _read([file for row in rows[missing].tolist() if (file := files[row]) is not None])
        made["key"] = wanted[missing]
        if len(made):
            kept = self._known
            if len(kept) > 2 * len(files):  # most are of files that are gone or changed
                kept = kept[np.isin(kept["key"], keys)]
            self._known = np.sort(np.concatenate([kept, made]), order="key")
            self._save()
        found = np.zeros(len(files), PRINT)
        there = np.flatnonzero(keys != NO_FILE)
        found[there] = self._known[np.searchsorted(self._known["key"], keys[there])]
        return found

    def _load(self) -> Array:
        if self._path is not None:
            with suppress(OSError, ValueError, EOFError):
                known = np.load(self._path, allow_pickle=False)
                if known.dtype == PRINT and known.ndim == 1 and (np.diff(known["key"].astype(object)) > 0).all():
                    return known
        return np.empty(0, PRINT)

    def _save(self) -> None:
        if self._path is not None:
            with suppress(OSError):  # they are read again next time
                write_atomically(self._path, lambda file: np.save(file, self._known, allow_pickle=False), sync=False)


def _key(file: File | None) -> int:
    """Return a number that changes with the path, the size and the time of a file."""
    if file is None:
        return NO_FILE
    path, member = (file.archive, file.name) if isinstance(file, ArchiveMember) else (file, "")
    try:
        about = path.stat()
    except (OSError, ValueError):
        return NO_FILE
    text = "\0".join([os.fspath(path), member, str(about.st_size), str(about.st_mtime_ns)])
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()) or 1


def _read(files: Sequence[File]) -> Array:
    blocks = [files[rows] for rows in row_slices(len(files), READ_TOGETHER)]
    return np.concatenate([np.empty(0, PRINT), *pool_map(_read_some, blocks, n_threads=os.cpu_count())])


def _read_some(files: Sequence[File]) -> Array:
    prints = np.zeros(len(files), PRINT)
    for row, file in enumerate(files):
        with suppress(ItemError, MissingExtraError, OSError, ValueError):
            pixels = read_picture(file.read() if isinstance(file, ArchiveMember) else file, size=SIDE)
            prints["colours"][row], prints["grey"][row] = print_of(pixels)
    return prints
