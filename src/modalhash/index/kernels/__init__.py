"""Compiled loops over packed codes, and the choice between them and numpy.

README.md next to this file explains the memory layouts. Importing numba and loading the compiled code takes half a
second, in which numpy compares a hundred million codes. So numpy does the first searches of a process, until it has
compared about as many words as it could while the kernels load; compiled code does everything after that. A process
therefore takes at most about twice as long as with the better choice. Both find the same hits, bit by bit
(:mod:`modalhash.index.kernels.numpy_search`).
"""

from __future__ import annotations

NUMPY_WORK = 2**27
"""Words of codes that numpy compares in about the time it takes to load the kernels."""
CALL_WORK = 2**15
"""Overhead of one call for one query, in words."""

_left = NUMPY_WORK


def compiled_is_worthwhile(n_words: int = 0) -> bool:
    """Return whether compiled kernels should compare the next ``n_words`` words of codes.

    The count is not synchronized between threads, because no result depends on it.
    """
    global _left
    _left -= n_words
    return _left < 0


def prefer_kernels() -> None:
    """Use compiled kernels for all searches from now on.

    By default numpy does the first searches of a process, as long as that takes less time than loading the kernels.
    Call this before many searches that should each be fast, e.g. before measuring. The hits are the same.

    Examples
    --------
    >>> prefer_kernels()
    """
    global _left
    _left = -1
