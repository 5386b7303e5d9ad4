"""An index in memory, kept in step with a store on disk."""

from __future__ import annotations

from modalhash.index import SearchIndex
from modalhash.store import Revision, Store


def refresh(index: SearchIndex, store: Store, since: Revision | None = None) -> Revision:
    r"""Bring ``index`` up to date: what was added and removed after ``since``, by whichever process.

    Items enter under their number, in the group of their modality (:meth:`Store.modalities`). Returns the position
    reached, to be handed in next time; where nothing has changed this takes microseconds. One caller at a time.

    The target is fixed first and no lock is held. An item removed while pages are read is either seen and
    removed by the next call, or not seen, and then the next call's removal finds nothing to do.

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
    if since is None:
        since = Revision()
    elif target != since:
        index.remove(store.removed(since, target), missing="ignore")
    if target != since:
        for numbers, groups, codes in store.codes(since=since, until=target):
            index.add(numbers, codes, group=groups)
    return target
