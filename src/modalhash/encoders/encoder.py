"""The protocol and base classes of encoders, which map raw items of one modality to feature vectors."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from scipy import sparse

from modalhash.core.archives import read_members
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_int, check_sparse

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
        return np.asarray(features.toarray() if sparse.issparse(features) else features)

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
        if self._dim is None:
            raise not_fitted("the encoder 'precomputed' does not know its dim; pass dim=, or call fit(features)")
        return self._dim

    @property
    def state(self) -> State:
        return State({"dim": self._dim, "source": self.source})

    def encode(self, batch: Sequence[Any] | Matrix) -> Matrix:
        """Return the same numbers as float32, dense or CSR like the input."""
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
                raise ItemError(f"rows must have equal numbers of values ({error})") from error
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise ItemError(f"shape {rows.shape}; expected (items, {self.dim})")
        if not np.isfinite(values).all():
            raise ItemError("some features are not finite numbers in float32")
        return rows
