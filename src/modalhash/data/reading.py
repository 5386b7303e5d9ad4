"""Read data sets from files: the first bytes determine the format, names and shapes the layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.files import sha256_of
from modalhash.core.frames import Frame, Origin, is_frame
from modalhash.core.typing import Array
from modalhash.data.dataset import Dataset, Split, padded_bytes
from modalhash.data.feature_tables import holds_features, read_table
from modalhash.data.formats import sandbox as foreign
from modalhash.data.formats.manifest import MANIFEST_SUFFIXES, is_manifest, read_manifest, read_rows
from modalhash.data.formats.sandbox import ReadLimits, too_large
from modalhash.data.formats.tables import TableFormat
from modalhash.data.formats.variables import ReadError, Variable, listing, text_array
from modalhash.data.layouts import ALL, DATABASE, QUERY, TRAINING, Layout, guess, mapped, recognise

_PART_ORDER = (ALL, TRAINING, DATABASE, QUERY)


def assemble(layout: Layout, *, name: str, provenance: Mapping[str, Any], limits: ReadLimits) -> Dataset:
    """Load the variables of a layout as a data set; raise ``ValueError`` if they do not fit together."""
    shared = set(layout.labels) <= {""}
    if not layout.modalities and not layout.raw:
        raise ValueError("no features are named; expected e.g. image='XAll', text='YAll'")
    known = list(dict.fromkeys((*layout.modalities, *layout.raw)))
    if unknown := [modality for modality in (*layout.labels, *layout.ids) if modality and modality not in known]:
        raise ValueError(f"labels or ids for the unknown modality {unknown[0]!r}; there are {known}")
    groups = {modality: [modality] for modality in known} if not shared else {"": known}
    features: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    rows: dict[str, dict[str, Array]] = {}
    for key, members in groups.items():
        label_parts = layout.labels.get(key, {})
        parts = _parts(
            [layout.modalities[m] for m in members if m in layout.modalities]
            + [layout.raw[m] for m in members if m in layout.raw]
            + ([label_parts] if label_parts else [])
        )
        counts = {}
        for part in parts:
            matrices = [layout.modalities[m][part] for m in members if m in layout.modalities]
            texts = [layout.raw[m][part] for m in members if m in layout.raw]
            counts[part] = _count(matrices + ([label_parts[part]] if label_parts else []), texts)
        ends = np.cumsum([counts[part] for part in parts])
        for variable in label_parts.values():
            if variable.kind == "sparse":
                limits.check(prod(variable.shape), variable.file, f"the labels {variable.name!r} as a dense matrix")
        joined = _join(label_parts, counts) if label_parts else None
        for modality in members:
            if modality in layout.modalities:
                features[modality] = _join(layout.modalities[modality], counts)
            if modality in layout.raw:
                raw[modality] = np.concatenate([layout.raw[modality][part].load().ravel() for part in parts])
            rows[modality] = {
                part: np.arange(end - counts[part], end) for part, end in zip(parts, ends.tolist(), strict=True)
            }
            if joined is not None:
                labels[modality] = joined
    class_names = layout.class_names.load().ravel().tolist() if layout.class_names else None
    labels, class_names = _one_hot(labels, class_names, layout, limits)
    ids = _ids(layout, rows, limits)
    return Dataset(
        {modality: features[modality] for modality in layout.modalities},
        labels,
        ids,
        class_names=class_names or (),
        name=name,
        provenance=provenance,
        raw=raw,
        split=_split(layout, rows, ids),
        origins=_origins(layout, rows, ids),
    )


def _origins(layout: Layout, rows: Mapping[str, Mapping[str, Array]], ids: Mapping[str, Array]) -> dict[str, Origin]:
    found = {}
    for modality, parts in rows.items():
        variables = layout.modalities.get(modality, layout.raw.get(modality, {}))
        pieces = tuple(f"{variables[part].file.name}, variable {variables[part].name!r}" for part in parts)
        ends = np.cumsum([len(some) for some in parts.values()]).tolist()
        found[modality] = Origin(ids[modality], pieces, tuple(ends))
    return found


def _parts(groups: Iterable[Mapping[str, Variable]]) -> list[str]:
    sets = [set(parts) for parts in groups]
    if any(parts != sets[0] for parts in sets):
        shown = "; ".join(" + ".join(sorted(parts)) for parts in sets)
        raise ValueError(f"the modalities and labels come in different parts ({shown})")
    return [part for part in _PART_ORDER if part in sets[0]]


def _count(matrices: list[Variable], texts: list[Variable]) -> int:
    """Return the number of items: the size that all variables share as their first or last axis."""
    if scalars := [variable for variable in matrices if not variable.shape]:
        raise ValueError(f"{listing(scalars)}: a single number; expected one row per item")
    shared = set.intersection(
        *({variable.shape[0], variable.shape[-1]} for variable in matrices),
        *({prod(variable.shape)} for variable in texts),
    )
    if not shared:
        raise ValueError(
            f"row counts differ: no size is shared by {listing(matrices + texts)}. "
            "Features and labels need equal numbers of items; map other variables or repair the file"
        )
    # If two sizes fit (all variables are n×m), take the most common first axis, then the larger size.
    first = [variable.shape[0] for variable in matrices]
    return max(shared, key=lambda size: (first.count(size), size))


def _join(parts: Mapping[str, Variable], counts: Mapping[str, int]) -> Any:
    pieces = [_items_first(parts[part].load(), counts[part]) for part in _PART_ORDER if part in parts]
    if len(pieces) == 1:
        return pieces[0]
    if any(sparse.issparse(piece) for piece in pieces):
        return sparse.csr_array(sparse.vstack([sparse.csr_array(piece) for piece in pieces]))
    if len({piece.shape[1:] for piece in pieces}) > 1:
        raise ValueError(f"the parts have different widths: {', '.join(map(str, parts.values()))}")
    return np.concatenate(pieces)


def _items_first(values: Any, n: int) -> Any:
    """Return values with the items along the first axis; pixels as (items, height, width, channels)."""
    if sparse.issparse(values):
        return sparse.csr_array(values if values.shape[0] == n else values.T)
    values = np.asarray(values)
    if values.ndim == 1:
        return values[:, None]
    if values.shape[0] != n:
        values = values.T if values.ndim == 2 else np.moveaxis(values, -1, 0)
    if values.ndim == 4 and values.shape[1] in (1, 3) and values.shape[3] not in (1, 3):
        values = np.moveaxis(values, 1, 3)
    return values if values.flags.writeable or values.ndim > 2 else values.copy()


def _one_hot(
    labels: dict[str, Any], class_names: list[str] | None, layout: Layout, limits: ReadLimits
) -> tuple[dict[str, Any], list[str] | None]:
    """Turn a column of class numbers or names into one column per class that occurs in any modality."""
    if not labels or any(values.shape[1] != 1 for values in labels.values()):
        return labels, class_names
    columns = {modality: np.asarray(v.toarray() if sparse.issparse(v) else v).ravel() for modality, v in labels.items()}
    classes = np.unique(np.concatenate(list(columns.values())))
    are_names = classes.dtype.kind in "UO"
    if not are_names:
        if not np.array_equal(classes, np.round(classes)) or classes[0] < 0:
            raise ValueError(
                f"a single label column with values from {classes[0]} to {classes[-1]}; "
                "expected class numbers (integers from 0 or 1)"
            )
        classes = classes.astype(np.int64)
    names = [str(value) for value in classes.tolist()]
    if class_names and not are_names and classes[-1] - classes[0] < len(class_names):
        start = 0 if classes[0] == 0 else 1
        if classes[-1] - start < len(class_names):  # unused class numbers keep their column
            classes, names = np.arange(start, start + len(class_names)), class_names
    variable = next(variable for parts in layout.labels.values() for variable in parts.values())
    n_bytes = sum(len(values) for values in columns.values()) * len(classes)
    limits.check(n_bytes, variable.file, f"one column per class of {variable.name!r}")
    return {modality: values[:, None] == classes for modality, values in columns.items()}, names


def _ids(layout: Layout, rows: Mapping[str, Mapping[str, Array]], limits: ReadLimits) -> dict[str, Array]:
    ids = {}
    for modality, parts in rows.items():
        variable = layout.ids.get(modality, layout.ids.get(""))
        total = sum(len(part) for part in parts.values())
        ids[modality] = np.arange(total) if variable is None else np.asarray(variable.load()).ravel()
        if variable is not None and variable.kind == "texts":
            longest = max(map(len, ids[modality].tolist()), default=0)
            what = f"the ids {variable.name!r}, the longest of {longest:,} characters,"
            limits.check(padded_bytes(longest, total), variable.file, what)
    return ids


def _split(layout: Layout, rows: Mapping[str, Mapping[str, Array]], ids: Mapping[str, Array]) -> Split | None:
    if layout.is_train is not None:
        mask = np.asarray(layout.is_train.load()).ravel().astype(bool)
        if any(len(mask) != len(values) for values in ids.values()):
            raise ValueError(f"is_train has {len(mask)} entries; there are {len(next(iter(ids.values())))} items")
        return Split({m: v[mask] for m, v in ids.items()}, {m: v[~mask] for m, v in ids.items()})
    if any(ALL in parts for parts in rows.values()) or not all(QUERY in parts for parts in rows.values()):
        return None

    def of(part: str) -> dict[str, Array] | None:
        return {m: ids[m][parts[part]] for m, parts in rows.items()} if part in next(iter(rows.values())) else None

    query, training, database = of(QUERY), of(TRAINING), of(DATABASE)
    learned = training if training is not None else database
    if query is None or learned is None:
        return None
    return Split(learned, query, database if training is not None else None)


Paths = str | Path | Sequence[str | Path]
STORED = ("provenance", "split", "split_sizes", "components", "name")
"""Variables that ``write_npz`` stores in addition to the arrays."""
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
    """Read a data set from a file, a folder, a list of files that belong together, or a frame.

    Recognised: MATLAB v5 and v7.3, HDF5, ``.npz``, ``.npy``, scipy's sparse ``.npz``; manifests (``.jsonl``, ``.csv``,
    ``.tsv``, ``.xlsx``, ``.parquet``, ``.feather``, ``.arrow``) with ``id``, ``path`` or ``text``, ``labels``,
    ``modality`` of each item; such tables with features, as columns of number lists or as ``image_0``, ``image_1`` …;
    and the same in memory: pandas and polars frames, Arrow tables and Hugging Face's ``datasets.Dataset``.
    Files with a training and a test part come with that split. Files are not trusted: binary formats are read in a
    separate process with limits on memory and time, and HDF5 files that refer to other files are refused.

    Parameters
    ----------
    path
        of the file, the folder, or several files whose variables are combined; or a frame
    name
        of the data set; the file's by default
    limits
        memory and time that a file may take; see :class:`modalhash.data.ReadLimits` for the defaults
    table
        the encoding, separator or sheet of a table if detection fails: ``TableFormat(encoding="latin-1")``
    **mapping
        the role of each variable if the layout is not recognised or another is wanted: ``image="XAll"`` makes the
        variable ``XAll`` the modality ``image`` (any name is valid); ``image="I"`` takes ``I_tr`` and ``I_te``.
        Also ``labels`` (one name, or a dict by modality), ``ids``, ``class_names``, ``is_train``. In a table, one or
        several columns: ``image=["x", "y"]``, ``image="x_*"``; ``labels``, ``id`` and ``split``

    Raises
    ------
    ReadError
        if a file cannot be read, with the file, the line or variable, and the reason

    Examples
    --------
    >>> read("mirflickr25k.mat")  # doctest: +SKIP
    Dataset('mirflickr25k': image 16738×150, text 16738×500, 24 classes, split)
    """
    if is_frame(path):
        label = name or "frame"
        if holds_features(path, mapping):
            return read_table(path, name=label, fields=mapping, limits=limits)
        rows = Frame(path, f"data set {label!r}")
        return read_rows(list(enumerate(rows.rows())), rows.kinds, name=label, fields=mapping, limits=limits)
    files = _files(path)
    label = name or (Path(path).stem if isinstance(path, str | Path) else files[0].stem)
    where = ", ".join(str(file) for file in files)
    limits = limits or ReadLimits()
    try:
        if any(is_manifest(file) for file in files):
            if len(files) > 1:
                raise ValueError(f"{len(files)} files; a manifest must be read alone. Pass one file")
            if holds_features(files[0], mapping, table):
                return read_table(files[0], name=label, fields=mapping, limits=limits, table=table)
            return read_manifest(files[0], name=label, fields=mapping, limits=limits, table=table)
        return _read_arrays(files, label, mapping, limits, keep_name=name is not None)
    except ReadError:
        raise
    except (ValueError, TypeError) as error:  # the content is not a data set
        raise ReadError(where, str(error)) from error
    except MemoryError:
        raise too_large(files[0], "what it holds", None, limits.memory_for(files[0].stat().st_size)) from None


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


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, Any]:
    variables = _variables([path], ReadLimits())
    return {name: variables[name].load() for name in names if name in variables}


def guess_mapping(path: Paths, *, limits: ReadLimits | None = None) -> dict[str, str]:
    """Guess the keywords of :func:`read` for a file of arrays; empty if nothing fits.

    The guess is based on shapes and names; check it before you use it.
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
    """List the variables of one file; its first bytes determine the format, not its suffix."""
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
    if "provenance" not in variables or variables["provenance"].kind != "texts":
        return dataset
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
    return replace(
        dataset,
        name=str(variables["name"].load()) if "name" in variables and not keep_name else dataset.name,
        provenance={**stored, "sha256": dataset.provenance["sha256"], "read_from": dataset.provenance["files"]},
        split=Split.from_json(split, disjoint=False) if split else dataset.split,
        split_sizes=sizes or {},
        components=components or {},
    )
