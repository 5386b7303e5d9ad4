"""Labels as people write them, and as the 0/1 matrix that methods learn from."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from modalhash._typing import Array
from modalhash.validation import parse_labels as parse_labels


def label_names(rows: Iterable[Iterable[str]]) -> list[str]:
    """Return every name that occurs in the labels of some items, sorted."""
    return sorted({name for row in rows for name in row})


def label_matrix(rows: Sequence[Iterable[Hashable]], classes: Sequence[Hashable]) -> Array:
    """Return the boolean matrix (items, classes) of the labels of each item; every label must be one of the classes.

    Examples
    --------
    >>> label_matrix([["a", "c"], []], ["a", "b", "c"]).astype(int)
    array([[1, 0, 1],
           [0, 0, 0]])
    """
    column = {name: number for number, name in enumerate(classes)}
    matrix = np.zeros((len(rows), len(classes)), dtype=bool)
    for number, row in enumerate(rows):
        matrix[number, [column[name] for name in row]] = True
    return matrix
