r"""The meaning part of refinement vectors: items of all modalities as vectors of the space that their encoders share.

CLIP puts pictures and texts into one space, and so do the encoders with the space of names
(:mod:`modalhash.encoders.names`). Inner products there say how near a picture is to words, whatever labels there are.
Clouds of pictures and of texts are apart from each other, so each modality is centred: pictures on their mean, texts on
the mean of everyday nouns, because queries are mostly single words. What remains is written in the 64 leading
directions of the pictures, has length 1 and becomes int8; its inner products are cosines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modalhash._typing import Array, Matrix
from modalhash.linalg import unit_rows
from modalhash.randomness import draw

if TYPE_CHECKING:
    from modalhash.base import CrossModalHasher
    from modalhash.encoders import Encoder

MEANING_DIMENSIONS = 64
SAMPLE = 20_000
"""Items that the directions are learned from."""
STEP = 1 / 127
"""What 1 in the int8 values means: a vector of length 1 has no larger value."""


@dataclass(frozen=True)
class Meaning:
    """Makes the meaning part of refinement vectors; learned by :func:`learn_meaning`."""

    directions: Array
    """(space, at most 64)."""
    centres: Mapping[str, Array]
    """By modality, in the space; a modality whose encoder has no place in the space is not among them."""

    @property
    def size(self) -> int:
        """The number of values of the part."""
        return int(self.directions.shape[1])

    def vectors(self, modality: str, encoder: Encoder | None, X: Matrix) -> Array:
        """Return the part for items from their features, int8; zeros where nothing is known of an item."""
        if modality not in self.centres or encoder is None:
            return np.zeros((X.shape[0], self.size), dtype=np.int8)
        known = in_space(encoder, X)
        values = unit_rows((known - self.centres[modality]) @ self.directions)
        values[~known.any(axis=1)] = 0
        return np.rint(values / STEP).astype(np.int8)


def learn_meaning(
    encoders: Mapping[str, Encoder], X: Mapping[str, Matrix], sharing: Sequence[str], *, seed: int = 0
) -> Meaning | None:
    """Learn the meaning part from the features of training items.

    Parameters
    ----------
    encoders : by modality
    X : features by modality; texts that are no items but queries need none
    sharing : modalities whose encoders share a space; without any, there is no such part
    seed : of samples and of the rotation, which makes values of all directions alike
    """
    if not sharing:
        return None
    texts = [name for name in sharing if encoders[name].reads == "text"]
    centres = {name: _text_centre(encoders[name], X.get(name)) for name in texts}
    moment = np.zeros(())
    for name in [name for name in sharing if name not in texts] or texts:
        values = in_space(encoders[name], X[name][draw(X[name], SAMPLE, seed)])
        centres.setdefault(name, values.mean(axis=0))
        moment = moment + np.cov(values, rowvar=False)
    directions = np.linalg.eigh(moment)[1][:, ::-1][:, :MEANING_DIMENSIONS]
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((directions.shape[1],) * 2))[0]
    return Meaning(np.ascontiguousarray(directions @ rotation, dtype=np.float32), centres)


def sharing_modalities(encoders: Mapping[str, Encoder]) -> list[str]:
    """Return the modalities whose encoders share a space with another's."""
    spaces = {name: getattr(encoder, "space", None) for name, encoder in encoders.items()}
    shared = Counter(space for space in spaces.values() if space is not None).most_common(1)
    return [name for name, space in spaces.items() if shared and shared[0][1] > 1 and space == shared[0][0]]


def in_space(encoder: Encoder, X: Matrix) -> Array:
    """Return items as vectors of their encoder's space, of length 1."""
    make = getattr(encoder, "in_space", np.asarray)
    return unit_rows(np.asarray(make(X), dtype=np.float32))


def model_features(model: CrossModalHasher, encoder: Encoder, X: Matrix) -> Matrix:
    """Return what a model makes codes from: features or, for one that compares modalities in a space, vectors of it."""
    return in_space(encoder, X) if getattr(model, "space", None) == "shared" else X


def _text_centre(encoder: Encoder, X: Matrix | None) -> Array:
    """Return the mean of everyday nouns in the space; of training texts, for an encoder that does not take nouns."""
    from modalhash.encoders import NOUNS

    try:
        return np.asarray(in_space(encoder, encoder.encode(list(NOUNS))).mean(axis=0))
    except ValueError:
        if X is None:
            raise
        return np.asarray(in_space(encoder, X).mean(axis=0))
