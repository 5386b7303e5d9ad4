"""Data sets: read anyone's files, load named ones, draw synthetic twins, break pairs on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.data.converters import convert as convert
    from modalhash.data.dataset import Dataset as Dataset
    from modalhash.data.generated import generate as generate
    from modalhash.data.named import NAMED as NAMED
    from modalhash.data.named import data_root as data_root
    from modalhash.data.named import is_present as is_present
    from modalhash.data.named import load_dataset as load_dataset
    from modalhash.data.reading import read as read
    from modalhash.data.scenarios import missing_labels as missing_labels
    from modalhash.data.scenarios import noisy_labels as noisy_labels
    from modalhash.data.scenarios import paired as paired
    from modalhash.data.scenarios import semi_paired as semi_paired
    from modalhash.data.scenarios import unequal as unequal
    from modalhash.data.scenarios import unpaired as unpaired
    from modalhash.data.split import Parts as Parts
    from modalhash.data.split import Split as Split
    from modalhash.data.twins import RECIPES as RECIPES
    from modalhash.data.twins import twin as twin
    from modalhash.data.writing import npz_path as npz_path
    from modalhash.data.writing import write_npz as write_npz

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "converters": ["convert"],
        "dataset": ["Dataset"],
        "generated": ["generate"],
        "named": ["NAMED", "data_root", "is_present", "load_dataset"],
        "reading": ["read"],
        "scenarios": ["missing_labels", "noisy_labels", "paired", "semi_paired", "unequal", "unpaired"],
        "split": ["Parts", "Split"],
        "twins": ["RECIPES", "twin"],
        "writing": ["npz_path", "write_npz"],
    },
)
