"""NUS-WIDE (Chua et al., 2009): Flickr photographs with tags that have one of the most frequent concepts.

:func:`convert` makes a data set from the official files. Items are identified by the row of ``Imagelist.txt``, because
six Flickr ids occur twice. Labels come from ``AllLabels``, text from ``AllTags1k.txt``, as in the files that circulate.
If only the Train and Test halves exist, the image lists map their lines to rows. Images without a tag are included.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_int
from modalhash.data.dataset import Dataset
from modalhash.data.formats.variables import ReadError, text_array
from modalhash.data.sets._official import FileTree, binary_matrix, compare_count, filled_lines_of

IMAGES = 269648
SELECTED = {10: 186577, 21: 195834}
ONES = {10: 332189, 21: 411438}
N_TAGS = 1000


def convert(source: Path, *, n_concepts: int = 10) -> Dataset:
    """Convert the official files.

    ``source`` has ``Groundtruth``, ``ImageList``, ``ConceptsList``, ``NUS_WID_Tags`` and the low-level features. The
    labels are the ``n_concepts`` most frequent concepts.
    """
    check_int(n_concepts, "n_concepts", at_least=1)
    tree = FileTree(source)
    paths = _image_list(tree.need("Imagelist.txt"))
    halves = _halves(tree, paths)
    notes = [compare_count("images", len(paths), IMAGES)]
    names = filled_lines_of(tree.need("Concepts81.txt"))
    labels = np.stack([_concept(tree, name, len(paths), halves) for name in names], axis=1)
    # by descending frequency; equal counts in the order of the list
    top = np.argsort(-labels.sum(axis=0), kind="stable")[:n_concepts]
    labels = labels[:, top]
    selected: Array = np.asarray(labels.any(axis=1))
    text = _tags(tree, len(paths), halves)
    rows = np.flatnonzero(selected)
    if n_concepts in SELECTED:
        notes.append(compare_count(f"images with one of {n_concepts} concepts", len(rows), SELECTED[n_concepts]))
        notes.append(compare_count("ones in the label matrix", int(labels.sum()), ONES[n_concepts]))
    features: dict[str, Matrix] = {
        "image": _image_features(tree, len(paths), selected, halves),
        "text": sparse.csr_array(text[rows]),
    }
    own = labels[rows]
    return Dataset(
        features,
        {"image": own, "text": own},
        {"image": rows, "text": rows},
        class_names=[names[column] for column in top],
        name=f"nuswide{n_concepts}",
        provenance={
            "kind": "original",
            "source": "NUS-WIDE, official distribution",
            "licence": "Flickr users' photographs; research use",
            "notes": [note for note in (*notes, "ids are rows of Imagelist.txt, from 0") if note],
        },
        raw={"image": text_array([paths[row] for row in rows])},
        split_sizes={"query": 2000},
    )


def _image_list(path: Path) -> list[str]:
    return [line.replace("\\", "/") for line in filled_lines_of(path)]


def _halves(tree: FileTree, paths: list[str]) -> tuple[Array, Array] | None:
    """Return the rows of the training and test images, or None if a list is missing."""
    lists = [tree.find(name) for name in ("TrainImagelist.txt", "TestImagelist.txt")]
    if lists[0] is None or lists[1] is None:
        return None
    row_of = {path: row for row, path in enumerate(paths)}
    rows = []
    for file in (lists[0], lists[1]):
        own = _image_list(file)
        if unknown := [path for path in own if path not in row_of]:
            raise ReadError(file, f"{len(unknown)} images are not in Imagelist.txt, e.g. {unknown[0]!r}")
        rows.append(np.array([row_of[path] for path in own]))
    return rows[0], rows[1]


def _sources(
    tree: FileTree, whole: str, halves_names: tuple[str, str], halves: tuple[Array, Array] | None, n: int
) -> list[tuple[Path, Array]]:
    """Return the file of all images, or the two halves, each with the rows of its lines."""
    if (path := tree.find(whole)) is not None:
        return [(path, np.arange(n))]
    files = [tree.find(name) for name in halves_names]
    if halves is None or files[0] is None or files[1] is None:
        raise FileNotFoundError(
            f"{tree}: neither {whole} nor {' and '.join(halves_names)} with TrainImagelist.txt and TestImagelist.txt"
        )
    return [(files[0], halves[0]), (files[1], halves[1])]


def _numbered(path: Path, rows: Array) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, image row and content of every line; raise unless there is one line per row."""
    count = 0
    with path.open("rb") as lines:
        for count, line in enumerate(lines, 1):
            if count > len(rows):
                if line.strip():
                    raise ReadError(path, f"more than {len(rows)} lines; expected one per image")
                continue
            yield count, int(rows[count - 1]), line
    if count < len(rows):
        raise ReadError(path, f"{count} lines for {len(rows)} images; the file is truncated")


def _concept(tree: FileTree, name: str, n: int, halves: tuple[Array, Array] | None) -> Array:
    column = np.zeros(n, dtype=bool)
    names = (f"Labels_{name}_Train.txt", f"Labels_{name}_Test.txt")
    for path, rows in _sources(tree, f"Labels_{name}.txt", names, halves, n):
        values = np.array(path.read_bytes().split())
        if len(values) != len(rows):
            raise ReadError(path, f"{len(values)} lines for {len(rows)} images; expected one 0 or 1 each")
        column[rows] = values == b"1"
        for wrong in np.flatnonzero((values != b"0") & (values != b"1")).tolist():
            text = f"{path.name}, line {wrong + 1}: the label is {values[wrong].decode(errors='replace')!r}"
            # Labels_lake_Train.txt has -1130179 in line 78372
            warnings.warn(f"{text}, neither 0 nor 1; taken as 0", UserWarning, stacklevel=4)
    return column


def _tags(tree: FileTree, n: int, halves: tuple[Array, Array] | None) -> sparse.csr_array:
    """Read 1,000 digits 0 or 1 per line, separated by blanks or tabs."""
    columns: list[Array] = [np.empty(0, dtype=np.int32)] * n
    for path, rows in _sources(tree, "AllTags1k.txt", ("Train_Tags1k.dat", "Test_Tags1k.dat"), halves, n):
        for number, row, line in _numbered(path, rows):
            digits = np.frombuffer(line.translate(None, b" \t\r\n"), dtype=np.uint8) - ord("0")
            if len(digits) != N_TAGS or (len(digits) and digits.max() > 1):
                raise ReadError(path, f"{len(digits)} digits; expected {N_TAGS} of 0 or 1", line=number)
            columns[row] = np.flatnonzero(digits).astype(np.int32)
    return binary_matrix(columns, N_TAGS)


def _image_features(tree: FileTree, n: int, selected: Array, halves: tuple[Array, Array] | None) -> Array:
    """Read the 500-D bags of words of the selected images."""
    names = ("BoW_Train_int.dat", "BoW_Test_int.dat")
    target = np.cumsum(selected) - 1
    out: Array | None = None
    for path, rows in _sources(tree, "BoW_int.dat", names, halves, n):
        for number, row, line in _numbered(path, rows):
            if not selected[row]:
                continue
            try:
                values = np.array(line.split(), dtype=np.float32)  # split() ignores the trailing blank
            except ValueError as error:
                raise ReadError(path, str(error), line=number) from error
            if out is None:
                out = np.zeros((int(selected.sum()), len(values)), dtype=np.float32)
            if len(values) != out.shape[1]:
                raise ReadError(path, f"{len(values)} numbers; other lines have {out.shape[1]}", line=number)
            out[target[row]] = values
    if out is None:
        raise ValueError(f"{tree}: no image is selected")
    return out
