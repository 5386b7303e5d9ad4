"""Indexes and vectors in a file that is mapped into memory, so that a process has millions of items at once.

A snapshot is a copy of one moment, and never the only one: whoever opens it compares what is said of it (``facts``)
with what it is a copy of, takes in what has changed since, and does without it where it is missing, old or damaged.
Several processes that open the same snapshot share its memory.

All that compiled kernels use as a place in an array is compared with the array's size, so that not even a file that
somebody made on purpose leads a search outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modalhash._typing import Array
from modalhash.codes import n_bytes
from modalhash.index._layout import CHUNK, DistinctCodes, FrozenRows, PackedRows, chunks_for, pack_words
from modalhash.index._sections import MappedSections, NewSection, SnapshotError, read_facts, write_sections
from modalhash.index.hamming import HammingIndex
from modalhash.index.vectors import VectorTable, VectorView

LAYOUT = 1
"""How tables lie in memory; a snapshot of another layout is not used."""
MIN_SPARE, SPARE_SHARE = 4096, 8
"""Room after the rows of a table: so many, or one for so many rows. What is added there is not copied elsewhere."""


class Frozen(NamedTuple):
    """Indexes and tables of vectors at one moment, by name; nothing is copied, and what changes later is not in it."""

    n_bits: Mapping[str, int]
    indexes: Mapping[str, Mapping[int, FrozenRows]]
    vectors: Mapping[str, VectorView]


def freeze(indexes: Mapping[str, HammingIndex], vectors: Mapping[str, VectorTable]) -> Frozen:
    """Return what indexes and tables of vectors hold now, to be written while they go on changing."""
    return Frozen(
        {name: index.n_bits for name, index in indexes.items()},
        {name: index._freeze() for name, index in indexes.items()},
        {name: table._freeze() for name, table in vectors.items()},
    )


def write_snapshot(path: str | Path, frozen: Frozen, facts: Mapping[str, Any]) -> int:
    """Write what was frozen, and what there is to say of it (as JSON), into a file; return the size of the file.

    Readers see the old file or the whole new one.
    """
    sections: dict[str, NewSection] = {}
    described: dict[str, Any] = {}
    for name, groups in frozen.indexes.items():
        listed = [_add_rows(f"{name}/{group}", group, rows, sections) for group, rows in groups.items()]
        described[name] = {"n_bits": frozen.n_bits[name], "groups": listed}
    for name, view in frozen.vectors.items():
        if view.check is not None:
            view.check(None)  # they come from another snapshot: damage is not handed on
        capacity = view.n + _spare(view.n)
        sections[f"{name}/ids"] = NewSection(view.ids, capacity)
        sections[f"{name}/groups"] = NewSection(view.groups, capacity)
        sections[f"{name}/rows"] = NewSection(view.rows, capacity, as_read=True)
    content = {"layout": LAYOUT, "chunk": CHUNK, "indexes": described, "vectors": list(frozen.vectors)}
    return write_sections(Path(path), {"content": content, "of": dict(facts)}, sections)


def read_snapshot_facts(path: str | Path) -> tuple[dict[str, Any], int]:
    """Return what the writer of a snapshot said of it, and the size of the file, without mapping it into memory."""
    facts, size = read_facts(Path(path))
    return dict(facts.get("of", {})), size


class Snapshot:
    """A snapshot that is open. Checksums are compared from then on, beside whatever the caller does.

    Parameters
    ----------
    path : str or Path
        The file; :class:`SnapshotError` if it cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> index = HammingIndex(8)
    >>> index.add([1, 2], np.array([[7], [3]], dtype=np.uint8))
    >>> size = write_snapshot(f"{folder.name}/codes", freeze({"codes": index}, {}), {"revision": 2})
    >>> snapshot, copy = Snapshot(f"{folder.name}/codes"), HammingIndex(8)
    >>> snapshot.facts["revision"]
    2
    >>> snapshot.thaw({"codes": copy}, {})
    >>> copy.search(np.array([[3]], dtype=np.uint8), k=1).ids.tolist()
    [[2]]
    >>> folder.cleanup()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = MappedSections(self.path)
        self.facts: dict[str, Any] = dict(self._file.facts.get("of", {}))
        """What its writer said of it."""
        self.size = self._file.size
        self._file.start_check()

    @property
    def identity(self) -> tuple[int, int]:
        """The device and the number of the file: another snapshot that took its place has others."""
        return self._file.identity

    def thaw(self, indexes: Mapping[str, HammingIndex], vectors: Mapping[str, VectorTable]) -> None:
        """Let indexes and tables of vectors, which are empty, hold what is in the snapshot.

        SnapshotError if something is not as it was written; they are empty then. Rows of vectors are compared with
        their checksums as they are read: :meth:`VectorTable.find` raises SnapshotError where one is damaged.
        """
        self._file.check()
        try:
            content = self._file.facts["content"]
            if content["layout"] != LAYOUT or content["chunk"] != CHUNK:
                raise SnapshotError(f"{self.path} was written by a version that lays out tables in another way")
            found = {name: self._read_index(name, index.n_bits, content) for name, index in indexes.items()}
            views = {name: self._read_vectors(name, table.width) for name, table in vectors.items()}
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, SnapshotError):
                raise
            raise SnapshotError(f"{self.path} makes no sense: {error}") from error
        for name, index in indexes.items():
            index._thaw(found[name])
        for name, table in vectors.items():
            table._thaw(views[name])

    def check(self) -> None:
        """Compare all of the file with its checksums; SnapshotError if something is not as it was written."""
        self._file.check_all()

    def _read_index(self, name: str, n_bits: int, content: Mapping[str, Any]) -> dict[int, FrozenRows]:
        described = content["indexes"][name]
        if described["n_bits"] != n_bits:
            raise SnapshotError(f"{self.path} has codes of {described['n_bits']} bits; expected {n_bits}")
        words = pack_words(np.empty((0, n_bytes(n_bits)), np.uint8), n_bits)
        return {int(one["group"]): self._read_rows(f"{name}/{one['group']}", one, words) for one in described["groups"]}

    def _read_rows(self, name: str, described: Mapping[str, Any], like: Array) -> FrozenRows:
        base = table = None
        if described["base"] is not None:
            arrays = {part: self._file.array(f"{name}/base/{part}")[0] for part in _BASE_PARTS}
            base = DistinctCodes(
                int(described["base"]["first_id"]), arrays["offsets"], arrays["numbers"], arrays["words"],
                int(described["base"]["n_codes"]), arrays["starts"], arrays["rows"],
            )  # fmt: skip
            _check_base(base, like, self.path)
        if described["table"] is not None:
            n = int(described["table"])
            (ids, _), (words, n_chunks) = self._file.array(f"{name}/ids"), self._file.array(f"{name}/words")
            _expect(ids.dtype == np.int64 and ids.ndim == 1 and len(ids) == len(words) * CHUNK, self.path)
            _expect(words.dtype == like.dtype and words.shape[1:] == (like.shape[1], CHUNK), self.path)
            _expect(0 <= n <= n_chunks * CHUNK, self.path)
            table = PackedRows(ids, words, n)
        return FrozenRows(base, table, int(described["n_tried"]))

    def _read_vectors(self, name: str, width: int) -> VectorView:
        (ids, n), (groups, n_groups) = self._file.array(f"{name}/ids"), self._file.array(f"{name}/groups")
        rows, n_rows = self._file.array(f"{name}/rows")
        _expect(n == n_groups == n_rows and len(ids) == len(groups) == len(rows), self.path)
        _expect(ids.dtype == np.int64 and groups.dtype == np.int32 and rows.dtype == np.int8, self.path)
        _expect(ids.ndim == groups.ndim == 1 and rows.shape[1:] == (width,), self.path)
        return VectorView(ids, groups, rows, n, self._file.block_check(f"{name}/rows").check)


_BASE_PARTS = ("offsets", "numbers", "words", "starts", "rows")


def _add_rows(name: str, group: int, rows: FrozenRows, sections: dict[str, NewSection]) -> dict[str, Any]:
    """Add the arrays of a group to what will be written, and return what there is to say of them."""
    base, table = None, None
    if rows.base is not None:
        base = {"first_id": rows.base.first_id, "n_codes": rows.base.n_codes}
        for part in _BASE_PARTS:
            sections[f"{name}/base/{part}"] = NewSection(getattr(rows.base, part))
    if rows.table is not None:
        table = rows.table.n
        capacity = chunks_for(table + _spare(table))
        sections[f"{name}/ids"] = NewSection(rows.table.ids[:table], capacity * CHUNK)
        sections[f"{name}/words"] = NewSection(rows.table.words[: chunks_for(table)], capacity)
    return {"group": group, "base": base, "table": table, "n_tried": rows.n_tried}


def _spare(n: int) -> int:
    return max(MIN_SPARE, n // SPARE_SHARE)


def _check_base(base: DistinctCodes, like: Array, path: Path) -> None:
    """Raise SnapshotError where an entry of a table of codes points outside of its arrays."""
    n = len(base.offsets)
    _expect(base.n_codes > 0 and base.starts.shape == (base.n_codes + 1,) and base.starts.dtype == np.int64, path)
    _expect(base.offsets.shape == base.numbers.shape == base.rows.shape == (n,) and n > 0, path)
    _expect(base.offsets.dtype in (np.uint32, np.int64) and base.rows.dtype in (np.uint32, np.int64), path)
    _expect(base.numbers.dtype in (np.uint16, np.uint32), path)
    _expect(base.words.shape == (chunks_for(base.n_codes), like.shape[1], CHUNK), path)
    _expect(base.words.dtype == like.dtype, path)
    _expect(base.starts[0] == 0 and base.starts[-1] == n and bool(np.all(np.diff(base.starts) >= 0)), path)
    _expect(int(base.numbers.max()) < base.n_codes and int(base.rows.max()) < n and int(base.rows.min()) >= 0, path)


def _expect(is_so: bool, path: Path) -> None:
    if not is_so:
        raise SnapshotError(f"{path} makes no sense: its arrays do not fit each other")
