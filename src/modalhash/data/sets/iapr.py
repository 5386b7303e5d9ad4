"""IAPR TC-12 (Grubinger et al., 2006): photographs with English and German captions and their keywords as labels.

:func:`load` reads prepared features (``features.npz``) with captions (``items.jsonl``), or any other prepared file.
``iapr255`` has the labels of the literature.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.core.validation import check_choice
from modalhash.data.catalog import NamedDataset, read_files
from modalhash.data.dataset import Dataset
from modalhash.data.formats.manifest import manifest_lines
from modalhash.data.formats.variables import ReadError, text_array
from modalhash.data.reading import read

FEATURES_NOTES = (
    "labels are caption keywords: not comparable with figures published on the 255 region labels",
    "image: gradient histograms and colour moments, stored as float16, returned as float32",
)


def load(folder: Path, entry: NamedDataset, *, text: str = "de") -> Dataset:
    """Read the prepared features with German (``text="de"``) or English words, or another file."""
    check_choice(text, "text", ("de", "en"))
    path = folder / "features.npz"
    if not path.is_file():
        return read_files(folder, entry)
    dataset = read(
        path,
        name=entry.name,
        image="image",
        text=f"text_{text}",
        labels="labels",
        ids="ids",
        class_names="label_names",
        is_train="is_train",
    )
    provenance = {
        **dataset.provenance,
        "kind": "substitute",
        "source": entry.title,
        "licence": entry.licence,
        "variant": f"text_{text}",
        "notes": list(FEATURES_NOTES),
    }
    features = {**dataset.features, "image": dataset.features["image"].astype(np.float32)}
    raw = _captions_and_pictures(folder / "items.jsonl", dataset.ids["image"], text)
    return replace(dataset, features=features, raw=raw, provenance=provenance)


def _captions_and_pictures(path: Path, ids: Array, text: str) -> dict[str, Array]:
    if not path.is_file():
        return {}
    wanted = ("id", "image", f"caption_{text}")
    items: dict[Any, dict[str, Any]] = {}
    for number, line in manifest_lines(path):
        if absent := [key for key in wanted if not isinstance(line.get(key), str | int)]:
            raise ReadError(path, f"no {absent[0]!r}; the fields are {', '.join(line)}", line=number)
        items[line["id"]] = line
    if missing := [key for key in ids.tolist() if key not in items]:
        raise ReadError(path, f"{len(missing)} items of features.npz are missing, e.g. {missing[0]!r}")
    return {
        "image": text_array([str(items[key]["image"]) for key in ids.tolist()]),
        "text": text_array([str(items[key][f"caption_{text}"]) for key in ids.tolist()]),
    }
