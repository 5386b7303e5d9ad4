"""Targets that libraries decode: NumPy, MATLAB and HDF5 files, what the process that reads them sends, and pictures.

The libraries crash and hang on some damaged files, which is why `read` starts a process for them. Here they run within
the worker, for the sake of numbers: a worker that ends is expected. Then `read` gets the same file, and has to say so.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from fuzzing import seeds
from fuzzing.target import BrokenPromise, Target
from modalhash.data import ReadError, ReadLimits, read
from modalhash.data.formats import sandbox as foreign, sandbox_worker as _child

MEMORY = 64 * 2**20


class _Foreign(Target):
    room = "foreign"
    weight = 4
    megabytes = (_child.WORKING_COPIES * MEMORY + _child.SPARE_MEMORY) // 2**20
    format: str
    suffix: str

    def seeds(self) -> list[bytes]:
        raise NotImplementedError

    def run(self, data: bytes) -> str | None:
        path = self.folder / f"file{self.suffix}"
        path.write_bytes(data)
        listed = self._answer(path, None)
        loaded = [self._answer(path, one["name"]) for one in listed.get("variables", ())[:6] if one["value"] is None]
        if "variables" not in listed:
            return "refused"
        return "taken" if all("value" in one for one in loaded) else "taken in part"

    def _answer(self, path: Path, variable: str | None) -> dict[str, Any]:
        """Do what the process that reads does with a request; return the first line of its reply."""
        out = io.BytesIO()
        _child.answer(
            {"path": str(path), "variable": variable, "format": self.format, "memory": MEMORY, "seconds": 5}, out
        )
        reply: dict[str, Any] = json.loads(out.getvalue().partition(b"\n")[0])
        if not reply.keys() & {"variables", "value", "reason", "too large"}:
            raise BrokenPromise("the reply is none", reply)
        return reply

    def contained(self, data: bytes) -> str | None:
        path = self.folder / f"file{self.suffix}"
        path.write_bytes(data)
        try:
            read(path, limits=ReadLimits(memory=MEMORY, seconds=5))
        except ReadError as error:
            return None if str(error).startswith(str(path)) and error.reason else f"the error is {error}"
        return None


class NumpyFile(_Foreign):
    """`.npz` and `.npy` files, scipy's sparse ones too."""

    name = "npz"
    format = "npz"
    suffix = ".npz"
    weight = 8
    tokens = (
        b"\x93NUMPY", b"\x01\0", b"\x03\0", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"'descr': ",
        b"'<f8'", b"'|O'", b"'<U9999999'", b"'fortran_order': True", b"'shape': (", b"(99999999999,)", b"(-1,)",
        b"_indptr.npy", b"format.npy", b"shape.npy", b"data.npy", b"__raw_lengths.npy",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return seeds.numpy_files()


class MatlabFile(_Foreign):
    """MATLAB files of versions 4 and 5, by scipy."""

    name = "matlab"
    format = "matlab"
    suffix = ".mat"
    tokens = (
        b"\x0e\0\0\0", b"\x0f\0\0\0", b"\x05\0\0\0", b"\x06\0\0\0", b"\x09\0\0\0", b"\x01\0\x04\0", b"\x00\x01IM",
        b"MI", b"\x78\x9c", b"\x01\0\0\0", b"\x10\0\0\0",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return seeds.matlab_files(self.folder)


class Hdf5File(_Foreign):
    """HDF5 and MATLAB 7.3 files, by h5py."""

    name = "hdf5"
    format = "hdf5"
    suffix = ".h5"
    tokens = (
        b"\x89HDF\r\n\x1a\n", b"TREE", b"HEAP", b"SNOD", b"GCOL", b"OHDR", b"OCHK", b"FRHP", b"FHDB", b"BTHD",
        b"MATLAB_class", b"MATLAB_sparse", b"\xff" * 8, b"\0" * 8,
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return seeds.hdf5_files(self.folder)


class ChildReply(Target):
    """What the process that reads foreign files sends back."""

    name = "child-reply"
    weight = 12
    promised = (ReadError,)
    is_json = True
    tokens = (
        b'"variables"', b'"value"', b'"numbers"', b'"sparse"', b'"texts"', b'"csr"', b'"coo"', b'"|O8"', b'"<f8"',
        b'"<U4"', b'"V8"', b'"<M8[s]"', b'"shape"', b'"parts"', b'"too large"', b'"reason"', b'"missing"', b"[-1]",
        b"[99999999999]", b"\n",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        (self.folder / "a.npz").write_bytes(b"x" * 1000)
        found = []
        for number, content in enumerate(seeds.numpy_files()):
            path = self.folder / f"seed{number}.npz"
            path.write_bytes(content)
            for variable in (None, "I", "T", "ids", path.stem, "x__raw"):
                out = io.BytesIO()
                request = {"path": str(path), "variable": variable, "format": "npz", "memory": MEMORY, "seconds": 5}
                _child.answer(request, out)
                found.append(out.getvalue())
        return found

    def run(self, data: bytes) -> str | None:
        path = self.folder / "a.npz"
        file = foreign.ForeignFile(path, path, "npz", ReadLimits(memory=MEMORY))
        reply_of = {"for_request": lambda request: _Sent(data)}
        worker, foreign._Reader = foreign._Reader, type("Fake", (), reply_of)
        try:
            try:
                file.variables()
            except ReadError:
                file.load("x")
        finally:
            foreign._Reader = worker
        return None


class _Sent:
    """A process that sent some bytes and ended."""

    timed_out = False

    def __init__(self, data: bytes) -> None:
        self._file, self.in_sync = io.BytesIO(data), True

    def __enter__(self) -> _Sent:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to do."""

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(limit)
        if not line.endswith(b"\n"):
            raise foreign._EndedError
        return line

    def read_into(self, target: memoryview) -> None:
        if self._file.readinto(target) < len(target):
            raise foreign._EndedError

    def death(self) -> str:
        return "it ended"


class Picture(Target):
    """Pictures in twelve formats: `read_picture`, the service's check, thumbnails."""

    name = "pictures"
    room = "foreign"
    weight = 2
    tokens = (
        b"IHDR", b"IDAT", b"acTL", b"fcTL", b"iCCP", b"zTXt", b"\xff\xd8", b"\xff\xc0", b"\xff\xc2", b"\xff\xda",
        b"\xff\xe1", b"Exif\0\0", b"II*\0", b"MM\0*", b"GIF89a", b"RIFF", b"WEBPVP8 ", b"VP8L", b"VP8X", b"ANMF",
        b"BM", b"P6\n", b"ftypavif", b"\0\0\x01\0", b"%!PS",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return seeds.pictures()

    def run(self, data: bytes) -> str | None:
        from modalhash.encoders import ItemError
        from modalhash.encoders.picture_files import read_picture
        from modalhash.serve.errors import HTTPError
        from modalhash.serve.media import check_picture, make_thumbnail

        taken = 0
        try:
            if read_picture(data, size=32, max_pixels=10**6).shape != (32, 32, 3):
                raise BrokenPromise("another size")
            taken += 1
        except ItemError as error:
            if not error.reason:
                raise BrokenPromise("an error without a reason") from error
        path = self.folder / "picture"
        path.write_bytes(data)
        for look in (lambda: check_picture(data, 10**6), lambda: make_thumbnail(path, 64, 10**6)):
            try:
                look()
                taken += 1
            except HTTPError as error:
                if error.status not in (413, 415):
                    raise BrokenPromise(f"status {error.status}") from error
        return ("refused", "taken in part", "taken in part", "taken")[taken]


TARGETS = [NumpyFile, MatlabFile, Hdf5File, ChildReply, Picture]
