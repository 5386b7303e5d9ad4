"""Encoders: raw pictures and texts to feature vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.encoders.batches import Encoded as Encoded
    from modalhash.encoders.batches import Failure as Failure
    from modalhash.encoders.batches import encode_items as encode_items
    from modalhash.encoders.datasets import encode_dataset as encode_dataset
    from modalhash.encoders.finding import ENCODERS as ENCODERS
    from modalhash.encoders.finding import get_encoder as get_encoder
    from modalhash.encoders.image import ImageEncoder as ImageEncoder
    from modalhash.encoders.precomputed import Precomputed as Precomputed
    from modalhash.encoders.protocol import READS as READS
    from modalhash.encoders.protocol import Encoder as Encoder
    from modalhash.encoders.protocol import EncoderBase as EncoderBase
    from modalhash.encoders.protocol import ItemError as ItemError
    from modalhash.encoders.protocol import State as State
    from modalhash.encoders.storage import EncoderFileError as EncoderFileError
    from modalhash.encoders.storage import describe as describe
    from modalhash.encoders.storage import load_encoder as load_encoder
    from modalhash.encoders.storage import mismatch as mismatch
    from modalhash.encoders.storage import save_encoder as save_encoder
    from modalhash.encoders.text import HashingEncoder as HashingEncoder
    from modalhash.encoders.text import TfidfEncoder as TfidfEncoder

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "batches": ["Encoded", "Failure", "encode_items"],
        "datasets": ["encode_dataset"],
        "finding": ["ENCODERS", "get_encoder"],
        "image": ["ImageEncoder"],
        "precomputed": ["Precomputed"],
        "protocol": ["READS", "Encoder", "EncoderBase", "ItemError", "State"],
        "storage": ["EncoderFileError", "describe", "load_encoder", "mismatch", "save_encoder"],
        "text": ["HashingEncoder", "TfidfEncoder"],
    },
)
