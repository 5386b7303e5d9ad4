"""NumPy files: read ``.npz``, ``.npy`` and scipy's sparse ``.npz``; write data sets as ``.npz``. Never with pickle.

Headers are read first, so that the shape of an array is known and its size checked before it is loaded. Reading runs in
the sandbox; :func:`write_npz` writes what :func:`modalhash.data.read` reads back.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modalhash.core.files import write_atomically
from modalhash.core.typing import Array
from modalhash.data.formats.variables import Budget, Found, SparseParts, Value, kind_of, text_array

if TYPE_CHECKING:
    from modalhash.data.dataset import Dataset

WHAT = "a NumPy file"
VALUES = ("data", "counts")  # suffixes of the values of a sparse matrix
LENGTHS = "_lengths"  # suffix of the byte lengths of texts that are stored as one array of UTF-8 bytes
MAX_PADDING = 64 * 10**6
"""Bytes that may be spent on padding texts to equal width, a form that every version reads."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Member(NamedTuple):
    """The header of an array in an archive."""

    shape: tuple[int, ...]
    dtype: Any
    n_bytes: int  # size of its values as declared by the archive, bytes


def prepare() -> None:
    """Do nothing; NumPy is already imported."""


def variables(path: Path, budget: Budget) -> list[Found]:
    """List the arrays of the file; ``T_indptr``, ``T_indices`` and ``T_shape`` are one sparse matrix ``T``.

    Its values are ``T_data`` or ``T_counts``, or 1 if the file has neither.
    """
    with _members(path) as (members, read):
        if {"format.npy", "shape.npy", "data.npy"} <= members.keys():
            return [Found(path.stem, tuple(read("shape", budget).tolist()), "sparse")]
        listed = {}
        for file_name, member in members.items():
            name = file_name.removesuffix(".npy")
            listed[name] = Found(name, member.shape, kind_of(member.dtype))
        for stem in [name.removesuffix("_indptr") for name in listed if name.endswith("_indptr")]:
            if f"{stem}_indices" in listed and f"{stem}_shape" in listed:
                listed[stem] = Found(stem, tuple(read(f"{stem}_shape", budget).tolist()), "sparse")
                for part in ("indptr", "indices", "shape", *VALUES):
                    listed.pop(f"{stem}_{part}", None)
        for stem in [name.removesuffix(LENGTHS) for name in listed if name.endswith(f"__raw{LENGTHS}")]:
            if stem in listed:
                listed[stem] = Found(stem, listed.pop(f"{stem}{LENGTHS}").shape, "texts")
        return list(listed.values())


def load(path: Path, name: str, budget: Budget) -> Value:
    with _members(path) as (members, read):
        if {"format.npy", "shape.npy", "data.npy"} <= members.keys():
            return _scipy_matrix(path, members, read, budget)
        if f"{name}_indptr.npy" in members:
            return _triple(name, members, read, budget)
        if f"{name}{LENGTHS}.npy" in members:
            return _split_texts(read(name, budget), read(f"{name}{LENGTHS}", budget))
        values: Array = read(name, budget)
        if values.dtype.kind == "S":
            return text_array([one.decode("utf-8") for one in values.ravel().tolist()], values.shape)
        return values.astype(object) if values.dtype.kind == "U" else values


@contextmanager
def _members(path: Path) -> Iterator[tuple[dict[str, Member], Any]]:
    """Yield the headers of the arrays by file name, and a function that reads one array."""
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            file.seek(0)
            member = _header(file, path.stat().st_size)

            def read_whole(name: str, budget: Budget) -> Array:
                file.seek(0)
                return _array(file, member, name, budget)

            yield {f"{path.stem}.npy": member}, read_whole
            return
    with zipfile.ZipFile(path) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist() if info.filename.endswith(".npy")}
        members = {}
        for name, size in sizes.items():
            with archive.open(name) as stream:
                members[name] = _header(stream, size)

        def read(name: str, budget: Budget) -> Array:
            with archive.open(f"{name}.npy") as stream:
                return _array(stream, members[f"{name}.npy"], name, budget)

        yield members, read


def _header(stream: IO[bytes], size: int) -> Member:
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:  # version 3.0 is for records with non-Latin field names
        return Member((), np.dtype("V1"), 0)
    shape, _, dtype = _HEADERS[version](stream)
    return Member(shape, dtype, size - stream.tell())


def _array(stream: IO[bytes], member: Member, name: str, budget: Budget) -> Array:
    if member.dtype.hasobject or kind_of(member.dtype) not in ("numbers", "texts"):
        raise ValueError(f"holds {kind_of(member.dtype)}; expected numbers or texts")
    declared = prod(member.shape) * member.dtype.itemsize
    if declared > member.n_bytes:
        raise ValueError(f"{declared:,} bytes are declared and {member.n_bytes:,} are present")
    budget.take(member.shape, member.dtype.itemsize, name)
    values: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return values


def _split_texts(content: Array, lengths: Array) -> Array:
    if content.dtype != np.uint8 or lengths.dtype.kind not in "iu" or lengths.ndim != 1:
        raise ValueError(f"texts as {content.dtype} with lengths as {lengths.dtype}; expected bytes and integers")
    ends = list(accumulate(lengths.tolist()))
    if any(length < 0 for length in lengths.tolist()) or (ends or [0])[-1] != content.size:
        raise ValueError("the lengths of the texts do not add up to their bytes")
    data = content.tobytes()
    return text_array(
        [data[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *ends], ends, strict=False)]
    )


def _shape(values: Array) -> tuple[int, ...]:
    if values.shape != (2,) or values.dtype.kind not in "iu" or (values < 0).any():
        raise ValueError(f"the shape of a sparse matrix is {values.tolist()}; expected two sizes")
    return tuple(int(size) for size in values.tolist())


def _integers(values: Array) -> Array:
    if values.dtype.kind not in "iu":
        raise ValueError(f"indices of type {values.dtype}; expected integers")
    return values if values.dtype.kind == "i" else values.astype(np.int64)


def _triple(stem: str, members: dict[str, Member], read: Any, budget: Budget) -> SparseParts:
    shape = _shape(read(f"{stem}_shape", budget))
    pointers, indices = (_integers(read(f"{stem}_{part}", budget)) for part in ("indptr", "indices"))
    name = next((f"{stem}_{part}" for part in VALUES if f"{stem}_{part}.npy" in members), None)
    values = np.ones(len(indices), dtype=np.float32) if name is None else read(name, budget)
    return SparseParts("csr", shape, values, indices, pointers)


def _scipy_matrix(path: Path, members: dict[str, Member], read: Any, budget: Budget) -> SparseParts:
    layout = read("format", budget).item()
    layout = layout.decode("ascii") if isinstance(layout, bytes) else layout
    shape = _shape(read("shape", budget))
    if layout in ("csr", "csc"):
        indices, pointers = (_integers(read(part, budget)) for part in ("indices", "indptr"))
        return SparseParts(layout, shape, read("data", budget), indices, pointers)
    if layout == "coo" and "coords.npy" not in members:
        rows, columns = (_integers(read(part, budget)) for part in ("row", "col"))
        return SparseParts("coo", shape, read("data", budget), columns, rows)
    for name, member in members.items():
        budget.take(member.shape, member.dtype.itemsize, name)
    from scipy import sparse

    matrix = sparse.load_npz(path).tocoo()
    rows, columns = matrix.coords
    return SparseParts("coo", shape, matrix.data, columns, rows)


def npz_path(path: str | Path) -> Path:
    """Return the path if :func:`write_npz` can write to it; call it before a long computation."""
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"{path}: expected a name that ends in .npz")
    return path


def write_npz(dataset: Dataset, path: str | Path) -> Path:
    """Write features, labels, ids, raw items, split and provenance atomically."""
    path = npz_path(path)
    if bad := [name for name in dataset.modalities if "__" in name or name in ("labels", "ids", "name")]:
        raise ValueError(f"the modality {bad[0]!r} cannot be stored under this name; rename it")
    arrays: dict[str, Any] = {
        "name": np.array(dataset.name),
        "provenance": np.array(json.dumps(dict(dataset.provenance), ensure_ascii=False, default=str)),
    }
    if dataset.labels:
        arrays["class_names"] = np.array(dataset.class_names)
    arrays |= dataset.features
    for name, ids in dataset.ids.items():
        arrays[f"{name}__ids"] = ids
        if name in dataset.labels:
            arrays[f"{name}__labels"] = dataset.labels[name].view(np.uint8)
        if name in dataset.raw:
            arrays |= _texts(f"{name}__raw", dataset.raw[name].tolist())
    if dataset.split is not None:
        arrays["split"] = np.array(json.dumps(dataset.split.to_json(), ensure_ascii=False))
    for name in ("split_sizes", "components"):
        if values := getattr(dataset, name):
            arrays[name] = np.array(json.dumps(dict(values)))
    return write_arrays(arrays, path)


def write_arrays(arrays: Mapping[str, Any], path: str | Path) -> Path:
    from scipy import sparse

    path, plain = npz_path(path), {}
    for name, values in arrays.items():
        if sparse.issparse(values):
            plain[f"{name}_indptr"], plain[f"{name}_indices"] = values.indptr, values.indices
            plain[f"{name}_shape"], plain[f"{name}_data"] = np.array(values.shape), values.data
        else:
            plain[name] = values
    write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **plain))
    return path


def _texts(name: str, texts: list[str]) -> dict[str, Any]:
    """Return texts as one padded array, or as bytes and lengths if padding would waste memory."""
    longest, total = max(map(len, texts), default=0), sum(map(len, texts))
    if 4 * longest * len(texts) <= MAX_PADDING + 16 * total:
        return {name: np.array(texts, dtype=str)}
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    return {
        name: np.frombuffer(b"".join(encoded), dtype=np.uint8),
        f"{name}{LENGTHS}": np.array([len(text) for text in encoded]),
    }
