"""Loops over packed codes and vectors, compiled by numba or in numpy.

Importing numba and loading the compiled code takes half a second, in which numpy compares a hundred million codes. So
an index that is searched once does without (``HammingIndex(n_bits, compiled=False)``). Both find the same hits, bit by
bit. README.md next to this file explains the memory layouts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def loops(compiled: bool) -> Any:
    """Return the module of the compiled loops, which imports numba, or of those with the same names in numpy."""
    return import_module(f"{__name__}.{'compiled' if compiled else 'numpy_search'}")
