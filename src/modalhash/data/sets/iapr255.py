"""IAPR TC-12 with the 255 region labels of SAIAPR TC-12, as the hashing literature uses it.

:func:`load` reads a layout of ``features.npz`` (see ``_official``), which :func:`convert` makes from the official
pictures and captions and the region labels. The labels of an image are the union of its regions' labels; 255 of the 276
occur. Words are those of at least two English descriptions, without stop words; the literature has 2,912 words and
gives no recipe for them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.progress import Callback
from modalhash.data.dataset import label_matrix
from modalhash.data.formats.variables import ReadError
from modalhash.data.sets._official import (
    FeaturesLayout,
    FileTree,
    compare_count,
    features_loaders,
    features_of_files,
    lines_of,
)

IMAGES, CAPTIONS, CLASSES = 20000, 19999, 255
MIN_COUNT = 2  # minimum number of descriptions that contain a word
STOP_WORDS = frozenset(
    re.findall(
        "[a-z]+",
        """i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
        herself it its itself they them their theirs themselves what which who whom this that these those am is are was
        were be been being have has had having do does did doing a an the and but if or because as until while of at by
        for with about against between into through during before after above below to from up down in out on off over
        under again further then once here there when where why how all any both each few more most other some such no
        nor not only own same so than too very s t can""",
    )
)
_WORDS = "text: counts of words in the English descriptions"
LAYOUTS = {
    "paper": FeaturesLayout("gist", "text", 1, {"query": 2000}, notes=("image: GIST", _WORDS)),
    "cnn": FeaturesLayout(
        "cnn", "text", 1, {"query": 2000}, notes=("image: EfficientNet-Lite0, 1,280 features", _WORDS)
    ),
}


def picture_name(number: int) -> str:
    """Return the path of a picture in the official folder ``images``."""
    return f"{number // 1000:02}/{number}.jpg"


load, from_arrays = features_loaders(LAYOUTS, picture_name)


def convert(source: Path, *, progress: Callback | None = None) -> dict[str, Any]:
    """Return the arrays of ``features.npz``.

    ``source`` has ``iaprtc12/`` (pictures, annotations) and ``benchmark/`` (region labels, ``wlist.txt``).
    """
    tree = FileTree(source)
    labels, descriptions = _region_labels(tree), _descriptions(tree)
    ids = sorted(labels.keys() & descriptions.keys())
    if not ids:
        raise ValueError(f"{source}: no image has both region labels and an .eng file")
    used = sorted({label for own in labels.values() for label in own})
    notes = [
        compare_count("images with region labels", len(labels), IMAGES),
        compare_count("descriptions of them", len(ids), CAPTIONS),
        compare_count("classes", len(used), CLASSES),
    ]
    words, text = bag_of_words([descriptions[number] for number in ids])
    names = _class_names(tree)
    pictures = tree.need("images")
    provenance = {
        "source": "IAPR TC-12 and SAIAPR TC-12, official distributions",
        "notes": [note for note in notes if note],
    }
    return {
        "image_id": np.array(ids),
        **features_of_files([pictures / picture_name(number) for number in ids], progress),
        "text": text,
        "words": np.array(words),
        "labels": label_matrix([labels[number] for number in ids], used).astype(np.uint8),
        "label_names": np.array([names.get(label) or f"label {label}" for label in used]),
        "provenance": np.array(json.dumps(provenance, ensure_ascii=False)),
    }


def bag_of_words(texts: Sequence[str]) -> tuple[list[str], sparse.csr_array]:
    """Return the words of descriptions by descending frequency, and their counts per description."""
    counts = [Counter(word for word in words_of(text) if word not in STOP_WORDS) for text in texts]
    having = Counter(word for own in counts for word in own)
    words = sorted((word for word, n in having.items() if n >= MIN_COUNT), key=lambda word: (-having[word], word))
    column = {word: number for number, word in enumerate(words)}
    entries = [(row, column[word], n) for row, own in enumerate(counts) for word, n in own.items() if word in column]
    rows, columns, values = np.array(entries, dtype=np.int32).reshape(-1, 3).T
    matrix = sparse.csr_array((values.astype(np.float32), (rows, columns)), shape=(len(texts), len(words)))
    matrix.sort_indices()
    return words, matrix


def words_of(text: str) -> list[str]:
    return re.findall("[a-z]+", text.lower())


def _region_labels(tree: FileTree) -> dict[int, set[int]]:
    """Return the labels by image from every ``labels.txt`` (image, region, label); skip short lines."""
    files = tree.all("labels.txt")
    if not files:
        raise FileNotFoundError(f"{tree}: no labels.txt of SAIAPR TC-12 at any depth")
    labels: dict[int, set[int]] = {}
    for path in files:
        for number, line in enumerate(lines_of(path, "latin-1"), 1):
            fields = line.split()
            if len(fields) < 3:
                continue
            try:
                image, _, label = (int(float(field)) for field in fields[:3])
            except ValueError as error:
                raise ReadError(path, f"{line!r}; expected image, region and label", line=number) from error
            if label < 1:
                raise ReadError(path, f"label {label}; they count from 1", line=number)
            labels.setdefault(image, set()).add(label)
    return labels


def _descriptions(tree: FileTree) -> dict[int, str]:
    """Return the English descriptions by image number. Some files are not valid XML."""
    descriptions = {}
    for path in sorted(tree.need("annotations_complete_eng").rglob("*.eng")):
        if not path.stem.isdigit():
            raise ReadError(path, "expected a number as name")
        text = path.read_bytes().decode("cp1252", errors="replace")
        found = re.search(r"<DESCRIPTION>(.*?)</DESCRIPTION>", text, re.DOTALL)
        descriptions[int(path.stem)] = found[1] if found else ""
    return descriptions


def _class_names(tree: FileTree) -> dict[int, str]:
    names = {}
    for line in lines_of(tree.need("wlist.txt"), "latin-1"):
        number, _, name = line.partition("\t") if "\t" in line else line.strip().partition(" ")
        if number.strip().isdigit():
            names[int(number)] = name.strip()  # one name is blank
    return names
