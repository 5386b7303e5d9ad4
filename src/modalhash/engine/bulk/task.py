"""Encode one part of a source into one file.

Tasks are pure and picklable. A task may run twice; the second run writes the same file.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from modalhash.core.archives import MAX_MEMBER_BYTES, ArchiveMember, find_member, too_large
from modalhash.core.codes import pack_signs
from modalhash.core.typing import Matrix
from modalhash.engine.bulk.inputs import MAX_TEXT_BYTES, InputPart, decode_text, tar_items
from modalhash.engine.items.item import Item, Problem, ProblemCode
from modalhash.engine.items.urls import (
    OutsideError,
    exists,
    inside,
    is_folder,
    is_remote,
    join,
    read_files,
    write_whole,
)
from modalhash.engine.search.refinement import model_features
from modalhash.engine.storage.code_files import CodeRow, Identity, codes_as_bytes

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.engine.search.refinement import Refinement
    from modalhash.methods.fitted import FittedHasher

NOTE = "encoding.json"
"""File with the settings, next to the parts."""
READ_TOGETHER = 64
"""Files in memory at a time."""
CODED_TOGETHER = 1024
MAX_EXAMPLES = 20
"""Problems returned for a part; its file has all."""


@dataclass(frozen=True)
class Coder:
    """The parts of an engine that compute codes."""

    identity: Identity
    model: FittedHasher
    encoders: Mapping[str, Encoder]
    refinement: Refinement

    @property
    def input_kinds(self) -> dict[str, str]:
        """``"text"``, ``"image"`` or ``"array"`` by modality."""
        return {modality: encoder.reads for modality, encoder in self.encoders.items()}


@dataclass(frozen=True)
class PartDone:
    """Result of a part."""

    part: int
    inputs: int
    n_problems: int
    examples: tuple[Problem, ...]


def encode_part(coder: Coder, part: InputPart, out: str, fields: Mapping[str, str] | None = None) -> PartDone:
    """Encode the inputs of a part and write its file; inputs that cannot be encoded become rows with a problem.

    Codes do not depend on the machine, because one thread computes them in fixed batches.
    """
    _check_sight(part, out)
    rows: list[CodeRow] = []
    coding = {modality: _Coding(coder, modality, rows) for modality in coder.encoders}
    with threadpool_limits(1):
        for item, content in _contents(part, coder.input_kinds, fields):
            if isinstance(content, Problem):
                rows.append(CodeRow(item, content))
                continue
            assert item is not None  # only problems have no item
            rows.append(CodeRow(replace(item, data=None)))
            coding[item.modality].add(len(rows) - 1, content)
        for one in coding.values():
            one.finish()
    write_whole(join(out, part.file_name), codes_as_bytes(rows, coder.identity))
    problems = [row.problem for row in rows if row.problem is not None]
    return PartDone(part.number, len(rows), len(problems), tuple(problems[:MAX_EXAMPLES]))


@dataclass
class _Coding:
    coder: Coder
    modality: str
    rows: list[CodeRow]
    _waiting: list[tuple[int, Any]] = field(default_factory=list)
    _features: list[Matrix] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)

    def add(self, row: int, content: Any) -> None:
        self._waiting.append((row, content))
        if len(self._waiting) == READ_TOGETHER:
            self._encode()
        if len(self._numbers) >= CODED_TOGETHER:
            self._code()

    def finish(self) -> None:
        self._encode()
        self._code()

    def _encode(self) -> None:
        from modalhash.encoders import encode_items

        if not self._waiting:
            return
        numbers = [row for row, _ in self._waiting]
        encoded = encode_items(self.coder.encoders[self.modality], [item for _, item in self._waiting], workers=1)
        for failure in encoded.failures:
            row = numbers[failure.row]
            item = self.rows[row].item
            assert item is not None
            self.rows[row] = CodeRow(item, item.problem(ProblemCode.UNREADABLE, failure.reason))
        self._features.append(encoded.features)
        self._numbers += [numbers[row] for row in encoded.ok_rows.tolist()]
        self._waiting.clear()

    def _code(self) -> None:
        if not self._numbers:
            return
        features = _stacked(self._features)
        projected = model_features(self.coder.model, self.coder.encoders[self.modality], features)
        codes = pack_signs(self.coder.model.decision_function({self.modality: projected})[self.modality])
        vectors = self.coder.refinement.vectors(self.modality, features)
        for row, code, vector in zip(self._numbers, codes, vectors, strict=True):
            self.rows[row] = replace(self.rows[row], code=code, refinement=vector)
        self._features.clear()
        self._numbers.clear()


def _stacked(parts: list[Matrix]) -> Matrix:
    if any(sparse.issparse(rows) for rows in parts):
        return sparse.csr_array(sparse.vstack(parts, format="csr"))
    return np.concatenate(parts)


def _check_sight(part: InputPart, out: str) -> None:
    """Raise FileNotFoundError if inputs or output are not visible from this machine."""
    where = socket.gethostname()
    if not exists(join(out, NOTE)):
        raise FileNotFoundError(f"{out} does not exist on {where}; give --out a URL or a folder that all workers share")
    in_archive = any(isinstance(entry, Item) and entry.path is not None for entry in part.entries)
    if not (exists(part.root) if part.tar_bytes is not None or in_archive else is_folder(part.root)):
        raise FileNotFoundError(f"{part.root} does not exist on {where}; give a URL or a path that all workers share")


def _contents(
    part: InputPart, input_kinds: Mapping[str, str], fields: Mapping[str, str] | None
) -> Iterator[tuple[Item | None, Any]]:
    if part.tar_bytes is not None:
        for entry in tar_items(part.root, input_kinds, fields):
            yield (None, entry) if isinstance(entry, Problem) else (entry, entry.content)
        return
    entries = iter(part.entries)
    read = _read_remote if is_remote(part.root) else _read_local
    while some := list(islice(entries, READ_TOGETHER)):
        located = [_located(entry, part.root) for entry in some]
        yield from read(located, input_kinds)


def _located(entry: Item | Problem, root: str) -> tuple[Item | None, Any]:
    """Return an item with its text or the location of its file, or with a problem."""
    if isinstance(entry, Problem):
        return None, entry
    if entry.text is not None:
        return entry, entry.text
    if entry.path is not None:  # a member of an archive
        return entry, entry.path
    assert entry.uri is not None  # a list has paths or texts
    try:
        if not is_remote(root) and (member := find_member(entry.uri)) is not None:
            return entry, replace(member, archive=Path(inside(root, str(member.archive))))
        return entry, Path(inside(root, entry.uri)) if not is_remote(root) else inside(root, entry.uri)
    except OutsideError as error:
        return entry, entry.problem(ProblemCode.OUTSIDE, str(error))
    except OSError as error:  # a name too long
        return entry, entry.problem(ProblemCode.MISSING_FILE, error.strerror or str(error))
    except (ValueError, RuntimeError) as error:  # a NUL, a loop of links
        return entry, entry.problem(ProblemCode.MISSING_FILE, f"{entry.uri!r} is not a path: {error}")


def _read_local(
    located: list[tuple[Item | None, Any]], input_kinds: Mapping[str, str]
) -> Iterator[tuple[Item | None, Any]]:
    for item, content in located:
        if item is not None and isinstance(content, ArchiveMember):
            item = replace(item, path=content, uri=None)
        if item is None or not isinstance(content, Path):
            yield item, content
            continue
        item = replace(item, path=content, uri=None)
        try:
            if content.is_dir():
                yield item, item.problem(ProblemCode.NOT_A_FILE, "a folder; expected a file")
            elif not content.is_file():
                yield item, item.problem(ProblemCode.MISSING_FILE, "no such file")
            elif input_kinds[item.modality] == "image":
                yield item, content
            else:
                with content.open("rb") as file:
                    yield _with_text(replace(item, path=None, uri=str(content)), file.read(MAX_TEXT_BYTES + 1))
        except OSError as error:
            yield item, item.problem(ProblemCode.MISSING_FILE, error.strerror or str(error))


def _read_remote(
    located: list[tuple[Item | None, Any]], input_kinds: Mapping[str, str]
) -> Iterator[tuple[Item | None, Any]]:
    wanted = [row for row, (item, one) in enumerate(located) if item and item.text is None and isinstance(one, str)]
    contents = dict(zip(wanted, read_files([located[row][1] for row in wanted], MAX_MEMBER_BYTES), strict=True))
    for row, (item, given) in enumerate(located):
        if item is None or row not in contents:
            yield item, given
            continue
        item, content = replace(item, uri=given), contents[row]
        if isinstance(content, FileNotFoundError):
            yield item, item.problem(ProblemCode.MISSING_FILE, "no such file")
        elif isinstance(content, IsADirectoryError):
            yield item, item.problem(ProblemCode.NOT_A_FILE, "a folder; expected a file")
        elif isinstance(content, PermissionError):
            yield item, item.problem(ProblemCode.MISSING_FILE, "no permission to read it")
        elif isinstance(content, Exception):  # the storage may be available when the part is retried
            raise content
        elif len(content) > MAX_MEMBER_BYTES:
            yield item, item.problem(ProblemCode.UNREADABLE, too_large(len(content), MAX_MEMBER_BYTES))
        elif input_kinds[item.modality] == "image":
            yield item, content
        else:
            yield _with_text(item, content)


def _with_text(item: Item, data: bytes) -> tuple[Item, Any]:
    try:
        text = decode_text(data)
    except ValueError as error:
        return item, item.problem(ProblemCode.UNREADABLE, str(error))
    if not text.strip():
        return item, item.problem(ProblemCode.EMPTY, "the text is empty")
    return replace(item, text=text), text
