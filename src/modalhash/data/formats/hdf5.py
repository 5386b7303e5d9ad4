"""Read HDF5 files: MATLAB v7.3 and those of Python programs.

MATLAB stores its arrays with reversed axes and marks them with ``MATLAB_class``; these are transposed. A file that
refers to other files of the machine by external links, external storage or virtual data sets is refused, and so is a
soft link, which may lead through one of these. Every object is visited once, even if it has several names.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.data.formats.matlab import cell_variables, stripped
from modalhash.data.formats.variables import Budget, Found, ReadError, SparseParts, Value, found, text_array

WHAT = "an HDF5 or MATLAB v7.3 file"
MAX_DEPTH = 32  # nesting depth of groups
_TEXT_BYTES = 64  # minimum memory of a text or a reference while it is read, bytes


def prepare() -> None:
    require("h5py", extra="data", why="reading MATLAB v7.3 and HDF5 files")


def variables(path: Path, budget: Budget) -> list[Found]:
    """List the variables of the file; those inside groups are named ``group/name``."""
    with _HDF5File(path, budget) as file:
        return file.scan(file.root, "")


def load(path: Path, name: str, budget: Budget) -> Value:
    with _HDF5File(path, budget) as file:
        item = file.root
        for part in name.split("/"):
            item = file.member(item, part, name)
        return file.sparse(item, name) if "MATLAB_sparse" in item.attrs else file.dense(item, name)


class _HDF5File:
    """An open file that returns only values stored in the file itself."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.h5py = require("h5py", extra="data", why="reading MATLAB v7.3 and HDF5 files")
        self.path, self.budget = path, budget
        self.groups: set[tuple[int, int]] = set()

    def __enter__(self) -> _HDF5File:
        self.root = self.h5py.File(self.path, "r")
        return self

    def __exit__(self, *error: object) -> None:
        self.root.close()

    def scan(self, group: Any, prefix: str) -> list[Found]:
        listed: list[Found] = []
        for key in self._new_members(group, prefix):
            name = prefix + key
            item = self.member(group, key, name)
            kind = _matlab_class(item)
            if isinstance(item, self.h5py.Group):
                if "MATLAB_sparse" in item.attrs:
                    listed.append(Found(name, self._sparse_shape(item, name), "sparse"))
                elif kind == "struct":
                    listed.append(Found(name, (), "struct"))
                else:
                    listed += self.scan(item, name + "/")
            elif not isinstance(item, self.h5py.Dataset) or item.shape is None:
                listed.append(Found(name, (), "no values"))
            elif kind == "cell":
                listed += cell_variables(name, self._cells(item, name))
            elif kind == "char" or self.h5py.check_string_dtype(item.dtype) is not None:
                listed.append(found(name, self._texts(item, kind, name)))
            elif item.dtype.kind in "fiub":
                listed.append(Found(name, item.shape[::-1] if _is_reversed(item) else item.shape, "numbers"))
            else:
                listed.append(Found(name, item.shape, f"type {item.dtype}"))
        return listed

    def member(self, group: Any, key: str, name: str) -> Any:
        """Return a member of a group, if it is stored in this file."""
        link = group.get(key, getlink=True) if isinstance(group, self.h5py.Group) else None
        if isinstance(link, self.h5py.ExternalLink):
            raise self._refused(name, f"a link to another file, {link.filename!r}")
        if isinstance(link, self.h5py.SoftLink):
            raise self._refused(name, f"a soft link, to {link.path!r}")
        item = group.get(key) if link is not None else None
        if item is None:
            raise ReadError(self.path, "the link is broken; the file is truncated or corrupt", variable=name)
        return self._own(item, name)

    def _own(self, item: Any, name: str) -> Any:
        """Refuse a data set whose values are in other files."""
        if isinstance(item, self.h5py.Dataset):
            if item.id.get_create_plist().get_external_count() > 0:
                raise self._refused(name, f"values that are in other files, e.g. {item.external[0][0]!r}")
            if item.is_virtual:
                raise self._refused(name, "a virtual data set, made of values of other data sets")
        return item

    def _refused(self, name: str, what: str) -> ReadError:
        reason = f"{what}, never followed because it could read any file of this machine. Copy the values into the file"
        return ReadError(self.path, reason, variable=name)

    def _new_members(self, group: Any, prefix: str) -> list[str]:
        """Return the names in a group that was not visited before, except MATLAB's own group."""
        info = self.h5py.h5o.get_info(group.id)
        if (info.fileno, info.addr) in self.groups:
            return []
        self.groups.add((info.fileno, info.addr))
        if prefix.count("/") > MAX_DEPTH:
            raise ReadError(self.path, f"more than {MAX_DEPTH} nested groups", variable=prefix[:80])
        return [key for key in group if not key.startswith("#")]  # "#refs#": the targets of references

    def dense(self, item: Any, name: str) -> Array:
        if not isinstance(item, self.h5py.Dataset):
            raise ValueError("a group; expected numbers")
        self._take(item, name)
        values = np.asarray(item[()])
        return values.T if _is_reversed(item) else values

    def sparse(self, group: Any, name: str) -> SparseParts:
        shape = self._sparse_shape(group, name)
        if "data" not in group:  # MATLAB omits the arrays of an empty matrix
            return SparseParts("csc", shape, np.empty(0), np.empty(0, np.int64), np.zeros(shape[1] + 1, np.int64))
        data, indices, pointers = (self.dense(self.member(group, key, name), name) for key in ("data", "ir", "jc"))
        if indices.dtype.kind not in "iu" or pointers.dtype.kind not in "iu":
            raise ValueError(f"indices of type {indices.dtype} and pointers of type {pointers.dtype}")
        return SparseParts("csc", shape, data.ravel(), _int64(indices), _int64(pointers))

    def _sparse_shape(self, group: Any, name: str) -> tuple[int, int]:
        rows, pointers = int(group.attrs["MATLAB_sparse"]), self.member(group, "jc", name)
        columns = prod(pointers.shape) - 1
        self.budget.take((columns + 1,), 8, name)
        return rows, columns

    def _texts(self, item: Any, kind: str, name: str) -> Array:
        self.budget.take(item.shape, max(item.dtype.itemsize, _TEXT_BYTES), name)
        if kind != "char":
            values = np.asarray(item.asstr()[()], dtype=object)
            return text_array([str(text) for text in values.ravel().tolist()], values.shape)
        if item.attrs.get("MATLAB_empty", 0):
            return text_array([""])
        characters = np.atleast_2d(item[()]).T  # one text per row
        return stripped(text_array(["".join(map(chr, row)) for row in characters.tolist()]))

    def _cells(self, item: Any, name: str) -> Array:
        """Return the targets of the references in a cell array, as texts, numbers or sparse matrices."""
        if self.h5py.check_ref_dtype(item.dtype) is not self.h5py.Reference:
            raise ValueError(f"a cell array of type {item.dtype}; expected references to objects")
        self.budget.take(item.shape, _TEXT_BYTES, name)
        references = np.atleast_1d(item[()].T)
        cells = np.empty(references.shape, dtype=object)
        for index, reference in np.ndenumerate(references):
            target = self._own(self.root[reference], name)
            kind = _matlab_class(target)
            if "MATLAB_sparse" in target.attrs:
                cells[index] = self.sparse(target, name)
            else:
                text = "".join(self._texts(target, kind, name).tolist()) if kind == "char" else None
                cells[index] = self.dense(target, name) if text is None else text
        return cells

    def _take(self, item: Any, name: str) -> None:
        if item.shape is None or item.dtype.kind not in "fiub":
            raise ValueError(f"type {item.dtype}; expected numbers")
        self.budget.take(item.shape, item.dtype.itemsize, name)


def _matlab_class(item: Any) -> str:
    value = item.attrs.get("MATLAB_class", b"")
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_reversed(item: Any) -> bool:
    """Return whether MATLAB reversed the axes; pixels with the colours third are in row order."""
    rows_first = len(item.shape) == 4 and item.shape[2] in (1, 3) and item.shape[1] not in (1, 3)
    return bool(_matlab_class(item)) and not rows_first


def _int64(values: Array) -> Array:
    return values.astype(np.int64, copy=False).ravel()
