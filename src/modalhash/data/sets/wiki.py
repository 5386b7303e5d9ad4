"""Wiki (Rasiwasia et al., 2010): texts and pictures of Wikipedia's featured articles, with the official split.

:func:`convert` makes a data set from the official distribution; prepared files need no loader.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modalhash.core.files import sha256_of
from modalhash.data.dataset import Dataset, Split, label_matrix
from modalhash.data.formats.variables import ReadError
from modalhash.data.reading import read
from modalhash.data.sets._official import FileTree, compare_count, filled_lines_of, lines_of

TRAINING, QUERIES = 2173, 693
CLASS_NAMES = ["art", "biology", "geography", "history", "literature", "media", "music", "royalty", "sport", "warfare"]


def convert(source: Path) -> Dataset:
    """Convert the official files.

    ``source`` has ``raw_features.mat``, ``trainset_txt_img_cat.list`` and ``testset_txt_img_cat.list``. Row k of the
    features is line k of the lists.
    """
    tree = FileTree(source)
    features = tree.need("raw_features.mat")
    lists = [tree.need(f"{part}_txt_img_cat.list") for part in ("trainset", "testset")]
    names = _class_names(tree)
    data = read(features, image="I", text="T")
    if data.split is None:
        raise ValueError(f"{features}: expected I_tr, I_te, T_tr and T_te; got {data}")
    listed = [_lines(path, len(names)) for path in lists]
    counts = [len(lines) for lines in listed]
    sizes = [len(data.split.training["image"]), len(data.split.query["image"])]
    if counts != sizes:
        raise ValueError(f"{lists[0]}, {lists[1]}: {counts} lines for {sizes} rows in {features.name}")
    notes = [compare_count("training items", sizes[0], TRAINING), compare_count("queries", sizes[1], QUERIES)]
    rows = [line for lines in listed for line in lines]
    ids = np.array([text for text, _, _ in rows])
    labels = label_matrix([[number] for _, _, number in rows], range(1, len(names) + 1))
    training, query = ids[: sizes[0]], ids[sizes[0] :]
    return Dataset(
        data.features,
        {"image": labels, "text": labels},
        {"image": ids, "text": ids},
        class_names=names,
        name="wiki",
        provenance={
            "kind": "original",
            "source": "Wikipedia featured articles (Rasiwasia et al., 2010), official distribution",
            "files": [features.name, *(path.name for path in lists)],
            "sha256": sha256_of([features, *lists]),
            "notes": [note for note in notes if note],
        },
        raw={"image": np.array([image for _, image, _ in rows]), "text": ids},
        split=Split({"image": training, "text": training}, {"image": query, "text": query}),
    )


def _class_names(tree: FileTree) -> list[str]:
    path = tree.find("categories.list")
    return filled_lines_of(path) if path is not None else CLASS_NAMES


def _lines(path: Path, n_classes: int) -> list[tuple[str, str, int]]:
    """Return the text id, the image id and the class, from 1, of every item."""
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 3 or not fields[2].strip().isdigit() or not 1 <= int(fields[2]) <= n_classes:
            raise ReadError(path, f"{line!r}; expected text id, image id and a class 1..{n_classes}", line=number)
        rows.append((fields[0], fields[1], int(fields[2])))
    return rows
