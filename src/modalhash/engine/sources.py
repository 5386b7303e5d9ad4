"""Where items come from: manifests, folders of pictures, a data set (its name, file, or itself), or fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash._typing import Matrix
from modalhash.engine.manifest_items import count_lines, is_manifest, read_items
from modalhash.engine.picture_folders import has_pictures, picture_items, pictures
from modalhash.engine.raw_items import Item, Problem, Report, items_of, unique
from modalhash.validation import check_choice

if TYPE_CHECKING:
    from modalhash.data import Dataset
    from modalhash.encoders import Encoder

DEFAULTS = {"image": "image", "text": "tfidf"}
"""Encoders of the modalities everybody has."""


@dataclass(frozen=True)
class Portion:
    """Items of one modality, and what their encoder takes."""

    modality: str
    items: list[Item]
    contents: Any


def opened(source: Any) -> list[Path] | Dataset | Iterable[Any]:
    """Paths of manifests and folders of pictures, or the data set behind a name or a path; anything else as it is."""
    if isinstance(source, list | tuple) and source and all(isinstance(one, str | Path) for one in source):
        if len(source) == 1:
            return opened(source[0])
        several = [Path(one) for one in source]
        if wrong := [path for path in several if not is_manifest(path) and not _has_pictures(path)]:
            raise ValueError(f"{wrong[0]}: of several sources each is a manifest or a folder of pictures")
        return several
    if not isinstance(source, str | Path):
        return source
    from modalhash.data import NAMED, load_dataset, read

    path = Path(source)
    if is_manifest(path) or _has_pictures(path):
        return [path]
    if path.exists():
        return read(path)
    if str(source) in NAMED:
        return load_dataset(str(source))
    raise FileNotFoundError(
        f"{path}: no such file, and no data set of that name ({', '.join(NAMED)}). "
        "Expected a manifest (.jsonl, .csv or .tsv), a folder of pictures, a file with features, or one of these names"
    )


def total_of(source: Any) -> int:
    """Lines or items of an opened source; 0 if it does not say."""
    if _is_paths(source):
        return sum(sum(1 for _ in pictures(path)) if path.is_dir() else count_lines(path) for path in source)
    if hasattr(source, "sizes"):
        return int(sum(source.sizes.values()))
    return len(source) if hasattr(source, "__len__") else 0


def choose_encoders(source: Any, given: Mapping[str, Any] | None) -> dict[str, Encoder]:
    """An encoder per modality: those given, by name or as they are, and the usual ones for the others."""
    from modalhash.encoders import READS, Precomputed, get_encoder

    chosen: dict[str, Any] = dict(given or {})
    if hasattr(source, "modalities"):
        for modality in source.modalities:
            if modality not in chosen:
                usual = DEFAULTS.get(modality) if _raw_is_usable(source, modality) else None
                chosen[modality] = usual or Precomputed(source=source.name)
    else:
        chosen = {**DEFAULTS, **chosen}
    encoders: dict[str, Encoder] = {
        modality: get_encoder(value) if isinstance(value, str | Path) else value for modality, value in chosen.items()
    }
    for modality, encoder in encoders.items():
        check_choice(encoder.reads, f"encoder of {modality!r}: reads", READS)
    return encoders


def portions(
    source: Any,
    reads: Mapping[str, str],
    report: Report,
    *,
    fields: Mapping[str, str] | None = None,
    size: int | None = None,
) -> Iterator[Portion]:
    """Usable items of an opened source, up to ``size`` of one modality at a time (None: all at once)."""
    if hasattr(source, "modalities"):
        for modality in source.modalities:
            yield from _of_dataset(source, modality, reads, report, size)
        return
    items: Iterator[Item]
    if _is_paths(source):
        items = chain.from_iterable(
            picture_items(path, reads) if path.is_dir() else read_items(path, reads, report, fields=fields)
            for path in source
        )
    else:
        items = _given(source, reads, report, fields)
    waiting: dict[str, list[Item]] = {}
    for item in unique(items, report):
        waiting.setdefault(item.modality, []).append(item)
        if size is not None and len(waiting[item.modality]) == size:
            yield _portion(item.modality, waiting.pop(item.modality))
    for modality, rest in waiting.items():
        yield _portion(modality, rest)


def _portion(modality: str, items: list[Item]) -> Portion:
    return Portion(modality, items, [item.content for item in items])


def _is_paths(source: Any) -> bool:
    return isinstance(source, list) and bool(source) and all(isinstance(one, Path) for one in source)


def _has_pictures(path: Path) -> bool:
    return path.is_dir() and has_pictures(path)


def _given(
    source: Iterable[Any], reads: Mapping[str, str], report: Report, fields: Mapping[str, str] | None
) -> Iterator[Item]:
    """Items as they are; mappings of fields made into items, with paths relative to the working directory."""
    for one in source:
        if isinstance(one, Mapping):
            yield from items_of([(None, one)], reads, report, base=Path.cwd(), fields=fields)
        elif not isinstance(one, Item):
            raise TypeError(f"items: got {type(one).__name__}; expected dicts such as {{'text': …}} or {{'path': …}}")
        elif one.modality not in reads:
            report(one.problem(f"unknown modality {one.modality!r}; expected one of {', '.join(map(repr, reads))}"))
        else:
            yield one


def _of_dataset(
    dataset: Dataset, modality: str, reads: Mapping[str, str], report: Report, size: int | None
) -> Iterator[Portion]:
    ids = [str(id) for id in dataset.ids[modality].tolist()]
    if modality not in reads:
        for id in ids:
            reason = f"unknown modality {modality!r}; expected one of {', '.join(map(repr, reads))}"
            report(Problem(reason, modality=modality, id=id))
        return
    raw = dataset.raw.get(modality)
    takes = reads[modality]
    contents: Matrix | list[Any]
    if takes == "array":
        if modality not in dataset.features:
            raise ValueError(f"data set {dataset.name!r}: {modality!r} has no features, which its encoder takes")
        contents = dataset.features[modality]
    elif raw is None:
        raise ValueError(f"data set {dataset.name!r}: {modality!r} has no raw items, which its encoder takes")
    else:
        contents = raw.tolist() if takes == "text" else [_base(dataset) / path for path in raw.tolist()]
    names = np.array(dataset.class_names, dtype=object)
    labels = dataset.labels.get(modality)
    training = np.isin(dataset.ids[modality], dataset.split.training[modality]) if dataset.split else None
    for start in range(0, len(ids), size or len(ids) or 1):
        rows = range(start, min(start + (size or len(ids)), len(ids)))
        items = [
            Item(
                modality,
                ids[row],
                text=str(raw[row]) if raw is not None and modality == "text" else None,
                path=contents[row] if takes == "image" else None,
                uri=str(raw[row]) if raw is not None and modality != "text" else None,
                labels=() if labels is None else tuple(map(str, names[labels[row]])),
                training=training is None or bool(training[row]),
            )
            for row in rows
        ]
        yield Portion(modality, items, contents[rows.start : rows.stop])


def _raw_is_usable(dataset: Dataset, modality: str) -> bool:
    """Texts are; names of pictures are if the first one is there."""
    raw = dataset.raw.get(modality)
    if raw is None or not len(raw):
        return False
    return modality == "text" or (_base(dataset) / str(raw[0])).is_file()


def _base(dataset: Dataset) -> Path:
    return Path(str(dataset.provenance.get("base", ".")))
