"""The ``Store`` protocol, its records and errors, and what all back ends share."""

from __future__ import annotations

import json
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from modalhash.core.codes import check_codes
from modalhash.core.typing import Array, Codes
from modalhash.store.conditions import Dialect
from modalhash.store.filters import KINDS, Filter

MAX_REFINEMENT = 192
"""Maximum size of a refinement vector in bytes."""

MAX_DEPTH = 100
"""Maximum nesting depth of lists and mappings in ``extra``."""

KEPT_MARKS = 32
"""Number of marks that a store keeps (:meth:`Store.add_mark`)."""

MAX_CACHED = 8
"""Filters whose selected row ids are cached."""

MAX_DAMAGE = 20
"""Messages of each kind of damage that are listed."""

KEPT_REMOVALS = 10_000
"""Removals that are recorded; older ones are derived from the existing row ids."""

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_NUL_IN_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # a backslash before it may itself be escaped

Key = tuple[str, str]
"""Modality and id, which identify an item."""


class StoreError(RuntimeError):
    """The store cannot be used; the message gives the reason and what to do."""


class StoreReplacedError(StoreError):
    """Another store, with the items of a retrained engine, replaced this one; the change did not happen."""


class StoreMissingError(StoreError):
    """The tables of the store are gone, or the database is another one; the change did not happen."""


class StoreBusyError(StoreError):
    """Another process held the write lock for longer than the timeout."""


class StoreFullError(StoreError):
    """The disk is full; the change did not happen and earlier changes are intact."""


class StoreAccessError(StoreError):
    """The store cannot be opened in this mode (permissions, read-only or failing disk). It may be intact."""


class StoreUnavailableError(StoreError):
    """The server cannot be reached; the change did not happen. The next call reconnects."""


class StoreUncertainError(StoreUnavailableError):
    """The connection was lost during a commit, so it is unknown whether the change happened."""


class Revision(NamedTuple):
    """State of a store; equal revisions mean equal contents.

    Every change by any process increases it. Compare revisions, or pass them back to the store that returned them; the
    fields are internal to the store.
    """

    items: int = 0
    removals: int = 0


@dataclass(frozen=True)
class Record:
    """An item as it is stored.

    Parameters
    ----------
    id : str
        Id given by the owner; unique within a modality.
    modality : str
        E.g. ``"image"``.
    code : uint8 (ceil(n_bits / 8),) or bytes
        Packed code; bytes when read from a store.
    kind : {"hashed", "learned"}
        Whether the code was computed from features alone, or from labels in training.
    text, uri : str, optional
        The text itself, or the location of the item.
    labels : tuple of str or int
        Labels, if known.
    extra : mapping
        Further fields; must be serializable as JSON.
    refinement : bytes, optional
        Up to ``MAX_REFINEMENT`` int8 values that order items of equal codes. Opaque to the store.
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
        return self.modality, self.id


class Store(Protocol):
    """Items with their codes, texts or URIs, and labels; the authoritative copy for every index.

    An item is identified by its *key*, which is its modality and the id given by the owner, and by its *row id*, an
    integer that the store assigns and an index holds. Row ids ascend in insertion order and are never reused.

    Every change is atomic, and changes by all writers are serialized. A store can be shared between threads and opened
    by several processes. Every storage failure raises a :class:`StoreError`.
    """

    n_bits: int

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: object) -> bool: ...

    def close(self) -> None:
        """Close the store. Closing twice does nothing; any other call then raises."""

    def add(self, records: Iterable[Record], *, replace: bool = False) -> Array:
        """Add items and return their row ids.

        Raises ValueError and adds nothing if a key is in the store already or is given twice. With ``replace`` the new
        item replaces the old one of the same key and gets a new row id.
        """

    def remove(self, keys: Iterable[Key], *, missing: str = "error") -> int:
        """Remove items and return how many were removed.

        Raises KeyError and removes nothing if a key is not in the store, unless ``missing="ignore"``.
        """

    def update(self, records: Mapping[int, Record]) -> Array:
        """Replace items by row id, each under a new row id; return the old row ids that were replaced.

        Items that were removed or replaced since their row id was read are skipped, so that no concurrent change is
        lost. Raises ValueError and replaces nothing if a record has another key than the item it replaces.
        """

    def optimize(self) -> None:
        """Reorganize the store for faster searches; items and revision do not change."""

    def lock_writes(self) -> AbstractContextManager[Callable[[str | None], None]]:
        """Block all other writers during the block, because another store is about to replace this one.

        Yields a function to call with the schema of the other store, if any, when nothing but the exchange is left. A
        store that other machines can still reach then refuses every later change, and names its successor.
        """

    def successor(self) -> str | None:
        """Return the schema of the store that replaced this one, if it did on any machine."""

    def get(self, id: str, *, modality: str) -> Record:
        """Return the item with this key, or raise KeyError."""

    def row_ids(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the row ids of the items with these keys; unknown keys are omitted."""

    def records(self, row_ids: Any, *, where: Filter | None = None) -> dict[int, Record]:
        """Return the items with these row ids that match the filter; unknown row ids are omitted."""

    def matching(self, where: Filter | None = None) -> Array:
        """Return the row ids of the items that match the filter, ascending."""

    def newest(self, where: Filter | None = None) -> Array:
        """Return the row ids of the items that match the filter, most recently taken first.

        The date is the field ``taken`` of ``extra``, e.g. ``2019-06-14T12:30:00``. Items without it follow, last added
        first.
        """

    def labels(self) -> dict[str, int]:
        """Return the number of items with each label, most frequent first; integer labels become strings."""

    def values(self, field: str, *, limit: int = 100) -> dict[str, int]:
        """Return the number of items with each value of a field of ``extra``, as strings, most frequent first."""

    def search_text(
        self, query: str, *, where: Filter | None = None, limit: int = 20, match_all: bool = False
    ) -> Array:
        """Return the row ids of the items whose text, captions or id contain words of the query, best first.

        If no item contains all words, items with some of them are returned, unless ``match_all`` is set. Captions are
        the ``searched_fields`` of ``extra``. The query has no syntax except ``dino*``, which matches a prefix. A store
        without text search returns nothing.
        """

    def scan(self, *, modality: str | None = None) -> Iterator[Record]:
        """Iterate over the records in insertion order.

        Items added after the call are not included; items removed after the call may be.
        """

    def codes(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Codes]]:
        """Iterate over batches of (row ids, modality numbers, packed codes) in insertion order.

        Only items that were added after ``since`` and not after ``until``, and that still exist, are included.
        """

    def refinements(
        self, *, modality: str | None = None, since: Revision | None = None, until: Revision | None = None
    ) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Iterate over batches of (row ids, modality numbers, vectors, present), as :meth:`codes`.

        Vectors are rows of ``MAX_REFINEMENT`` int8 values, padded with zeros. ``present`` is false for items without
        one.
        """

    def removed(self, since: Revision, until: Revision) -> Array:
        """Return the row ids of the items that were removed after ``since`` and not after ``until``.

        Only recent removals are recorded. For an older ``since``, the result is every row id up to it that no longer
        exists.
        """

    def revision(self) -> Revision:
        """Return the current revision; cheap enough to call before every search."""

    def revision_if_ready(self) -> Revision | None:
        """Return the current revision, or None if that would wait for a lock or a network."""

    def add_mark(self, mark: str) -> None:
        """Store a mark, a word that names the present state, without a new revision; the last 32 are kept."""

    def has_mark(self, mark: str) -> bool:
        """Return whether this store had the mark added, or is a copy of a store that had.

        So whatever was read from the marked store when the mark was added is a past state of this one.
        """

    def modalities(self) -> dict[str, int]:
        """Return the number of each modality by name; numbers never change."""

    def count(self, modality: str | None = None) -> int:
        """Return the number of items, in total or in one modality."""

    def uris(self, part: str) -> set[str]:
        """Return the URIs of all items that contain ``part``."""

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of items by (modality, kind), without zeros."""


class SharedStore(Store):
    """What the stores have in common: context manager, filters, whose results are cached, and marks."""

    dialect: ClassVar[Dialect]

    def __init__(self) -> None:
        self._found: dict[str, tuple[Revision, Array]] = {}
        self._found_lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def __contains__(self, key: object) -> bool:
        (checked,) = check_keys([key])  # type: ignore[list-item]
        return checked in self.row_ids([checked])

    def matching(self, where: Filter | None = None) -> Array:
        """Return the row ids of the items that match the filter, ascending; recent results are cached.

        A filter on labels or ids reads the items that have these; any other filter reads all items.
        """
        key = str(where)  # as text, because 1 and true are equal in Python, but not here
        return self._cached(key, lambda: self._select_matching(where))

    def newest(self, where: Filter | None = None) -> Array:
        return self._cached(f"newest {where}", lambda: self._select_newest(where))

    def removed(self, since: Revision, until: Revision) -> Array:
        mark = self.dialect.mark
        sql = f"SELECT number FROM removed WHERE step > {mark} AND step <= {mark} ORDER BY step"
        known = np.array([row[0] for row in self._rows(sql, since.removals, until.removals)], dtype=np.int64)
        if int(self._meta("forgotten_removals") or 0) <= since.removals:  # read last: some may just have been dropped
            return known
        return np.setdiff1d(np.arange(1, since.items + 1), self._select_up_to(since.items), assume_unique=True)

    def has_mark(self, mark: str) -> bool:
        return mark in self._meta("marks").split()

    def modalities(self) -> dict[str, int]:
        return dict(self._rows("SELECT name, number FROM modality ORDER BY number"))

    def labels(self) -> dict[str, int]:
        return dict(self._rows("SELECT name, items FROM label WHERE items > 0 ORDER BY items DESC, name"))

    def values(self, field: str, *, limit: int = 100) -> dict[str, int]:
        return dict(self._rows(*self.dialect.values_of(field), limit))

    @abstractmethod
    def _rows(self, sql: str, *values: Any) -> list[Any]: ...

    @abstractmethod
    def _select_matching(self, where: Filter | None) -> Array: ...

    @abstractmethod
    def _select_newest(self, where: Filter | None) -> Array: ...

    @abstractmethod
    def _select_up_to(self, last: int) -> Array:
        """Return the row ids of all items up to ``last``."""

    def _meta(self, key: str) -> str:
        rows = self._rows(f"SELECT value FROM meta WHERE key = {self.dialect.mark}", key)
        return str(rows[0][0]) if rows else ""

    def _cached(self, key: str, select: Callable[[], Array]) -> Array:
        """Return the row ids that a recent filter selected at this revision, or select them."""
        revision, known = self.revision(), self._found.get(key)
        if known is None or known[0] != revision:
            known = revision, select()
            with self._found_lock:
                self._found.pop(key, None)
                self._found[key] = known
                for old in list(self._found)[:-MAX_CACHED]:
                    del self._found[old]
        return known[1]


def check_absent(known: Collection[Key], n: int) -> None:
    """Raise ValueError if some of ``n`` new keys are in the store already."""
    if known:
        modality, id = next(iter(known))
        raise ValueError(
            f"{len(known)} of {n} ids are in the store already (first: {id!r} of {modality!r}); "
            "nothing was added. Pass replace=True to replace those items"
        )


def check_present(wanted: Sequence[Key], known: Collection[Key]) -> None:
    """Raise KeyError if a key to remove is not in the store."""
    if len(known) < len(wanted):
        modality, id = next(key for key in wanted if key not in known)
        raise KeyError(
            f"{len(wanted) - len(known)} of {len(wanted)} ids are not in the store (first: {id!r} of "
            f"{modality!r}); nothing was removed. Pass missing='ignore' to remove the others"
        )


def first_damage(found: list[str]) -> list[str]:
    """Return the first messages about damaged items, and how many more there are."""
    more = len(found) - MAX_DAMAGE
    return found if more <= 0 else [*found[:MAX_DAMAGE], f"and {more:,} more items"]


def check_records(records: Iterable[Record], n_bits: int) -> list[Record]:
    """Return the records with codes as bytes, or raise an error that names the first invalid one."""
    batch = [_check_record(record, n_bits) for record in records]
    seen: set[Key] = set()
    for record in batch:
        if record.key in seen:
            raise ValueError(f"the id {record.id!r} of {record.modality!r} is given twice; nothing was added")
        seen.add(record.key)
    return batch


def check_keys(keys: Iterable[Key]) -> list[Key]:
    if isinstance(keys, str):
        raise TypeError(f"keys is the text {keys!r}; expected pairs, e.g. [('text', {keys!r})]")
    checked = list(keys)
    for key in checked:
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key)):
            raise TypeError(f"the key {key!r} is {type(key).__name__}; expected a pair of texts: (modality, id)")
    return checked


def check_updates(records: Mapping[int, Record], n_bits: int) -> dict[int, Record]:
    """Return the new records, with codes as bytes, by the row id of the item that each replaces."""
    return dict(zip(map(int, records), check_records(records.values(), n_bits), strict=True))


def check_same_keys(wanted: Mapping[int, Record], keys: Mapping[int, Key]) -> None:
    """Raise ValueError if a record has another key than the item it replaces."""
    for number, key in keys.items():
        if wanted[number].key != key:
            raise ValueError(
                f"item {number} is {key}, and its new record is {wanted[number].key}; nothing was replaced"
            )


def to_json(value: Any) -> str:
    return _JSON.encode(value)


def check_storable(record: Record) -> None:
    r"""Raise if a field of a record cannot be stored; the code is not checked.

    Examples
    --------
    >>> check_storable(Record("a", "text", b"", labels=("sea\0",)))
    Traceback (most recent call last):
        ...
    ValueError: the label 'sea\x00' has a NUL
    """
    if _is_plain(record):  # the fast path for nearly every item
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
        raise ValueError(f"extra has more than {MAX_DEPTH} levels of nested lists and mappings")
    for name, text in written.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = text[error.start]
            raise ValueError(f"{name} has an unpaired surrogate ({half!r}), which cannot be encoded") from None


def _is_plain(record: Record) -> bool:
    """Return whether a record is certainly valid because its fields are encodable strings or integers."""
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
    except TypeError:  # one of them is not a string
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
        return record  # the usual case, without creating an array
    row = np.frombuffer(code, dtype=np.uint8) if isinstance(code, bytes) else np.asarray(code)
    packed = check_codes(row[None], n_bits, f"item {record.id!r}: code").tobytes()
    return record if isinstance(code, bytes) else replace(record, code=packed)


def _depth(value: Any) -> int:
    """Return the nesting depth of lists and mappings, level by level because recursion could overflow."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, Mapping | list | tuple) and one]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, Mapping) else one)]
    return depth
