"""A space that pictures and texts share, whose right neighbours are known: what CLIP is to photos and captions.

Item k is a point about one of :data:`TOPICS` topics. Its picture, a file that holds ``k``, and its text, ``thing k``, are
that point with noise of their own, and all pictures lie apart from all texts: the gap between modalities.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.encoders import EncoderBase, State

TOPICS, DIM = 20, 32


def vectors(numbers: Sequence[int], modality: str, *, noise: float = 0.25, gap: float = 2.0) -> np.ndarray:
    """Vectors of the pictures or texts of these items."""
    fixed = np.random.default_rng(0)
    topics, points = fixed.standard_normal((TOPICS, DIM)), fixed.standard_normal((5000, DIM))
    apart = fixed.standard_normal((2, DIM))
    own = np.random.default_rng([1, modality == "text"]).standard_normal((5000, DIM))
    rows = np.asarray(numbers)
    place = topics[rows % TOPICS] + 0.5 * points[rows] + noise * own[rows]
    return (place + gap * apart[int(modality == "text")]).astype(np.float32)


class _Shared(EncoderBase):
    space = "toy"
    modality: str

    @property
    def dim(self) -> int:
        return DIM

    @property
    def state(self) -> State:
        return State()

    def encode(self, batch: Sequence[Any]) -> np.ndarray:
        return vectors([number_of(item) for item in batch], self.modality)


class Pictures(_Shared):
    name = "toy-pictures"
    reads = "image"
    modality = "image"


class Texts(_Shared):
    name = "toy-texts"
    reads = "text"
    modality = "text"


class OtherTexts(Texts):
    """Of a space of its own."""

    name = "toy-other-texts"
    space = "another"


class Thesaurus(Texts):
    """Knows that some words mean the same: each group of words has a vector."""

    name = "toy-thesaurus"
    space = None
    same_meaning = 0.9
    groups = (("sky", "himmel"), ("boat", "schiff", "boot"))

    def encode(self, batch: Sequence[Any]) -> np.ndarray:
        rows = []
        for text in batch:
            words = re.findall(r"\w+", text.casefold())
            row = [float(any(word in group for word in words)) for group in self.groups]
            rest = vectors([sum(map(ord, text)) % 5000], "text")[0][: DIM - len(row)]
            rows.append([*row, *(0.0 * rest if any(row) else rest)])
        return np.array(rows, dtype=np.float32)


def number_of(item: Any) -> int:
    """The number of an item, from its text, its file or the bytes of that."""
    if isinstance(item, Path):
        item = item.read_bytes()
    text = item.decode() if isinstance(item, bytes) else str(item)
    found = re.search(r"\d+", text)
    if found is None:
        raise ValueError(f"no number in {text!r}")
    return int(found.group())


def make_world(folder: Path, pictures: Sequence[int], texts: Sequence[int]) -> list[str]:
    """Write pictures into ``photos/`` and texts into ``texts.csv``; return what `train` takes."""
    (folder / "photos").mkdir(parents=True)
    for number in pictures:
        (folder / "photos" / f"{number}.png").write_text(str(number))
    lines = ["id,text", *(f"t{number},thing {number}" for number in texts)]
    (folder / "texts.csv").write_text("\n".join(lines))
    return [str(folder / "photos"), str(folder / "texts.csv")]
