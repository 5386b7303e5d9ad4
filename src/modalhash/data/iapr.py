"""IAPR TC-12 as prepared features (``features.npz``), captions (``items.jsonl``) and small pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modalhash._typing import Array
from modalhash.data.dataset import Dataset
from modalhash.data.reading import read
from modalhash.validation import check_choice

if TYPE_CHECKING:
    from modalhash.data.named import Named

NOTES = (
    "labels are caption keywords: not comparable with figures published on the 255 region labels",
    "image: gradient histograms and colour moments, stored as float16, handed on as float32",
)


def load_features(folder: Path, *, text: str, entry: Named) -> Dataset:
    """The data set with German (``text="de"``) or English words; other files are read as they are."""
    check_choice(text, "text", ("de", "en"))
    path = folder / "features.npz"
    if not path.is_file():
        other = next(folder / file for file in entry.files if (folder / file).is_file())
        dataset = read(other, name=entry.name)
        return replace(dataset, provenance={**dataset.provenance, "source": entry.title, "licence": entry.licence})
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
        "source": entry.title,
        "licence": entry.licence,
        "variant": f"text_{text}",
        "notes": list(NOTES),
    }
    features = {**dataset.features, "image": dataset.features["image"].astype(np.float32)}
    return replace(dataset, features=features, raw=_raw(folder, dataset.ids["image"], text), provenance=provenance)


def _raw(folder: Path, ids: Array, text: str) -> dict[str, Array]:
    """Captions and picture names of the items, where the folder has them."""
    path = folder / "items.jsonl"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8") as lines:
        items = {item["id"]: item for item in map(json.loads, lines)}
    if missing := [key for key in ids.tolist() if key not in items]:
        raise ValueError(f"{path}: {len(missing)} items of features.npz are missing, e.g. {missing[0]!r}")
    return {
        "image": np.array([items[key]["image"] for key in ids.tolist()]),
        "text": np.array([items[key][f"caption_{text}"] for key in ids.tolist()]),
    }
