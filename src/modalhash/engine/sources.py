"""Where items come from: manifests, folders and archives of pictures, data sets, and fields given as dicts.

Whatever the source, it becomes items (:class:`Item`), in batches of one modality. What is wrong with an item is
reported as a :class:`Problem`, and the others go on.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash._archives import (
    OTHER_ARCHIVES,
    ArchiveEntry,
    ArchiveError,
    ArchiveMember,
    Refusal,
    archive_entries,
    archive_stem,
    find_member,
    is_archive,
)
from modalhash._typing import Codes
from modalhash.data import (
    TableFormat,
    column_kinds,
    has_columns,
    holds_features,
    is_manifest,
    manifest_lines,
    parse_labels,
    usual_fields,
)
from modalhash.frames import Frame, is_frame
from modalhash.store import Key, Record, check_storable
from modalhash.validation import check_choice

if TYPE_CHECKING:
    from modalhash.data import Dataset
    from modalhash.encoders import Encoder

LINE_FIELDS = ("id", "labels", "split", "modality")
"""Fields of a line that are not the content of an item."""
_CONTENTS = {"path": "image", "text": "text", "data": "image"}
"""Fields that hold the content of an item, and its modality where the line does not name one."""
_FIELD_READ = {"text": "text", "image": "path"}
"""The field that holds what an encoder reads."""
_EXPORTED = ("code", "kind", "refinement")
"""Fields that an export has and that mean nothing to another engine."""
_TRAINING_SPLITS = ("train", "training")
_OTHER_SPLITS = ("test", "query", "database")
PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jfif", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".hif"}
)
_SAMPLE_SUFFIXES = (".cls", ".json")
"""Of files that have the labels of a picture in the tars of WebDataset."""


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


Report = Callable[[Problem], None]
"""Called with every item that is left out."""


class ProblemCollector:
    """Collects problems and passes each one on to the caller's function; or, if strict, raises the first."""

    def __init__(self, on_problem: Report | None, *, strict: bool) -> None:
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
class Batch:
    """Items of one modality, and what their encoder takes."""

    modality: str
    items: list[Item]
    contents: Any
    """A list, or the rows of an array or CSR matrix."""

    def contents_of(self, rows: list[int]) -> Any:
        """Return the contents of some rows."""
        return self.contents[rows] if hasattr(self.contents, "shape") else [self.contents[row] for row in rows]


# -- sources of any kind


def open_source(
    source: Any, *, fields: Mapping[str, Any] | None = None, table: TableFormat | None = None
) -> list[Path] | Dataset | Iterable[Any]:
    """Return paths of manifests, folders and archives, the data set behind a name or path, or the source itself.

    A table with features, in a file or in memory, is a data set; ``fields`` and ``table`` tell how to read it.
    """

    def is_path(path: Path) -> bool:
        if path.is_dir():
            return next(picture_files(path), None) is not None
        return is_manifest(path) or (is_archive(path) and path.is_file())

    if isinstance(source, list | tuple) and source and all(isinstance(one, str | Path) for one in source):
        if len(source) == 1:
            return open_source(source[0], fields=fields, table=table)
        paths = [Path(one) for one in source]
        if wrong := [path for path in paths if not is_path(path)]:
            raise _unknown_archive(wrong[0]) or ValueError(
                f"{wrong[0]}: of several sources each is a manifest, or a folder or an archive of pictures"
            )
        return paths
    from modalhash.data import NAMED, is_named, load_dataset, read

    if has_columns(source) and holds_features(source, fields, table):
        return read(source, table=table, **(fields or {}))
    if is_frame(source):
        return [source]
    if not isinstance(source, str | Path):
        return source
    path = Path(source)
    if is_path(path):
        return [path]
    if error := _unknown_archive(path):
        raise error
    if path.exists():
        return read(path)
    if is_named(str(source)):
        return load_dataset(str(source))
    raise FileNotFoundError(
        f"{path}: no such file, and no data set of that name ({', '.join(NAMED)}). "
        "Expected a manifest (.jsonl, .csv, .tsv, .xlsx, .parquet, .feather), a folder or an archive of pictures "
        "(.zip, .tar, .tar.gz), a file with features, or one of these names"
    )


def _unknown_archive(path: Path) -> ValueError | None:
    """Say that an archive is of a kind that is not read."""
    if not path.name.lower().endswith(OTHER_ARCHIVES) or not path.is_file():
        return None
    kind = "".join(path.suffixes[-2:])
    return ValueError(f"{path}: archives of this kind ({kind}) are not read; unpack it, or pack the pictures as a .zip")


def count_items(source: Any) -> int:
    """Return the number of lines or items of an opened source, or 0 if it does not say."""
    if _is_paths(source):
        return sum(_count_path(path) for path in source)
    if hasattr(source, "sizes"):
        return int(sum(source.sizes.values()))
    return len(source) if hasattr(source, "__len__") else 0


def _count_path(path: Path) -> int:
    if path.is_dir():
        return sum(1 for _ in picture_files(path))
    if is_archive(path):
        try:
            return sum(1 for entry in archive_entries(path) if is_picture(entry.name))
        except ArchiveError:  # which is said when it is read
            return 0
    return count_lines(path)


def choose_encoders(
    source: Any, given: Mapping[str, Any] | None, *, quality: str | None = None, download: bool = False
) -> dict[str, Encoder]:
    """Return an encoder per modality: those given, by name or as they are, and those of a quality for the others."""
    from modalhash.encoders import READS, Precomputed, encoder_for, encoders_of

    chosen: dict[str, Any] = dict(given or {})
    defaults = encoders_of(quality)
    if hasattr(source, "modalities"):
        for modality in source.modalities:
            if modality not in chosen:
                default = defaults.get(modality) if _has_raw_items(source, modality) else None
                chosen[modality] = default or Precomputed(source=source.name)
    else:
        chosen = {**defaults, **chosen}
    encoders: dict[str, Encoder] = {
        modality: encoder_for(modality, value, download=download) if isinstance(value, str | Path) else value
        for modality, value in chosen.items()
    }
    for modality, encoder in encoders.items():
        check_choice(encoder.reads, f"encoder of {modality!r}: reads", READS)
    return encoders


def read_batches(
    source: Any,
    reads: Mapping[str, str],
    report: Report,
    *,
    fields: Mapping[str, str] | None = None,
    table: TableFormat | None = None,
    size: int | None = None,
) -> Iterator[Batch]:
    """Yield the usable items of an opened source, up to ``size`` of one modality at a time (None: all at once)."""
    if hasattr(source, "modalities"):
        for modality in source.modalities:
            yield from _dataset_batches(source, modality, reads, report, size)
        return
    items: Iterator[Item]
    if _is_paths(source):
        items = chain.from_iterable(_path_items(path, reads, report, fields, table) for path in source)
    else:
        items = _given_items(source, reads, report, fields)
    waiting: dict[str, list[Item]] = {}
    for item in drop_duplicates((item for item in items if is_storable(item, report)), report):
        waiting.setdefault(item.modality, []).append(item)
        if size is not None and len(waiting[item.modality]) == size:
            yield _batch(item.modality, waiting.pop(item.modality))
    for modality, rest in waiting.items():
        yield _batch(modality, rest)


def _path_items(
    path: Path,
    reads: Mapping[str, str],
    report: Report,
    fields: Mapping[str, str] | None,
    table: TableFormat | None,
) -> Iterator[Item]:
    if path.is_dir():
        return _picture_items(path, reads)
    if is_archive(path):
        return archive_items(path, reads, report)
    return _manifest_items(path, reads, report, fields=fields, table=table)


def _batch(modality: str, items: list[Item]) -> Batch:
    return Batch(modality, items, [item.content for item in items])


def _is_paths(source: Any) -> bool:
    return isinstance(source, list) and bool(source) and all(isinstance(one, Path) for one in source)


def is_storable(item: Item, report: Report) -> bool:
    """Return whether a store can hold the item: none is to be refused after the work. If not, ``report`` says why."""
    try:
        check_storable(item.to_record(b"", "hashed"))
    except (TypeError, ValueError) as error:
        report(item.problem(ProblemCode.MALFORMED, str(error)))
        return False
    return True


Seen = dict[Key, tuple[str | None, int | None]]
"""The source and the line of the first item with each key."""


def drop_duplicates(items: Iterable[Item], report: Report, seen: Seen | None = None) -> Iterator[Item]:
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


# -- lines of fields


class BadLineError(ValueError):
    """No item can be made of a line."""

    def __init__(self, code: ProblemCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def parse_items(
    lines: Iterable[tuple[int | None, Mapping[str, Any]]],
    reads: Mapping[str, str],
    report: Report,
    *,
    base: Path | None,
    fields: Mapping[str, str] | None = None,
    source: str | None = None,
) -> Iterator[Item]:
    """Yield the usable items of numbered lines; what is wrong with the others goes to ``report``.

    Parameters
    ----------
    lines : numbers (or None) and fields
    reads : the modalities there are, and whether each reads a ``"text"`` or an ``"image"``
    report : called with a :class:`Problem` for every item that is left out
    base : paths are taken relative to it; None leaves them as they are given, as ``uri``, for whoever reads them
    fields : what the lines call things: ``{"text": "caption", "image": "file", "labels": "keywords"}``
    source : name of the file, for the ids of texts that have none
    """
    names = {key: (fields or {}).get(key, key) for key in LINE_FIELDS}
    columns = {key: value for key, value in (fields or {}).items() if key not in LINE_FIELDS}
    known = {*names.values(), *columns.values(), *_CONTENTS, *_EXPORTED}
    for number, line in lines:
        id = None
        try:
            given = line.get(names["id"])
            id = None if _is_empty(given) else _to_text(given, "id")
            contents = _parse_contents(line, names["modality"], columns, reads)
            common = parse_common(line, names, known)
        except BadLineError as error:
            report(Problem(str(error), number, source, id=id, code=error.code))
            continue
        for modality, (kind, value) in contents.items():
            own = id if id is not None else _line_id(kind, value, source, number)
            item = _fill(Item(modality, own, line=number, source=source, **common), kind, value, base)
            if isinstance(item, Problem):
                report(item)
            else:
                yield item


def default_id(content: str | bytes) -> str:
    """Return an id made from the content of a text or of a picture's file, so that the same one added twice is noticed.

    Examples
    --------
    >>> default_id("a red boat")
    'text-01ed010a31d1d682'
    """
    data = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    return f"{'text' if isinstance(content, str) else 'image'}-{hashlib.sha256(data).hexdigest()[:16]}"


def _is_empty(value: Any) -> bool:
    """Return whether a field holds nothing; a value of any type is asked, also one that cannot be compared."""
    return value is None or (isinstance(value, str | bytes) and not value)


def _to_text(value: Any, name: str) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits
        raise BadLineError(ProblemCode.MALFORMED, f"{name} is a number of too many digits") from None


def _line_id(kind: str, value: Any, source: str | None, number: int | None) -> str:
    """Return the id of a line without one: its path as given, or the line of a text; without a line, by its content."""
    if kind == "path":
        return Path(value).as_posix()
    if number is not None:
        return f"{source or 'line'}:{number}"
    return default_id(value)


def parse_common(line: Mapping[str, Any], names: Mapping[str, str], known: set[str]) -> dict[str, Any]:
    """Return what all items of a line have in common: labels, other fields, and whether to train on them."""
    part = _to_text(line.get(names["split"]) or "", "split").lower()
    if part and part not in (*_TRAINING_SPLITS, *_OTHER_SPLITS):
        expected = ", ".join((*_TRAINING_SPLITS, *_OTHER_SPLITS))
        raise BadLineError(ProblemCode.MALFORMED, f"split is {part!r}; expected one of {expected}")
    try:
        labels = parse_labels(line.get(names["labels"]))
    except ValueError as error:
        raise BadLineError(ProblemCode.MALFORMED, str(error)) from None
    extra = {key: value for key, value in line.items() if key not in known and not _is_empty(value)}
    return {"labels": labels, "training": part not in _OTHER_SPLITS, "extra": extra}


def _parse_contents(
    line: Mapping[str, Any], modality: str, columns: Mapping[str, str], reads: Mapping[str, str]
) -> dict[str, tuple[str, Any]]:
    """Return what the line holds, by modality: ("text", …), ("path", …) or ("data", …)."""
    if columns:
        chosen = {name: line[column] for name, column in columns.items() if not _is_empty(line.get(column))}
        if not chosen:
            expected = " or ".join(map(repr, columns.values()))
            raise BadLineError(ProblemCode.EMPTY, f"nothing in {expected}; the fields are {', '.join(line)}")
        kinds = {name: _FIELD_READ[_reads(name, reads)] for name in chosen}
        kinds = {
            name: "data" if kind == "path" and isinstance(chosen[name], bytes) else kind for name, kind in kinds.items()
        }
        return {name: _checked(kinds[name], value) for name, value in chosen.items()}
    given = line.get(modality)
    name = None if _is_empty(given) else _to_text(given, "modality")
    wanted = None if name is None else _FIELD_READ[_reads(name, reads)]
    contents = {key: line[key] for key in _CONTENTS if not _is_empty(line.get(key))}
    if not contents:
        if empty := [key for key in _CONTENTS if key in line]:
            reason = f"{' and '.join(empty)} {'is' if len(empty) == 1 else 'are'} empty"
            raise BadLineError(ProblemCode.EMPTY, reason)
        raise BadLineError(ProblemCode.MALFORMED, f"neither 'path' nor 'text'; the fields are {', '.join(line)}")
    if wanted is None:
        for key in contents:
            _reads(_CONTENTS[key], reads)
        return {_CONTENTS[key]: _checked(key, value) for key, value in contents.items()}
    own = [(key, value) for key, value in contents.items() if (key == "text") == (wanted == "text")]
    if len(contents) != 1 or not own:
        given = " and ".join(map(repr, contents))
        raise BadLineError(ProblemCode.MALFORMED, f"modality {name!r} takes one {wanted!r}; the line has {given}")
    return {str(name): _checked(*own[0])}


def _checked(kind: str, value: Any) -> tuple[str, Any]:
    """Return the content of an item with bytes as bytes, and a text or a path as text."""
    if kind != "data":
        return kind, _to_text(value, kind)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise BadLineError(ProblemCode.MALFORMED, f"data is {type(value).__name__}; expected the bytes of a file")
    return kind, bytes(value)


def _reads(modality: str, reads: Mapping[str, str]) -> str:
    if modality not in reads:
        raise BadLineError(ProblemCode.UNKNOWN_MODALITY, unknown_modality(modality, reads))
    if reads[modality] == "array":
        reason = f"{modality!r} was trained on given features, not on files or texts: add a Dataset with them"
        raise BadLineError(ProblemCode.NEEDS_FEATURES, reason)
    return reads[modality]


def unknown_modality(modality: str, reads: Mapping[str, str]) -> str:
    """Say that there is no such modality, and which there are."""
    return f"unknown modality {modality!r}; expected one of {', '.join(map(repr, reads))}"


def _fill(item: Item, kind: str, value: Any, base: Path | None) -> Item | Problem:
    """Return the item with its content, or what is wrong with that."""
    if kind == "data":
        return replace(item, data=value)
    if kind == "text":
        if value.strip():
            return replace(item, text=value)
        return item.problem(ProblemCode.EMPTY, "the text is empty")
    if base is None:
        return replace(item, uri=value)
    if "://" in value:
        return Problem(
            f"{value} is a URL; expected a file. Download it first",
            item.line,
            item.source,
            item.modality,
            code=ProblemCode.NOT_A_FILE,
        )
    try:
        if (member := find_member(os.path.join(base, os.path.expanduser(value)))) is not None:
            return _in_archive(item, replace(member, archive=member.archive.resolve()))
        path = Path(base, Path(value).expanduser()).resolve()
        item = replace(item, path=path)
        if path.is_file():
            return item
        if path.is_dir():
            return item.problem(ProblemCode.NOT_A_FILE, "a folder; expected a file")
        return item.problem(ProblemCode.MISSING_FILE, "no such file")
    except OSError as error:  # a name that is too long, no permission for its folder
        return item.problem(ProblemCode.MISSING_FILE, error.strerror or str(error))
    except (ValueError, RuntimeError) as error:  # a NUL, ~ of nobody, links in a circle
        return item.problem(ProblemCode.MISSING_FILE, f"{value!r} is no path: {error}")


def _in_archive(item: Item, member: ArchiveMember) -> Item | Problem:
    """Return an item whose file lies in an archive; whether it is there is seen when it is read."""
    item = replace(item, path=member)
    if not member.archive.is_file():
        return item.problem(ProblemCode.MISSING_FILE, f"no such archive: {member.archive}")
    return item


def _given_items(
    source: Iterable[Any], reads: Mapping[str, str], report: Report, fields: Mapping[str, str] | None
) -> Iterator[Item]:
    """Yield items as they are, and mappings of fields as items, with paths relative to the working directory."""
    for one in source:
        if is_frame(one):
            yield from _frame_items(one, reads, report, fields)
        elif isinstance(one, Mapping):
            yield from parse_items([(None, one)], reads, report, base=Path.cwd(), fields=fields)
        elif not isinstance(one, Item):
            expected = "dicts such as {'text': …} or {'path': …}, or a frame"
            raise TypeError(f"items: got {type(one).__name__}; expected {expected}")
        elif one.modality not in reads:
            report(one.problem(ProblemCode.UNKNOWN_MODALITY, unknown_modality(one.modality, reads)))
        elif not one.id:
            report(one.problem(ProblemCode.MALFORMED, "the id is empty"))
        else:
            yield one


def _frame_items(
    native: Any, reads: Mapping[str, str], report: Report, fields: Mapping[str, str] | None
) -> Iterator[Item]:
    """Yield the usable items of a frame; problems name its rows."""
    frame = Frame(native, "the source")
    fields = usual_fields(frame.kinds, fields)
    check_columns("the source", frame.columns, fields)
    made: dict[Key, int] = {}  # ids made from contents, which may repeat: rows are items of their own all the same
    for number, row in enumerate(frame.rows()):

        def numbered(problem: Problem, number: int = number) -> None:
            report(replace(problem, reason=f"{frame.row(number)}: {problem.reason}"))

        for item in parse_items([(None, row)], reads, numbered, base=Path.cwd(), fields=fields):
            times = made[item.key] = made.get(item.key, 0) + 1
            own = not _is_empty(row.get(fields.get("id", "id"))) or item.path is not None
            yield item if own or times == 1 else replace(item, id=f"{item.id}-{times}")


# -- manifests


def _manifest_items(
    manifest: Path,
    reads: Mapping[str, str],
    report: Report,
    *,
    fields: Mapping[str, str] | None = None,
    table: TableFormat | None = None,
) -> Iterator[Item]:
    """Yield the usable items of a manifest; paths in it are relative to its folder."""
    if not manifest.is_file():
        raise FileNotFoundError(f"{manifest}: no such file; expected a manifest (.jsonl, .csv, .tsv, .xlsx, .parquet)")
    fields = manifest_fields(manifest, fields, table)
    lines = manifest_lines(manifest, lambda number, reason: report(Problem(reason, number, manifest.name)), table=table)
    yield from parse_items(lines, reads, report, base=manifest.parent, fields=fields, source=manifest.name)


def manifest_fields(
    manifest: Path, fields: Mapping[str, str] | None, table: TableFormat | None = None
) -> dict[str, str]:
    """Return what a manifest calls things; ValueError for a table without the columns that matter."""
    if not has_columns(manifest):
        return dict(fields or {})
    kinds = column_kinds(manifest, table)
    found = usual_fields(kinds, fields)
    check_columns(manifest, list(kinds), found)
    return found


def count_lines(manifest: Path) -> int:
    """Count the lines of a text file for a progress bar; a missing file, or another, has none."""
    if not manifest.is_file() or manifest.suffix.lower() not in (".jsonl", ".ndjson", ".csv", ".tsv"):
        return 0
    with manifest.open("rb") as file:
        return sum(1 for _ in file)


def check_columns(path: Path | str, columns: Sequence[str] | None, fields: Mapping[str, str]) -> None:
    """Refuse a table without the columns that matter, which would give a problem in every line."""
    if columns is None:
        return
    wanted = [value for key, value in fields.items() if key not in LINE_FIELDS] or ["path", "text"]
    own = [value for key, value in fields.items() if key in LINE_FIELDS]
    if not set(wanted) & set(columns) or not set(own) <= set(columns):
        raise ValueError(
            f"{path}: the columns are {', '.join(columns) or 'none'}; expected {' or '.join(wanted)}"
            f"{''.join(f' and {name}' for name in own)}. "
            "Say which holds what, e.g. --field text=caption --field image=file (fields={...})"
        )


# -- folders and archives of pictures


def is_picture(name: str) -> bool:
    """Return whether a file is named like a picture."""
    return Path(name).suffix.lower() in PICTURE_SUFFIXES


def picture_files(folder: Path, suffixes: Container[str] = PICTURE_SUFFIXES) -> Iterator[Path]:
    """Yield files that are named like pictures, in order of their names; hidden ones are passed over."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from picture_files(path, suffixes)
        elif path.suffix.lower() in suffixes:
            yield path


def _picture_items(folder: Path, reads: Mapping[str, str]) -> Iterator[Item]:
    """Yield the pictures of a folder; the names of its subfolders are the labels.

    Of the folder ``photos``, ``boats/red/1.jpg`` is ``photos/boats/red/1.jpg`` with the labels boats and red.
    """
    if reads.get("image") != "image":
        raise ValueError(f"{folder} is a folder of pictures, and there is no encoder that reads pictures for 'image'")
    name = folder.resolve().name
    for path in picture_files(folder):
        relative = path.relative_to(folder)
        labels = tuple(dict.fromkeys(relative.parts[:-1]))
        yield Item("image", f"{name}/{relative.as_posix()}", path=path.resolve(), labels=labels, source=name)


def archive_items(archive: Path, reads: Mapping[str, str], report: Report) -> Iterator[Item]:
    """Yield the pictures of a zip or tar as those of a folder, to be read where they lie.

    Of the archive ``photos.zip``, ``boats/red/1.jpg`` is ``photos.zip/boats/red/1.jpg`` with the labels boats and red.
    Packing the folder ``photos`` as ``photos.zip`` puts that folder into it, which is then no label.
    """
    if reads.get("image") != "image":
        raise ValueError(f"{archive} has pictures, and there is no encoder that reads pictures for 'image'")
    where, n_pictures, beside = archive.resolve(), 0, 0
    for entry in _reported_entries(archive, report):
        if is_picture(entry.name):
            n_pictures += 1
        elif entry.refusal is not Refusal.NESTED:
            beside += entry.name.lower().endswith(_SAMPLE_SUFFIXES)
            continue
        item = Item(
            "image",
            f"{archive.name}/{entry.name}",
            path=ArchiveMember(where, entry.name),
            labels=archive_labels(archive.name, entry.name),
            source=archive.name,
        )
        if entry.refusal is None:
            yield item
        else:
            report(item.problem(REFUSALS[entry.refusal], entry.refusal))
    if not n_pictures:
        raise ValueError(f"{archive}: there are no pictures in it ({', '.join(sorted(PICTURE_SUFFIXES))})")
    if beside:
        reason = (
            f"{beside:,} .cls or .json files beside its pictures are not read, as in a folder; if it is a WebDataset, "
            "`modalhash encode` reads them"
        )
        report(Problem(reason, source=archive.name, id=archive.name, path=str(where)))


REFUSALS = {
    Refusal.OUTSIDE: ProblemCode.OUTSIDE,
    Refusal.LINK: ProblemCode.NOT_A_FILE,
    Refusal.ENCRYPTED: ProblemCode.UNREADABLE,
    Refusal.NESTED: ProblemCode.NOT_A_FILE,
}
"""What a member that is not read is to a program."""


def _reported_entries(archive: Path, report: Report) -> Iterator[ArchiveEntry]:
    """Yield the files of an archive; what is damaged after some of them is a problem."""
    n = 0
    try:
        for entry in archive_entries(archive):
            n += 1
            yield entry
    except ArchiveError as error:
        if not n:
            raise
        report(Problem(error.reason, source=archive.name, path=str(archive), code=ProblemCode.UNREADABLE))


def archive_labels(archive: str, name: str) -> tuple[str, ...]:
    """Return the labels of a file in an archive: the folders that it lies in, but for one named like the archive."""
    folders = name.split("/")[:-1]
    if folders and folders[0].lower() == archive_stem(archive).lower():
        del folders[0]
    return tuple(dict.fromkeys(folder for folder in folders if folder))


# -- data sets


def _dataset_batches(
    dataset: Dataset, modality: str, reads: Mapping[str, str], report: Report, size: int | None
) -> Iterator[Batch]:
    ids = [str(id) for id in dataset.ids[modality].tolist()]
    if modality not in reads:
        reason = unknown_modality(modality, reads)
        for id in ids:
            report(Problem(reason, modality=modality, id=id, code=ProblemCode.UNKNOWN_MODALITY))
        return
    raw = dataset.raw.get(modality)
    contents: Any
    if reads[modality] == "array":
        if modality not in dataset.features:
            raise ValueError(f"data set {dataset.name!r}: {modality!r} has no features, which its encoder takes")
        contents = dataset.features[modality]
    elif raw is None:
        raise ValueError(f"data set {dataset.name!r}: {modality!r} has no raw items, which its encoder takes")
    elif reads[modality] == "text":
        contents = raw.tolist()
    else:
        contents = [_base_folder(dataset) / path for path in raw.tolist()]
    names = np.array(dataset.class_names, dtype=object)
    labels = dataset.labels.get(modality)
    training = np.isin(dataset.ids[modality], dataset.split.training[modality]) if dataset.split else None
    origin = dataset.origins.get(modality)
    lines = {} if origin is None else {str(id): line for id, line in origin.lines_by_id().items()}
    for start in range(0, len(ids), size or len(ids) or 1):
        rows = range(start, min(start + (size or len(ids)), len(ids)))
        items = [
            Item(
                modality,
                ids[row],
                text=str(raw[row]) if raw is not None and modality == "text" else None,
                path=contents[row] if reads[modality] == "image" else None,
                uri=str(raw[row]) if raw is not None and modality != "text" else None,
                labels=() if labels is None else tuple(map(str, names[labels[row]])),
                training=training is None or bool(training[row]),
                line=lines.get(ids[row]),
                source=Path(origin.pieces[0]).name if lines and origin is not None else None,
            )
            for row in rows
        ]
        batch = Batch(modality, items, contents[rows.start : rows.stop])
        columns = None if origin is None else origin.columns
        finite = _report_features_that_are_none(batch, columns, report)
        usable = [row for row, item in enumerate(items) if row in finite and is_storable(item, report)]
        if len(usable) < len(items):
            batch = Batch(modality, [items[row] for row in usable], batch.contents_of(usable))
        if usable:
            yield batch


def _report_features_that_are_none(batch: Batch, columns: Sequence[str] | None, report: Report) -> Container[int]:
    """Report the items with features that are NaN or infinite, by the name of the first; return the other rows."""
    values = batch.contents
    rows = range(len(batch.items))
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.ndim != 2:
        return rows
    odd = ~np.isfinite(values)
    bad = np.flatnonzero(odd.any(axis=1)).tolist()
    for row in bad:
        column = int(np.argmax(odd[row]))
        name = f"column {columns[column]!r}" if columns is not None else f"feature {column}"
        reason = f"{name} is {values[row, column]}; expected a finite number"
        report(batch.items[row].problem(ProblemCode.UNREADABLE, reason))
    return set(rows) - set(bad) if bad else rows


def _has_raw_items(dataset: Dataset, modality: str) -> bool:
    """Return whether there are texts, or names of pictures of which the first one is there."""
    raw = dataset.raw.get(modality)
    if raw is None or not len(raw):
        return False
    return modality == "text" or (_base_folder(dataset) / str(raw[0])).is_file()


def _base_folder(dataset: Dataset) -> Path:
    return Path(str(dataset.provenance.get("base", "."))).absolute()
