"""``features.npz``: several features of the same photographs with their words and labels, for data sets with layouts.

============================================================ =======================================================
``image_id``                                                 ids ``(n,)``
``ehd``, ``gist``                                            MPEG-7 edge histograms (150) and GIST (512)
``text_indptr``, ``text_indices``, ``text_shape``, ``words`` bag of words as CSR, with ``text_counts`` unless binary
``labels``, ``label_names``                                  0 and 1 ``(n, classes)``
``provenance``                                               JSON, optional: ``source``, ``notes``,
                                                             ``original_features``
============================================================ =======================================================

MIRFlickr calls its words ``tags_*`` and ``tag_names``. ``original_features`` names those that come from the official
distribution instead of being computed again. ``cnn.npz``, in the same folder, has features of a network ``(n, 1280)``
with their ``image_id``, as ``low + step * values`` with ``values`` of uint8. It may also be what ``modalhash datasets
encode`` writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from modalhash._files import sha256_of
from modalhash._typing import Array
from modalhash.data._checks import rows_of
from modalhash.data._errors import ReadError
from modalhash.data._read import read_arrays
from modalhash.data.catalog import NamedDataset
from modalhash.data.dataset import Dataset
from modalhash.data.formats._found import text_array

FEATURES, CNN = "features.npz", "cnn.npz"


@dataclass(frozen=True)
class FeaturesLayout:
    """Which features and items of the file make a data set."""

    image: str
    """``"ehd"``, ``"gist"`` or ``"cnn"``."""
    text: str
    """``"text"`` or ``"tags"``."""
    min_words: int
    """An item must have this many different words, and a label."""
    split_sizes: Mapping[str, int]
    components: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def load_layout(
    folder: Path, entry: NamedDataset, layout: FeaturesLayout, picture_name: Callable[[int], str]
) -> Dataset:
    """Read the features that a layout needs from the files in a folder."""
    path, cnn = folder / FEATURES, folder / CNN if layout.image == "cnn" else None
    arrays = read_arrays(path, ["image_id", layout.image, layout.text, "labels", "label_names", "provenance"])
    try:
        dataset = dataset_of(arrays, entry, layout, picture_name, cnn)
    except KeyError as error:
        raise ReadError(path, f"no variable {error}") from error
    except (ValueError, TypeError) as error:
        raise error if isinstance(error, ReadError) else ReadError(path, str(error)) from error
    files = [path] if cnn is None else [path, cnn]
    facts = {"files": [file.name for file in files], "sha256": sha256_of(files)}
    return replace(dataset, provenance={**dataset.provenance, **facts})


def dataset_of(
    arrays: Mapping[str, Any],
    entry: NamedDataset,
    layout: FeaturesLayout,
    picture_name: Callable[[int], str],
    cnn: Path | None = None,
) -> Dataset:
    """Return the data set of a layout, from the arrays of ``features.npz`` and perhaps the file ``cnn.npz``."""
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
