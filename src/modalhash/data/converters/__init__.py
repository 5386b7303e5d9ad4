"""From the official distributions to one ``.npz`` that :func:`modalhash.data.read` reads."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from modalhash.data.dataset import Dataset
from modalhash.data.writing import write_npz

CONVERTERS = {
    "mirflickr25k": ("mirflickr", "mirflickr25k", {}),
    "nuswide10": ("nuswide", "nuswide", {"n_concepts": 10}),
    "nuswide21": ("nuswide", "nuswide", {"n_concepts": 21}),
    "iapr-tc12": ("iapr", "iapr_tc12", {}),
    "wiki": ("wiki", "wiki", {}),
}
"""Module, function and fixed options by the name of the data set."""


def convert(name: str, source: str | Path, out: str | Path | None = None, **options: Any) -> Dataset:
    """Make a data set from the official files in a folder, and write it where ``out`` is given.

    Parameters
    ----------
    name
        ``mirflickr25k``, ``nuswide10``, ``nuswide21``, ``iapr-tc12`` or ``wiki``
    source
        the folder into which the official archives were unpacked
    out
        path of the ``.npz`` to write; nothing is written where the conversion fails
    **options
        of the converter, e.g. ``seed``, ``n_query``; see :mod:`modalhash.data.converters`
    """
    if name not in CONVERTERS:
        raise ValueError(f"there is no converter for {name!r}; there are {', '.join(CONVERTERS)}")
    if not Path(source).is_dir():
        raise FileNotFoundError(f"{source}: no such folder; expected the one with the unpacked archives of {name}")
    if out is not None and Path(out).suffix != ".npz":
        raise ValueError(f"{out}: expected a name that ends in .npz")
    module, function, fixed = CONVERTERS[name]
    converter = getattr(import_module(f"{__name__}.{module}"), function)
    known = [key for key in inspect.signature(converter).parameters if key != "source" and key not in fixed]
    if unknown := [key for key in options if key not in known]:
        raise TypeError(f"{name} has no option {unknown[0]!r}; it has {', '.join(known)}")
    dataset: Dataset = converter(Path(source), **fixed, **options)
    if out is not None:
        write_npz(dataset, out)
    return dataset
