"""Tensors out of a file that ``torch.save`` wrote before version 1.6, without torch and without unpickling.

Such a file is five pickles in a row (a magic number, a version, facts on the machine, the tensors, the keys of their
storages), and then the storages: each its number of values in 8 bytes, and the values. Unpickling runs whatever a file
names. Here the operations of the pickles are only read, by the standard library's ``pickletools``: names of functions
stay names, their calls stay tuples, and nothing is imported or called.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from modalhash._typing import Array

MAGIC = 0x1950A86A20F9469CFC6C
TENSOR = "torch._utils _rebuild_tensor_v2"
STORAGES: dict[str, np.dtype[Any]] = {"torch FloatStorage": np.dtype("<f4"), "torch LongStorage": np.dtype("<i8")}


class _Call(NamedTuple):
    """A call that was noted, not made."""

    function: str
    arguments: tuple[Any, ...]


class _Reference(NamedTuple):
    """What a pickle points to outside itself: a storage."""

    content: tuple[Any, ...]


def read_torch_file(data: bytes) -> dict[str, Array]:
    """Return the tensors of a file, by name.

    Parameters
    ----------
    data : bytes
        The whole file: a dict of names and dense tensors on the processor, as ``model.state_dict()`` gives.

    Raises
    ------
    ValueError
        For whatever else it is, with the reason.
    """
    file = BytesIO(data)
    try:
        magic, _version, _machine, tensors, keys = (_read_pickle(file) for _ in range(5))
        if magic != MAGIC or not isinstance(tensors, dict):
            raise ValueError("it does not begin as such a file does")
        found = {name: _tensor_place(name, value) for name, value in tensors.items()}
        kinds = {place.key: place.dtype for place in found.values()}
        storages = _read_storages(file, keys, kinds)
        return {name: place.cut_from(storages) for name, place in found.items()}
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a file of tensors that torch.save wrote: {error}") from error


class _StoredTensor(NamedTuple):
    """Where the values of a tensor lie."""

    key: str
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def cut_from(self, storages: Mapping[str, Array]) -> Array:
        """Return the tensor as an array of its own."""
        values = storages[self.key]
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if min((self.offset, *self.shape, *self.strides)) < 0 or last >= len(values):
            raise ValueError(f"a tensor of shape {self.shape} goes beyond its {len(values)} values")
        steps = [step * self.dtype.itemsize for step in self.strides]
        view = np.lib.stride_tricks.as_strided(values[self.offset :], self.shape, steps, writeable=False)
        return np.array(view, order="C")


def _tensor_place(name: Any, value: Any) -> _StoredTensor:
    if not (isinstance(name, str) and isinstance(value, _Call) and value.function == TENSOR):
        raise ValueError(f"{name!r} is no tensor")
    storage, offset, shape, strides = value.arguments[:4]
    kind, key = map(str, storage.content[1:3]) if isinstance(storage, _Reference) else ("nothing", "")
    if kind not in STORAGES:
        raise ValueError(f"{name!r} has values of {kind!r}; expected one of {', '.join(STORAGES)}")
    return _StoredTensor(key, STORAGES[kind], int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _read_storages(file: BytesIO, keys: list[str], kinds: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    storages = {}
    for key in keys:
        dtype, size = kinds[key], int.from_bytes(file.read(8), "little")
        content = file.read(size * dtype.itemsize)
        if len(content) != size * dtype.itemsize:
            raise ValueError("it is truncated")
        storages[key] = np.frombuffer(content, dtype)
    return storages


def _read_pickle(file: BytesIO) -> Any:
    """Return what one pickle holds, where it is of nothing but plain values, calls and references."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        values = stack[start:]
        del stack[start:]
        return values

    def set_items(values: list[Any]) -> None:
        stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def call() -> Any:
        arguments, function = stack.pop(), stack.pop()
        return {} if function == "collections OrderedDict" and arguments == () else _Call(str(function), arguments)

    def last(n: int) -> tuple[Any, ...]:
        values = tuple(stack[-n:])
        del stack[-n:]
        return values

    push: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "GLOBAL"), lambda value: value),
        **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda number: memo[number]),
        "EMPTY_DICT": lambda _: {},
        "EMPTY_LIST": lambda _: [],
        "EMPTY_TUPLE": lambda _: (),
        "NONE": lambda _: None,
        "NEWTRUE": lambda _: True,
        "NEWFALSE": lambda _: False,
        "TUPLE": lambda _: tuple(since_mark()),
        "TUPLE1": lambda _: last(1),
        "TUPLE2": lambda _: last(2),
        "TUPLE3": lambda _: last(3),
        "REDUCE": lambda _: call(),
        "BINPERSID": lambda _: _Reference(stack.pop()),
    }
    argument: Any
    for operation, argument, _ in pickletools.genops(file):
        name = operation.name
        if name in push:
            stack.append(push[name](argument))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("SETITEMS", "SETITEM"):
            set_items(since_mark() if name == "SETITEMS" else list(last(2)))
        elif name in ("APPENDS", "APPEND"):
            values = since_mark() if name == "APPENDS" else list(last(1))
            stack[-1].extend(values)
        elif name == "BUILD":
            stack.pop()  # attributes of the dict, which has versions of layers there
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"the pickle operation {name} is not expected in it")
    return stack.pop()
