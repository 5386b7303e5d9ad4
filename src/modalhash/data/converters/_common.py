"""What the converters share: finding files, comparing counts, a random split, features of pictures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from modalhash._extras import require
from modalhash._typing import Array
from modalhash.data.pictures import N_FEATURES, picture_features
from modalhash.data.split import Split


class Tree:
    """Files and folders by name, at whatever depth the archives were unpacked; walked once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._places: dict[str, list[Path]] = {}
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                self._places.setdefault(name, []).append(Path(folder, name))

    def all(self, name: str) -> list[Path]:
        """Every place with this name, the highest first."""
        return sorted(self._places.get(name, []), key=lambda path: (len(path.parts), path))

    def find(self, *names: str) -> Path | None:
        """The first place with one of these names."""
        return next((path for name in names for path in self.all(name)), None)

    def need(self, *names: str) -> Path:
        """As :meth:`find`, but absence is an error."""
        found = self.find(*names)
        if found is None:
            raise FileNotFoundError(f"{self.root}: {' or '.join(names)} is not there, at any depth")
        return found

    def __str__(self) -> str:
        return str(self.root)


def expect(what: str, got: int, expected: int) -> str | None:
    """Warn where a count is not the published one; the text also goes to the notes of the data set."""
    if got == expected:
        return None
    text = f"{what}: got {got:,}, the published count is {expected:,}"
    warnings.warn(text, UserWarning, stacklevel=3)
    return text


def random_split(ids: Array, n_query: int, seed: int) -> Split:
    """Queries drawn at random; the others are training and database."""
    if not 0 < n_query < len(ids):
        raise ValueError(f"n_query is {n_query}; there are {len(ids)} items: take from 1 to {len(ids) - 1}")
    is_query = np.zeros(len(ids), dtype=bool)
    is_query[np.random.default_rng(seed).choice(len(ids), size=n_query, replace=False)] = True
    return Split(dict.fromkeys(("image", "text"), ids[~is_query]), dict.fromkeys(("image", "text"), ids[is_query]))


def features_of_files(paths: Iterable[Path], n: int) -> Array:
    """Gradient and colour features of picture files; what is grey or not a JPEG is taken as RGB all the same."""
    image = require("PIL.Image", extra="demo", why="reading the pictures")
    out = np.empty((n, N_FEATURES), dtype=np.float32)
    for row, path in enumerate(paths):
        try:
            with image.open(path) as picture:
                out[row] = picture_features(np.asarray(picture.convert("RGB").resize((128, 128))))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: not a readable picture ({error})") from error
    return out


def lines_of(path: Path, encoding: str = "utf-8") -> list[str]:
    """The lines of a text file without line ends."""
    try:
        return path.read_text(encoding=encoding).splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not {encoding} ({error})") from error
