"""What an encoder is: raw items of one modality in, feature vectors out."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from scipy import sparse
from sklearn.exceptions import NotFittedError

from modalhash.core.archives import read_members
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_int, check_sparse

READS = ("text", "image", "array")
"""What an encoder may read: texts, pictures (paths or bytes), rows of numbers."""


@dataclass(frozen=True)
class State:
    """All that an encoder has to remember: ``config`` goes to JSON, ``arrays`` to safetensors."""

    config: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


@runtime_checkable
class Encoder(Protocol):
    """What the search engine requires of an encoder; a class needs no base class to be one.

    ``encode`` takes a sequence of raw items (paths or bytes of pictures, texts, rows of numbers …) and returns
    float32 ``(n, dim)``: a dense array or, where most features are zero, a CSR array. It raises ``ValueError``
    or ``OSError`` where an item cannot be read. Equal state means equal features: a model is only good with
    the encoder it was trained with; ``name``, ``version``, ``dim`` and ``digest`` identify it.
    """

    name: str
    version: int
    reads: str
    """What an item is: ``"text"``, ``"image"`` (the path or the bytes of one) or ``"array"`` (a row of numbers)."""

    @property
    def dim(self) -> int:
        """Return the number of features per item."""

    @property
    def state(self) -> State:
        """Return what :meth:`restore` needs to make the same encoder again."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 of name, version and state, in hexadecimal."""

    def fit(self, items: Sequence[Any]) -> Self:
        """Learn from training items what has to be learned, which may be nothing, and return the encoder."""

    def encode(self, batch: Sequence[Any]) -> Matrix:
        """Return features of raw items, float32 ``(n, dim)``, dense or CSR."""

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder that has this state."""


class ItemError(ValueError):
    """One item cannot be encoded.

    Attributes
    ----------
    reason : what is wrong with it, without saying which item it is
    """

    def __init__(self, reason: str, where: str | None = None) -> None:
        super().__init__(reason if where is None else f"{where}: {reason}")
        self.reason = reason


class EncoderBase(ABC):
    """Base of the built-in encoders: one that learns nothing and remembers its parameters."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised whenever the same state would give other features."""
    reads: ClassVar[str] = "image"
    """What an item is: one of :data:`READS`."""
    parallel: ClassVar[bool] = False
    """Whether several workers encode faster than one, in threads or, small enough to be sent there, in processes."""
    limits: ClassVar[frozenset[str]] = frozenset()
    """Parameters that refuse items and change no feature: no part of the digest."""
    space: str | None = None
    """The space that :meth:`in_space` makes vectors of, where encoders of several modalities share one: equal names
    mean that a picture and a text can be compared. An encoder may know it only after ``fit``."""
    same_meaning: float | None = None
    """Of an encoder of texts, the cosine from which two single words mean about the same; None where it cannot tell."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Return the number of features per item."""

    @property
    @abstractmethod
    def state(self) -> State:
        """Return what :meth:`restore` needs."""

    @abstractmethod
    def encode(self, batch: Sequence[Any]) -> Matrix:
        """Return features of raw items, float32 ``(n, dim)``."""

    def fit(self, items: Sequence[Any]) -> Self:
        """Learn nothing."""
        return self

    def in_space(self, features: Matrix) -> Array:
        """Return items as vectors of :attr:`space`, from their features, which are such vectors by default."""
        return np.asarray(features.toarray() if sparse.issparse(features) else features)

    def text_encoder(self) -> Any:
        """Return a new encoder of texts with the same :attr:`space`, for an encoder of pictures; None without one."""
        return None

    def known(self, batch: Sequence[Any]) -> Array:
        """Return which share of each item is known to the encoder: 1 for one without a vocabulary."""
        return np.ones(len(batch))

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder that has this state."""
        return cls(**state.config)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of name, version and state, in hexadecimal."""
        return digest_of(self.name, self.version, self.state, without=self.limits)

    @property
    def feature_digest(self) -> str:
        """Return the SHA-256 of what decides the features, where the state has more than that."""
        return self.digest

    def __repr__(self) -> str:
        try:
            size = f"{self.dim} features"
        except ValueError:
            size = "not fitted"
        return f"<{type(self).__name__} {self.name!r} version {self.version}, {size}>"


def fit_encoder(encoder: Any, items: Sequence[Any], labels: Array | None = None) -> None:
    """Fit an encoder to training items, with their labels, 0/1 (items, labels), where it learns from such.

    An encoder that does has a method ``fit_labelled(items, labels)`` beside ``fit``.
    """
    items = read_members(items)
    fit_labelled = getattr(encoder, "fit_labelled", None)
    if fit_labelled is None or labels is None or not np.any(labels):
        encoder.fit(items)
    else:
        fit_labelled(items, np.asarray(labels))


def digest_of(name: str, version: int, state: State, *, without: frozenset[str] = frozenset()) -> str:
    """Return the SHA-256 over everything that decides the features."""
    config = {key: value for key, value in state.config.items() if key not in without}
    total = hashlib.sha256(json.dumps([name, version, config], sort_keys=True).encode())
    for key in sorted(state.arrays):
        values = np.ascontiguousarray(state.arrays[key])
        total.update(f"{key} {values.dtype.str} {values.shape}".encode())
        total.update(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
    return total.hexdigest()


# -- Encoders whose weights lie in a file of another package: the digest of the file is part of the state.


class WeightsEncoder(EncoderBase):
    """An encoder that is only restored where the installed weights are those it had."""

    _sha256: str
    """Of the weights, set by the constructor; the state has it as ``weights``."""

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder, if the installed weights are those it had."""
        config = dict(state.config)
        expected = config.pop("weights")
        encoder = cls(**config)
        check_weights(cls.name, encoder._sha256, expected)
        return encoder


def check_weights(name: str, installed: str, expected: str) -> None:
    """Raise ``ValueError`` if the weights that are installed are not those an encoder was saved with."""
    if installed != expected:
        raise ValueError(
            f"the weights of {name!r} are not those it was saved with: their SHA-256 starts with "
            f"{installed[:12]}, expected {str(expected)[:12]}. Install the package version of that time"
        )


class Precomputed(EncoderBase):
    """Rows of numbers as they come: for features from anywhere else.

    Items are the rows of an array or of a sparse matrix, or a sequence of vectors.

    Parameters
    ----------
    dim
        features per item; learned by ``fit`` if None
    source
        what made the features, in your own words: part of the digest, so that a model trained on the features of
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
        """Learn the number of features, or check it."""
        if sparse.issparse(items):
            check_sparse(items, "features")
        first: Matrix = items[:1]
        width = first.shape[1] if sparse.issparse(first) else np.asarray(first).shape[-1]
        if self._dim is not None and width != self._dim:
            raise ValueError(f"the items have {width} features; expected {self._dim}")
        self._dim = int(width)
        return self

    @property
    def dim(self) -> int:
        """Return the number of features per item."""
        if self._dim is None:
            raise NotFittedError("the encoder 'precomputed' does not know its dim; pass dim=, or call fit(features)")
        return self._dim

    @property
    def state(self) -> State:
        """Return the number of features and their source."""
        return State({"dim": self._dim, "source": self.source})

    def encode(self, batch: Sequence[Any] | Matrix) -> Matrix:
        """Return the same numbers as float32, dense or CSR as they came."""
        if sparse.issparse(batch):
            try:
                check_sparse(batch, "features")
            except ValueError as error:
                raise ItemError(str(error)) from None
            rows = sparse.csr_array(batch).astype(np.float32)
            values = rows.data
        else:
            try:
                rows = values = np.array(batch, dtype=np.float32)
            except (TypeError, ValueError) as error:
                raise ItemError(f"no rows of equally many numbers ({error})") from error
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise ItemError(f"shape {rows.shape}; expected (items, {self.dim})")
        if not np.isfinite(values).all():
            raise ItemError("some features are not finite numbers in float32")
        return rows
