"""MIRFlickr-25K (Huiskes and Lew, 2008): Flickr photographs with tags and 24 labels.

:func:`load` reads a layout of ``features.npz`` (see ``_official``). :func:`convert` makes the arrays of that file
from ``mirflickr25k.zip`` and ``mirflickr25k_annotations_v080.zip``, unpacked: 20,015 images that have at least one of
the 1,386 common tags and one of the 24 labels. The paper's 16,738 items are those with at least two of these tags.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.progress import Callback
from modalhash.core.typing import Array
from modalhash.data.formats.variables import ReadError
from modalhash.data.picture_features import N_EDGES
from modalhash.data.sets._official import (
    FeaturesLayout,
    FileTree,
    binary_matrix,
    compare_count,
    features_loaders,
    features_of_files,
    filled_lines_of,
    lines_of,
)

IMAGES, TAGS, LABEL_ONES, TAG_ONES, SELECTED = 25000, 1386, 92902, 94281, 20015
_TAGS = "text: the 1,386 tags that at least 20 of all 25,000 photographs have"
_NETWORK = "image: EfficientNet-Lite0, 1,280 features"
LAYOUTS = {
    "paper": FeaturesLayout(
        image="ehd",
        text="tags",
        min_words=2,
        split_sizes={"query": 836},
        components={"text": 500},
        notes=(
            "items with at least two of the 1,386 tags: inferred, because it gives the paper's 16,738 items exactly",
            "image: MPEG-7 edge histogram",
            "text: principal components of the tags, fitted on the training items",
        ),
    ),
    "full": FeaturesLayout("gist", "tags", 1, {"query": 2000}, notes=("image: GIST", _TAGS)),
    "cnn": FeaturesLayout("cnn", "tags", 1, {"query": 2000, "training": 10000}, notes=(_NETWORK, _TAGS)),
}


def picture_name(number: int) -> str:
    return f"im{number}.jpg"


load, from_arrays = features_loaders(LAYOUTS, picture_name)


def convert(source: Path, *, progress: Callback | None = None) -> dict[str, Any]:
    """Return the arrays of ``features.npz``.

    ``source`` has ``mirflickr/`` (pictures, ``meta/tags``, ``doc``) and the annotations. Edge histograms are those of
    MIRFLICKR-1M if ``features_edgehistogram`` exists, else they are computed from the pictures.
    """
    tree = FileTree(source)
    numbers = _image_numbers(tree)
    label_names, labels = _labels(tree, numbers)
    tag_names, tags = _tags(tree, numbers)
    rows = np.flatnonzero(labels.any(axis=1) & (np.diff(tags.indptr) > 0))
    if not len(rows):
        raise ValueError(f"{source}: no image has both a label and one of the common tags")
    notes = [
        compare_count("images", len(numbers), IMAGES),
        compare_count("ones in the label matrix", int(labels.sum()), LABEL_ONES),
        compare_count("common tags", len(tag_names), TAGS),
        compare_count("ones in the tag matrix", tags.nnz, TAG_ONES),
        compare_count("items with a tag and a label", len(rows), SELECTED),
    ]
    ids = np.array(numbers)[rows]
    features: dict[str, Array] = {}
    if (first := tree.find(picture_name(int(ids[0])))) is not None:
        features = features_of_files([first.parent / picture_name(int(number)) for number in ids], progress)
    provenance: dict[str, Any] = {"source": "MIRFlickr-25K, official distribution"}
    if (edges := tree.find("features_edgehistogram")) is not None:
        features["ehd"] = np.stack([_edge_row(edges, int(number) - 1) for number in ids])
        provenance["original_features"] = ["ehd"]
        notes.append("edge histograms are those of MIRFLICKR-1M, joined as image k = file k−1 (unverified)")
    if not features:
        raise FileNotFoundError(f"{source}: neither {picture_name(int(ids[0]))} nor features_edgehistogram exists")
    provenance["notes"] = [note for note in notes if note]
    return {
        "image_id": ids,
        **features,
        "tags": tags[rows],
        "tag_names": np.array(tag_names),
        "labels": labels[rows].astype(np.uint8),
        "label_names": np.array(label_names),
        "provenance": np.array(json.dumps(provenance, ensure_ascii=False)),
    }


def _image_numbers(tree: FileTree) -> list[int]:
    folder = tree.need("tags")
    matches = (re.fullmatch(r"tags(\d+)\.txt", path.name) for path in folder.iterdir())
    numbers = sorted(int(match[1]) for match in matches if match)
    if not numbers:
        raise FileNotFoundError(f"{folder}: no tags<number>.txt")
    return numbers


def _labels(tree: FileTree, numbers: list[int]) -> tuple[list[str], Array]:
    """Read one file per label with its image numbers. The files ``*_r1.txt`` are stricter and not used."""
    folder = tree.need("plant_life.txt", "sky.txt", "people.txt").parent
    files = sorted(folder.glob("*.txt"))
    files = [path for path in files if path.stem.lower() != "readme" and not path.stem.endswith("_r1")]
    row_of = {number: row for row, number in enumerate(numbers)}
    matrix = np.zeros((len(numbers), len(files)), dtype=bool)
    for column, path in enumerate(files):
        for line_number, line in enumerate(lines_of(path), 1):
            if not line.strip():
                continue
            if not line.strip().isdigit() or int(line) not in row_of:
                raise ReadError(path, f"{line!r} is not the number of an image with a tag file", line=line_number)
            matrix[row_of[int(line)], column] = True
    return [path.stem for path in files], matrix


def _tags(tree: FileTree, numbers: list[int]) -> tuple[list[str], sparse.csr_array]:
    """Return the common tags in the order of their list, and the binary matrix of the images' tags."""
    names = [line.split()[0] for line in filled_lines_of(tree.need("common_tags.txt"))]
    column = {name: number for number, name in enumerate(names)}
    folder = tree.need("tags")
    columns = []
    for number in numbers:
        own = {column[tag] for tag in filled_lines_of(folder / f"tags{number}.txt") if tag in column}
        columns.append(np.array(sorted(own), dtype=np.int32))
    return names, binary_matrix(columns, len(names))


def _edge_row(folder: Path, number: int) -> Array:
    """Read an edge histogram of MIRFLICKR-1M, whose files count from 0."""
    path = folder / str(number // 10000) / f"{number}.txt"
    try:
        values = np.array(path.read_text().split(), dtype=np.float32)
    except ValueError as error:
        raise ReadError(path, str(error)) from error
    if len(values) != N_EDGES:
        raise ReadError(path, f"{len(values)} numbers; an edge histogram has {N_EDGES}")
    return values
