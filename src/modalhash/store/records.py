"""What a store of items is: the protocol, the records in it, and the errors of every back end."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from modalhash.core.codes import check_codes
from modalhash.core.typing import Array, Codes
from modalhash.store.filters import Filter

KINDS = ("learned", "hashed")
"""A code was made from labels in training, or from features alone."""

MAX_REFINEMENT = 192
"""The most bytes of an item's refinement vector."""

MAX_DEPTH = 100
"""The most levels of lists and mappings in each other in ``extra``."""

PICTURE_TEXT = "picture_text"
"""The field of ``extra`` that has the text in a picture."""

SEARCHED_FIELDS = ("title", "caption", "description", PICTURE_TEXT)
"""The fields of ``extra`` whose words are searched, unless a store is told otherwise."""

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_NUL_IN_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # a backslash before it may itself be escaped

Key = tuple[str, str]
"""The modality and the id of an item, which together name it in a store."""


class StoreError(RuntimeError):
    """The store cannot be used; the message says why and what to do."""


class StoreBusyError(StoreError):
    """Another process has been writing for longer than this one was willing to wait."""


class StoreFullError(StoreError):
    """The disk is full; the change did not happen, everything before it is there."""


class StoreAccessError(StoreError):
    """The store cannot be opened here as wanted: a permission, a read-only or a failing disk. It may be whole."""


class StoreUnavailableError(StoreError):
    """The server of the store cannot be reached now; the change did not happen. The next call tries again."""


class StoreUncertainError(StoreUnavailableError):
    """The server was lost while it confirmed a change: whether that happened is unknown, until somebody looks."""


class Revision(NamedTuple):
    """Equal revisions mean equal contents.

    A revision grows with every change, whoever makes it. Compare revisions, and hand them back to the store that gave
    them; the numbers inside are its own.
    """

    items: int = 0
    removals: int = 0


@dataclass(frozen=True)
class Record:
    """An item as it is stored.

    Parameters
    ----------
    id : str
        The id that its owner gave; unique among the items of a modality.
    modality : str
        E.g. ``"image"``.
    code : uint8 (ceil(n_bits / 8),) or bytes
        Packed; bytes when it comes from the store.
    kind : {"hashed", "learned"}
        Whether the code was made from features alone, or from labels in training.
    text, uri : str, optional
        The text itself, or where the item is.
    labels : tuple of str or int
        Its labels, if known.
    extra : mapping
        Anything else to store with it; goes through JSON.
    refinement : bytes, optional
        What orders items of equal codes: a vector of at most 128 signed bytes, one int8 value each. The store keeps it
        and does not look into it.
    """

    id: str
    modality: str
    code: bytes | Codes
    kind: str = "hashed"
    text: str | None = None
    uri: str | None = None
    labels: tuple[str | int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    refinement: bytes | None = None

    @property
    def key(self) -> Key:
        """The modality and the id, which together name the item in a store."""
        return self.modality, self.id


class Store(Protocol):
    """Items with their codes, texts or URIs, and labels: the truth that every index is a copy of.

    An item has two names. Its *key* is its modality and the id that its owner gave. Its *number* is an integer that
    the store gives and an index holds; numbers only rise, and none is used twice.

    Every call that changes something happens whole or not at all, and one after the other, whoever writes. Several
    threads may use one store, and several processes may have the same one open. Whatever goes wrong with the storage
    is a :class:`StoreError`.
    """

    n_bits: int
    """The length of the codes."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: object) -> bool: ...

    def close(self) -> None:
        """Close the store; every change that returned is there. Closing twice does nothing; using it then fails."""

    def add(self, records: Iterable[Record], *, replace: bool = False) -> Array:
        """Add items and return their numbers.

        If a key is in the store already, or is given twice, ValueError is raised and nothing is added. With
        ``replace`` the new item takes the key of the old one, under a new number.
        """

    def remove(self, keys: Iterable[Key], *, missing: str = "error") -> int:
        """Remove items and return how many there were.

        If a key is not in the store, KeyError is raised and nothing is removed, unless ``missing="ignore"``.
        """

    def update(self, records: Mapping[int, Record]) -> Array:
        """Replace items by their numbers, each under a new number; return which of the numbers were replaced.

        An item that is no longer there, because somebody removed or replaced it since its number was read, is left as
        it is: nobody's change is undone. The records keep the keys of the items that they replace, or ValueError is
        raised and nothing is replaced.
        """

    def optimize(self) -> None:
        """Do what makes later searches quicker, if there is anything; items stay as they are, and so does the revision.

        Others may go on reading and writing meanwhile.
        """

    def lock_writes(self) -> AbstractContextManager[None]:
        """Keep everybody else from writing during the block, because another store is about to take the place.

        Who wants to write waits for its end. If the block ends well, a store that others may still reach refuses every
        change from then on.
        """

    def get(self, id: str, *, modality: str) -> Record:
        """Return the item with this key, or raise KeyError."""

    def row_ids(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the numbers of the items with these keys, without those that are not in the store."""

    def records(self, row_ids: Any, *, where: Filter | None = None) -> dict[int, Record]:
        """Return the items with these numbers that pass the filter, without those that are not in the store."""

    def matching(self, where: Filter | None = None) -> Array:
        """Return the numbers, rising, of the items that pass the filter."""

    def newest(self, where: Filter | None = None) -> Array:
        """Return the numbers of the items that pass the filter, those that were taken last first.

        The field ``taken`` of ``extra`` says when, as ``2019-06-14T12:30:00``. Items without one come after the
        others, those that were added last first.
        """

    def labels(self) -> dict[str, int]:
        """Return how many items have each label, the most frequent first; numbers are texts here."""

    def values(self, field: str, *, limit: int = 100) -> dict[str, int]:
        """Return how many items have each value of a field of ``extra``, the most frequent first; numbers are texts."""

    def search_text(
        self, query: str, *, where: Filter | None = None, limit: int = 20, match_all: bool = False
    ) -> Array:
        """Return the numbers of the items whose text, captions or id have words of the query, the best first.

        Where no item has all words, those that have some are found, unless ``match_all`` is set.

        Captions are the fields of ``extra`` that the store was told to search. Whatever is typed is words, never a
        language of queries, except ``dino*`` for whatever begins so. A store that cannot search words finds nothing.
        """

    def scan(self, *, modality: str | None = None) -> Iterator[Record]:
        """Iterate in insertion order; concurrent changes are skipped.

        An item that was removed since the call may still come, one that was added does not.
        """

    def codes(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Codes]]:
        """Iterate over batches of (numbers, numbers of the modalities, packed codes) in insertion order.

        Only items that were added after ``since`` and not after ``until`` are included, and of these only the ones that
        are still there.
        """

    def refinements(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Iterate over batches of (numbers, numbers of the modalities, vectors, who has one), as :meth:`codes`.

        Vectors are rows of 128 int8 values, with zeros after those that an item has, and zeros alone where it has none.
        """

    def removed(self, since: Revision, until: Revision) -> Array:
        """Return the numbers of the items that were removed after ``since`` and not after ``until``.

        A store forgets removals after a while. Then other numbers of items that are no longer there are among them.
        """

    def revision(self) -> Revision:
        """Return the current revision; cheap enough to call before every search."""

    def revision_if_ready(self) -> Revision | None:
        """Return the current revision if that takes no waiting; None if it may: for a change here, or for a network."""

    def modalities(self) -> dict[str, int]:
        """Return the number of each modality by name; a number never changes."""

    def count(self, modality: str | None = None) -> int:
        """Return the number of items, in all or in one modality."""

    def uris(self, part: str) -> set[str]:
        """Return the URIs that have this text in them, of all items."""

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of items by modality and kind of code; zeros are left out."""


# -- what back ends have in common


class FoundNumbers:
    """The numbers that the last filters found, until something changes."""

    MOST = 8

    def __init__(self) -> None:
        self._found: dict[str, tuple[Revision, Array]] = {}
        self._lock = threading.Lock()

    def get(self, key: str, revision: Revision, select: Callable[[], Array]) -> Array:
        """Return what was found under this key at this revision; ``select`` finds it if that is not known."""
        known = self._found.get(key)
        if known is None or known[0] != revision:
            known = revision, select()
            with self._lock:
                self._found.pop(key, None)
                self._found[key] = known
                for old in list(self._found)[: -self.MOST]:
                    del self._found[old]
        return known[1]


def check_records(records: Iterable[Record], n_bits: int) -> list[Record]:
    """Return the records with codes as bytes, or raise an error that names the first bad one."""
    batch = [_check_record(record, n_bits) for record in records]
    seen: set[Key] = set()
    for record in batch:
        if record.key in seen:
            raise ValueError(f"the id {record.id!r} of {record.modality!r} is given twice; nothing was added")
        seen.add(record.key)
    return batch


def check_keys(keys: Iterable[Key]) -> list[Key]:
    """Return the keys as a list, or raise TypeError for what is no key."""
    if isinstance(keys, str):
        raise TypeError(f"keys is the text {keys!r}; expected pairs, e.g. [('text', {keys!r})]")
    checked = list(keys)
    for key in checked:
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key)):
            raise TypeError(f"the key {key!r} is {type(key).__name__}; expected a pair of texts: (modality, id)")
    return checked


def check_updates(records: Mapping[int, Record], n_bits: int) -> dict[int, Record]:
    """Return new records by the number of the item that each replaces, with codes as bytes."""
    return dict(zip(map(int, records), check_records(records.values(), n_bits), strict=True))


def check_same_keys(wanted: Mapping[int, Record], keys: Mapping[int, Key]) -> None:
    """Raise ValueError if a record has another key than the item that it is to replace."""
    for number, key in keys.items():
        if wanted[number].key != key:
            raise ValueError(
                f"item {number} is {key}, and its new record is {wanted[number].key}; nothing was replaced"
            )


def to_json(value: Any) -> str:
    """Return labels or other fields of an item as JSON."""
    return _JSON.encode(value)


def check_storable(record: Record) -> None:
    r"""Raise for a field of an item that no store can hold, whatever its code is.

    Examples
    --------
    >>> check_storable(Record("a", "text", b"", labels=("sea\0",)))
    Traceback (most recent call last):
        ...
    ValueError: the label 'sea\x00' has a NUL
    """
    if _is_plain(record):  # nearly every item: a quarter of the time
        return
    for name in ("id", "modality"):
        value = getattr(record, name)
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"{name} is {value!r}; expected a non-empty text without NUL")
    for name in ("text", "uri"):
        value = getattr(record, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is {type(value).__name__}; expected a text or None")
    if "\0" in (record.uri or ""):
        raise ValueError(f"uri is {record.uri!r}; expected a text without NUL")
    if "\0" in (record.text or ""):
        raise ValueError("the text has a NUL")
    if isinstance(record.labels, str) or not all(
        isinstance(label, str | int) and not isinstance(label, bool) for label in record.labels
    ):
        raise TypeError(f"labels are {record.labels!r}; expected texts or integers, several or none")
    for label in record.labels:
        if isinstance(label, str) and "\0" in label:
            raise ValueError(f"the label {label!r} has a NUL")
    written: dict[str, str] = {name: getattr(record, name) or "" for name in ("id", "modality", "text", "uri")}
    written |= {"labels": "", "extra": ""}
    for name, value in (("labels", list(record.labels)), ("extra", dict(record.extra))):
        if not value:
            continue
        try:
            written[name] = to_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"{name} cannot be written as JSON: {error}") from None
    if _NUL_IN_JSON.search(written["extra"]):
        raise ValueError("extra has a NUL in a text")
    if _depth(record.extra) > MAX_DEPTH:
        raise ValueError(f"extra has more than {MAX_DEPTH} lists and mappings in each other")
    for name, text in written.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = text[error.start]
            raise ValueError(f"{name} has half a character (the surrogate {half!r}), which no file can hold") from None


def _is_plain(record: Record) -> bool:
    """Return whether a record is certainly fine: whole texts, and other fields that are texts or integers."""
    id, modality, labels, extra = record.id, record.modality, record.labels, record.extra
    if not (type(id) is type(modality) is str and id and modality and type(labels) is tuple and type(extra) is dict):
        return False
    parts = [id, modality, record.text or "", record.uri or ""]
    for value in labels:
        if type(value) is str:
            parts.append(value)
        elif type(value) is not int:
            return False
    for name, value in extra.items():
        parts.append(name)
        if type(value) is str:
            parts.append(value)
        elif type(value) is not int or value.bit_length() > 64:
            return False
    try:
        text = "\n".join(parts)
    except TypeError:  # one of them is no text
        return False
    return "\0" not in text and (text.isascii() or _is_encodable(text))


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_record(record: Any, n_bits: int) -> Record:
    if not isinstance(record, Record):
        raise TypeError(f"got {type(record).__name__}; expected modalhash.store.Record")
    try:
        check_storable(record)
    except (TypeError, ValueError) as error:
        raise type(error)(f"item {record.id!r}: {error}") from None
    if record.kind not in KINDS:
        raise ValueError(f"item {record.id!r}: the kind of its code is {record.kind!r}; expected one of {KINDS}")
    refinement = record.refinement
    if refinement is not None and (not isinstance(refinement, bytes) or not 1 <= len(refinement) <= MAX_REFINEMENT):
        what = f"{len(refinement)} bytes" if isinstance(refinement, bytes) else type(refinement).__name__
        raise ValueError(f"item {record.id!r}: its refinement is {what}; expected 1 to {MAX_REFINEMENT} bytes, or None")
    code = record.code
    unused = -n_bits % 8
    if isinstance(code, bytes) and 8 * len(code) == n_bits + unused and not code[-1] % 2**unused:
        return record  # the usual case, without an array for every item
    row = np.frombuffer(code, dtype=np.uint8) if isinstance(code, bytes) else np.asarray(code)
    packed = check_codes(row[None], n_bits, f"item {record.id!r}: code").tobytes()
    return record if isinstance(code, bytes) else replace(record, code=packed)


def _depth(value: Any) -> int:
    """Return how many lists and mappings are in each other, counted level by level: however deep, nothing recurses."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, Mapping | list | tuple) and one]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, Mapping) else one)]
    return depth
