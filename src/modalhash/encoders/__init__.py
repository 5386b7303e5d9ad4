"""Encoders: raw pictures and texts to feature vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.encoders._nouns import NOUNS as NOUNS
    from modalhash.encoders._pictures import read_picture as read_picture
    from modalhash.encoders._pictures import read_whole_picture as read_whole_picture
    from modalhash.encoders.base import READS as READS
    from modalhash.encoders.base import Encoder as Encoder
    from modalhash.encoders.base import EncoderBase as EncoderBase
    from modalhash.encoders.base import ItemError as ItemError
    from modalhash.encoders.base import State as State
    from modalhash.encoders.base import fit_encoder as fit_encoder
    from modalhash.encoders.combined import CombinedTextEncoder as CombinedTextEncoder
    from modalhash.encoders.encode import Encoded as Encoded
    from modalhash.encoders.encode import Failure as Failure
    from modalhash.encoders.encode import encode_batch as encode_batch
    from modalhash.encoders.encode import encode_dataset as encode_dataset
    from modalhash.encoders.encode import encode_items as encode_items
    from modalhash.encoders.encode import encoding_seconds as encoding_seconds
    from modalhash.encoders.huggingface import HuggingFaceImage as HuggingFaceImage
    from modalhash.encoders.huggingface import HuggingFaceText as HuggingFaceText
    from modalhash.encoders.image import ImageEncoder as ImageEncoder
    from modalhash.encoders.lookup import ENCODERS as ENCODERS
    from modalhash.encoders.lookup import EncoderFileError as EncoderFileError
    from modalhash.encoders.lookup import describe as describe
    from modalhash.encoders.lookup import encoder_for as encoder_for
    from modalhash.encoders.lookup import get_encoder as get_encoder
    from modalhash.encoders.lookup import load_encoder as load_encoder
    from modalhash.encoders.lookup import mismatch as mismatch
    from modalhash.encoders.lookup import names_module as names_module
    from modalhash.encoders.lookup import save_encoder as save_encoder
    from modalhash.encoders.names import NAMES as NAMES
    from modalhash.encoders.picture_reader import PictureReader as PictureReader
    from modalhash.encoders.precomputed import Precomputed as Precomputed
    from modalhash.encoders.quality import QUALITIES as QUALITIES
    from modalhash.encoders.quality import default_quality as default_quality
    from modalhash.encoders.quality import describe_quality as describe_quality
    from modalhash.encoders.quality import encoders_of as encoders_of
    from modalhash.encoders.semantic import MultilingualE5 as MultilingualE5
    from modalhash.encoders.semantic import UniversalSentenceEncoder as UniversalSentenceEncoder
    from modalhash.encoders.text import HashingEncoder as HashingEncoder
    from modalhash.encoders.text import TfidfEncoder as TfidfEncoder

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "_nouns": ["NOUNS"],
        "_pictures": ["read_picture", "read_whole_picture"],
        "base": ["READS", "Encoder", "EncoderBase", "ItemError", "State", "fit_encoder"],
        "combined": ["CombinedTextEncoder"],
        "encode": ["Encoded", "Failure", "encode_batch", "encode_dataset", "encode_items", "encoding_seconds"],
        "huggingface": ["HuggingFaceImage", "HuggingFaceText"],
        "image": ["ImageEncoder"],
        "lookup": [
            "ENCODERS",
            "EncoderFileError",
            "describe",
            "encoder_for",
            "get_encoder",
            "load_encoder",
            "mismatch",
            "names_module",
            "save_encoder",
        ],
        "names": ["NAMES"],
        "picture_reader": ["PictureReader"],
        "precomputed": ["Precomputed"],
        "quality": ["QUALITIES", "default_quality", "describe_quality", "encoders_of"],
        "semantic": ["MultilingualE5", "UniversalSentenceEncoder"],
        "text": ["HashingEncoder", "TfidfEncoder"],
    },
)
