"""Bring an index to the state of a store."""

from __future__ import annotations

from modalhash.index import Index
from modalhash.store import Revision, Store


def refresh(index: Index, store: Store, since: Revision | None = None) -> Revision:
    r"""Update ``index`` to the state of ``store`` and return its revision, for the next call.

    Reads what any process added or removed after ``since``. Items are indexed by row id, in the group of their modality
    (:meth:`Store.modalities`). Not thread-safe. If the store fails halfway, the rows that were added are removed again,
    so that the call can be repeated.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from modalhash.index import HammingIndex
    >>> from modalhash.store import Record, SqliteStore
    >>> folder = tempfile.TemporaryDirectory()
    >>> store, index = SqliteStore(Path(folder.name) / "items.db", n_bits=8), HammingIndex(8)
    >>> reached = refresh(index, store)
    >>> numbers = store.add([Record("boat", "text", b"\xa0"), Record("sea", "text", b"\x0a")])
    >>> reached = refresh(index, store, reached)
    >>> len(index)
    2
    >>> store.close(); folder.cleanup()
    """
    if index.n_bits != store.n_bits:
        raise ValueError(f"the index holds codes of {index.n_bits} bits, the store codes of {store.n_bits}")
    target = store.revision()
    if target == since:
        return target
    if since is not None:
        index.remove(store.removed(since, target), missing="ignore")
    added = []
    try:
        for numbers, groups, codes in store.codes(since=since, until=target):
            index.add(numbers, codes, group=groups)
            added.append(numbers)
    except BaseException:
        for numbers in added:
            index.remove(numbers)
        raise
    return target
