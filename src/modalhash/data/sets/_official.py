"""What converters of official distributions share: finding files, comparing counts, features of pictures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash._decoding import TimedFile, in_pieces, refusal
from modalhash._imports import require
from modalhash._typing import Array
from modalhash.data._errors import ReadError
from modalhash.data.pictures import GIST_SIZE, N_EDGES, N_GIST, edge_histogram, gist
from modalhash.progress import Callback, Reporter


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


def features_of_files(paths: Sequence[Path], progress: Callback | None = None) -> dict[str, Array]:
    """Compute the edge histograms and GIST of picture files of any kind, as ``ehd`` and ``gist``.

    Sides, area and time of each are bounded, as for pictures of unknown origin. Threads share the work.
    """
    report = Reporter(progress)
    edges, structure = np.empty((len(paths), N_EDGES), np.float32), np.empty((len(paths), N_GIST), np.float32)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row, found in enumerate(pool.map(_features_of_file, paths)):
            edges[row], structure[row] = found
            report("features of pictures", row + 1, len(paths))
    return {"ehd": edges, "gist": structure}


def _features_of_file(path: Path) -> tuple[Array, Array]:
    image: Any = require("PIL.Image", extra="images", why="reading the pictures")
    try:
        with path.open("rb") as file, image.open(TimedFile(file)) as picture:
            if reason := refusal(picture):
                raise ValueError(reason)
            whole = in_pieces(picture).convert("RGB")
        side = min(whole.size)
        left, top = ((size - side) // 2 for size in whole.size)
        square = whole.crop((left, top, left + side, top + side))
        small = square.resize((GIST_SIZE, GIST_SIZE), image.Resampling.BILINEAR)
        return edge_histogram(np.asarray(whole.convert("L"))), gist(np.asarray(small, dtype=np.float32).mean(axis=2))
    except Exception as error:  # a broken file can make a decoder fail in any way
        raise ReadError(path, f"not a readable picture ({error})") from error


def lines_of(path: Path, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a text file without line ends."""
    try:
        return path.read_text(encoding=encoding).splitlines()
    except UnicodeDecodeError as error:
        raise ReadError(path, f"not {encoding} ({error})") from error


def filled_lines_of(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank, without blanks at either end."""
    return [line.strip() for line in lines_of(path) if line.strip()]


def binary_matrix(columns: Sequence[Array], width: int) -> sparse.csr_array:
    """Return the sparse matrix with a 1 at these columns of each row; the columns of a row are in ascending order."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in columns])])
    indices = np.concatenate([np.empty(0, dtype=np.int32), *columns])
    return sparse.csr_array((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(len(columns), width))
