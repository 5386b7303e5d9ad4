"""Which encoders are taken where none is named: those that are fast and built in, or the best that can be installed."""

from __future__ import annotations

from typing import NamedTuple

from modalhash.validation import check_choice


class Choice(NamedTuple):
    """An encoder, and what it brings and costs in a few words."""

    encoder: str
    reason: str
    per_second: float
    """Items that one core encodes in a second, about."""


_TEXTS = Choice("tfidf", "built in, counts words: about 20,000 texts a second", 20_000)
QUALITIES = {
    "fast": {
        "image": Choice("image", "built in (edges, texture, colour): about 800 photos a second and core", 800),
        "text": _TEXTS,
    },
    "best": {
        "image": Choice(
            "efficientnet-lite0",
            "extra 'neural', a network learned on ImageNet: about 90 photos a second and core, 9 points of mAP more on "
            "unseen photos; the licence of its weights is not stated",
            90,
        ),
        "text": _TEXTS,
    },
}
"""By quality, what is taken for a modality; measured on one core and IAPR TC-12, see docs/measurements/encoders.md."""


def encoders_of(quality: str) -> dict[str, str]:
    """Return the names of the encoders by modality.

    Examples
    --------
    >>> encoders_of("best")
    {'image': 'efficientnet-lite0', 'text': 'tfidf'}
    """
    check_choice(quality, "quality", tuple(QUALITIES))
    return {modality: choice.encoder for modality, choice in QUALITIES[quality].items()}


def describe_quality(quality: str) -> list[str]:
    """Return a line per modality: what is taken, what it brings, what it costs."""
    check_choice(quality, "quality", tuple(QUALITIES))
    return [f"{modality}: {choice.encoder} ({choice.reason})" for modality, choice in QUALITIES[quality].items()]
