"""Loops over packed codes and vectors, compiled by numba or in numpy.

Importing numba and loading the compiled code takes half a second, in which numpy compares a hundred million codes. So
an index that is searched once does without (``HammingIndex(n_bits, compiled=False)``). Both find the same hits, bit by
bit. README.md next to this file explains the memory layouts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Loops:
    """The loops of a module of this package, which is imported when the first of them is used."""

    def __init__(self, module: str) -> None:
        self._module = f"{__name__}.{module}"

    def __getattr__(self, name: str) -> Any:
        loop = getattr(import_module(self._module), name)
        setattr(self, name, loop)
        return loop


LOOPS = {True: Loops("compiled"), False: Loops("numpy_search")}
"""By whether they are compiled; those in numpy have the same names, and do not import numba."""
