"""Shared parts of the converters of official distributions, and the layout of ``features.npz``.

``features.npz`` has ``image_id`` ``(n,)``; ``ehd`` and ``gist``, edge histograms (150) and GIST (512); a bag of words
as CSR (``text_indptr``, ``text_indices``, ``text_shape``, ``text_counts`` unless binary) with ``words``, which
MIRFlickr calls ``tags_*`` and ``tag_names``; 0/1 ``labels`` with ``label_names``; and optionally ``provenance`` as
JSON, whose ``original_features`` were not recomputed. ``cnn.npz`` has features of a network as ``low + step * values``
with uint8 ``values`` and ``image_id``, or is a file that ``modalhash datasets encode`` wrote.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.files import sha256_of
from modalhash.core.imports import require
from modalhash.core.pictures import TimedFile, in_pieces, refusal
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array
from modalhash.core.validation import check_choice
from modalhash.data.catalog import NamedDataset, read_files
from modalhash.data.dataset import Dataset, rows_of
from modalhash.data.formats.variables import ReadError, text_array
from modalhash.data.picture_features import GIST_SIZE, N_EDGES, N_GIST, edge_histogram, gist
from modalhash.data.reading import read_arrays


class FileTree:
    """Finds files and folders by name at any depth of a folder, which is scanned once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._paths: dict[str, list[Path]] = {}
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                self._paths.setdefault(name, []).append(Path(folder, name))

    def all(self, name: str) -> list[Path]:
        return sorted(self._paths.get(name, []), key=lambda path: (len(path.parts), path))

    def find(self, *names: str) -> Path | None:
        return next((path for name in names for path in self.all(name)), None)

    def need(self, *names: str) -> Path:
        path = self.find(*names)
        if path is None:
            raise FileNotFoundError(f"{self.root}: {' or '.join(names)} does not exist at any depth")
        return path

    def __str__(self) -> str:
        return str(self.root)


def compare_count(what: str, got: int, expected: int) -> str | None:
    """Warn if a count differs from the published one; return the warning as a note."""
    if got == expected:
        return None
    text = f"{what}: got {got:,}, the published count is {expected:,}"
    warnings.warn(text, UserWarning, stacklevel=3)
    return text


def features_of_files(paths: Sequence[Path], progress: Callback | None = None) -> dict[str, Array]:
    """Compute the edge histograms and GIST of picture files in threads, as ``ehd`` and ``gist``.

    Sides, area and time of each picture are limited, because the files are not trusted.
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
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise ReadError(path, f"not a readable picture ({error})") from error


def lines_of(path: Path, encoding: str = "utf-8") -> list[str]:
    try:
        return path.read_text(encoding=encoding).splitlines()
    except UnicodeDecodeError as error:
        raise ReadError(path, f"not {encoding} ({error})") from error


def filled_lines_of(path: Path) -> list[str]:
    return [line.strip() for line in lines_of(path) if line.strip()]


def binary_matrix(columns: Sequence[Array], width: int) -> sparse.csr_array:
    """Return the sparse matrix with a 1 at these columns, which ascend in each row."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in columns])])
    indices = np.concatenate([np.empty(0, dtype=np.int32), *columns])
    return sparse.csr_array((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(len(columns), width))


FEATURES, CNN = "features.npz", "cnn.npz"


@dataclass(frozen=True)
class FeaturesLayout:
    """The features and items of ``features.npz`` that make up a data set."""

    image: str  # ``"ehd"``, ``"gist"`` or ``"cnn"``
    text: str  # ``"text"`` or ``"tags"``
    min_words: int  # minimum number of different words of an item; it must also have a label
    split_sizes: Mapping[str, int]
    components: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def features_loaders(
    layouts: Mapping[str, FeaturesLayout], picture_name: Callable[[int], str]
) -> tuple[Callable[..., Dataset], Callable[[Mapping[str, Any], NamedDataset], Dataset]]:
    """Return the functions ``load`` and ``from_arrays`` of a data set with these layouts of ``features.npz``."""

    def load(folder: Path, entry: NamedDataset, *, layout: str = "paper") -> Dataset:
        """Read a layout of ``features.npz``, or another file."""
        check_choice(layout, "layout", tuple(layouts))
        if not (folder / FEATURES).is_file():
            return read_files(folder, entry)
        return _load_layout(folder, entry, layouts[layout], picture_name)

    def from_arrays(arrays: Mapping[str, Any], entry: NamedDataset) -> Dataset:
        """Return the data set from the arrays that ``convert`` returned."""
        return _dataset_of(arrays, entry, layouts["paper"], picture_name)

    return load, from_arrays


def _load_layout(
    folder: Path, entry: NamedDataset, layout: FeaturesLayout, picture_name: Callable[[int], str]
) -> Dataset:
    path, cnn = folder / FEATURES, folder / CNN if layout.image == "cnn" else None
    arrays = read_arrays(path, ["image_id", layout.image, layout.text, "labels", "label_names", "provenance"])
    try:
        dataset = _dataset_of(arrays, entry, layout, picture_name, cnn)
    except KeyError as error:
        raise ReadError(path, f"no variable {error}") from error
    except (ValueError, TypeError) as error:
        raise error if isinstance(error, ReadError) else ReadError(path, str(error)) from error
    files = [path] if cnn is None else [path, cnn]
    facts = {"files": [file.name for file in files], "sha256": sha256_of(files)}
    return replace(dataset, provenance={**dataset.provenance, **facts})


def _dataset_of(
    arrays: Mapping[str, Any],
    entry: NamedDataset,
    layout: FeaturesLayout,
    picture_name: Callable[[int], str],
    cnn: Path | None = None,
) -> Dataset:
    """Return the data set of a layout from the arrays of ``features.npz`` and optionally ``cnn.npz``."""
    text, labels = arrays[layout.text].astype(np.float32), arrays["labels"]
    rows = np.flatnonzero((np.diff(text.indptr) >= layout.min_words) & labels.any(axis=1))
    ids, own = arrays["image_id"][rows], labels[rows]
    image = arrays[layout.image][rows].astype(np.float32) if cnn is None else _network_features(cnn, ids)
    stored = json.loads(str(arrays["provenance"])) if "provenance" in arrays else {}
    original = layout.image in stored.pop("original_features", ())
    provenance = {
        "kind": "original" if original else "recomputed features",
        "source": entry.title,
        "licence": entry.licence,
        **stored,
        "notes": [*stored.get("notes", ()), *layout.notes],
    }
    return Dataset(
        {"image": image, "text": text[rows]},
        {"image": own, "text": own},
        {"image": ids, "text": ids},
        class_names=[str(name) for name in arrays["label_names"]],
        name=entry.name,
        provenance=provenance,
        raw={"image": text_array([picture_name(number) for number in ids.tolist()])},
        split_sizes=layout.split_sizes,
        components=layout.components,
    )


def _network_features(path: Path, ids: Array) -> Array:
    arrays = read_arrays(path, ["image_id", "values", "low", "step", "image__ids", "image"])
    try:
        if "values" not in arrays:
            known, values = arrays["image__ids"], arrays["image"]
            return np.asarray(values[rows_of(known, ids, "image__ids")], dtype=np.float32)
        chosen = arrays["values"][rows_of(arrays["image_id"], ids, "image_id")]
        return np.asarray(arrays["low"] + arrays["step"] * chosen.astype(np.float32), dtype=np.float32)
    except KeyError as error:
        raise ReadError(path, f"no variable {error}") from error
    except (ValueError, TypeError) as error:
        raise ReadError(path, str(error)) from error
