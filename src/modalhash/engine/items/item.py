"""Items of a source before they are stored, the URIs of their files, and problems of items that are left out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from modalhash.core.archives import ArchiveMember, find_member
from modalhash.core.files import write_atomically
from modalhash.core.typing import Codes
from modalhash.data import TableFormat
from modalhash.engine.items import urls
from modalhash.store import Key, Record, check_storable

MEDIA_URL = "MODALHASH_MEDIA_URL"
"""Environment variable for where machines that share the items save pictures: a folder or an fsspec URL."""
HOME = "home"
"""Configuration entry with the folder in which the engine was created."""
_OWN = "media"
File: TypeAlias = Path | ArchiveMember


@dataclass(frozen=True)
class ItemFiles:
    """Convert between file paths and the URIs stored for them.

    =============================  =============================================================================
    ``../photos/red/1.jpg``        a file next to the engine; both may be moved together
    ``photos/red/1.jpg``           a file in the engine's folder; ``media/…`` are files that the engine saved
    ``/data/photos/red/1.jpg``     any other file
    ``../photos.zip!/red/1.jpg``   a member of an archive in any of these folders
    =============================  =============================================================================
    """

    folder: Path
    """Folder of the engine, absolute and without links."""
    home: Path | None = None
    """Folder in which the engine was created, if different; relative files that moved are searched there."""
    relative: bool = True
    """Store relative paths. False if machines share the items, whose engine folders may be elsewhere."""
    media_url: str | None = None
    """Where machines that share the items save pictures; ``media/`` then has copies of those that were used here."""

    @classmethod
    def of(cls, folder: Path, config: Mapping[str, Any], *, relative: bool) -> ItemFiles:
        folder = folder.resolve()
        home = config.get(HOME)
        other = isinstance(home, str) and Path(home) != folder
        url = None if relative else os.environ.get(MEDIA_URL)
        return cls(folder, Path(str(home)) if other else None, relative, urls.location(url) if url else None)

    def uri(self, file: str) -> str:
        if not self.relative or not os.path.isabs(file):
            return file
        if (member := find_member(file)) is not None:
            return f"{self.uri(os.fspath(member.archive))}!/{member.name}"
        path = Path(file)
        if ".." in path.parts:
            return file
        if path.is_relative_to(self.folder):
            within = path.relative_to(self.folder)
            return file if within.parts[:1] == (_OWN,) else within.as_posix()  # saved media are deleted with the item
        parent = self.folder.parent
        if path.is_relative_to(parent) and parent != parent.parent:  # not in the root
            return f"../{path.relative_to(parent).as_posix()}"
        return file

    def find(self, uri: str | None) -> File | None:
        """Return the path of a URI, whether the file exists or not; None for URLs and invalid URIs."""
        if uri is None:
            return None
        if (member := find_member(uri)) is not None:
            archive = self._find(os.fspath(member.archive))
            return None if archive is None else ArchiveMember(archive, member.name)
        return self._find(uri)

    def whole(self, uri: str | None) -> str | None:
        """Return the URI as an absolute path, unless the engine saved the file."""
        file = self.find(uri)
        return uri if file is None or PurePosixPath(uri or "").parts[:1] == (_OWN,) else str(file)

    def _find(self, uri: str) -> Path | None:
        if os.path.isabs(uri):
            return Path(uri)
        parts = PurePosixPath(uri).parts
        if "://" in uri or ".." in parts[1:]:  # stored URIs lead no further up than the parent
            return None
        here = _join(self.folder, uri)
        if self.media_url is not None and parts[:1] == (_OWN,) and len(parts) == 2 and not here.exists():
            with suppress(OSError):  # it does not exist, or cannot be reached now
                write_atomically(here, urls.read_whole(urls.join(self.media_url, parts[1])))
        if self.home is not None and not os.path.exists(here):
            before = _join(self.home, uri)
            if os.path.exists(before):
                return before
        return here


def _join(folder: Path, uri: str) -> Path:
    return folder.parent / uri[3:] if uri.startswith("../") else folder / uri


@dataclass(frozen=True)
class Item:
    """An item to encode: a text, a file, or the bytes of one."""

    modality: str
    id: str
    text: str | None = None
    path: Path | ArchiveMember | None = None
    data: bytes | None = None
    uri: str | None = None
    """Stored URI, if not that of ``path``."""
    labels: tuple[str, ...] = ()
    named_labels: tuple[str, ...] = ()
    """Labels that its text names, for training if it has none; they are not stored."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other fields, stored with the item."""
    training: bool = True
    """False if the field ``split`` holds it out."""
    line: int | None = None
    source: str | None = None
    """Name of the file that contains ``line``."""

    @property
    def key(self) -> Key:
        return self.modality, self.id

    @property
    def content(self) -> str | Path | ArchiveMember | bytes | None:
        """Input of the encoder."""
        return next((value for value in (self.text, self.path, self.data) if value is not None), None)

    @property
    def training_labels(self) -> tuple[str, ...]:
        """Its labels, or else those that its text names."""
        return self.labels or self.named_labels

    def problem(self, code: ProblemCode, reason: str) -> Problem:
        path = None if self.path is None else str(self.path)
        return Problem(reason, self.line, self.source, self.modality, self.id, path, code)

    def to_record(self, code: bytes | Codes, kind: str) -> Record:
        uri = str(self.path) if self.path is not None else self.uri
        return Record(self.id, self.modality, code, kind, self.text, uri, self.labels, self.extra)


class ProblemCode(StrEnum):
    """Machine-readable reason of a :class:`Problem`."""

    DUPLICATE = "duplicate"
    """The source has another item with this modality and id."""
    EXISTS = "exists"
    """The engine has an item with this modality and id."""
    EMPTY = "empty"
    """The item has no content."""
    MISSING_FILE = "missing_file"
    """The file does not exist, or its folder cannot be read."""
    AMBIGUOUS = "ambiguous"
    """A row of a table names a file, and several photos have this name."""
    NOT_A_FILE = "not_a_file"
    """A folder or a URL instead of a file."""
    OUTSIDE = "outside"
    """The path is outside the permitted folder."""
    UNREADABLE = "unreadable"
    """The encoder could not encode the content."""
    UNKNOWN_MODALITY = "unknown_modality"
    """The engine does not have this modality."""
    NEEDS_FEATURES = "needs_features"
    """The modality was trained on given features, and the item is a text or a file."""
    NOT_SHARED = "not_shared"
    """A picture given as bytes, and the engine has no folder that all machines share."""
    UNKNOWN_ID = "unknown_id"
    """The engine has no item with this id."""
    MALFORMED = "malformed"
    """The line is not valid in a manifest."""


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
    ProblemCode.DUPLICATE: "a duplicate id",
    ProblemCode.EXISTS: "an existing id",
    ProblemCode.EMPTY: "empty",
    ProblemCode.MISSING_FILE: "a missing file",
    ProblemCode.AMBIGUOUS: "an ambiguous name",
    ProblemCode.NOT_A_FILE: "not a file",
    ProblemCode.OUTSIDE: "outside the folder",
    ProblemCode.UNREADABLE: "unreadable",
    ProblemCode.UNKNOWN_MODALITY: "an unknown modality",
    ProblemCode.NEEDS_FEATURES: "not features",
    ProblemCode.NOT_SHARED: "a picture that cannot be shared",
}
"""Short descriptions; malformed lines are described by their reason."""


def group_problems(problems: Iterable[Problem]) -> dict[str, list[Problem]]:
    """Group problems by a short description, the most frequent first.

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


class ProblemCollector:
    """Collects problems and calls ``on_problem`` with each, or raises the first if strict."""

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

    def warn(self, *, stacklevel: int = 3) -> None:
        """Warn that items were left out, unless ``on_problem`` was given."""
        if self.problems and self._on_problem is None:
            text = f"{len(self.problems)} items were left out; the first: {self.problems[0]}"
            warnings.warn(text, UserWarning, stacklevel=stacklevel)


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading sources."""

    fields: Mapping[str, str] | None = None
    """Field names: ``{"text": "caption", "image": "file", "labels": "keywords"}``."""
    table: TableFormat | None = None
    every_folder: bool = False
    """Use every folder name as a label, also uninformative ones (``2019``, ``DCIM``)."""
    exif: bool = True
    """Add the EXIF fields of pictures (``taken``, ``camera`` …)."""
    note: Callable[[str], None] = lambda text: None
    """Callback for notes on the reading, one sentence each."""


@dataclass(frozen=True)
class ItemBatch:
    """Items of one modality and the inputs of their encoder."""

    modality: str
    items: list[Item]
    contents: Any
    """A list, or the rows of an array or CSR matrix."""

    def contents_of(self, rows: list[int]) -> Any:
        return self.contents[rows] if hasattr(self.contents, "shape") else [self.contents[row] for row in rows]


def is_storable(item: Item, report: OnProblem) -> bool:
    """Return whether a store accepts the item, so that it is not encoded in vain; report the reason if not."""
    try:
        check_storable(item.to_record(b"", "hashed"))
    except (TypeError, ValueError) as error:
        report(item.problem(ProblemCode.MALFORMED, str(error)))
        return False
    return True


Seen = dict[Key, tuple[str | None, int | None]]
"""Source and line of the first item with each key."""


def drop_duplicates(items: Iterable[Item], report: OnProblem, seen: Seen | None = None) -> Iterator[Item]:
    """Yield the first item with each key that is not in ``seen``; report the others."""
    seen = {} if seen is None else seen
    for item in items:
        if item.key in seen:
            source, line = seen[item.key]
            other = f" of {source}" if source != item.source else ""
            before = f"already in line {line}{other}" if line is not None else "given twice"
            report(item.problem(ProblemCode.DUPLICATE, f"the id {item.id!r} is {before}; the first one is used"))
        else:
            seen[item.key] = item.source, item.line
            yield item


def unknown_modality(modality: str, input_kinds: Mapping[str, str]) -> str:
    return f"unknown modality {modality!r}; expected one of {', '.join(map(repr, input_kinds))}"
