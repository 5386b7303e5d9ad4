"""How much memory and time a file of unknown origin may take, and how to allow it more."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from modalhash.core.validation import check_memory, check_number
from modalhash.data.read_error import ReadError

MEMORY_VARIABLE, SECONDS_VARIABLE = "MODALHASH_READ_MEMORY", "MODALHASH_READ_SECONDS"
LEAST_MEMORY, MEMORY_PER_BYTE = 512 * 10**6, 16
"""What a file may take without asking: half a gigabyte, or 16 times its size. Features compress to a half or a third,
0/1 labels and tags to a tenth; what grows more than that and is large may be a bomb, or a dense matrix of zeros."""
LEAST_SECONDS, BYTES_PER_SECOND = 60.0, 4 * 10**6


@dataclass(frozen=True)
class ReadLimits:
    """How much memory and time the reading of one file may take.

    Parameters
    ----------
    memory
        bytes that the values of a file may take, or a text such as ``"2GB"``. None is ``$MODALHASH_READ_MEMORY``, and
        where that is not set half a gigabyte or 16 times the file's size, whichever is more
    seconds
        for one variable of the file. None is ``$MODALHASH_READ_SECONDS``, and where that is not set a minute and a
        second more for every 4 MB of the file

    Examples
    --------
    >>> ReadLimits(memory="2GB").memory_for(1_500_000)
    2000000000
    """

    memory: int | str | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_memory(self.memory, "memory")
        if self.seconds is not None:
            check_number(self.seconds, "seconds", positive=True)

    def memory_for(self, file_bytes: int) -> int:
        """Return the bytes that the values of a file of this size may take."""
        given = self.memory if self.memory is not None else os.environ.get(MEMORY_VARIABLE) or None
        limit = check_memory(given, "memory" if self.memory is not None else MEMORY_VARIABLE)
        return limit if limit is not None else max(LEAST_MEMORY, MEMORY_PER_BYTE * file_bytes)

    def seconds_for(self, file_bytes: int) -> float:
        """Return the time that one variable of a file of this size may take."""
        if self.seconds is not None:
            return float(self.seconds)
        if text := os.environ.get(SECONDS_VARIABLE):
            try:
                return check_number(float(text), SECONDS_VARIABLE, positive=True)
            except ValueError:
                raise ValueError(f"{SECONDS_VARIABLE} is {text!r}; expected a number of seconds above 0") from None
        return LEAST_SECONDS + file_bytes / BYTES_PER_SECOND

    def check(self, n_bytes: int, file: Path, what: str, *, line: int | None = None) -> None:
        """Refuse what would take more memory than the file may."""
        size = file.stat().st_size
        if n_bytes > (limit := self.memory_for(size)):
            raise too_large(file, what, n_bytes, limit, line=line)


def too_large(
    file: Path, what: str, n_bytes: int | None, limit: int, *, line: int | None = None, variable: str | None = None
) -> ReadError:
    """Return the error for a file that takes too much memory, with the ways to allow it."""
    wanted = "2GB" if n_bytes is None else f"{max(1, -(-n_bytes * 5 // 4 // 10**6))}MB"
    needs = "more than" if n_bytes is None else f"{megabytes(n_bytes)}, more than"
    return ReadError(
        file,
        f"{what} would take {needs} the limit of {megabytes(limit)} for this file of "
        f"{megabytes(file.stat().st_size)}. If you trust it, allow it: read(…, limits=ReadLimits(memory='{wanted}')), "
        f"--read-memory {wanted}, or {MEMORY_VARIABLE}={wanted}",
        line,
        variable,
    )


def too_slow(file: Path, seconds: float, variable: str | None = None) -> ReadError:
    """Return the error for a file that takes too long, with the ways to allow it."""
    return ReadError(
        file,
        f"not read in {seconds:g} s: it is damaged, or large. If you trust it, allow more: "
        f"read(…, limits=ReadLimits(seconds={10 * seconds:g})), --read-seconds {10 * seconds:g}, "
        f"or {SECONDS_VARIABLE}={10 * seconds:g}",
        variable=variable,
    )


def megabytes(n_bytes: int) -> str:
    """Write a number of bytes for a person.

    Examples
    --------
    >>> megabytes(1_600_000_000), megabytes(1_500_000), megabytes(800)
    ('1,600 MB', '1.5 MB', '800 bytes')
    """
    if n_bytes < 10**5:
        return f"{n_bytes:,} bytes"
    return f"{n_bytes / 10**6:,.1f} MB" if n_bytes < 10**8 else f"{n_bytes / 10**6:,.0f} MB"
