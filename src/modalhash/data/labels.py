"""Labels as people write them, and as the 0/1 matrix that methods learn from."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from modalhash._typing import Array


def parse_labels(value: Any) -> tuple[str, ...]:
    """Return the label names of one item, each once.

    Parameters
    ----------
    value
        a list of names, one text with ``;`` or ``|`` between the names, or nothing (None, an empty text)

    Examples
    --------
    >>> parse_labels("dog; pet"), parse_labels(["house", 7]), parse_labels("")
    (('dog', 'pet'), ('house', '7'), ())
    """
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = value.replace("|", ";").split(";")
    if not isinstance(value, list | tuple) or any(isinstance(word, dict | list) for word in value):
        raise ValueError(f"labels are {reprlib.repr(value)}; expected a list of names, or names separated by ';'")
    return tuple(dict.fromkeys(word for word in (str(word).strip() for word in value) if word))


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
