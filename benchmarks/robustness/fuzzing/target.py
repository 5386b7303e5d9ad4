"""What a target of the campaign is: a way into modalhash, with inputs to begin with and a promise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar


class BrokenPromise(AssertionError):
    """What came of an input is not what was promised: what, the same for all such inputs, and how with this one."""

    def __init__(self, what: str, how: object = "") -> None:
        super().__init__(what, how)
        self.what = what


class Target:
    """One way into modalhash.

    Parameters
    ----------
    folder
        of its own, in which files may be written
    shared
        with what :func:`fuzzing.seeds.prepare` made, which is only read
    """

    name: ClassVar[str]
    """Its docstring says what is mutated, and who reads it."""
    room: ClassVar[str] = "own"
    """``"own"``: a parser of modalhash; ``"foreign"``: a library behind a process of its own; ``"service"``."""
    weight: ClassVar[int] = 4
    """Its share of all inputs, against that of others."""
    promised: ClassVar[tuple[type[BaseException], ...]] = ()
    """What it may raise for an input that it does not take."""
    tokens: ClassVar[Sequence[bytes]] = ()
    is_json: ClassVar[bool] = False
    """Whether inputs are JSON, of which values are changed too."""
    stays_json: ClassVar[bool] = False
    """Whether nothing else is changed: the target makes something of the JSON."""
    seconds: ClassVar[float] = 5.0
    """Of processor time that an input may take."""
    megabytes: ClassVar[int] = 1024
    """Of address space that an input may take beside what the process has."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared

    def seeds(self) -> list[bytes]:
        """Return inputs to begin with."""
        raise NotImplementedError

    def run(self, data: bytes) -> str | None:
        """Try an input; return what came of it, ``None`` for "taken"."""
        raise NotImplementedError

    def contained(self, data: bytes) -> str | None:
        """Return None if the public way with this input, which ended a worker, gives the promised error; else why not.

        It runs in the process of the campaign itself. What ended a worker may end no process of a user.
        """
        return "the process ended"

    def close(self) -> None:
        """Release what the target holds."""
