"""Writers of the file kinds that the readers are tested on."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from scipy import sparse


def write_v73(path: Path, **arrays) -> Path:
    """A MATLAB v7.3 file: HDF5 behind a 512-byte header, axes reversed, classes as attributes."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in arrays.items():
            if sparse.issparse(value):
                matrix = sparse.csc_array(value)
                group = file.create_group(name)
                group.attrs["MATLAB_class"] = np.bytes_("double")
                group.attrs["MATLAB_sparse"] = np.uint64(matrix.shape[0])
                group["data"], group["ir"] = matrix.data, matrix.indices.astype(np.uint64)
                group["jc"] = matrix.indptr.astype(np.uint64)
            elif isinstance(value, list):
                references = file.create_dataset(name, (len(value), 1), dtype=h5py.ref_dtype)
                references.attrs["MATLAB_class"] = np.bytes_("cell")
                for number, item in enumerate(value):
                    target = file.require_group("#refs#").create_dataset(f"{name}{number}", data=_numbers(item))
                    target.attrs["MATLAB_class"] = np.bytes_("char" if isinstance(item, str) else "double")
                    references[number, 0] = target.ref
            else:
                file[name] = np.asarray(value).T
                file[name].attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


def _numbers(item):
    if isinstance(item, str):
        return np.array([[ord(letter)] for letter in item], dtype=np.uint16)
    return np.asarray(item).T


def parts(seed: int = 0, training: int = 40, query: int = 9, database: int = 0) -> dict[str, np.ndarray]:
    """``I_tr T_tr L_tr I_te …`` of small random arrays."""
    rng = np.random.default_rng(seed)
    out = {}
    for part, n in {"tr": training, "te": query, "db": database}.items():
        if n:
            out[f"I_{part}"] = rng.random((n, 7))
            out[f"T_{part}"] = (rng.random((n, 5)) < 0.4).astype(np.uint8)
            out[f"L_{part}"] = one_hot(np.arange(n) % 3, 3)
    return out


def one_hot(numbers, n_classes: int) -> np.ndarray:
    return np.eye(n_classes, dtype=np.uint8)[numbers]
