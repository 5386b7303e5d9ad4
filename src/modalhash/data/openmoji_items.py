"""OpenMoji as anybody's things are: a folder of pictures and a manifest that names them and, apart, the texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from modalhash._files import write_atomically
from modalhash.data.openmoji import Emoji, emoji_list, is_training, names, parse_labels, png
from modalhash.progress import Callback, Reporter

PICTURES = "pictures"
MANIFEST = "items.jsonl"
SIZE = 144


def write_openmoji(folder: str | Path, *, seed: int = 0, callback: Callback | None = None) -> Path:
    """Write 1,914 emoji as PNG pictures and a manifest of pictures and names, each shuffled on its own.

    Parameters
    ----------
    folder
        gets ``items.jsonl`` and ``pictures/``; what is there already is left as it is
    seed
        of the two orders
    callback
        told how far it is

    Returns
    -------
    The path of the manifest.
    """
    folder = Path(folder)
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    items = emoji_list()
    report = Reporter(callback)
    for done, item in enumerate(items, 1):
        path = folder / _picture(item)
        if not path.exists():
            write_atomically(path, png(item.id, size=SIZE))
        report("draw pictures", done, len(items))
    manifest = folder / MANIFEST
    lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in _lines(items, seed)).encode()
    if not manifest.is_file() or manifest.read_bytes() != lines:
        write_atomically(manifest, lines)
    return manifest


def _lines(items: list[Emoji], seed: int) -> Iterator[dict[str, Any]]:
    """All pictures, then all names. Both carry the emoji's id; no method that needs no pairs looks at it."""
    order = np.random.default_rng(seed)
    texts = names(items)
    for row in order.permutation(len(items)).tolist():
        yield {"path": _picture(items[row]), **_fields(items[row]), "emoji": items[row].character}
    for row in order.permutation(len(items)).tolist():
        yield {"text": texts[row], **_fields(items[row])}


def _fields(item: Emoji) -> dict[str, Any]:
    return {"id": item.id, "labels": parse_labels(item), "split": "training" if is_training(item.id) else "test"}


def _picture(item: Emoji) -> str:
    return f"{PICTURES}/{item.id}.png"
