"""Compiled loops over packed codes, and the choice between them and numpy.

README.md next to this file explains the memory layouts. Importing numba and loading the compiled code takes half a
second, in which numpy compares a hundred million codes. So numpy does the first searches of a process, until it has
compared about as many words as it could while the kernels load; compiled code does everything after that. A process
therefore takes at most about twice as long as with the better choice. Both find the same hits, bit by bit
(:mod:`modalhash.index.kernels.numpy_search`).
"""

from __future__ import annotations

NUMPY_WORK = 2**27
"""Words of codes that numpy compares in about the time that loading the kernels takes."""
CALL_WORK = 2**15
"""What one call for one query costs besides, in words."""

_left = NUMPY_WORK


def compiled_is_worthwhile(n_words: int = 0) -> bool:
    """Return whether compiled kernels should compare the next ``n_words`` words of codes.

    Threads that ask at the same time may take the other's work for their own; no answer depends on it.
    """
    global _left
    _left -= n_words
    return _left < 0


def prefer_kernels() -> None:
    """Let compiled kernels do all searches from now on.

    By default numpy does the first ones of a process, as long as that takes less time than loading the kernels does.
    Call this where many are to come and each should be as quick as it can be, e.g. before measuring. What is found is
    the same.

    Examples
    --------
    >>> prefer_kernels()
    """
    global _left
    _left = -1
