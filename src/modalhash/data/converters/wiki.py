"""Wiki (Rasiwasia et al., 2010) from ``raw_features.mat`` and the two list files; the split is the official one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modalhash._files import sha256_of
from modalhash._typing import Array
from modalhash.data.converters._common import Tree, expect, lines_of
from modalhash.data.dataset import Dataset
from modalhash.data.reading import read
from modalhash.data.split import Split

TRAINING, QUERIES = 2173, 693
NAMES = ["art", "biology", "geography", "history", "literature", "media", "music", "royalty", "sport", "warfare"]


def wiki(source: Path) -> Dataset:
    """Convert the official files: the rows of the .mat and the lines of the lists are the same items in order.

    Parameters
    ----------
    source
        folder with ``raw_features.mat``, ``trainset_txt_img_cat.list`` and ``testset_txt_img_cat.list``
    """
    tree = Tree(source)
    features = tree.need("raw_features.mat")
    lists = [tree.need(f"{part}_txt_img_cat.list") for part in ("trainset", "testset")]
    names = _class_names(tree)
    data = read(features, image="I", text="T")
    if data.split is None:
        raise ValueError(f"{features}: expected I_tr, I_te, T_tr and T_te; got {data}")
    rows = [line for path in lists for line in _lines(path, len(names))]
    counts = [sum(1 for _ in _lines(path, len(names))) for path in lists]
    sizes = [len(data.split.training["image"]), len(data.split.query["image"])]
    if counts != sizes:
        raise ValueError(f"{lists[0]}, {lists[1]}: {counts} lines for {sizes} rows in {features.name}")
    notes = [expect("training items", sizes[0], TRAINING), expect("queries", sizes[1], QUERIES)]
    ids = np.array([text for text, _, _ in rows])
    labels: Array = np.array([number for _, _, number in rows])[:, None] == np.arange(1, len(names) + 1)
    training, query = ids[: sizes[0]], ids[sizes[0] :]
    return Dataset(
        data.features,
        {"image": labels, "text": labels},
        {"image": ids, "text": ids},
        class_names=names,
        name="wiki",
        provenance={
            "source": "Wikipedia featured articles (Rasiwasia et al., 2010), official distribution",
            "files": [features.name, *(path.name for path in lists)],
            "sha256": sha256_of([features, *lists]),
            "notes": [note for note in notes if note],
        },
        raw={"image": np.array([image for _, image, _ in rows]), "text": ids},
        split=Split({"image": training, "text": training}, {"image": query, "text": query}),
    )


def _class_names(tree: Tree) -> list[str]:
    path = tree.find("categories.list")
    return [line.strip() for line in lines_of(path) if line.strip()] if path is not None else NAMES


def _lines(path: Path, n_classes: int) -> list[tuple[str, str, int]]:
    """Text id, image id, category from 1."""
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 3 or not fields[2].strip().isdigit() or not 1 <= int(fields[2]) <= n_classes:
            raise ValueError(f"{path}, line {number}: {line!r}; expected text id, image id and a class 1..{n_classes}")
        rows.append((fields[0], fields[1], int(fields[2])))
    return rows
