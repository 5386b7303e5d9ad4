"""Files that lie: about indices, about where their values are, about their size. Each is one error, and quick."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
import zipfile

import h5py
import numpy as np
import pytest
from data_files import one_hot, write_v73
from scipy import sparse
from scipy.io import savemat

from broken_sparse import BROKEN, whole
from modalhash.data import ReadError, ReadLimits, read
from modalhash.data.formats import sandbox as foreign, sandbox_worker as _child

N = 12
LABELS = one_hot(np.arange(N) % 3, 3)
SECRET = b"root:x:0:0:root:/root:/bin/bash\n" * 40


# -- sparse indices


def npz_triple(path, matrix):
    parts = {"T_indptr": matrix.indptr, "T_indices": matrix.indices, "T_data": matrix.data, "T_shape": matrix.shape}
    np.savez(path, I=np.ones((N, 3)), L=LABELS, **parts)


def scipy_npz(path, matrix):
    arrays = {"format": np.array(matrix.format.encode()), "shape": np.array(matrix.shape), "data": matrix.data}
    names = ("row", "col") if matrix.format == "coo" else ("indices", "indptr")
    np.savez(path, **arrays, **{name: getattr(matrix, name) for name in names})


def mat_v73(path, matrix):
    write_v73(path, XAll=whole(), LAll=LABELS)
    with h5py.File(path, "a") as file:
        for name, array in (("data", matrix.data), ("ir", matrix.indices), ("jc", matrix.indptr)):
            del file["XAll"][name]
            file["XAll"][name] = array


def mat_v5(path, matrix):
    """A file that scipy wrote, with the index that the matrix has wrong put into its bytes."""
    savemat(path, {"XAll": whole("csc"), "LAll": LABELS})
    content = path.read_bytes()
    right, wrong = (np.asarray(m.indices, dtype=np.int32).tobytes() for m in (whole("csc"), matrix))
    assert content.count(right) == 1
    path.write_bytes(content.replace(right, wrong))


CSR = [name for name in BROKEN if name.startswith("csr") and "no integers" not in name]
CSC = [name for name in BROKEN if name.startswith("csc")]
LYING = (
    [("a.npz", npz_triple, name, {}) for name in CSR]
    + [("a.npz", scipy_npz, name, {"text": "a"}) for name in (*CSR, *CSC, "coo, row too large", "coo, column negative")]
    + [("a.mat", mat_v73, name, {}) for name in CSC]
    + [("a.mat", mat_v5, name, {}) for name in CSC if "row" in name]
)


@pytest.mark.parametrize(("file", "write", "name", "mapping"), LYING)
def test_sparse_indices_are_checked_in_every_format(tmp_path, file, write, name, mapping):
    write(tmp_path / file, BROKEN[name]())
    with pytest.raises(ReadError, match=r"variable '\w+': .*(broken sparse matrix|index|ind|length|size)"):
        read(tmp_path / file, **mapping)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_whole_matrices_of_scipy_are_read(tmp_path, kind):
    sparse.save_npz(tmp_path / "a.npz", whole(kind))
    found = read(tmp_path / "a.npz", text="a").features["text"]
    np.testing.assert_array_equal(found.toarray(), whole().toarray())


@pytest.mark.slow
def test_a_sparse_matrix_with_a_huge_shape_is_not_made(tmp_path):
    """Pointers to 10¹³ rows would take 80 TB where the columns are turned into rows."""
    write_v73(tmp_path / "a.mat", XAll=whole(), LAll=LABELS)
    with h5py.File(tmp_path / "a.mat", "a") as file:
        file["XAll"].attrs["MATLAB_sparse"] = np.uint64(10**13)
    with pytest.raises(ReadError, match="MODALHASH_READ_MEMORY"):
        read(tmp_path / "a.mat", text="XAll")


# -- other files of the machine


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.txt"
    path.write_bytes(SECRET)
    return path


def external_storage(file, secret):
    file.create_dataset("XAll", (N, 8), dtype="u1", external=[(str(secret), 0, N * 8)])


def external_link(file, secret):
    with h5py.File(secret.with_suffix(".h5"), "w") as other:
        other["X"] = np.ones((N, 8))
    file["XAll"] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "X")


def soft_link(file, secret):
    external_link(file, secret)
    file.move("XAll", "hidden")
    file["XAll"] = h5py.SoftLink("/hidden")


def virtual(file, secret):
    with h5py.File(secret.with_suffix(".h5"), "w") as other:
        other["X"] = np.ones((N, 8))
    layout = h5py.VirtualLayout((N, 8), dtype="f8")
    layout[:] = h5py.VirtualSource(str(secret.with_suffix(".h5")), "X", shape=(N, 8))
    file.create_virtual_dataset("XAll", layout)


def within_a_group(file, secret):
    external_storage(file.create_group("group"), secret)


def reference_in_a_cell(file, secret):
    external_storage(file.create_group("#refs#"), secret)
    cells = file.create_dataset("XAll", (2, 1), dtype=h5py.ref_dtype)
    cells.attrs["MATLAB_class"] = np.bytes_("cell")
    cells[0, 0] = cells[1, 0] = file["#refs#/XAll"].ref


def part_of_a_sparse_matrix(file, secret):
    matrix = whole("csc")
    group = file.create_group("XAll")
    group.attrs["MATLAB_sparse"] = np.uint64(N)
    group["data"], group["jc"] = matrix.data, matrix.indptr
    group.create_dataset("ir", (matrix.nnz,), dtype="u1", external=[(str(secret), 0, matrix.nnz)])


def text(file, secret):
    file.create_dataset("XAll", (N,), dtype="S8", external=[(str(secret), 0, N * 8)])


@pytest.mark.parametrize("kind", ["h5", "mat"])
@pytest.mark.parametrize(
    "write",
    [
        external_storage,
        external_link,
        soft_link,
        virtual,
        within_a_group,
        reference_in_a_cell,
        part_of_a_sparse_matrix,
        text,
    ],
)
def test_hdf5_reads_no_other_file(tmp_path, secret, write, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "mat":
        write_v73(path, LAll=LABELS)
    with h5py.File(path, "a") as file:
        write(file, secret)
        if kind == "h5":
            file["LAll"] = LABELS
    with pytest.raises(ReadError, match=r"variable '.*': .*never followed.*Copy the values into the file"):
        read(path)


def test_a_group_with_many_names_is_walked_once(tmp_path):
    """Two names for the next group, forty times: 2⁴⁰ paths, 40 groups."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["XAll"], file["LAll"] = np.ones((N, 2)), LABELS
        group = file
        for _ in range(30):
            below = group.create_group("left")
            group["right"] = below
            group = below
        group["up"] = file["/"]
    started = time.monotonic()
    assert read(tmp_path / "a.h5").sizes == {"image": N}
    assert time.monotonic() - started < 20


def test_groups_too_deep(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("/".join("g" * 500))
    with pytest.raises(ReadError, match="32 nested groups"):
        read(tmp_path / "a.h5")


# -- crashes, hangs and bombs


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def nested_cells(depth: int) -> bytes:
    """A MATLAB v5 file of cells in cells; scipy follows them on the C stack."""
    flags, dims = element(6, struct.pack("<II", 1, 0)), element(5, struct.pack("<2i", 1, 1))
    number = element(6, struct.pack("<II", 6, 0)) + dims + element(1, b"") + element(9, struct.pack("<d", 1.0))
    inner = element(14, number)
    size, heads = len(inner), []
    for level in range(depth):
        head = flags + dims + element(1, b"XAll" if level == depth - 1 else b"")
        heads.append(struct.pack("<II", 14, len(head) + size) + head)
        size += len(heads[-1])
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + b"".join(reversed(heads)) + inner


@pytest.mark.slow
def test_a_crash_of_the_reader_is_an_error_and_the_next_file_is_read(tmp_path):
    (tmp_path / "a.mat").write_bytes(nested_cells(60_000))
    savemat(tmp_path / "b.mat", {"XAll": np.ones((N, 2)), "LAll": LABELS})
    with pytest.raises(ReadError, match=r"a\.mat: the process that reads it crashed \(SIG\w+\)"):
        read(tmp_path / "a.mat")
    assert read(tmp_path / "b.mat").sizes == {"image": N}


@pytest.fixture
def slow_file(tmp_path):
    texts = np.array([[f"text {k}"] for k in range(20_000)], dtype=object)
    savemat(tmp_path / "slow.mat", {"captions": texts})
    return tmp_path / "slow.mat"


@pytest.mark.slow
def test_a_file_that_takes_too_long_is_an_error_that_says_how_to_allow_more(slow_file, monkeypatch):
    with pytest.raises(ReadError, match=r"slow\.mat: not read in 0.01 s.*ReadLimits\(seconds=0.1\).*--read-seconds"):
        read(slow_file, limits=ReadLimits(seconds=0.01))
    monkeypatch.setenv("MODALHASH_READ_SECONDS", "0.01")
    with pytest.raises(ReadError, match=r"not read in 0\.01 s"):
        read(slow_file)
    monkeypatch.setenv("MODALHASH_READ_SECONDS", "soon")
    with pytest.raises(ReadError, match="MODALHASH_READ_SECONDS is 'soon'; expected a number"):
        read(slow_file)
    assert len(read(slow_file, limits=ReadLimits(seconds=60)).raw["text"]) == 20_000


ZEROS = 6_000_000


def npz_bomb(path):
    np.savez_compressed(path, XAll=np.zeros((N, ZEROS // N), dtype=np.uint8), LAll=LABELS)


def v5_bomb(path):
    savemat(path, {"XAll": np.zeros((N, ZEROS // N), dtype=np.uint8), "LAll": LABELS}, do_compression=True)


def hdf5_bomb(path):
    with h5py.File(path, "w") as file:  # no chunk is stored: the file is 5 kB whatever the shape
        file.create_dataset("XAll", (N, ZEROS // N), dtype="u1", chunks=(1, 1000))
        file["LAll"] = LABELS


@pytest.mark.parametrize(("name", "write"), [("a.npz", npz_bomb), ("a.mat", v5_bomb), ("a.h5", hdf5_bomb)])
def test_a_bomb_needs_consent(tmp_path, name, write, monkeypatch):
    path = tmp_path / name
    write(path)
    assert path.stat().st_size < 60_000
    monkeypatch.setattr("modalhash.data.formats.sandbox.LEAST_MEMORY", 1_000_000)
    with pytest.raises(ReadError, match=r"more than the limit of 1.0 MB .*--read-memory \d+MB, or MODALHASH_READ_M"):
        read(path)
    assert read(path, limits=ReadLimits(memory="10MB")).features["image"].shape == (N, ZEROS // N)
    monkeypatch.setenv("MODALHASH_READ_MEMORY", "10MB")
    assert read(path).sizes == {"image": N}


def test_the_limit_is_for_all_variables_together(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", **{f"{x}All": np.zeros((N, 50_000)) for x in "XY"}, LAll=LABELS)
    with pytest.raises(ReadError, match="variable 'YAll'"):
        read(tmp_path / "a.npz", limits=ReadLimits(memory="6MB"))
    assert read(tmp_path / "a.npz", limits=ReadLimits(memory="10MB")).sizes == {"image": N, "text": N}


def test_sizes_that_the_file_does_not_have(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((N, 3)))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(12, 3)", b"(12, 9)"))
    with pytest.raises(ReadError, match="864 bytes are declared and 288 are present"):
        read(tmp_path / "a.npy", image="a")
    np.savez(tmp_path / "b.npz", XAll=np.ones((N, 3)), LAll=LABELS)
    with zipfile.ZipFile(tmp_path / "b.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"(12, 3)", b"(12, 9)"))
    with pytest.raises(ReadError, match="108 bytes are declared and 36 are present"):
        read(tmp_path / "b.npz")


@pytest.mark.slow
def test_sizes_that_are_not_declared_are_bounded_too(tmp_path):
    """The number of entries of a sparse matrix is known when they are read."""
    savemat(tmp_path / "a.mat", {"XAll": sparse.csc_array(np.ones((2000, 200), dtype=bool))})
    with pytest.raises(ReadError, match=r"more than the limit of 1\.0 MB"):
        read(tmp_path / "a.mat", image="XAll", limits=ReadLimits(memory="1MB"))


def test_the_system_bounds_the_memory_of_the_process():
    pytest.importorskip("resource")
    code = (
        "from modalhash.data.formats.sandbox_worker import _limit; import numpy; "
        "numpy.ones(10**8, dtype='u1'); _limit({'seconds': 9, 'memory': 10**6}); numpy.ones(4 * 10**8, dtype='u1')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MemoryError" in done.stderr


@pytest.mark.parametrize("unique", [True, False])
def test_class_numbers_and_sparse_labels_do_not_grow_beyond_the_limit(tmp_path, unique):
    n = 40_000
    labels = np.arange(n) if unique else sparse.csc_array(([1.0], ([0], [0])), shape=(n, n))
    savemat(tmp_path / "a.mat", {"XAll": np.ones((n, 1), dtype=np.uint8), "LAll": labels}, do_compression=True)
    with pytest.raises(ReadError, match="1,600 MB, more than the limit of 512 MB"):
        read(tmp_path / "a.mat", image="XAll", labels="LAll")


# -- the process


class Sent:
    """Imitates a process that a file controls: it sends this line, then endless bytes."""

    def __init__(self, line: bytes) -> None:
        self.line, self.in_sync = line, True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        assert not self.in_sync, "it must not be used again"

    def readline(self, limit):
        return self.line

    def read_into(self, target):
        target[:] = bytes(len(target))


VARIABLE = {"name": "XAll", "shape": [N, 2], "kind": "numbers", "value": None}


@pytest.mark.parametrize(
    "reply",
    [
        [],
        "text",
        {"variables": 7},
        {"variables": [{**VARIABLE, "shape": [-1, 2]}]},
        {"variables": [{**VARIABLE, "value": {"numbers": "|O", "shape": [N, 2], "order": "C"}}]},
        {"variables": [{**VARIABLE, "value": {"numbers": ",i4", "shape": [N, 2], "order": "C"}}]},
        {"variables": [{**VARIABLE, "value": {"numbers": "<f8", "shape": [N * 10**8, 2], "order": "C"}}]},
        {"variables": [{**VARIABLE, "value": {"sparse": "eval", "shape": [1, 1], "parts": []}}]},
        {"variables": [{**VARIABLE, "value": {"texts": [2], "bytes": -1}}]},
    ],
    ids=repr,
)
def test_what_the_process_sends_is_checked(tmp_path, monkeypatch, reply):
    (tmp_path / "a.npz").write_bytes(b"PK")
    monkeypatch.setattr(foreign._ReaderProcess, "for_request", lambda request: Sent(json.dumps(reply).encode()))
    with pytest.raises(ReadError, match=r"a\.npz.*(sent an invalid reply|more than the limit)"):
        read(tmp_path / "a.npz")


def test_a_process_that_ended_meanwhile_is_replaced(tmp_path):
    savemat(tmp_path / "a.mat", {"XAll": np.ones((N, 2)), "LAll": LABELS})
    read(tmp_path / "a.mat")
    (worker,) = foreign._ReaderProcess._idle
    worker._kill()
    assert read(tmp_path / "a.mat").sizes == {"image": N}


def test_modules_in_the_current_folder_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported from the current folder')")
    savemat(tmp_path / "a.mat", {"XAll": np.ones((N, 2)), "LAll": LABELS})
    monkeypatch.chdir(tmp_path)
    foreign._ReaderProcess.stop_idle()
    assert read("a.mat").sizes == {"image": N}


def test_the_reading_process_is_light():
    code = "import sys; import modalhash.data.formats.sandbox_worker; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"scipy", "sklearn", "numba", "joblib", "threadpoolctl", "h5py"}


# -- systems without fork, or without limits


WITHOUT_FORK = """
import os, sys
del os.fork
if "resource" in sys.argv:
    sys.modules["resource"] = None
from modalhash.data.formats import sandbox_worker as _child, npz
load = npz.load
def odd(path, name, budget):
    if name == "XAll" and path.stem == "crash":
        os.kill(os.getpid(), 11)
    if name == "XAll" and path.stem == "hang":
        os.read(os.pipe()[0], 1)
    return load(path, name, budget)
npz.load = odd
_child.main()
"""


@pytest.fixture
def without_fork(monkeypatch):
    foreign._ReaderProcess.stop_idle()
    monkeypatch.setattr(foreign, "_PROGRAM", ("-c", WITHOUT_FORK))
    monkeypatch.delattr("os.killpg")
    yield
    foreign._ReaderProcess.stop_idle()


def test_without_fork_the_process_itself_reads(tmp_path, without_fork):
    np.savez(tmp_path / "a.npz", XAll=np.ones((N, 2)), LAll=LABELS)
    savemat(tmp_path / "b.mat", {"XAll": np.ones((N, 3)), "LAll": LABELS})
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    assert read(tmp_path / "a.npz").features["image"].shape == (N, 2)
    (worker,) = foreign._ReaderProcess._idle
    with pytest.raises(ReadError, match=r"cut\.npz: cannot be read as a NumPy file"):
        read(tmp_path / "cut.npz")
    assert read(tmp_path / "b.mat").features["image"].shape == (N, 3)
    assert foreign._ReaderProcess._idle == [worker], "one process reads all of them"


def test_without_fork_a_crash_or_a_hang_is_an_error_and_the_next_file_is_read(tmp_path, without_fork):
    for name in ("crash", "hang", "fine"):
        np.savez(tmp_path / f"{name}.npz", XAll=np.ones((N, 2)), LAll=LABELS)
    with pytest.raises(ReadError, match=r"crash\.npz, variable 'XAll': the process that reads it crashed \(SIGSEGV\)"):
        read(tmp_path / "crash.npz")
    with pytest.raises(ReadError, match=r"hang\.npz, variable 'XAll': not read in 0\.3 s"):
        read(tmp_path / "hang.npz", limits=ReadLimits(seconds=0.3))
    assert read(tmp_path / "fine.npz").sizes == {"image": N}


def test_without_limits_of_the_system_the_time_is_bounded(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    assert _child._limit({"seconds": 1, "memory": 1}) is None
