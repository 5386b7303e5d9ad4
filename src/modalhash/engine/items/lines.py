"""Items from lines of fields: manifests, frames and dicts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from modalhash.core.archives import ArchiveMember, find_member
from modalhash.core.frames import Frame, is_frame
from modalhash.data import TableFormat, column_kinds, has_columns, manifest_lines, parse_labels, usual_fields
from modalhash.engine.items.item import Item, OnProblem, Problem, ProblemCode, ReadOptions, unknown_modality
from modalhash.store import Key

LINE_FIELDS = ("id", "labels", "split", "modality")
"""Fields that are not the content of an item."""
_CONTENTS = {"path": "image", "text": "text", "data": "image"}
"""Content fields, and the default modality of each."""
_FIELD_READ = {"text": "text", "image": "path"}
"""Content field by input kind of the encoder."""
_EXPORTED = ("code", "kind", "refinement")
"""Fields of an export that other engines ignore."""
_TRAINING_SPLITS = ("train", "training")
_OTHER_SPLITS = ("test", "query", "database")


class BadLineError(ValueError):
    """A line is not a valid item."""

    def __init__(self, code: ProblemCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def parse_items(
    lines: Iterable[tuple[int | None, Mapping[str, Any]]],
    input_kinds: Mapping[str, str],
    report: OnProblem,
    *,
    base: Path | None,
    fields: Mapping[str, str] | None = None,
    source: str | None = None,
) -> Iterator[Item]:
    """Yield the valid items of numbered lines; report the others.

    ``input_kinds`` are ``"text"``, ``"image"`` or ``"array"`` by modality. Paths are relative to ``base``; None stores
    them unresolved in ``uri``. ``source`` is the name of the file, for the ids of texts without one.
    """
    names = {key: (fields or {}).get(key, key) for key in LINE_FIELDS}
    columns = {key: value for key, value in (fields or {}).items() if key not in LINE_FIELDS}
    known = {*names.values(), *columns.values(), *_CONTENTS, *_EXPORTED}
    for number, line in lines:
        id = None
        try:
            given = line.get(names["id"])
            id = None if _is_empty(given) else _to_text(given, "id")
            contents = _parse_contents(line, names["modality"], columns, input_kinds)
            common = parse_common(line, names, known)
        except BadLineError as error:
            report(Problem(str(error), number, source, id=id, code=error.code))
            continue
        for modality, (kind, value) in contents.items():
            own = id if id is not None else _line_id(kind, value, source, number)
            item = fill_item(Item(modality, own, line=number, source=source, **common), kind, value, base)
            if isinstance(item, Problem):
                report(item)
            else:
                yield item


def default_id(content: str | bytes) -> str:
    """Return an id derived from the content, so that duplicates are detected.

    Examples
    --------
    >>> default_id("a red boat")
    'text-01ed010a31d1d682'
    """
    data = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    return f"{'text' if isinstance(content, str) else 'image'}-{hashlib.sha256(data).hexdigest()[:16]}"


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | bytes) and not value)


def _to_text(value: Any, name: str) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits
        raise BadLineError(ProblemCode.MALFORMED, f"{name} has too many digits") from None


def _line_id(kind: str, value: Any, source: str | None, number: int | None) -> str:
    """Return the id of a line without one: its path, the line number of a text, or a digest of the content."""
    if kind == "path":
        return Path(value).as_posix()
    if number is not None:
        return f"{source or 'line'}:{number}"
    return default_id(value)


def parse_common(line: Mapping[str, Any], names: Mapping[str, str], known: set[str]) -> dict[str, Any]:
    """Return what all items of a line share: labels, other fields, and whether they are for training."""
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
    line: Mapping[str, Any], modality: str, columns: Mapping[str, str], input_kinds: Mapping[str, str]
) -> dict[str, tuple[str, Any]]:
    """Return the contents of a line by modality: ("text", …), ("path", …) or ("data", …)."""
    if columns:
        chosen = {name: line[column] for name, column in columns.items() if not _is_empty(line.get(column))}
        if not chosen:
            expected = " or ".join(map(repr, columns.values()))
            raise BadLineError(ProblemCode.EMPTY, f"nothing in {expected}; the fields are {', '.join(line)}")
        kinds = {name: _FIELD_READ[_input_kind(name, input_kinds)] for name in chosen}
        kinds = {
            name: "data" if kind == "path" and isinstance(chosen[name], bytes) else kind for name, kind in kinds.items()
        }
        return {name: _checked(kinds[name], value) for name, value in chosen.items()}
    given = line.get(modality)
    name = None if _is_empty(given) else _to_text(given, "modality")
    wanted = None if name is None else _FIELD_READ[_input_kind(name, input_kinds)]
    contents = {key: line[key] for key in _CONTENTS if not _is_empty(line.get(key))}
    if not contents:
        if empty := [key for key in _CONTENTS if key in line]:
            reason = f"{' and '.join(empty)} {'is' if len(empty) == 1 else 'are'} empty"
            raise BadLineError(ProblemCode.EMPTY, reason)
        raise BadLineError(ProblemCode.MALFORMED, f"neither 'path' nor 'text'; the fields are {', '.join(line)}")
    if wanted is None:
        for key in contents:
            _input_kind(_CONTENTS[key], input_kinds)
        return {_CONTENTS[key]: _checked(key, value) for key, value in contents.items()}
    own = [(key, value) for key, value in contents.items() if (key == "text") == (wanted == "text")]
    if len(contents) != 1 or not own:
        given = " and ".join(map(repr, contents))
        raise BadLineError(ProblemCode.MALFORMED, f"modality {name!r} takes one {wanted!r}; the line has {given}")
    return {str(name): _checked(*own[0])}


def _checked(kind: str, value: Any) -> tuple[str, Any]:
    if kind != "data":
        return kind, _to_text(value, kind)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise BadLineError(ProblemCode.MALFORMED, f"data is {type(value).__name__}; expected the bytes of a file")
    return kind, bytes(value)


def _input_kind(modality: str, input_kinds: Mapping[str, str]) -> str:
    if modality not in input_kinds:
        raise BadLineError(ProblemCode.UNKNOWN_MODALITY, unknown_modality(modality, input_kinds))
    if input_kinds[modality] == "array":
        reason = f"{modality!r} was trained on given features, not on files or texts; add a Dataset with features"
        raise BadLineError(ProblemCode.NEEDS_FEATURES, reason)
    return input_kinds[modality]


def fill_item(item: Item, kind: str, value: Any, base: Path | None) -> Item | Problem:
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
        path = locate(value, base)
        item = replace(item, path=path)
        if isinstance(path, ArchiveMember):  # members are checked when they are read
            if path.archive.is_file():
                return item
            return item.problem(ProblemCode.MISSING_FILE, f"no such archive: {path.archive}")
        if path.is_file():
            return item
        if path.is_dir():
            return item.problem(ProblemCode.NOT_A_FILE, "a folder; expected a file")
        return item.problem(ProblemCode.MISSING_FILE, "no such file")
    except OSError as error:  # a name that is too long, no permission for its folder
        return item.problem(ProblemCode.MISSING_FILE, error.strerror or str(error))
    except (ValueError, RuntimeError) as error:  # a NUL, an unknown user after ~, a loop of links
        return item.problem(ProblemCode.MISSING_FILE, f"{value!r} is not a path: {error}")


def locate(value: str, base: Path) -> Path | ArchiveMember:
    """Return the path or archive member relative to ``base``; raise OSError, ValueError or RuntimeError."""
    if (member := find_member(os.path.join(base, os.path.expanduser(value)))) is not None:
        return replace(member, archive=member.archive.resolve())
    return Path(base, Path(value).expanduser()).resolve()


def given_items(
    source: Iterable[Any], input_kinds: Mapping[str, str], report: OnProblem, fields: Mapping[str, str] | None
) -> Iterator[Item]:
    """Yield items, and the items of dicts and frames, with paths relative to the working directory."""
    for one in source:
        if is_frame(one):
            yield from _frame_items(one, input_kinds, report, fields)
        elif isinstance(one, Mapping):
            yield from parse_items([(None, one)], input_kinds, report, base=Path.cwd(), fields=fields)
        elif not isinstance(one, Item):
            expected = "dicts such as {'text': …} or {'path': …}, or a frame"
            raise TypeError(f"items: got {type(one).__name__}; expected {expected}")
        elif one.modality not in input_kinds:
            report(one.problem(ProblemCode.UNKNOWN_MODALITY, unknown_modality(one.modality, input_kinds)))
        elif not one.id:
            report(one.problem(ProblemCode.MALFORMED, "the id is empty"))
        else:
            yield one


def _frame_items(
    native: Any, input_kinds: Mapping[str, str], report: OnProblem, fields: Mapping[str, str] | None
) -> Iterator[Item]:
    frame = Frame(native, "the source")
    fields = usual_fields(frame.kinds, fields)
    check_columns("the source", frame.columns, fields)
    made: dict[Key, int] = {}  # default ids may repeat, because every row is an item
    for number, row in enumerate(frame.rows()):

        def numbered(problem: Problem, number: int = number) -> None:
            report(replace(problem, reason=f"{frame.row(number)}: {problem.reason}"))

        for item in parse_items([(None, row)], input_kinds, numbered, base=Path.cwd(), fields=fields):
            times = made[item.key] = made.get(item.key, 0) + 1
            own = not _is_empty(row.get(fields.get("id", "id"))) or item.path is not None
            yield item if own or times == 1 else replace(item, id=f"{item.id}-{times}")


def manifest_items(
    manifest: Path, input_kinds: Mapping[str, str], report: OnProblem, how: ReadOptions, *, names: Sequence[str] = ()
) -> Iterator[Item]:
    """Yield the valid items of a manifest; paths are relative to its folder.

    ``names`` are fields that may name a file in a line without content. If given, paths stay unresolved in ``uri``.
    """
    if not manifest.is_file():
        raise FileNotFoundError(f"{manifest}: no such file; expected a manifest (.jsonl, .csv, .tsv, .xlsx, .parquet)")
    fields = manifest_fields(manifest, how.fields, how.table, names=names)
    lines = manifest_lines(
        manifest, lambda number, reason: report(Problem(reason, number, manifest.name)), table=how.table
    )
    base = None if names else manifest.parent
    if names and not set(fields) - set(LINE_FIELDS):
        lines = ((number, _with_path(line, names)) for number, line in lines)
    yield from parse_items(lines, input_kinds, report, base=base, fields=fields, source=manifest.name)


def _with_path(line: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a line without content with the first of the fields ``names`` as its path."""
    if any(not _is_empty(line.get(key)) for key in _CONTENTS):
        return line
    name = next((name for name in names if not _is_empty(line.get(name))), None)
    if name is None:
        return line
    return {**{key: value for key, value in line.items() if key != name or key == "id"}, "path": line[name]}


def manifest_fields(
    manifest: Path, fields: Mapping[str, str] | None, table: TableFormat | None = None, *, names: Sequence[str] = ()
) -> dict[str, str]:
    """Return the field names of a manifest; ValueError for a table without the required columns."""
    if not has_columns(manifest):
        return dict(fields or {})
    kinds = column_kinds(manifest, table)
    found = usual_fields(kinds, fields)
    check_columns(manifest, [*kinds, *(["path"] if set(names) & set(kinds) else [])], found)
    return found


def count_lines(manifest: Path) -> int:
    """Count the lines of a text file for a progress bar; 0 for other files."""
    if not manifest.is_file() or manifest.suffix.lower() not in (".jsonl", ".ndjson", ".csv", ".tsv"):
        return 0
    with manifest.open("rb") as file:
        return sum(1 for _ in file)


def check_columns(path: Path | str, columns: Sequence[str] | None, fields: Mapping[str, str]) -> None:
    """Raise ValueError for a table without the required columns, instead of a problem per line."""
    if columns is None:
        return
    wanted = [value for key, value in fields.items() if key not in LINE_FIELDS] or ["path", "text"]
    own = [value for key, value in fields.items() if key in LINE_FIELDS]
    if not set(wanted) & set(columns) or not set(own) <= set(columns):
        raise ValueError(
            f"{path}: the columns are {', '.join(columns) or 'none'}; expected {' or '.join(wanted)}"
            f"{''.join(f' and {name}' for name in own)}. "
            "Name the columns, e.g. --field text=caption --field image=file (fields={...})"
        )
