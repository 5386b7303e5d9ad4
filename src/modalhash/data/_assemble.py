"""Put the variables of a layout together to a data set: find the axis of the items, join parts, spread classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
from scipy import sparse

from modalhash._typing import Array
from modalhash.data._checks import padded_bytes
from modalhash.data._layouts import ALL, DATABASE, QUERY, TRAINING, Layout
from modalhash.data.dataset import Dataset, Split
from modalhash.data.formats._variables import Variable, listing
from modalhash.data.limits import ReadLimits
from modalhash.origins import Origin

_PART_ORDER = (ALL, TRAINING, DATABASE, QUERY)


def assemble(layout: Layout, *, name: str, provenance: Mapping[str, Any], limits: ReadLimits) -> Dataset:
    """Load the variables of a layout and return them as a data set; what does not fit together is a ValueError."""
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
        _check_dense(label_parts.values(), limits)
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
    labels, class_names = _one_hot(labels, class_names, _label_check(layout, limits))
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
    """Return where the items of each modality stand: in which variable, and there in which row."""
    found = {}
    for modality, parts in rows.items():
        variables = layout.modalities.get(modality, layout.raw.get(modality, {}))
        pieces = tuple(f"{variables[part].file.name}, variable {variables[part].name!r}" for part in parts)
        ends = np.cumsum([len(some) for some in parts.values()]).tolist()
        found[modality] = Origin(ids[modality], pieces, tuple(ends))
    return found


def _check_dense(labels: Iterable[Variable], limits: ReadLimits) -> None:
    """Refuse sparse labels that would take too much as the dense matrix that they become."""
    for variable in labels:
        if variable.kind == "sparse":
            limits.check(prod(variable.shape), variable.file, f"the labels {variable.name!r} as a dense matrix")


def _label_check(layout: Layout, limits: ReadLimits) -> Callable[[int], None]:
    variables = [variable for parts in layout.labels.values() for variable in parts.values()]

    def check(n_bytes: int) -> None:
        limits.check(n_bytes, variables[0].file, f"one column per class of {variables[0].name!r}")

    return check


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
            "Features and labels need as many items; map other variables or repair the file"
        )
    # Where two sizes fit (all variables are n×m), the first axis of most counts the items; then the larger.
    first = [variable.shape[0] for variable in matrices]
    return max(shared, key=lambda size: (first.count(size), size))


def _join(parts: Mapping[str, Variable], counts: Mapping[str, int]) -> Any:
    pieces = [_items_first(parts[part].load(), counts[part]) for part in _PART_ORDER if part in parts]
    if len(pieces) == 1:
        return pieces[0]
    if any(sparse.issparse(piece) for piece in pieces):
        return sparse.csr_array(sparse.vstack([sparse.csr_array(piece) for piece in pieces]))
    if len({piece.shape[1:] for piece in pieces}) > 1:
        shapes = ", ".join(f"{variable}" for variable in parts.values())
        raise ValueError(f"the parts have different widths: {shapes}")
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
    labels: dict[str, Any], class_names: list[str] | None, check: Callable[[int], None]
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
                "expected class numbers (whole, from 0 or 1)"
            )
        classes = classes.astype(np.int64)
    names = [str(value) for value in classes.tolist()]
    if class_names and not are_names and classes[-1] - classes[0] < len(class_names):
        start = 0 if classes[0] == 0 else 1
        if classes[-1] - start < len(class_names):  # numbers that no item has keep their column
            classes, names = np.arange(start, start + len(class_names)), class_names
    check(sum(len(values) for values in columns.values()) * len(classes))
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
