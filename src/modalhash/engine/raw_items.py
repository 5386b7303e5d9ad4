"""Things to hash, made of the fields of a line: what is wrong with one is told, and the others go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

OWN = ("id", "labels", "split", "modality")
CONTENTS = {"path": "image", "text": "text", "data": "image"}
"""Fields that hold an item, and the modality where the line does not name one."""
FIELDS = {"text": "text", "image": "path"}
"""The field that holds what an encoder reads."""
EXPORTED = ("code", "kind")
"""Fields that an export has and that mean nothing to another engine."""
TRAINING = ("train", "training")
OTHER = ("test", "query", "database")


@dataclass(frozen=True)
class Item:
    """One thing to hash: a text, a file, or the bytes of one."""

    modality: str
    id: str
    text: str | None = None
    path: Path | None = None
    data: bytes | None = None
    uri: str | None = None
    """Where it is, if not at ``path``."""
    labels: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of its line, kept with it."""
    training: bool = True
    """Whether it may be learned from; False by the field ``split``."""
    line: int | None = None
    source: str | None = None
    """Name of the file that the line is in."""

    @property
    def content(self) -> str | Path | bytes | None:
        """What its encoder takes."""
        return next((value for value in (self.text, self.path, self.data) if value is not None), None)

    def problem(self, reason: str) -> Problem:
        """Something is wrong with this item."""
        path = None if self.path is None else str(self.path)
        return Problem(reason, self.line, self.source, self.modality, self.id, path)


@dataclass(frozen=True)
class Problem:
    """Why an item was left out."""

    reason: str
    line: int | None = None
    source: str | None = None
    modality: str | None = None
    id: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        line = None if self.line is None else ", ".join(filter(None, (self.source, f"line {self.line}")))
        return ": ".join(filter(None, (line, self.path or self.id, self.reason)))


Report = Callable[[Problem], None]


class Problems:
    """Collects what is left out and tells whoever wants to know; or, if strict, stops at the first."""

    def __init__(self, on_problem: Report | None, *, strict: bool) -> None:
        self.found: list[Problem] = []
        self._on_problem = on_problem
        self._strict = strict

    def __call__(self, problem: Problem) -> None:
        if self._strict:
            raise ValueError(str(problem))
        self.found.append(problem)
        if self._on_problem is not None:
            self._on_problem(problem)

    def warn(self) -> None:
        """Say so if items were left out and nobody was told."""
        if self.found and self._on_problem is None:
            import warnings

            text = f"{len(self.found)} items were left out; the first: {self.found[0]}"
            warnings.warn(text, UserWarning, stacklevel=3)


Lines = Iterable[tuple[int | None, Mapping[str, Any]]]


def items_of(
    lines: Lines,
    reads: Mapping[str, str],
    report: Report,
    *,
    base: Path,
    fields: Mapping[str, str] | None = None,
    source: str | None = None,
) -> Iterator[Item]:
    """The usable items of numbered lines; the others go to ``report``.

    Parameters
    ----------
    lines : numbers (or None) and fields
    reads : the modalities there are, and whether each reads a ``"text"`` or an ``"image"``
    report : called with a :class:`Problem` for every item that is left out
    base : paths are taken relative to it
    fields : what the lines call things: ``{"text": "caption", "image": "file", "labels": "keywords"}``
    source : name of the file, for the ids of texts that have none
    """
    names = {key: (fields or {}).get(key, key) for key in OWN}
    contents = {key: value for key, value in (fields or {}).items() if key not in OWN}
    for number, line in lines:
        given = line.get(names["id"])
        id = None if given in (None, "") else str(given)
        try:
            found = _contents(line, names["modality"], contents, reads)
            frame = _frame(line, names, {*names.values(), *contents.values(), *CONTENTS, *EXPORTED})
        except ValueError as error:
            report(Problem(str(error), number, source, id=id))
            continue
        for modality, (what, value) in found.items():
            own = id if id is not None else _default_id(what, value, source, number)
            item = _filled(Item(modality, own, line=number, source=source, **frame), what, value, base)
            if isinstance(item, Problem):
                report(item)
            else:
                yield item


def unique(items: Iterable[Item], report: Report) -> Iterator[Item]:
    """Each id once per modality: the first one is kept, the others go to ``report``."""
    seen: dict[tuple[str, str], tuple[str | None, int | None]] = {}
    for item in items:
        key = item.modality, item.id
        if key in seen:
            source, line = seen[key]
            other = f" of {source}" if source != item.source else ""
            before = f"in line {line}{other} already" if line is not None else "given twice"
            report(item.problem(f"the id {item.id!r} is {before}; the first one is kept"))
        else:
            seen[key] = item.source, item.line
            yield item


def _frame(line: Mapping[str, Any], names: Mapping[str, str], known: set[str]) -> dict[str, Any]:
    """What all items of a line have in common."""
    part = str(line.get(names["split"]) or "").lower()
    if part and part not in (*TRAINING, *OTHER):
        raise ValueError(f"split is {part!r}; expected one of {', '.join((*TRAINING, *OTHER))}")
    extra = {key: value for key, value in line.items() if key not in known and value not in (None, "")}
    return {"labels": parse_labels(line.get(names["labels"])), "training": part not in OTHER, "extra": extra}


def _contents(
    line: Mapping[str, Any], modality: str, contents: Mapping[str, str], reads: Mapping[str, str]
) -> dict[str, tuple[str, Any]]:
    """What the line holds, by modality: ("text", …), ("path", …) or ("data", …)."""
    if contents:
        chosen = {name: line[column] for name, column in contents.items() if line.get(column) not in (None, "")}
        if not chosen:
            raise ValueError(
                f"nothing in {' or '.join(map(repr, contents.values()))}; the fields are {', '.join(line)}"
            )
        return {name: (FIELDS[_reads(name, reads)], value) for name, value in chosen.items()}
    name = line.get(modality)
    wanted = FIELDS[_reads(str(name), reads)] if name not in (None, "") else None
    found = {key: line[key] for key in CONTENTS if line.get(key) not in (None, "", b"")}
    if not found:
        if empty := [key for key in CONTENTS if key in line]:
            raise ValueError(f"{' and '.join(empty)} {'is' if len(empty) == 1 else 'are'} empty")
        raise ValueError(f"neither 'path' nor 'text'; the fields are {', '.join(line)}")
    if wanted is None:
        for key in found:
            _reads(CONTENTS[key], reads)
        return {CONTENTS[key]: (key, value) for key, value in found.items()}
    own = [(key, value) for key, value in found.items() if (key == "text") == (wanted == "text")]
    if len(found) != 1 or not own:
        raise ValueError(f"modality {name!r} takes one {wanted!r}; the line has {' and '.join(map(repr, found))}")
    return {str(name): own[0]}


def _reads(modality: str, reads: Mapping[str, str]) -> str:
    if modality not in reads:
        raise ValueError(f"unknown modality {modality!r}; expected one of {', '.join(map(repr, reads))}")
    if reads[modality] == "array":
        raise ValueError(f"{modality!r} was trained on given features, not on files or texts: add a Dataset with them")
    return reads[modality]


def _filled(item: Item, what: str, value: Any, base: Path) -> Item | Problem:
    if what == "data":
        return replace(item, data=bytes(value))
    if what == "text":
        return replace(item, text=str(value)) if str(value).strip() else item.problem("the text is empty")
    if "://" in str(value):
        return Problem(
            f"{value} is an address; expected a file. Download it first", item.line, item.source, item.modality
        )
    item = replace(item, path=Path(base, Path(str(value)).expanduser()).resolve())
    assert item.path is not None
    try:
        if item.path.is_file():
            return item
        return item.problem("a folder; expected a file" if item.path.is_dir() else "no such file")
    except OSError as error:  # a name that is too long, no permission for its folder
        return item.problem(error.strerror or str(error))


def _default_id(what: str, value: Any, source: str | None, number: int | None) -> str:
    """A file is known by its path as given, a text by its line; without a line, by its content."""
    if what == "path":
        return Path(str(value)).as_posix()
    if number is not None:
        return f"{source or 'line'}:{number}"
    return f"{what}-{hashlib.sha256(value if isinstance(value, bytes) else str(value).encode()).hexdigest()[:16]}"


def parse_labels(value: Any) -> tuple[str, ...]:
    """Labels from a list, or from a text with ``;`` or ``|`` between them."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = value.replace("|", ";").split(";")
    if not isinstance(value, list | tuple) or any(isinstance(word, dict | list) for word in value):
        raise ValueError(f"labels are {value!r}; expected a list of names, or names separated by ';'")
    return tuple(dict.fromkeys(word for word in (str(word).strip() for word in value) if word))
