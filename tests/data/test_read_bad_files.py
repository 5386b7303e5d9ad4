"""Broken and wrong files: one clear error that names the file, the variable, the shapes."""

from __future__ import annotations

import numpy as np
import pytest
from data_files import one_hot, parts, write_v73
from scipy.io import savemat

from modalhash.data import ReadError, read, write_npz

WRITERS = {
    "v5.mat": lambda path: savemat(path, parts(training=400), do_compression=True),
    "v73.mat": lambda path: write_v73(path, **parts(training=400)),
    "a.npz": lambda path: np.savez(path, **parts(training=400)),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_truncated(tmp_path, name, share):
    path = tmp_path / name
    WRITERS[name](path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ReadError, match=rf"{name}.*(truncated|row counts)"):
        read(path)


@pytest.mark.parametrize("name", WRITERS)
def test_corrupt(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    content = bytearray(path.read_bytes())
    content[600:-200] = np.random.default_rng(0).bytes(len(content) - 800)
    path.write_bytes(bytes(content))
    with pytest.raises(ReadError, match=name):
        read(path)


@pytest.mark.parametrize("name", ["a.mat", "a.npz", "a.h5"])
def test_not_the_format_the_name_says(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"<html>404 not found</html>" * 50)
    with pytest.raises(ReadError, match=rf"{name}"):
        read(path)
    path.write_bytes(b"")
    with pytest.raises(ReadError, match="the file is empty"):
        read(path)


def test_missing_file_and_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read(tmp_path / "nowhere.mat")
    with pytest.raises(ReadError, match="a folder without any"):
        read(tmp_path)
    with pytest.raises(ValueError, match="empty list"):
        read([])


def test_object_arrays_are_never_loaded(tmp_path):
    values = np.array([[1], "text"], dtype=object)
    np.savez(tmp_path / "a.npz", XAll=values, LAll=np.eye(2))
    with pytest.raises(ReadError, match="XAll object array"):
        read(tmp_path / "a.npz")
    with pytest.raises(ReadError, match=r"XAll.*object array"):
        read(tmp_path / "a.npz", image="XAll")
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(ReadError, match="object array"):
        read(tmp_path / "a.npy", image="a")


def test_wrong_row_counts(tmp_path):
    savemat(tmp_path / "a.mat", {"XAll": np.ones((9, 4)), "YAll": np.ones((9, 5)), "LAll": one_hot([0] * 8, 3)})
    with pytest.raises(ReadError, match=r"row counts differ.*XAll 9×4 numbers; YAll 9×5 numbers; LAll 8×3"):
        read(tmp_path / "a.mat")


def test_parts_of_different_width(tmp_path):
    arrays = parts()
    arrays["I_te"] = arrays["I_te"][:, :4]
    savemat(tmp_path / "a.mat", arrays)
    with pytest.raises(ReadError, match=r"different widths.*I_tr 40×7"):
        read(tmp_path / "a.mat")


def test_missing_part(tmp_path):
    arrays = parts()
    del arrays["T_te"]
    savemat(tmp_path / "a.mat", arrays)
    with pytest.raises(ReadError, match=r"different parts.*training"):
        read(tmp_path / "a.mat")


def test_non_binary_and_empty_labels(tmp_path):
    np.savez(tmp_path / "a.npz", XAll=np.ones((4, 2)), LAll=np.arange(12).reshape(4, 3))
    with pytest.raises(ReadError, match=r"not binary: row 0, class 2 is 2"):
        read(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", XAll=np.ones((4, 2)), LAll=np.zeros((4, 3)))
    with pytest.raises(ReadError, match="none of the 4 items has a label"):
        read(tmp_path / "b.npz")


def test_duplicate_ids(tmp_path):
    np.savez(tmp_path / "a.npz", image=np.ones((4, 2)), labels=np.eye(4), ids=np.array(["a", "b", "a", "c"]))
    with pytest.raises(ReadError, match=r"duplicate id.*'a'"):
        read(tmp_path / "a.npz")


def test_same_variable_in_two_files(tmp_path):
    for name in ("a.mat", "b.mat"):
        savemat(tmp_path / name, {"XAll": np.ones((4, 2))})
    with pytest.raises(ReadError, match=r"'XAll': it is also in"):
        read(tmp_path)


@pytest.mark.slow
def test_broken_csr(tmp_path):
    triple = {"T_indptr": [0, 1, 2], "T_indices": [0, 99], "T_shape": [2, 5]}
    np.savez(tmp_path / "a.npz", I=np.ones((2, 3)), L=np.eye(2), **triple)
    with pytest.raises(ReadError, match=r"a\.npz, variable 'T'.*broken sparse matrix: column indices from 0 to 99"):
        read(tmp_path / "a.npz")


def test_nothing_is_left_where_writing_fails(tmp_path, monkeypatch):
    savemat(tmp_path / "a.mat", parts())
    data = read(tmp_path / "a.mat")

    def fail(*args, **arrays):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        write_npz(data, tmp_path / "out.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mat"]
