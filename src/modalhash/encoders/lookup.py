"""Encoders by name, by ``module:Class``, or from a folder where one was saved."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from modalhash._imports import import_class
from modalhash.encoders.base import Encoder

ENCODERS = {
    "image": "modalhash.encoders.image:ImageEncoder",
    "tfidf": "modalhash.encoders.text:TfidfEncoder",
    "hashing": "modalhash.encoders.text:HashingEncoder",
    "precomputed": "modalhash.encoders.precomputed:Precomputed",
    "efficientnet-lite0": "modalhash.encoders.neural:EfficientNetLite0",
    "minilm": "modalhash.encoders.neural:MiniLM",
}
NEEDED = ("name", "version", "reads", "dim", "state", "digest", "fit", "encode", "restore")


def get_encoder(name_or_path: str | Path, **options: Any) -> Encoder:
    """Return a new encoder, or a saved one.

    Parameters
    ----------
    name_or_path
        one of :data:`ENCODERS`; ``"module:Class"``, which is imported; or a folder that
        :func:`modalhash.encoders.save_encoder` wrote
    options
        parameters of the encoder's constructor; for a folder, those of :func:`modalhash.encoders.load_encoder`

    Examples
    --------
    >>> get_encoder("hashing", columns=1024).dim
    1024
    """
    text = str(name_or_path)
    if text not in ENCODERS and ":" not in text.removeprefix(Path(text).drive):
        if Path(name_or_path).is_dir():
            from modalhash.encoders.saved import load_encoder

            return load_encoder(name_or_path, **options)
        near = get_close_matches(text, ENCODERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"there is no encoder {text!r}, and no folder of that name.{hint} "
            f"Built in: {', '.join(ENCODERS)}; your own as 'module:Class'"
        )
    kind = encoder_class(text)
    try:
        inspect.signature(kind).bind(**options)
    except TypeError as error:
        raise TypeError(
            f"encoder {text!r}: {error}. It takes {', '.join(inspect.signature(kind).parameters) or 'no options'}"
        ) from None
    encoder: Encoder = kind(**options)
    return encoder


def encoder_class(name: str) -> type[Any]:
    """Return the class of a registered name or of ``module:Class``."""
    kind = import_class(ENCODERS.get(name, name), f"encoder {name!r}")
    known = {*dir(kind), *(key for base in kind.__mro__ for key in inspect.get_annotations(base))}
    if lacking := [part for part in NEEDED if part not in known]:
        raise TypeError(
            f"encoder {name!r}: the class lacks {', '.join(lacking)}; see modalhash.encoders.Encoder, "
            "or derive it from modalhash.encoders.EncoderBase"
        )
    return kind


def name_of(encoder: Any) -> str:
    """Return the registered name of an encoder, or its ``module:Class``."""
    kind = type(encoder)
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, own in ENCODERS.items() if own == path), path)
