"""What converters of official distributions share: finding files, comparing counts, splits, features."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from modalhash._decoding import TimedFile, in_pieces, refusal
from modalhash._imports import require
from modalhash._typing import Array
from modalhash.data._errors import ReadError
from modalhash.data.dataset import Split
from modalhash.data.pictures import N_FEATURES, picture_features


class FileTree:
    """Finds files and folders by name, at whatever depth the archives were unpacked; scans the folder once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._paths: dict[str, list[Path]] = {}
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                self._paths.setdefault(name, []).append(Path(folder, name))

    def all(self, name: str) -> list[Path]:
        """Return every path with this name, the one nearest to the root first."""
        return sorted(self._paths.get(name, []), key=lambda path: (len(path.parts), path))

    def find(self, *names: str) -> Path | None:
        """Return the first path with one of these names, or None."""
        return next((path for name in names for path in self.all(name)), None)

    def need(self, *names: str) -> Path:
        """Return the first path with one of these names; absence is an error."""
        path = self.find(*names)
        if path is None:
            raise FileNotFoundError(f"{self.root}: {' or '.join(names)} is not there, at any depth")
        return path

    def __str__(self) -> str:
        return str(self.root)


def compare_count(what: str, got: int, expected: int) -> str | None:
    """Warn if a count is not the published one, and return the warning as a note for the data set."""
    if got == expected:
        return None
    text = f"{what}: got {got:,}, the published count is {expected:,}"
    warnings.warn(text, UserWarning, stacklevel=3)
    return text


def random_split(ids: Array, n_query: int, seed: int) -> Split:
    """Draw queries at random; the other items are training and database."""
    if not 0 < n_query < len(ids):
        raise ValueError(f"n_query is {n_query}; there are {len(ids)} items: take from 1 to {len(ids) - 1}")
    is_query = np.zeros(len(ids), dtype=bool)
    is_query[np.random.default_rng(seed).choice(len(ids), size=n_query, replace=False)] = True
    return Split(dict.fromkeys(("image", "text"), ids[~is_query]), dict.fromkeys(("image", "text"), ids[is_query]))


def features_of_files(paths: Iterable[Path], n: int) -> Array:
    """Compute gradient and colour features of picture files of any kind, each converted to RGB.

    Sides, area and time of each are bounded, as for pictures of unknown origin.
    """
    image = require("PIL.Image", extra="demo", why="reading the pictures")
    out = np.empty((n, N_FEATURES), dtype=np.float32)
    for row, path in enumerate(paths):
        try:
            with path.open("rb") as file, image.open(TimedFile(file)) as picture:
                if reason := refusal(picture):
                    raise ValueError(reason)
                out[row] = picture_features(np.asarray(in_pieces(picture).convert("RGB").resize((128, 128))))
        except Exception as error:  # a broken file can make a decoder fail in any way
            raise ReadError(path, f"not a readable picture ({error})") from error
    return out


def lines_of(path: Path, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a text file without line ends."""
    try:
        return path.read_text(encoding=encoding).splitlines()
    except UnicodeDecodeError as error:
        raise ReadError(path, f"not {encoding} ({error})") from error


def filled_lines_of(path: Path, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a text file that are not blank, without blanks at either end."""
    return [line.strip() for line in lines_of(path, encoding) if line.strip()]


def binary_matrix(columns: Sequence[Array], width: int) -> sparse.csr_array:
    """Return the sparse matrix with a 1 at these columns of each row; the columns of a row are in ascending order."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in columns])])
    indices = np.concatenate([np.empty(0, dtype=np.int32), *columns])
    return sparse.csr_array((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(len(columns), width))
