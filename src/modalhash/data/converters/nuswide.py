"""NUS-WIDE from its official files: the images that have at least one of the most frequent concepts.

Everything is keyed on the row of ``Imagelist.txt``: six Flickr ids occur twice. Labels come from ``AllLabels``, text
from ``AllTags1k.txt`` (what everybody's files hold); where only the Train and Test halves are there, they are put in
place by the image lists. Images without a tag are standard members.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix
from modalhash.data.converters._common import Tree, expect, lines_of, random_split
from modalhash.data.dataset import Dataset
from modalhash.validation import check_int

IMAGES = 269648
SELECTED = {10: 186577, 21: 195834}
TAGGED = {10: 181365, 21: 190421}
ONES = {10: 332189, 21: 411438}
N_TAGS = 1000


def nuswide(
    source: Path,
    *,
    n_concepts: int = 10,
    image: str | None = "BoW_int",
    drop_untagged: bool = False,
    n_query: int = 2000,
    seed: int = 0,
) -> Dataset:
    """Convert the official files.

    Parameters
    ----------
    source
        folder with ``Groundtruth``, ``ImageList``, ``ConceptsList``, ``NUS_WID_Tags`` and the low-level features
    n_concepts
        how many of the most frequent concepts
    image
        name of the feature file without ``.dat``: ``BoW_int`` (500), ``Normalized_CH`` (64), ``Normalized_CORR``,
        ``Normalized_EDH``, ``Normalized_WT``, ``Normalized_CM55``; None for no image features
    drop_untagged
        leave out images without any of the 1,000 tags
    n_query
        number of random queries
    seed
        of the split
    """
    check_int(n_concepts, "n_concepts", at_least=1)
    tree = Tree(source)
    paths = [line.strip().replace("\\", "/") for line in lines_of(tree.need("Imagelist.txt")) if line.strip()]
    halves = _halves(tree, paths)
    notes = [expect("images", len(paths), IMAGES)]
    names = [line.strip() for line in lines_of(tree.need("Concepts81.txt")) if line.strip()]
    labels = np.stack([_concept(tree, name, len(paths), halves) for name in names], axis=1)
    # the most frequent first; equal counts in the order of the list
    top = np.argsort(-labels.sum(axis=0), kind="stable")[:n_concepts]
    labels = labels[:, top]
    kept: Array = np.asarray(labels.any(axis=1))
    text = _tags(tree, len(paths), halves)
    if drop_untagged:
        kept &= np.diff(text.indptr) > 0
    rows = np.flatnonzero(kept)
    if n_concepts in SELECTED:
        expected = TAGGED if drop_untagged else SELECTED
        notes.append(expect(f"images with one of {n_concepts} concepts", len(rows), expected[n_concepts]))
        if not drop_untagged:
            notes.append(expect("ones in the label matrix", int(labels.sum()), ONES[n_concepts]))
    features: dict[str, Matrix] = {"text": sparse.csr_array(text[rows])}
    if image is not None:
        features = {"image": _image_features(tree, image, len(paths), kept, halves), **features}
    own = labels[rows]
    return Dataset(
        features,
        {"image": own, "text": own},
        {"image": rows, "text": rows},
        class_names=[names[column] for column in top],
        name=f"nuswide{n_concepts}",
        provenance={
            "source": "NUS-WIDE, official distribution",
            "licence": "Flickr users' photographs; research use",
            "notes": [note for note in (*notes, "ids are rows of Imagelist.txt, from 0") if note],
        },
        raw={"image": np.array([paths[row] for row in rows])},
        split=random_split(rows, n_query, seed),
    )


def _halves(tree: Tree, paths: list[str]) -> tuple[Array, Array] | None:
    """Rows of the training and of the test images, by their paths, where both lists are there."""
    lists = [tree.find(name) for name in ("TrainImagelist.txt", "TestImagelist.txt")]
    if lists[0] is None or lists[1] is None:
        return None
    row = {path: place for place, path in enumerate(paths)}
    places = []
    for file in (lists[0], lists[1]):
        own = [line.strip().replace("\\", "/") for line in lines_of(file) if line.strip()]
        if unknown := [path for path in own if path not in row]:
            raise ValueError(f"{file}: {len(unknown)} images are not in Imagelist.txt, e.g. {unknown[0]!r}")
        places.append(np.array([row[path] for path in own]))
    return places[0], places[1]


def _sources(
    tree: Tree, whole: str, halves_names: tuple[str, str], halves: tuple[Array, Array] | None, n: int
) -> list[tuple[Path, Array]]:
    """The file of all images, or the two halves, each with the rows its lines belong to."""
    if (path := tree.find(whole)) is not None:
        return [(path, np.arange(n))]
    found = [tree.find(name) for name in halves_names]
    if halves is None or found[0] is None or found[1] is None:
        raise FileNotFoundError(
            f"{tree}: neither {whole} nor {' and '.join(halves_names)} with TrainImagelist.txt and TestImagelist.txt"
        )
    return [(found[0], halves[0]), (found[1], halves[1])]


def _numbered(path: Path, rows: Array) -> Iterator[tuple[int, int, bytes]]:
    """Line number, row of the image and content of every line; as many lines as rows."""
    count = 0
    with path.open("rb") as lines:
        for count, line in enumerate(lines, 1):
            if count > len(rows):
                if line.strip():
                    raise ValueError(f"{path}: more than {len(rows)} lines; expected one per image")
                continue
            yield count, int(rows[count - 1]), line
    if count < len(rows):
        raise ValueError(f"{path}: {count} lines for {len(rows)} images; the file is truncated")


def _concept(tree: Tree, name: str, n: int, halves: tuple[Array, Array] | None) -> Array:
    column = np.zeros(n, dtype=bool)
    names = (f"Labels_{name}_Train.txt", f"Labels_{name}_Test.txt")
    for path, rows in _sources(tree, f"Labels_{name}.txt", names, halves, n):
        values = np.array(path.read_bytes().split())
        if len(values) != len(rows):
            raise ValueError(f"{path}: {len(values)} lines for {len(rows)} images; expected one 0 or 1 each")
        column[rows] = values == b"1"
        for place in np.flatnonzero((values != b"0") & (values != b"1")).tolist():
            text = f"{path.name}, line {place + 1}: the label is {values[place].decode(errors='replace')!r}"
            # Labels_lake_Train.txt has -1130179 in line 78372
            warnings.warn(f"{text}, neither 0 nor 1; taken as 0", UserWarning, stacklevel=4)
    return column


def _tags(tree: Tree, n: int, halves: tuple[Array, Array] | None) -> sparse.csr_array:
    """1,000 digits 0 or 1 per line, separated by blanks or tabs, perhaps with one at the end."""
    found: list[Array] = [np.empty(0, dtype=np.int32)] * n
    width = N_TAGS
    for path, rows in _sources(tree, "AllTags1k.txt", ("Train_Tags1k.dat", "Test_Tags1k.dat"), halves, n):
        for number, row, line in _numbered(path, rows):
            digits = np.frombuffer(line.translate(None, b" \t\r\n"), dtype=np.uint8) - ord("0")
            if len(digits) != width or (len(digits) and digits.max() > 1):
                raise ValueError(f"{path}, line {number}: {len(digits)} digits; expected {width} of 0 or 1")
            found[row] = np.flatnonzero(digits).astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in found])])
    indices = np.concatenate(found)
    return sparse.csr_array((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(n, width))


def _image_features(tree: Tree, image: str, n: int, kept: Array, halves: tuple[Array, Array] | None) -> Array:
    if image == "BoW_int":
        whole, names = "BoW_int.dat", ("BoW_Train_int.dat", "BoW_Test_int.dat")
    else:
        whole, names = f"{image}.dat", (f"Train_{image}.dat", f"Test_{image}.dat")
    place = np.cumsum(kept) - 1
    out: Array | None = None
    for path, rows in _sources(tree, whole, names, halves, n):
        for number, row, line in _numbered(path, rows):
            if not kept[row]:
                continue
            try:
                values = np.array(line.split(), dtype=np.float32)  # split() takes the blank at the end
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if out is None:
                out = np.zeros((int(kept.sum()), len(values)), dtype=np.float32)
            if len(values) != out.shape[1]:
                raise ValueError(f"{path}, line {number}: {len(values)} numbers; other lines have {out.shape[1]}")
            out[place[row]] = values
    if out is None:
        raise ValueError(f"{tree}: no image is selected")
    return out
