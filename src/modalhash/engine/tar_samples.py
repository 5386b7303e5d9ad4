"""Samples of a tar as WebDataset has them: files that are named alike up to the first dot are one sample.

``000017.jpg`` and ``000017.txt`` are a picture and a text of one id; ``000017.cls`` is a label, ``000017.json`` an
object with labels and other fields. Nothing is unpacked: members are read one after the other, and what they are called
leads nowhere.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from modalhash.engine._urls import base_name, is_remote, opened
from modalhash.engine.sources import (
    LINE_FIELDS,
    PICTURE_SUFFIXES,
    BadLineError,
    Item,
    Problem,
    ProblemCode,
    is_storable,
    parse_common,
    unknown_modality,
)

MAX_FILE_BYTES = 256 * 2**20
"""Of a picture or any other file that is read into memory; a larger one is a problem."""
MAX_TEXT_BYTES = 2**20
_MODALITIES = {**{suffix.removeprefix("."): "image" for suffix in PICTURE_SUFFIXES}, "txt": "text"}
_FIELDS = ("cls", "json")
_CONTENTS = ("path", "text", "data", "image")


@dataclass
class _Sample:
    key: str
    files: dict[str, bytes | Problem] = field(default_factory=dict)
    """By what follows the first dot."""


def tar_items(
    where: str, reads: Mapping[str, str], fields: Mapping[str, str] | None = None
) -> Iterator[Item | Problem]:
    """Yield the pictures and texts of a tar, with their bytes or words, and what is wrong with others.

    Parameters
    ----------
    where : location of a tar that is not compressed
    reads : the modalities there are, and whether each reads a ``"text"`` or an ``"image"``
    fields : what the JSON objects call ``labels``, ``split`` and ``text``
    """
    tar, seen = base_name(where), set()
    for sample in _samples(where):
        if isinstance(sample, Problem):
            yield sample
            continue
        for entry in _sample_items(sample, tar, where, reads, fields or {}):
            if isinstance(entry, Item):
                if entry.key in seen:
                    reason = f"the id {entry.id!r} is in this tar already; the first one is taken"
                    entry = entry.problem(ProblemCode.DUPLICATE, reason)
                else:
                    seen.add(entry.key)
            yield entry


def _samples(where: str) -> Iterator[_Sample | Problem]:
    """Yield samples, and what is wrong with the tar itself."""
    name = base_name(where)
    with opened(where) as file:
        try:
            tar = tarfile.TarFile(fileobj=file, mode="r")
        except tarfile.TarError as error:
            yield Problem(f"not a tar ({error})", source=name, id=name, path=where, code=ProblemCode.UNREADABLE)
            return
        sample: _Sample | None = None
        n_members = 0
        try:
            while (member := tar.next()) is not None:
                vars(tar)["members"].clear()  # it would keep all that came before
                n_members += 1
                if member.isdir():
                    continue
                key, ending = _split_name(member.name)
                if ending.lower() not in (*_MODALITIES, *_FIELDS):
                    continue
                if sample is None or sample.key != key:
                    if sample is not None:
                        yield sample
                    sample = _Sample(key)
                sample.files[ending.lower()] = _read_member(tar, member, name)
            damaged = not _ends_well(file, tar.offset)
        except tarfile.TarError:  # what goes wrong with the storage is no fault of the tar
            damaged = True
        if sample is not None:
            yield sample
        if damaged:
            reason = f"the tar is damaged or cut off after {n_members:,} members; what follows is lost"
            yield Problem(reason, source=name, id=name, path=where, code=ProblemCode.UNREADABLE)


def _split_name(name: str) -> tuple[str, str]:
    """Return a member's name up to the first dot of its last part, and what follows that dot."""
    folder, slash, last = name.removeprefix("./").rpartition("/")
    stem, _, ending = last.partition(".")
    return f"{folder}{slash}{stem}", ending


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, source: str) -> bytes | Problem:
    name = member.name.removeprefix("./")
    if name.startswith("/") or ".." in name.split("/"):
        return Problem("its name leads out of the tar", source=source, id=name, code=ProblemCode.OUTSIDE)
    if not member.isreg() or member.issparse():
        return Problem("a link or a special file; expected a file", source=source, id=name, code=ProblemCode.NOT_A_FILE)
    if member.size > MAX_FILE_BYTES:
        return Problem(too_large(member.size, MAX_FILE_BYTES), source=source, id=name, code=ProblemCode.UNREADABLE)
    content = tar.extractfile(member)
    assert content is not None  # a regular file
    data = content.read()
    if len(data) < member.size:
        raise tarfile.ReadError("unexpected end of data")
    return data


def _ends_well(file: Any, offset: int) -> bool:
    """Return whether a tar ends at this place: with a block of zeros, or the file with it."""
    file.seek(offset)  # of the block that tarfile took for the end, whatever it is
    return not any(file.read(tarfile.BLOCKSIZE))


def too_large(size: int, most: int) -> str:
    """Say that a file is too large."""
    return f"{size:,} bytes, more than the limit of {most:,}"


def decode_text(data: bytes) -> str:
    """Return the text of a file; ValueError if it is not one."""
    if len(data) > MAX_TEXT_BYTES:
        raise ValueError(f"more than the limit of {MAX_TEXT_BYTES:,} bytes for a text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not in UTF-8; save the file as UTF-8") from None


def _sample_items(
    sample: _Sample, tar: str, where: str, reads: Mapping[str, str], fields: Mapping[str, str]
) -> Iterator[Item | Problem]:
    id = f"{tar}/{sample.key}"
    url = where if is_remote(where) else f"file://{where}"
    try:
        line, common = _fields_of(sample, fields)
        wrong: BadLineError | None = None
    except BadLineError as error:
        line, common, wrong = {}, {}, error
    contents = {ending: data for ending, data in sample.files.items() if ending in _MODALITIES}
    words = line.get(fields.get("text", "text"))
    if "txt" not in contents and isinstance(words, str) and words.strip():
        contents["json"] = words.encode(errors="surrogatepass")
    for ending, data in contents.items():
        modality = _MODALITIES.get(ending, "text")
        item = Item(modality, id, uri=f"tar://{sample.key}.{ending}::{url}", source=tar, **common)
        if isinstance(data, Problem):
            yield data
        elif wrong is not None:
            yield item.problem(wrong.code, f"its fields: {wrong}")
        else:
            yield _filled(item, data, reads)


def _filled(item: Item, data: bytes, reads: Mapping[str, str]) -> Item | Problem:
    """Return the item with its content, or what is wrong with it."""
    if reads.get(item.modality) != item.modality:
        return item.problem(ProblemCode.UNKNOWN_MODALITY, unknown_modality(item.modality, reads))
    if item.modality == "text":
        try:
            text = decode_text(data)
        except ValueError as error:
            return item.problem(ProblemCode.UNREADABLE, str(error))
        if not text.strip():
            return item.problem(ProblemCode.EMPTY, "the text is empty")
        item = replace(item, text=text)
    else:
        item = replace(item, data=data)
    problems: list[Problem] = []
    return item if is_storable(item, problems.append) else problems[0]


def _fields_of(sample: _Sample, fields: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a sample's JSON object, and labels and other fields as all of its items have them."""
    line: dict[str, Any] = {}
    written = sample.files.get("json")
    if isinstance(written, bytes):
        try:
            line = json.loads(decode_text(written))
        except (ValueError, RecursionError) as error:
            raise BadLineError(ProblemCode.MALFORMED, f"not JSON ({error})") from None
        if not isinstance(line, dict):
            raise BadLineError(ProblemCode.MALFORMED, f"{type(line).__name__}; expected an object with fields")
    names = {key: fields.get(key, key) for key in LINE_FIELDS}
    known = {*names.values(), *_CONTENTS, fields.get("text", "text")}
    common = parse_common(line, names, known)
    own = sample.files.get("cls")
    if isinstance(own, bytes):
        try:
            label = decode_text(own).strip()
        except ValueError as error:
            raise BadLineError(ProblemCode.MALFORMED, f"its .cls: {error}") from None
        common["labels"] = tuple(dict.fromkeys([*([label] if label else []), *common["labels"]]))
    return line, common
