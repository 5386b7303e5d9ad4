"""Items of a source before they are stored, and what is wrong with those that are left out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from modalhash.core.archives import ArchiveMember, find_member
from modalhash.core.typing import Codes
from modalhash.data import TableFormat
from modalhash.store import Key, Record, check_storable

# -- Where the files of an engine's items are: stored relative to its folder where they lie in it or beside it.
#
# =============================  =======================================================================
# ``../photos/red/1.jpg``        a file beside the engine: both may be moved together
# ``photos/red/1.jpg``           a file in the engine's folder; ``media/…`` are those that it saved itself
# ``/data/photos/red/1.jpg``     a file elsewhere
# ``../photos.zip!/red/1.jpg``   a file in an archive, which lies in any of these places
# =============================  =======================================================================
#
# An engine that is moved alone, copied or restored elsewhere finds its files where they were: its configuration says
# where it was made.

HOME = "home"
"""The entry of an engine's configuration that says where its folder was when it was made."""
_OWN = "media"
File: TypeAlias = Path | ArchiveMember


@dataclass(frozen=True)
class ItemFiles:
    """Tells where files are, as it is stored, and finds them again.

    Parameters
    ----------
    folder : Path
        The engine's, absolute and without links.
    home : Path, optional
        Where the engine was made, if that is another folder: what is not in or beside the one is looked for there.
    relative : bool
        Whether files in the folder and beside it are stored relative to it. Not where other machines share the items:
        a folder of theirs may have other neighbours.
    """

    folder: Path
    home: Path | None = None
    relative: bool = True

    @classmethod
    def of(cls, folder: Path, config: Mapping[str, Any], *, relative: bool) -> ItemFiles:
        """Return those of an engine, by its configuration."""
        folder = folder.resolve()
        home = config.get(HOME)
        other = isinstance(home, str) and Path(home) != folder
        return cls(folder, Path(str(home)) if other else None, relative)

    def uri(self, file: str) -> str:
        """Return what is stored of a file: a path relative to the engine's folder where that will do."""
        if not self.relative or not os.path.isabs(file):
            return file
        if (member := find_member(file)) is not None:
            return f"{self.uri(os.fspath(member.archive))}!/{member.name}"
        path = Path(file)
        if ".." in path.parts:
            return file
        if path.is_relative_to(self.folder):
            within = path.relative_to(self.folder)
            return file if within.parts[:1] == (_OWN,) else within.as_posix()  # what it saved is deleted with its item
        beside = self.folder.parent
        if path.is_relative_to(beside) and beside != beside.parent:  # everything lies beside an engine in the root
            return f"../{path.relative_to(beside).as_posix()}"
        return file

    def find(self, uri: str | None) -> File | None:
        """Return where a file is, whether it is there or not; None for a URL, or what leads elsewhere."""
        if uri is None:
            return None
        if (member := find_member(uri)) is not None:
            archive = self._find(os.fspath(member.archive))
            return None if archive is None else ArchiveMember(archive, member.name)
        return self._find(uri)

    def whole(self, uri: str | None) -> str | None:
        """Return what is stored of a file where machines share the items: its path, unless the engine saved it."""
        file = self.find(uri)
        return uri if file is None or PurePosixPath(uri or "").parts[:1] == (_OWN,) else str(file)

    def _find(self, uri: str) -> Path | None:
        if os.path.isabs(uri):
            return Path(uri)
        parts = PurePosixPath(uri).parts
        if "://" in uri or ".." in parts[1:]:  # nothing that was stored leads further up than to the parent
            return None
        here = _join(self.folder, uri)
        if self.home is not None and not os.path.exists(here):
            before = _join(self.home, uri)
            if os.path.exists(before):
                return before
        return here


def _join(folder: Path, uri: str) -> Path:
    return folder.parent / uri[3:] if uri.startswith("../") else folder / uri


@dataclass(frozen=True)
class Item:
    """One thing to hash: a text, a file, or the bytes of one."""

    modality: str
    id: str
    text: str | None = None
    path: Path | ArchiveMember | None = None
    """Its file, which may lie in an archive."""
    data: bytes | None = None
    uri: str | None = None
    """Where it is, if not at ``path``."""
    labels: tuple[str, ...] = ()
    named_labels: tuple[str, ...] = ()
    """Labels that its text names, to learn from where it has none of its own; they are not stored with it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of its line, stored with it."""
    training: bool = True
    """Whether it may be learned from; False by the field ``split``."""
    line: int | None = None
    source: str | None = None
    """Name of the file that the line is in."""

    @property
    def key(self) -> Key:
        """The modality and the id, which together name the item in a store."""
        return self.modality, self.id

    @property
    def content(self) -> str | Path | ArchiveMember | bytes | None:
        """What its encoder takes."""
        return next((value for value in (self.text, self.path, self.data) if value is not None), None)

    @property
    def training_labels(self) -> tuple[str, ...]:
        """The labels to learn from: its own, or else those that its text names."""
        return self.labels or self.named_labels

    def problem(self, code: ProblemCode, reason: str) -> Problem:
        """Return a problem that names this item."""
        path = None if self.path is None else str(self.path)
        return Problem(reason, self.line, self.source, self.modality, self.id, path, code)

    def to_record(self, code: bytes | Codes, kind: str) -> Record:
        """Return what the store holds of this item."""
        uri = str(self.path) if self.path is not None else self.uri
        return Record(self.id, self.modality, code, kind, self.text, uri, self.labels, self.extra)


class ProblemCode(StrEnum):
    """What is wrong with an item, for programs; the reason of a :class:`Problem` says it to people."""

    DUPLICATE = "duplicate"
    """The source has another item with this modality and id."""
    EXISTS = "exists"
    """The engine has an item with this modality and id."""
    EMPTY = "empty"
    """The item has no content."""
    MISSING_FILE = "missing_file"
    """The file does not exist, or its folder cannot be read."""
    AMBIGUOUS = "ambiguous"
    """A row of a table names a file that several photos are called like."""
    NOT_A_FILE = "not_a_file"
    """A folder or a URL where a file was expected."""
    OUTSIDE = "outside"
    """The path leads out of the folder that it has to lie in."""
    UNREADABLE = "unreadable"
    """The encoder could not make features of the content."""
    UNKNOWN_MODALITY = "unknown_modality"
    """The engine has no such modality."""
    NEEDS_FEATURES = "needs_features"
    """The modality was trained on given features, and the item is a text or a file."""
    NOT_SHARED = "not_shared"
    """A picture that came as bytes, and the engine has no place for it that all machines share."""
    UNKNOWN_ID = "unknown_id"
    """The engine has no item with this id."""
    MALFORMED = "malformed"
    """The line is not what a manifest may hold."""


@dataclass(frozen=True)
class Problem:
    """Why an item was left out."""

    reason: str
    line: int | None = None
    source: str | None = None
    modality: str | None = None
    id: str | None = None
    path: str | None = None
    code: ProblemCode = ProblemCode.MALFORMED

    def __str__(self) -> str:
        line = None if self.line is None else ", ".join(filter(None, (self.source, f"line {self.line}")))
        return ": ".join(filter(None, (line, self.path or self.id, self.reason)))


_WHAT = {
    ProblemCode.DUPLICATE: "an id that stands twice",
    ProblemCode.EXISTS: "an id that the engine has",
    ProblemCode.EMPTY: "empty",
    ProblemCode.MISSING_FILE: "a missing file",
    ProblemCode.AMBIGUOUS: "a name of several photos",
    ProblemCode.NOT_A_FILE: "not a file",
    ProblemCode.OUTSIDE: "outside of the folder",
    ProblemCode.UNREADABLE: "unreadable",
    ProblemCode.UNKNOWN_MODALITY: "an unknown modality",
    ProblemCode.NEEDS_FEATURES: "not features",
    ProblemCode.NOT_SHARED: "a picture without a shared place",
}
"""What is wrong in a few words; of malformed lines, the reason itself says it."""


def group_problems(problems: Iterable[Problem]) -> dict[str, list[Problem]]:
    """Return problems by what is wrong, in a few words, the most frequent first.

    Examples
    --------
    >>> bad = [Problem("not JSON (at 3); is it cut?", 2), Problem("not JSON (at 9); is it cut?", 5)]
    >>> {what: len(group) for what, group in group_problems(bad).items()}
    {'not JSON': 2}
    """
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        what = _WHAT.get(problem.code) or problem.reason.partition(";")[0].partition(" (")[0]
        groups.setdefault(what, []).append(problem)
    return dict(sorted(groups.items(), key=lambda one: -len(one[1])))


OnProblem = Callable[[Problem], None]
"""Called with every item that is left out."""


class ProblemCollector:
    """Collects problems and passes each one on to the caller's function; or, if strict, raises the first."""

    def __init__(self, on_problem: OnProblem | None, *, strict: bool) -> None:
        self.problems: list[Problem] = []
        self._on_problem = on_problem
        self._strict = strict

    def __call__(self, problem: Problem) -> None:
        if self._strict:
            raise ValueError(str(problem))
        self.problems.append(problem)
        if self._on_problem is not None:
            self._on_problem(problem)

    def warn(self) -> None:
        """Warn that items were left out, unless the caller's function was called with them."""
        if self.problems and self._on_problem is None:
            text = f"{len(self.problems)} items were left out; the first: {self.problems[0]}"
            warnings.warn(text, UserWarning, stacklevel=3)


@dataclass(frozen=True)
class ReadOptions:
    """How sources are read."""

    fields: Mapping[str, str] | None = None
    """What lines call things: ``{"text": "caption", "image": "file", "labels": "keywords"}``."""
    table: TableFormat | None = None
    """The encoding, separator or sheet of a table."""
    every_folder: bool = False
    """Whether every name of a folder of pictures is a label, also one that says nothing (``2019``, ``DCIM``)."""
    exif: bool = True
    """Whether items get the fields that cameras write into pictures (``taken``, ``camera`` …)."""
    note: Callable[[str], None] = lambda text: None
    """Called with what a person may want to know of the reading, a sentence at a time."""


@dataclass(frozen=True)
class ItemBatch:
    """Items of one modality, and what their encoder takes."""

    modality: str
    items: list[Item]
    contents: Any
    """A list, or the rows of an array or CSR matrix."""

    def contents_of(self, rows: list[int]) -> Any:
        """Return the contents of some rows."""
        return self.contents[rows] if hasattr(self.contents, "shape") else [self.contents[row] for row in rows]


def is_storable(item: Item, report: OnProblem) -> bool:
    """Return whether a store can hold the item: none is to be refused after the work. If not, ``report`` says why."""
    try:
        check_storable(item.to_record(b"", "hashed"))
    except (TypeError, ValueError) as error:
        report(item.problem(ProblemCode.MALFORMED, str(error)))
        return False
    return True


Seen = dict[Key, tuple[str | None, int | None]]
"""The source and the line of the first item with each key."""


def drop_duplicates(items: Iterable[Item], report: OnProblem, seen: Seen | None = None) -> Iterator[Item]:
    """Yield each id once per modality: the first item with it, also among those that were ``seen`` before.

    The others go to ``report``.
    """
    seen = {} if seen is None else seen
    for item in items:
        if item.key in seen:
            source, line = seen[item.key]
            other = f" of {source}" if source != item.source else ""
            before = f"in line {line}{other} already" if line is not None else "given twice"
            report(item.problem(ProblemCode.DUPLICATE, f"the id {item.id!r} is {before}; the first one is taken"))
        else:
            seen[item.key] = item.source, item.line
            yield item


def unknown_modality(modality: str, input_kinds: Mapping[str, str]) -> str:
    """Say that there is no such modality, and which there are."""
    return f"unknown modality {modality!r}; expected one of {', '.join(map(repr, input_kinds))}"
