"""Other features for a data set: one modality encoded anew from its pictures or texts."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from modalhash.data import Dataset
from modalhash.encoders.batches import encode_items
from modalhash.encoders.protocol import Encoder
from modalhash.progress import Callback


def encode_dataset(
    dataset: Dataset,
    modality: str,
    encoder: Encoder,
    *,
    files: str | Path | None = None,
    progress: Callback | None = None,
) -> Dataset:
    """The data set with features of ``modality`` made from its raw items; everything else stays.

    Parameters
    ----------
    dataset
        with ``raw`` items of that modality: texts, or names of pictures
    modality
        whose features are made
    encoder
        fitted here, on the training items where the data set has a split, else on all
    files
        folder or zip archive in which the raw items are names of files; None where they are texts or paths
    progress
        hears how far it is

    Raises
    ------
    ItemError
        for the first item that cannot be read: a data set with an item less is another data set

    Examples
    --------
    >>> import numpy as np
    >>> from modalhash.encoders import get_encoder
    >>> texts = np.array(["a red boat", "two boats", "a house"])
    >>> dataset = Dataset({"text": np.zeros((3, 1))}, raw={"text": texts}, name="tiny")
    >>> encode_dataset(dataset, "text", get_encoder("hashing", columns=64))
    Dataset('tiny': text 3×64, no labels)
    """
    if modality not in dataset.raw:
        known = ", ".join(dataset.raw) or "none"
        raise ValueError(f"data set {dataset.name!r} has no raw items of {modality!r} to encode; it has: {known}")
    names = dataset.raw[modality].tolist()
    items = names if files is None else contents(Path(files), names)
    learned_from = _training_names(dataset, modality)
    encoder.fit(learned_from if files is None else contents(Path(files), learned_from))
    made = encode_items(encoder, items, where=names, progress=progress, strict=True).features
    old = [note for note in dataset.provenance.get("notes", ()) if not note.startswith(f"{modality}:")]
    notes = [*old, f"{modality}: encoder {encoder.name}, digest {encoder.digest[:16]}"]
    features = {**dataset.features, modality: made}
    return replace(dataset, features=features, provenance={**dataset.provenance, "notes": notes})


class Archived(Sequence[Any]):
    """Files of a zip archive as bytes, read when they are asked for: an archive may be larger than the memory."""

    def __init__(self, archive: zipfile.ZipFile, names: Sequence[str]) -> None:
        self._archive, self._names = archive, names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, rows: Any) -> Any:
        """One file, or a slice of them."""
        if isinstance(rows, slice):
            return [self._archive.read(name) for name in self._names[rows]]
        return self._archive.read(self._names[rows])


def contents(place: Path, names: Sequence[str]) -> Sequence[Any]:
    """Files of a folder as paths, of a zip archive as bytes. A name never leads out of the folder."""
    if place.is_dir():
        root = place.resolve()
        paths = [(root / name).resolve() for name in names]
        if outside := [name for name, path in zip(names, paths, strict=True) if not path.is_relative_to(root)]:
            raise ValueError(f"{place}: {outside[0]!r} is not inside this folder")
        return paths
    if not zipfile.is_zipfile(place):
        raise ValueError(f"{place}: expected a folder or a zip archive that holds the files")
    archive = zipfile.ZipFile(place)
    if missing := sorted(set(names) - set(archive.namelist())):
        raise ValueError(f"{place}: {len(missing)} files are missing, e.g. {missing[0]!r}")
    return Archived(archive, names)


def _training_names(dataset: Dataset, modality: str) -> list[str]:
    names: list[str] = dataset.raw[modality].tolist()
    if dataset.split is None:
        return names
    wanted = set(dataset.split.training[modality].tolist())
    return [name for name, key in zip(names, dataset.ids[modality].tolist(), strict=True) if key in wanted]
