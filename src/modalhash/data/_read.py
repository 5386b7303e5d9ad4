"""Read anyone's files: the first bytes tell the format, names and shapes tell the layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from modalhash._files import sha256_of
from modalhash.data._assemble import assemble
from modalhash.data._errors import ReadError
from modalhash.data._layouts import guess, mapped, recognise
from modalhash.data.dataset import Dataset, Split
from modalhash.data.feature_tables import holds_features, read_table
from modalhash.data.formats import foreign
from modalhash.data.formats._found import text_array
from modalhash.data.formats._variables import Variable, listing
from modalhash.data.formats.manifest import MANIFEST_SUFFIXES, is_manifest, read_manifest, read_rows
from modalhash.data.formats.table_format import TableFormat
from modalhash.data.limits import ReadLimits, too_large
from modalhash.frames import Frame, is_frame

Paths = str | Path | Sequence[str | Path]
STORED = ("provenance", "split", "split_sizes", "components", "name")
"""Variables that ``write_npz`` stores next to the arrays."""
ARRAY_SUFFIXES = (".mat", ".npz", ".npy", ".h5", ".hdf5", ".h5py")
_HOW_TO_MAP = 'Say which is which, e.g. read(path, image="XAll", text="YAll", labels="LAll")'


def read(
    path: Paths | Any,
    *,
    name: str | None = None,
    limits: ReadLimits | None = None,
    table: TableFormat | None = None,
    **mapping: Any,
) -> Dataset:
    """Read a data set from a file, a folder of files that belong together, a list of them, or a frame.

    Recognised: MATLAB v5 and v7.3, HDF5, ``.npz``, ``.npy``, scipy's sparse ``.npz``; manifests (``.jsonl``, ``.csv``,
    ``.tsv``, ``.xlsx``, ``.parquet``, ``.feather``, ``.arrow``) with ``id``, ``path`` or ``text``, ``labels``,
    ``modality`` of each item; such tables with features, as columns of number lists or as ``image_0``, ``image_1`` …;
    and the same in memory: pandas and polars frames, Arrow tables and Hugging Face's ``datasets.Dataset``.
    Files with a training and a test part come with that split. A file may be damaged, or made to do harm: binary
    formats are read in a process of their own, with a limit on memory and time, and HDF5 files that name other files
    are refused.

    Parameters
    ----------
    path
        of the file, the folder, or several files whose variables are taken together; or a frame
    name
        of the data set; the file's by default
    limits
        how much memory and time a file may take; see :class:`modalhash.data.ReadLimits` for what is usual
    table
        the encoding, separator or sheet of a table, where that is not to be found: ``TableFormat(encoding="latin-1")``
    **mapping
        which variable is which, where the layout is not recognised or another is wanted: ``image="XAll"`` makes the
        variable ``XAll`` the modality ``image`` (any name will do); ``image="I"`` takes ``I_tr`` and ``I_te``.
        Also ``labels`` (one name, or a dict by modality), ``ids``, ``class_names``, ``is_train``. In a table, a column
        or several: ``image=["x", "y"]``, ``image="x_*"``; ``labels``, ``id`` and ``split``

    Raises
    ------
    ReadError
        for whatever cannot be read, with the file, the line or variable, and the reason

    Examples
    --------
    >>> read("mirflickr25k.mat")  # doctest: +SKIP
    Dataset('mirflickr25k': image 16738×150, text 16738×500, 24 classes, split)
    """
    if is_frame(path):
        return _read_frame(path, name or "frame", mapping, limits)
    files = _files(path)
    label = name or (Path(path).stem if isinstance(path, str | Path) else files[0].stem)
    where = ", ".join(str(file) for file in files)
    limits = limits or ReadLimits()
    try:
        if any(is_manifest(file) for file in files):
            if len(files) > 1:
                raise ValueError(f"{len(files)} files; a manifest is read alone. Name the one file")
            if holds_features(files[0], mapping, table):
                return read_table(files[0], name=label, fields=mapping, limits=limits, table=table)
            return read_manifest(files[0], name=label, fields=mapping, limits=limits, table=table)
        return _read_arrays(files, label, mapping, limits, keep_name=name is not None)
    except ReadError:
        raise
    except (ValueError, TypeError) as error:  # what the files hold is no data set
        raise ReadError(where, str(error)) from error
    except MemoryError:
        raise too_large(files[0], "what it holds", None, limits.memory_for(files[0].stat().st_size)) from None


def _read_frame(frame: Any, name: str, mapping: Mapping[str, Any], limits: ReadLimits | None) -> Dataset:
    if holds_features(frame, mapping):
        return read_table(frame, name=name, fields=mapping, limits=limits)
    rows = Frame(frame, f"data set {name!r}")
    return read_rows(list(enumerate(rows.rows())), rows.kinds, name=name, fields=mapping, limits=limits)


def _read_arrays(
    files: Sequence[Path], label: str, mapping: Mapping[str, Any], limits: ReadLimits, *, keep_name: bool
) -> Dataset:
    variables = _variables(files, limits)
    layout = mapped(variables, mapping) if mapping else recognise(variables)
    if layout is None:
        raise ReadError(
            ", ".join(str(file) for file in files),
            f"the layout is not recognised. It has: {listing(variables.values())}. {_HOW_TO_MAP}",
            mapping=guess(variables),
        )
    used = layout.used()
    unused = [key for key in variables if key not in used and key not in STORED]
    provenance = {
        "source": "file",
        "files": [file.name for file in files],
        "sha256": sha256_of(files),
        "notes": [f"not used: {', '.join(unused)}"] if unused else [],
    }
    dataset = assemble(layout, name=label, provenance=provenance, limits=limits)
    return dataset if mapping else _with_stored_facts(dataset, variables, keep_name=keep_name)


def read_arrays(path: Path, names: Iterable[str], *, limits: ReadLimits | None = None) -> dict[str, Any]:
    """Return the variables of a file that have these names: arrays, CSR matrices, or texts as object arrays."""
    variables = _variables([path], limits or ReadLimits())
    return {name: variables[name].load() for name in names if name in variables}


def guess_mapping(path: Paths, *, limits: ReadLimits | None = None) -> dict[str, str]:
    """Guess which variable of a file of arrays is which, as keywords of :func:`read`; empty where nothing fits.

    The guess goes by shapes and names, for a person to look at before it is used.
    """
    files = _files(path)
    if any(is_manifest(file) for file in files):
        return {}
    return guess(_variables(files, limits or ReadLimits()))


def _files(path: Paths) -> list[Path]:
    if not isinstance(path, str | Path):
        files = [Path(one) for one in path]
        if not files:
            raise ValueError("read got an empty list of paths")
    elif Path(path).is_dir():
        files = sorted(file for file in Path(path).iterdir() if file.suffix.lower() in ARRAY_SUFFIXES)
        files += [file for file in [Path(path) / "caption.txt"] if file.exists()]
        if not files:
            raise ReadError(path, f"a folder without any {', '.join(ARRAY_SUFFIXES)} file")
    else:
        files = [Path(path)]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file")
    return files


def _variables(files: Sequence[Path], limits: ReadLimits) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    for file in files:
        for variable in _variables_of(file, limits):
            if variable.name in variables:
                raise ReadError(
                    file,
                    f"it is also in {variables[variable.name].file}. "
                    "Read the files that belong together: read([path, path])",
                    variable=variable.name,
                )
            variables[variable.name] = variable
    return variables


def _variables_of(file: Path, limits: ReadLimits) -> list[Variable]:
    """List the variables of one file; the first bytes tell the format, whatever the name says."""
    with file.open("rb") as stream:
        head = stream.read(520)
    if not head:
        raise ReadError(file, "the file is empty")
    signature = b"\x89HDF\r\n\x1a\n"
    if head.startswith(signature) or head[512:520] == signature or head.startswith(b"MATLAB 7.3"):
        return foreign.variables(file, "hdf5", limits)
    if head.startswith(b"PK") or head.startswith(b"\x93NUMPY") or file.suffix.lower() in (".npz", ".npy"):
        return foreign.variables(file, "npz", limits)
    if head.startswith(b"MATLAB 5.0") or file.suffix.lower() == ".mat":
        return foreign.variables(file, "matlab", limits)
    if file.suffix.lower() == ".txt":
        texts = text_array(_lines(file))
        return [Variable(file.stem, texts.shape, "texts", lambda: texts, file)]
    raise ReadError(
        file,
        f"neither a MATLAB, HDF5 nor NumPy file by its first bytes ({head[:8]!r}); "
        f"expected one of {', '.join(ARRAY_SUFFIXES + MANIFEST_SUFFIXES)}. "
        "A truncated or corrupt file looks like this too",
    )


def _lines(file: Path) -> list[str]:
    content = file.read_bytes()
    try:
        return content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        line = len(content[: error.start].decode("utf-8").splitlines()) or 1
        raise ReadError(file, "not in UTF-8; save the file as UTF-8", line=line) from None


def _with_stored_facts(dataset: Dataset, variables: Mapping[str, Variable], *, keep_name: bool) -> Dataset:
    """Apply the name, provenance and split that ``write_npz`` stored beside the arrays."""
    if "provenance" in variables and variables["provenance"].kind == "texts":
        try:
            stored = json.loads(str(variables["provenance"].load()))
            split, sizes, components = (
                json.loads(str(variables[name].load())) if name in variables else None
                for name in ("split", "split_sizes", "components")
            )
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"'provenance', 'split' or its sizes are not JSON ({error})") from error
        if not isinstance(stored, dict):
            raise ValueError(f"'provenance' is a {type(stored).__name__}; expected a JSON object")
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
            split=Split.from_json(split, disjoint=False) if split else dataset.split,
            split_sizes=sizes or {},
            components=components or {},
        )
    return dataset
