"""The catalogue of named data sets: folders and files, statistics, and how to get them.

To add a data set, write a row in ``sets/sets.toml`` and, if needed, a module with one or both of

``load(folder, entry, **options)``
    return the data set in ``folder``. Without it, the first existing file of the row's ``files`` is read.
``convert(source, **options)``
    return the data set made from the official files in ``source``; the row says ``has_converter=True``. It may return
    the arrays of the file that ``load`` reads instead; then ``from_arrays(arrays, entry)`` makes the data set.

Options are keyword-only parameters; ``progress`` is a callback. The option that the row names in ``variant`` may be
part of the data set's name, after a colon: ``mirflickr25k:full``.
"""

from __future__ import annotations

import inspect
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modalhash.core.progress import Callback
from modalhash.data.dataset import Dataset
from modalhash.data.formats.npz import npz_path, write_arrays, write_npz
from modalhash.data.formats.variables import ReadError
from modalhash.data.reading import ARRAY_SUFFIXES, read


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of the data sets: the argument, ``$MODALHASH_DATA``, or ``./data``."""
    return Path(root or os.environ.get("MODALHASH_DATA") or "data")


PROVENANCE = "provenance.json"
"""File in the folder of a data set with provenance entries, such as ``{"kind": "original"}``."""


@dataclass(frozen=True)
class Variant:
    """One form of a data set."""

    about: str
    needs: tuple[str, ...] = ()  # files that must be in the folder for this variant
    how: str = ""  # how to get them, in addition to ``NamedDataset.how``


@dataclass(frozen=True)
class NamedDataset:
    """Facts about a data set that are known before its files are opened."""

    name: str
    title: str
    licence: str
    how: str
    """How to get the files; ``{root}`` is replaced by the folder of the data sets."""
    items: str = ""
    """Number of items and how they are split."""
    modalities: str = ""
    classes: str = ""
    """Number of labels, in total and per item."""
    where: str = ""
    """Page or packages that the official files come from."""
    layout: str = ""
    """Content of the files in its folder."""
    files: tuple[str, ...] = ()
    """Names of files that may contain the data set, the preferred one first."""
    any_file: bool = False
    """Whether, without any of ``files``, all array files in the folder are read together."""
    folders: tuple[str, ...] = ()
    """Names of folders that may contain the files, the preferred one first; the data set's name by default."""
    variant: str = ""
    """Option of ``load`` that a name chooses after a colon, e.g. ``layout``."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Values of that option, the default first; empty if too many to list."""
    split_sizes: Mapping[str, int] = field(default_factory=dict)
    """Numbers of ``query`` and optionally ``training`` items to draw if the files have no split."""
    published: Mapping[str, int] = field(default_factory=dict)
    """Statistics in Table I of the AMSH paper: ``items``, ``query``, ``training``, ``classes`` and feature widths."""
    kind: str = ""
    """Kind of the files if they do not declare it, see :data:`modalhash.data.dataset.KINDS`."""
    packages: tuple[str, ...] = ()
    """Modules of installed packages that contain the data instead of files."""
    module: str = ""
    """Import path of the module with ``load`` or ``convert``."""
    has_converter: bool = False
    converter_options: Mapping[str, Any] = field(default_factory=dict)
    """Fixed options of the converter."""

    def function(self, name: str) -> Callable[..., Any] | None:
        return getattr(import_module(self.module), name, None) if self.module else None

    def folder(self, root: str | Path | None = None, needs: tuple[str, ...] = ()) -> Path | None:
        """Return the first folder with the data set and the files in ``needs``, or None."""
        for folder in self.possible_folders(root):
            usable = any((folder / file).is_file() for file in self.files)
            if self.any_file and not usable and folder.is_dir():
                usable = any(file.suffix.lower() in ARRAY_SUFFIXES for file in folder.iterdir())
            if usable and all((folder / file).is_file() for file in needs):
                return folder
        return None

    def possible_folders(self, root: str | Path | None = None) -> list[Path]:
        return [data_root(root) / folder for folder in self.folders or (self.name,)]


def load_dataset(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """Load a data set by name, with its official split if it has one.

    Parameters
    ----------
    name
        a name in :data:`NAMED`, as listed by ``modalhash datasets list``, optionally with a variant:
        ``"mirflickr25k:full"`` is ``"mirflickr25k"`` with ``layout="full"``
    root
        the folder with the folders of the data sets; by default ``$MODALHASH_DATA``, else ``./data``
    **options
        of the data set: ``layout`` of ``mirflickr25k`` and ``iapr-tc12-255``, ``text="de"`` or ``"en"`` of
        ``iapr-tc12``, ``language="en"``, ``"de"`` … of ``openmoji``

    Examples
    --------
    >>> load_dataset("wiki")  # doctest: +SKIP
    Dataset('wiki': image 2866×128, text 2866×10, 10 classes, split)
    """
    entry, own = lookup(name)
    if twice := own.keys() & options.keys():
        raise TypeError(f"{name!r} chooses the {twice.pop()} already; name it once")
    options = {**own, **options}
    variant = options.get(entry.variant)
    folder = data_root(root) / entry.name if entry.packages else entry.folder(root, _needs(entry, options))
    if folder is None:
        raise _absent(f"{entry.name}:{variant}" if variant in entry.variants else entry.name, root)
    load = entry.function("load") or read_files
    _check_options(entry.name, load, options)
    dataset = load(folder, entry, **options)
    if entry.kind:
        dataset = replace(dataset, provenance={"kind": entry.kind, **dataset.provenance})
    dataset = declared(dataset, folder)
    default = inspect.signature(load).parameters[entry.variant].default if entry.variant else None
    return dataset if variant in (None, default) else replace(dataset, name=f"{entry.name}:{variant}")


def lookup(name: str) -> tuple[NamedDataset, dict[str, str]]:
    """Return the row of a data set and the option that its name chooses.

    Examples
    --------
    >>> lookup("mirflickr25k:full")[1]
    {'layout': 'full'}
    """
    base, _, variant = name.partition(":")
    if base not in NAMED:
        raise ValueError(
            f"no data set is called {base!r}; there are {', '.join(NAMED)}. Files are read with read(path)"
        )
    entry = NAMED[base]
    if variant and (not entry.variant or (entry.variants and variant not in entry.variants)):
        known = ", ".join(f"{base}:{one}" for one in entry.variants) or f"only {base}"
        raise ValueError(f"no data set is called {name!r}; there is {known}")
    return entry, {entry.variant: variant} if variant else {}


def is_named(name: str) -> bool:
    """Return whether a name, without its variant, is in :data:`NAMED`."""
    return name.partition(":")[0] in NAMED


def _needs(entry: NamedDataset, options: Mapping[str, Any]) -> tuple[str, ...]:
    variant = entry.variants.get(options.get(entry.variant, ""))
    return variant.needs if variant else ()


def _absent(name: str, root: str | Path | None) -> FileNotFoundError:
    entry, options = lookup(name)
    files = " and ".join(_needs(entry, options)) or " or ".join(entry.files) or "any data file"
    folders = " or ".join(map(str, entry.possible_folders(root)))
    error = FileNotFoundError(
        f"{name}: no {files} in {folders}; set root, --root or MODALHASH_DATA if the data sets are elsewhere"
    )
    error.add_note(how_to_get(name, root))
    return error


def how_to_get(name: str, root: str | Path | None = None) -> str:
    entry, options = lookup(name)
    variant = entry.variants.get(options.get(entry.variant, ""))
    lines = [entry.how, variant.how] if variant and variant.how else [entry.how]
    return "\n".join(lines).format(root=data_root(root))


def found_at(name: str, root: str | Path | None = None) -> Path | None:
    """Return the existing file of a named data set, or its folder if any files are accepted; None if neither exists.

    A data set from installed packages has no file; :func:`is_present` reports whether they are installed.
    """
    entry, _ = lookup(name)
    folder = entry.folder(root)
    if entry.packages or folder is None:
        return None
    return next((folder / file for file in entry.files if (folder / file).is_file()), folder)


def is_present(name: str, root: str | Path | None = None) -> bool:
    entry, options = lookup(name)
    if entry.packages:
        return all(find_spec(package) is not None for package in entry.packages)
    return entry.folder(root, _needs(entry, options)) is not None


def read_files(folder: Path, entry: NamedDataset) -> Dataset:
    path = next((folder / file for file in entry.files if (folder / file).is_file()), folder)
    dataset = read(path, name=entry.name)
    provenance = {**dataset.provenance, "source": entry.title, "licence": entry.licence}
    return replace(dataset, provenance=provenance, split_sizes=dataset.split_sizes or entry.split_sizes)


def declared(dataset: Dataset, folder: Path) -> Dataset:
    """Return the data set with the provenance that ``provenance.json`` in its folder declares."""
    path = folder / PROVENANCE
    if not path.is_file():
        return dataset
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}; expected a JSON object")
        return replace(dataset, provenance={**dataset.provenance, **content})
    except (ValueError, RecursionError) as error:
        raise ReadError(path, str(error)) from error


def convert(
    name: str, source: str | Path, out: str | Path | None = None, *, progress: Callback | None = None, **options: Any
) -> Dataset:
    """Make a data set from the official files in a folder, and write it if ``out`` is given.

    Parameters
    ----------
    name
        a name in :data:`NAMED` whose row has a converter
    source
        the folder into which the official archives were unpacked
    out
        path of the ``.npz`` to write; a conversion that fails writes nothing
    progress
        called with a :class:`modalhash.core.progress.Progress` while features of pictures are computed
    **options
        of the converter, see its module in :mod:`modalhash.data.sets`
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
    if "progress" in inspect.signature(converter).parameters:
        options["progress"] = progress
    made = converter(Path(source), **entry.converter_options, **options)
    from_arrays = entry.function("from_arrays")
    dataset: Dataset = made if from_arrays is None else from_arrays(made, entry)
    if out is not None and from_arrays is None:
        write_npz(dataset, out)
    elif out is not None:
        write_arrays(made, out)
    return dataset


def _check_options(
    name: str, function: Callable[..., Any], options: Mapping[str, Any], fixed: Mapping[str, Any] | None = None
) -> None:
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in {"progress", *(fixed or {})}]
    if unknown := [key for key in options if key not in known]:
        raise TypeError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")


def _read_rows(text: str) -> dict[str, NamedDataset]:
    rows = {}
    for name, given in tomllib.loads(text).items():
        row = _with_tuples(given)
        row["variants"] = {key: Variant(**_with_tuples(one)) for key, one in given.get("variants", {}).items()}
        rows[name] = NamedDataset(name=name, **row)
    return rows


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


NAMED = _read_rows(Path(__file__).with_name("sets").joinpath("sets.toml").read_text(encoding="utf-8"))
"""Every named data set by name, in the order of listings."""
