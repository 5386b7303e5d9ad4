"""Files of every format with bytes changed, cut out and put in: either they are read, or there is one kind of error."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from data_files import one_hot, write_v73
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy import sparse
from scipy.io import savemat

from modalhash.data import ReadError, ReadLimits, read

N = 9
LABELS = one_hot(np.arange(N) % 3, 3)
WORDS = sparse.csc_array(np.eye(N, 5))
TEXTS = [f"täxt {k}" for k in range(N)]
ARRAYS = {"XAll": np.arange(N * 4.0).reshape(N, 4), "YAll": WORDS, "LAll": LABELS}


def write_jsonl(path):
    lines = [{"id": k, "text": text, "labels": ["a", "b"][k % 2 :], "split": "train"} for k, text in enumerate(TEXTS)]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


def write_table(path):
    mark = "," if path.suffix == ".csv" else "\t"
    rows = [("id", "text", "labels"), *((f"i{k}", f'"{text}"', "a;b") for k, text in enumerate(TEXTS))]
    path.write_text("\n".join(map(mark.join, rows)), encoding="utf-8")


def write_v5(path):
    savemat(path, {**ARRAYS, "captions": np.array(TEXTS, dtype=object)[:, None]}, do_compression=path.name[0] == "c")


def write_h5(path):
    with h5py.File(path, "w") as file:
        file["XAll"], file["LAll"], file["group/captions"] = ARRAYS["XAll"], LABELS, TEXTS


def write_npz(path):
    csr = sparse.csr_array(WORDS)
    parts = {"T_indptr": csr.indptr, "T_indices": csr.indices, "T_data": csr.data, "T_shape": csr.shape}
    np.savez(path, I=ARRAYS["XAll"], L=LABELS, ids=np.array(TEXTS), **parts)


WRITERS = {
    "a.jsonl": write_jsonl,
    "a.csv": write_table,
    "a.tsv": write_table,
    "a.mat": write_v5,
    "compressed.mat": write_v5,
    "v73.mat": lambda path: write_v73(path, **ARRAYS, captions=TEXTS),
    "a.h5": write_h5,
    "a.npz": write_npz,
    "scipy.npz": lambda path: sparse.save_npz(path, WORDS, compressed=False),
    "a.npy": lambda path: np.save(path, ARRAYS["XAll"]),
    "caption.txt": lambda path: path.write_text("\n".join(TEXTS), encoding="utf-8"),
}
MAPPINGS = {"scipy.npz": {"text": "scipy"}, "a.npy": {"image": "a"}, "caption.txt": {"text": "caption"}}
MANIFESTS = ("a.jsonl", "a.csv", "a.tsv", "caption.txt")

place = st.floats(0, 1, exclude_max=True)
piece = st.one_of(
    st.binary(min_size=1, max_size=6), st.sampled_from([b"\xff" * 4, b"\0" * 8, b'"', b"\r", b"[" * 2000])
)
change = st.one_of(
    st.tuples(st.just("replace"), place, piece),
    st.tuples(st.just("insert"), place, piece),
    st.tuples(st.just("cut"), place, place),
    st.tuples(st.just("truncate"), place, st.just(b"")),
)


def mutated(content: bytes, changes) -> bytes:
    for kind, where, what in changes:
        start = int(where * len(content))
        if kind == "replace":
            content = content[:start] + what + content[start + len(what) :]
        elif kind == "insert":
            content = content[:start] + what + content[start:]
        elif kind == "cut":
            content = content[:start] + content[start + int(what * 40) :]
        else:
            content = content[:start]
    return content


def check(tmp_path, name, changes):
    path = tmp_path / name
    WRITERS[name](path)
    path.write_bytes(mutated(path.read_bytes(), changes))
    problem = None
    try:
        read(path, limits=ReadLimits(memory="50MB", seconds=20), **MAPPINGS.get(name, {}))
    except ReadError as error:
        problem = error
    assert problem is None or (str(problem).startswith(str(path)) and problem.reason)


ONE_ERROR = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture], "database": None}


@pytest.mark.parametrize("name", WRITERS)
def test_the_file_itself_is_read(tmp_path, name):
    WRITERS[name](tmp_path / name)
    assert read(tmp_path / name, **MAPPINGS.get(name, {})).sizes


@pytest.mark.parametrize("name", MANIFESTS)
@settings(max_examples=60, derandomize=True, **ONE_ERROR)
@given(changes=st.lists(change, min_size=1, max_size=4))
def test_mutated_texts(tmp_path, name, changes):
    check(tmp_path, name, changes)


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in MANIFESTS])
@settings(max_examples=12, derandomize=True, **ONE_ERROR)
@given(changes=st.lists(change, min_size=1, max_size=4))
def test_mutated_arrays(tmp_path, name, changes):
    check(tmp_path, name, changes)


@pytest.mark.campaign
@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=300, **ONE_ERROR)
@given(changes=st.lists(change, min_size=1, max_size=4))
def test_many_mutated_files(tmp_path, name, changes):
    check(tmp_path, name, changes)
