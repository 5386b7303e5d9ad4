"""Write a data set as one ``.npz`` that :func:`modalhash.data.read` reads back, without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.files import write_atomically
from modalhash.data.checks import padded_bytes
from modalhash.data.dataset import Dataset
from modalhash.data.formats.npz import LENGTHS

MAX_PADDING = 64 * 10**6
"""Bytes that may be spent on padding texts to one width, which every version reads."""


def npz_path(path: str | Path) -> Path:
    """Return the path if :func:`write_npz` can write to it; call it before hours of work."""
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"{path}: expected a name that ends in .npz")
    return path


def write_npz(dataset: Dataset, path: str | Path) -> Path:
    """Write features, labels, ids, raw items, split and provenance; a failure leaves no file behind."""
    path = npz_path(path)
    if bad := [name for name in dataset.modalities if "__" in name or name in ("labels", "ids", "name")]:
        raise ValueError(f"the modality {bad[0]!r} cannot be stored under this name; rename it")
    arrays: dict[str, Any] = {
        "name": np.array(dataset.name),
        "provenance": np.array(json.dumps(dict(dataset.provenance), ensure_ascii=False, default=str)),
    }
    if dataset.labels:
        arrays["class_names"] = np.array(dataset.class_names)
    arrays |= dataset.features
    for name, ids in dataset.ids.items():
        arrays[f"{name}__ids"] = ids
        if name in dataset.labels:
            arrays[f"{name}__labels"] = dataset.labels[name].view(np.uint8)
        if name in dataset.raw:
            arrays |= _texts(f"{name}__raw", dataset.raw[name].tolist())
    if dataset.split is not None:
        arrays["split"] = np.array(json.dumps(dataset.split.to_json(), ensure_ascii=False))
    for name in ("split_sizes", "components"):
        if values := getattr(dataset, name):
            arrays[name] = np.array(json.dumps(dict(values)))
    return write_arrays(arrays, path)


def write_arrays(arrays: Mapping[str, Any], path: str | Path) -> Path:
    """Write arrays and CSR matrices under their names, without pickle; a failure leaves no file behind."""
    path, plain = npz_path(path), {}
    for name, values in arrays.items():
        if sparse.issparse(values):
            plain[f"{name}_indptr"], plain[f"{name}_indices"] = values.indptr, values.indices
            plain[f"{name}_shape"], plain[f"{name}_data"] = np.array(values.shape), values.data
        else:
            plain[name] = values
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **plain))
    return path


def _texts(name: str, texts: list[str]) -> dict[str, Any]:
    """Return texts as one padded array, or, where one text would widen all others, as bytes and lengths."""
    longest, total = max(map(len, texts), default=0), sum(map(len, texts))
    if padded_bytes(longest, len(texts)) <= MAX_PADDING + 16 * total:
        return {name: np.array(texts, dtype=str)}
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return {
        name: np.frombuffer(b"".join(encoded), dtype=np.uint8),
        f"{name}{LENGTHS}": np.array([len(text) for text in encoded]),
    }
