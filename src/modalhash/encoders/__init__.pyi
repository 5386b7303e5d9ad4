from .combined import CombinedTextEncoder as CombinedTextEncoder
from .encode import (
    Encoded as Encoded,
    Failure as Failure,
    encode_batch as encode_batch,
    encode_dataset as encode_dataset,
    encode_items as encode_items,
    encoding_seconds as encoding_seconds,
)
from .encoder import (
    ENCODERS as ENCODERS,
    QUALITIES as QUALITIES,
    READS as READS,
    Encoder as Encoder,
    EncoderBase as EncoderBase,
    EncoderFileError as EncoderFileError,
    ItemError as ItemError,
    Precomputed as Precomputed,
    State as State,
    default_quality as default_quality,
    describe as describe,
    describe_quality as describe_quality,
    encoder_for as encoder_for,
    encoders_of as encoders_of,
    fit_encoder as fit_encoder,
    get_encoder as get_encoder,
    load_encoder as load_encoder,
    mismatch as mismatch,
    names_module as names_module,
    save_encoder as save_encoder,
    saved_reads as saved_reads,
)
from .huggingface import HuggingFaceImage as HuggingFaceImage, HuggingFaceText as HuggingFaceText
from .image import ImageEncoder as ImageEncoder
from .names import NAMES as NAMES, NOUNS as NOUNS
from .picture_files import (
    PictureReader as PictureReader,
    read_picture as read_picture,
    read_whole_picture as read_whole_picture,
)
from .semantic import MultilingualE5 as MultilingualE5, UniversalSentenceEncoder as UniversalSentenceEncoder
from .text import HashingEncoder as HashingEncoder, TfidfEncoder as TfidfEncoder
