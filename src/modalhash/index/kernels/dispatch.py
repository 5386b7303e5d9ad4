"""When compiled kernels are worth loading: not yet for the first searches of a process.

To import numba and load compiled code from the disk takes half a second, and numpy compares a hundred million codes in
that time. A process that answers one query and ends, as a command does, has its answer sooner without. So every step of
a search tells how much work it is, numpy does it until it has done about as much as loading takes, and compiled code
does everything from then on. No process thus takes much more than twice as long as with the better choice, whatever
follows. Both ways find the same, bit by bit (:mod:`modalhash.index.kernels.numpy_search`).
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
