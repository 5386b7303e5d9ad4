"""Samples of a tar as WebDataset has them: files that are named alike up to the first dot are one sample.

``000017.jpg`` and ``000017.txt`` are a picture and a text of one id; ``000017.cls`` is a label, ``000017.json`` an
object with labels and other fields. A picture without any of these is what it is in an archive of photos: its whole
name is its id, and its folders are its labels. Nothing is unpacked: members are read one after the other, and what they
are called leads nowhere.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modalhash._archives import (
    MAX_MEMBER_BYTES,
    ArchiveError,
    ArchiveMember,
    Refusal,
    is_hidden,
    leads_out,
    tar_members,
    too_large,
)
from modalhash.engine._urls import base_name, is_remote, opened
from modalhash.engine.folder_names import FolderLabels
from modalhash.engine.picture_folders import PICTURE_SUFFIXES, REFUSALS, archive_labels, is_picture
from modalhash.engine.source_items import Item, Problem, ProblemCode, is_storable, unknown_modality
from modalhash.engine.source_lines import LINE_FIELDS, BadLineError, parse_common

MAX_TEXT_BYTES = 2**20
_MODALITIES = {**{suffix.removeprefix("."): "image" for suffix in PICTURE_SUFFIXES}, "txt": "text"}
_FIELDS = ("cls", "json")
_MAX_PICTURES = 16
"""Of a sample in memory before they are known to be photos: all may be called ``trip.1.jpg``, ``trip.2.jpg`` …"""
_CONTENTS = ("path", "text", "data", "image")


@dataclass
class _TarSample:
    key: str
    files: dict[str, bytes | Problem] = field(default_factory=dict)
    """By what follows the first dot."""
    pictures: dict[str, bytes | Problem] = field(default_factory=dict)
    """By their names."""

    @property
    def is_photos(self) -> bool:
        """Whether there is no text, label or field among the files, so that its pictures are photos."""
        return bool(self.pictures) and not {"txt", *_FIELDS} & self.files.keys()


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


def _samples(where: str) -> Iterator[_TarSample | Problem]:
    """Yield samples, and what is wrong with the tar itself."""
    name = base_name(where)
    with opened(where) as file:
        sample: _TarSample | None = None
        damage: str | None = None
        try:
            for tar, member in tar_members(file):
                inner = member.name.removeprefix("./")
                if member.isdir() or is_hidden(inner):
                    continue
                key, ending = _split_name(inner)
                known = ending.lower() in (*_MODALITIES, *_FIELDS)
                if not known and not is_picture(inner):
                    continue
                if sample is None or sample.key != key or (len(sample.pictures) >= _MAX_PICTURES and sample.is_photos):
                    if sample is not None:
                        yield sample
                    sample = _TarSample(key)
                content = _read_member(tar, member, name)
                if known:
                    sample.files[ending.lower()] = content
                if is_picture(inner):
                    sample.pictures[inner] = content
        except (ArchiveError, tarfile.TarError) as error:  # what goes wrong with the storage is no fault of the tar
            damage = getattr(error, "reason", str(error))
        if sample is not None:
            yield sample
        if damage is not None:
            yield Problem(damage, source=name, id=name, path=where, code=ProblemCode.UNREADABLE)


def _split_name(name: str) -> tuple[str, str]:
    """Return a member's name up to the first dot of its last part, and what follows that dot."""
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return f"{folder}{slash}{stem}", ending


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, source: str) -> bytes | Problem:
    name = member.name.removeprefix("./")
    refusal = Refusal.OUTSIDE if leads_out(name) else None
    if not member.isreg() or member.issparse():
        refusal = refusal or Refusal.LINK
    if refusal is not None:
        return Problem(refusal, source=source, id=name, code=REFUSALS[refusal])
    if member.size > MAX_MEMBER_BYTES:
        return Problem(too_large(member.size, MAX_MEMBER_BYTES), source=source, id=name, code=ProblemCode.UNREADABLE)
    content = tar.extractfile(member)
    assert content is not None  # a regular file
    data = content.read()
    if len(data) < member.size:
        raise ArchiveError(f"the tar is cut off within {name}; what follows is lost", source)
    return data


def decode_text(data: bytes) -> str:
    """Return the text of a file; ValueError if it is not one."""
    if len(data) > MAX_TEXT_BYTES:
        raise ValueError(f"more than the limit of {MAX_TEXT_BYTES:,} bytes for a text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not in UTF-8; save the file as UTF-8") from None


def _sample_items(
    sample: _TarSample, tar: str, where: str, reads: Mapping[str, str], fields: Mapping[str, str]
) -> Iterator[Item | Problem]:
    if sample.is_photos:
        for name, data in sample.pictures.items():
            labels = archive_labels(tar, name, FolderLabels())
            item = Item("image", f"{tar}/{name}", uri=_uri(where, name), labels=labels, source=tar)
            yield data if isinstance(data, Problem) else _filled(item, data, reads)
        return
    id = f"{tar}/{sample.key}"
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
        item = Item(modality, id, uri=_uri(where, f"{sample.key}.{ending}"), source=tar, **common)
        if isinstance(data, Problem):
            yield data
        elif wrong is not None:
            yield item.problem(wrong.code, f"its fields: {wrong}")
        else:
            yield _filled(item, data, reads)


def _uri(where: str, name: str) -> str:
    """Return where a member is: a URL that fsspec can open if the tar is at one."""
    return f"tar://{name}::{where}" if is_remote(where) else str(ArchiveMember(Path(where), name))


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


def _fields_of(sample: _TarSample, fields: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
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
