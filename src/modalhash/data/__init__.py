"""Data sets: read anyone's files, load named ones, draw synthetic twins, break pairs on purpose."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalhash.data.converters import convert as convert
    from modalhash.data.dataset import Dataset as Dataset
    from modalhash.data.generated import generate as generate
    from modalhash.data.named import load_dataset as load_dataset
    from modalhash.data.reading import read as read
    from modalhash.data.scenarios import missing_labels as missing_labels
    from modalhash.data.scenarios import noisy_labels as noisy_labels
    from modalhash.data.scenarios import paired as paired
    from modalhash.data.scenarios import semi_paired as semi_paired
    from modalhash.data.scenarios import unequal as unequal
    from modalhash.data.scenarios import unpaired as unpaired
    from modalhash.data.split import Split as Split
    from modalhash.data.twins import twin as twin
    from modalhash.data.writing import write_npz as write_npz

_HOME = {
    "Dataset": "dataset",
    "Split": "split",
    "convert": "converters",
    "generate": "generated",
    "load_dataset": "named",
    "missing_labels": "scenarios",
    "noisy_labels": "scenarios",
    "paired": "scenarios",
    "read": "reading",
    "semi_paired": "scenarios",
    "twin": "twins",
    "unequal": "scenarios",
    "unpaired": "scenarios",
    "write_npz": "writing",
}

__all__ = [
    "Dataset",
    "Split",
    "convert",
    "generate",
    "load_dataset",
    "missing_labels",
    "noisy_labels",
    "paired",
    "read",
    "semi_paired",
    "twin",
    "unequal",
    "unpaired",
    "write_npz",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
