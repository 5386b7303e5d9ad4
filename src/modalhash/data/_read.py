"""Read anyone's files: the first bytes tell the format, names and shapes tell the layout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from modalhash._files import sha256_of
from modalhash.data._assemble import assemble
from modalhash.data._layouts import mapped, recognise
from modalhash.data.dataset import Dataset, Split
from modalhash.data.formats import hdf5, matlab, npz
from modalhash.data.formats._variables import Variable, listing, variable_of
from modalhash.data.formats.manifest import MANIFEST_SUFFIXES, is_manifest, read_manifest

Paths = str | Path | Sequence[str | Path]
ARRAY_SUFFIXES = (".mat", ".npz", ".npy", ".h5", ".hdf5", ".h5py")
_HOW_TO_MAP = 'Say which is which, e.g. read(path, image="XAll", text="YAll", labels="LAll")'


def read(path: Paths, *, name: str | None = None, **mapping: Any) -> Dataset:
    """Read a data set from a file, a folder of files that belong together, or a list of them.

    Recognised: MATLAB v5 and v7.3, HDF5, ``.npz``, ``.npy``, scipy's sparse ``.npz``, and manifests
    (``.jsonl``, ``.csv``, ``.tsv`` with ``id``, ``path`` or ``text``, ``labels``, ``modality`` of each item).
    Files with a training and a test part come with that split.

    Parameters
    ----------
    path
        of the file, the folder, or several files whose variables are taken together
    name
        of the data set; the file's by default
    **mapping
        which variable is which, where the layout is not recognised or another is wanted: ``image="XAll"`` makes the
        variable ``XAll`` the modality ``image`` (any name will do); ``image="I"`` takes ``I_tr`` and ``I_te``.
        Also ``labels`` (one name, or a dict by modality), ``ids``, ``class_names``, ``is_train``

    Examples
    --------
    >>> read("mirflickr25k.mat")  # doctest: +SKIP
    Dataset('mirflickr25k': image 16738×150, text 16738×500, 24 classes, split)
    """
    files = _files(path)
    label = name or (Path(path).stem if isinstance(path, str | Path) else files[0].stem)
    if any(is_manifest(file) for file in files):
        if len(files) > 1:
            raise ValueError(f"{files[0].parent}: {len(files)} files; a manifest is read alone. Name the one file")
        return read_manifest(files[0], name=label, fields=mapping)
    variables = _variables(files)
    where = ", ".join(str(file) for file in files)
    layout = mapped(variables, mapping) if mapping else recognise(variables)
    if layout is None:
        raise ValueError(f"{where}: the layout is not recognised. It has: {listing(variables.values())}. {_HOW_TO_MAP}")
    used = layout.used()
    unused = [key for key in variables if key not in used and key not in ("provenance", "split", "name")]
    provenance = {
        "source": "file",
        "files": [file.name for file in files],
        "sha256": sha256_of(files),
        "notes": [f"not used: {', '.join(unused)}"] if unused else [],
    }
    dataset = assemble(layout, name=label, where=where, provenance=provenance)
    return dataset if mapping else _with_stored_facts(dataset, variables, where, keep_name=name is not None)


def _files(path: Paths) -> list[Path]:
    if not isinstance(path, str | Path):
        files = [Path(one) for one in path]
        if not files:
            raise ValueError("read got an empty list of paths")
    elif Path(path).is_dir():
        files = sorted(file for file in Path(path).iterdir() if file.suffix.lower() in ARRAY_SUFFIXES)
        files += [file for file in [Path(path) / "caption.txt"] if file.exists()]
        if not files:
            raise ValueError(f"{path}: a folder without any {', '.join(ARRAY_SUFFIXES)} file")
    else:
        files = [Path(path)]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file")
    return files


def _variables(files: Sequence[Path]) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    for file in files:
        for variable in _variables_of(file):
            if variable.name in variables:
                raise ValueError(
                    f"{file}: the variable {variable.name!r} is also in {variables[variable.name].file}. "
                    "Read the files that belong together: read([path, path])"
                )
            variables[variable.name] = variable
    return variables


def _variables_of(file: Path) -> list[Variable]:
    """List the variables of one file; the first bytes tell the format, whatever the name says."""
    with file.open("rb") as stream:
        head = stream.read(520)
    if not head:
        raise ValueError(f"{file}: the file is empty")
    signature = b"\x89HDF\r\n\x1a\n"
    if head.startswith(signature) or head[512:520] == signature or head.startswith(b"MATLAB 7.3"):
        return hdf5.variables(file)
    if head.startswith(b"PK") or head.startswith(b"\x93NUMPY") or file.suffix.lower() in (".npz", ".npy"):
        return npz.variables(file)
    if head.startswith(b"MATLAB 5.0") or file.suffix.lower() == ".mat":
        return matlab.variables(file)
    if file.suffix.lower() == ".txt":
        return [variable_of(file.stem, file.read_text(encoding="utf-8").splitlines(), file)]
    raise ValueError(
        f"{file}: neither a MATLAB, HDF5 nor NumPy file by its first bytes ({head[:8]!r}); "
        f"expected one of {', '.join(ARRAY_SUFFIXES + MANIFEST_SUFFIXES)}. "
        "A truncated or corrupt file looks like this too"
    )


def _with_stored_facts(dataset: Dataset, variables: Mapping[str, Variable], where: str, *, keep_name: bool) -> Dataset:
    """Apply the name, provenance and split that ``write_npz`` stored beside the arrays."""
    if "provenance" in variables and variables["provenance"].kind == "texts":
        try:
            stored = json.loads(str(variables["provenance"].load()))
            split = json.loads(str(variables["split"].load())) if "split" in variables else None
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: 'provenance' or 'split' is not JSON ({error})") from error
        provenance = {
            **stored,
            "sha256": dataset.provenance["sha256"],
            "read_from": dataset.provenance["files"],
        }
        name = str(variables["name"].load()) if "name" in variables and not keep_name else dataset.name
        dataset = replace(
            dataset,
            name=name,
            provenance=provenance,
            split=Split.from_json(split, disjoint=False, where=where) if split else dataset.split,
        )
    return dataset
