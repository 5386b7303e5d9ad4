"""Encoders: raw pictures and texts to feature vectors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalhash.encoders.batches import Encoded as Encoded
    from modalhash.encoders.batches import Failure as Failure
    from modalhash.encoders.batches import encode_items as encode_items
    from modalhash.encoders.datasets import encode_dataset as encode_dataset
    from modalhash.encoders.finding import ENCODERS as ENCODERS
    from modalhash.encoders.finding import get_encoder as get_encoder
    from modalhash.encoders.image import ImageEncoder as ImageEncoder
    from modalhash.encoders.precomputed import Precomputed as Precomputed
    from modalhash.encoders.protocol import Encoder as Encoder
    from modalhash.encoders.protocol import EncoderBase as EncoderBase
    from modalhash.encoders.protocol import ItemError as ItemError
    from modalhash.encoders.protocol import State as State
    from modalhash.encoders.storage import load_encoder as load_encoder
    from modalhash.encoders.storage import save_encoder as save_encoder
    from modalhash.encoders.text import HashingEncoder as HashingEncoder
    from modalhash.encoders.text import TfidfEncoder as TfidfEncoder

_HOME = {
    "ENCODERS": "finding",
    "Encoded": "batches",
    "Encoder": "protocol",
    "EncoderBase": "protocol",
    "Failure": "batches",
    "HashingEncoder": "text",
    "ImageEncoder": "image",
    "ItemError": "protocol",
    "Precomputed": "precomputed",
    "State": "protocol",
    "TfidfEncoder": "text",
    "encode_dataset": "datasets",
    "encode_items": "batches",
    "get_encoder": "finding",
    "load_encoder": "storage",
    "save_encoder": "storage",
}

__all__ = [
    "ENCODERS",
    "Encoded",
    "Encoder",
    "EncoderBase",
    "Failure",
    "HashingEncoder",
    "ImageEncoder",
    "ItemError",
    "Precomputed",
    "State",
    "TfidfEncoder",
    "encode_dataset",
    "encode_items",
    "get_encoder",
    "load_encoder",
    "save_encoder",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
