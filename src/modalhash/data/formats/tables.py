"""Tables: the encoding and separator of text tables, and Excel, Parquet and Arrow files, which the sandbox reads.

A wrong guess would be silent, so only evidence in the bytes counts: a byte order mark, valid UTF-8, the NULs of UTF-16,
or else a text that reads like a Western European language. An 8-bit encoding cannot be proved, so the user is warned,
with an example. Ambiguous files raise an error that names the option to set.
"""

from __future__ import annotations

import base64
import codecs
import csv
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.data.formats.arrow import BYTES
from modalhash.data.formats.excel import ERROR
from modalhash.data.formats.sandbox import ForeignFile, ReadLimits
from modalhash.data.formats.variables import ReadError

SEPARATORS = {".csv": ",", ".tsv": "\t"}  # default separator of a table with a single column, by suffix
_CANDIDATES = (",", ";", "\t", "|")
_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_KNOWN_COLUMNS = frozenset({"id", "path", "text", "label", "labels", "split", "modality"})
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""Byte order marks, the longer ones first."""
WESTERN = "windows-1252"  # a superset of Latin-1, except for control characters that do not occur in texts
_BETWEEN_LETTERS = frozenset("’‘´·-‐‑–—…/\xad\xa0")
_CHUNK, _SAMPLE = 2**20, 2**18
_SAMPLE_ROWS = 1000
MAX_LISTED = 20  # columns that a message names
_CLEAR = 10  # required ratio of the evidence for an encoding to the evidence against it
_FEW = 100  # up to one line in this many may be damaged; such lines are skipped without a change of encoding
MARK = "\udc80"  # replaces bytes that are not in the encoding: a lone surrogate, which no text contains
ON_ERROR = "modalhash.mark"
codecs.register_error(ON_ERROR, lambda error: (MARK, getattr(error, "end", 0)))


@dataclass(frozen=True)
class TableFormat:
    """How a table is written, as given or as detected.

    Parameters
    ----------
    encoding
        of a text file, e.g. ``"utf-8"``, ``"utf-16"``, ``"latin-1"``; None detects it
    separator
        between the columns of a CSV or TSV file, one character; None detects it
    sheet
        of an Excel file, by name; None is the first
    example
        a word that reads differently in another encoding, if the encoding was detected without proof

    Examples
    --------
    >>> print(TableFormat("windows-1252", ";", example="Müller"))
    windows-1252, e.g. 'Müller', columns separated by a semicolon
    """

    encoding: str | None = None
    separator: str | None = None
    sheet: str | None = None
    example: str | None = None

    def __post_init__(self) -> None:
        if self.encoding is not None:
            try:
                known: Any = codecs.lookup(self.encoding)
            except (LookupError, TypeError, ValueError):
                known = None
            if known is None or not known._is_text_encoding:
                raise ValueError(
                    f"encoding (--encoding) is {self.encoding!r}; expected the name of one, such as utf-8, utf-16, "
                    "latin-1, windows-1252, cp1251, shift_jis or gbk"
                )
        if self.separator is not None:
            separator = {"\\t": "\t", "tab": "\t"}.get(self.separator, self.separator)
            if len(separator) != 1 or separator in '"\r\n' or separator.isalnum():
                raise ValueError(
                    f"separator (--separator) is {self.separator!r}; expected one character, such as ',', ';', '|' or "
                    "'\\t' (tab)"
                )
            object.__setattr__(self, "separator", separator)

    def __str__(self) -> str:
        parts = [self.encoding] if self.encoding else []
        parts += [f"e.g. {self.example!r}"] if self.example else []
        if self.separator:
            parts.append(f"columns separated by a {_NAMES.get(self.separator, repr(self.separator))}")
        parts += [f"sheet {self.sheet!r}"] if self.sheet else []
        return ", ".join(parts) or "not known"


def find_encoding(path: Path, given: str | None = None, *, eight_bits: bool = True) -> TableFormat:
    """Return the encoding of a text file from its bytes; raise ReadError if it is ambiguous.

    Without ``eight_bits`` it is a Unicode encoding, as for JSON, and the reader reports lines that do not decode.
    """
    if given is not None:
        encoding = codecs.lookup(given).name
        return TableFormat("utf-8-sig" if encoding == "utf-8" else encoding)
    with path.open("rb") as file:
        head = file.read(64)
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return TableFormat(encoding)
    if wide := _wide(head):
        return TableFormat(wide)
    if not eight_bits or _is_utf8(path):
        return TableFormat("utf-8")
    return _eight_bits(path)


def find_separator(path: Path, encoding: str, given: str | None = None) -> TableFormat:
    """Return the separator of a CSV or TSV file; raise ReadError if it is ambiguous."""
    lines, separator, _ = read_head(path, encoding)
    separator = given or separator
    if separator is None:
        separator = _choose(path, {mark: _Columns(lines, mark) for mark in _CANDIDATES})
    return TableFormat(encoding, separator)


def read_head(path: Path, encoding: str) -> tuple[list[str], str | None, int]:
    """Return the first lines, the separator of Excel's line ``sep=;`` if present, and its line count."""
    with path.open(encoding=encoding, errors=ON_ERROR, newline="") as file:
        text = file.read(_SAMPLE)
        whole = not file.read(1)
    lines = text.splitlines(keepends=True)
    if not whole and len(lines) > 1:
        lines.pop()  # incomplete
    if lines and (named := re.fullmatch(r'"?sep=(.)"?[\s;,]*', lines[0].lstrip("\ufeff"), re.I)):
        return lines[1:], named[1], 1
    return lines, None, 0


def _wide(head: bytes) -> str | None:
    """Recognise UTF-16 without a byte order mark: every other byte of its first letters is NUL."""
    half = len(head) // 2
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if half >= 4 and odd >= 0.4 * half and even <= 0.1 * half:
        return "utf-16-le"
    return "utf-16-be" if half >= 4 and even >= 0.4 * half and odd <= 0.1 * half else None


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _is_utf8(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in _chunks(path):
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _eight_bits(path: Path) -> TableFormat:
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    valid = invalid = lines = bad_lines = 0
    first_line = None
    reading = _Reading()
    for chunk in _chunks(path):
        text = decoder.decode(chunk)
        found = len(re.findall("[\udc80-\udcff]", text))
        if found and first_line is None:
            before = text[: re.search("[\udc80-\udcff]", text).start()]  # type: ignore[union-attr]
            first_line = lines + len(re.findall("\r\n|\r|\n", before)) + 1
        lines += len(re.findall("\r\n|\r|\n", text))
        bad_lines += len(re.findall("[\udc80-\udcff][^\r\n]*", text))
        invalid += found
        valid += len(re.findall("[\x80-\ud7ff\ue000-\U0010ffff]", text))
        reading.take(chunk.decode(WESTERN, "replace"))
    damaged = bad_lines * _FEW <= lines and (valid or not reading.is_western)
    if damaged or valid >= _CLEAR * invalid:
        return TableFormat("utf-8")  # the reader reports other lines one by one
    if not reading.is_western and invalid > valid:
        raise ReadError(
            path,
            f"neither UTF-8 nor a Western European encoding; as {WESTERN} it would read {reading.example()!r}. Name "
            "its encoding, e.g. --encoding cp1251 (Cyrillic), cp1250 (Central European), shift_jis, gbk, mac-roman or "
            "cp850 (table=TableFormat(encoding=…)), or save it as UTF-8",
            line=first_line,
        )
    if invalid < _CLEAR * valid:
        raise ReadError(
            path,
            f"not in UTF-8 here, while {valid:,} characters of the file are, and {invalid:,} bytes are not: it is put "
            "together of files in several encodings. Save it in one; or take --encoding utf-8 "
            f"(table=TableFormat('utf-8')), which leaves out the lines that are not, or --encoding {WESTERN}, which "
            f"reads all as that, e.g. {reading.example()!r}",
            line=first_line,
        )
    return TableFormat(WESTERN, example=reading.example())


class _Reading:
    """Judges whether a text reads like a Western European language.

    In such texts letters beyond ASCII are a minority and occur alone or in pairs, capitals start words, and symbols do
    not occur within words. Cyrillic, Central European or Asian letters, decoded as Western ones, break these rules.
    """

    _MAX = 100_000

    def __init__(self) -> None:
        self.n = self.odd = self.signs = 0
        self.word: str | None = None
        self.odd_word: str | None = None

    def take(self, text: str) -> None:
        if self.n >= self._MAX:
            return
        self.signs += sum(len(re.sub(r"\s", "", line)) for line in text.splitlines() if not line.isascii())
        for found in re.finditer("[^\x00-\x7f]", text):
            at = found.start()
            sign, before, after = text[at], text[at - 1 : at], text[at + 1 : at + 2]
            self.n += 1
            if odd := self._is_odd(sign, before, after):
                self.odd += 1
            if (odd and not self.odd_word) or not self.word:
                word = _word_at(text, at)
                self.odd_word, self.word = self.odd_word or (word if odd else None), self.word or word

    @staticmethod
    def _is_odd(sign: str, before: str, after: str) -> bool:
        if sign == "\ufffd":
            return True
        if sign.isalpha():
            run = before.isalpha() and not before.isascii() and after.isalpha() and not after.isascii()
            return run or (sign.isupper() and before.islower())
        return before.isalpha() and after.isalpha() and sign not in _BETWEEN_LETTERS

    @property
    def is_western(self) -> bool:
        """True if at most a fifth of the letters beyond ASCII are misplaced, and they are few."""
        return 5 * self.odd <= self.n and 2 * self.n <= self.signs

    def example(self) -> str:
        return (self.odd_word if not self.is_western else None) or self.word or ""


def _word_at(text: str, at: int) -> str:
    start = max(re.finditer(r"[\s,;|\"]", text[max(0, at - 30) : at]), key=lambda one: one.end(), default=None)
    begin = max(0, at - 30) + (start.end() if start else 0)
    end = re.search(r"[\s,;|\"]", text[at : at + 30])
    return text[begin : at + (end.start() if end else 30)]


class _Columns:
    """The columns that a separator would make of the first lines."""

    def __init__(self, lines: Iterable[str], separator: str) -> None:
        self.separator = separator
        self.names: list[str] = []
        self.rows = self.fitting = 0
        reader = csv.reader(lines, delimiter=separator)
        try:
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if not self.names:
                    self.names = [cell.strip().lstrip("\ufeff") for cell in row]
                    continue
                self.rows += 1
                self.fitting += len(row) == len(self.names)
                if self.rows == _SAMPLE_ROWS:
                    break
        except csv.Error:
            pass  # the reader of the lines reports it

    @property
    def known(self) -> bool:
        return any(name.lower() in _KNOWN_COLUMNS for name in self.names)

    @property
    def share(self) -> float:
        """Fraction of rows with one cell per column name."""
        return self.fitting / self.rows if self.rows else 1.0


def _choose(path: Path, columns: dict[str, _Columns]) -> str:
    usual = SEPARATORS[path.suffix.lower()]
    several = [one for one in columns.values() if len(one.names) > 1]
    if not several:
        return usual
    for some in (
        several,
        [one for one in several if one.known],
        [one for one in several if one.share == 1],
        [one for one in several if one.share >= 0.9 and all(other.share < 0.5 for other in several if other != one)],
    ):
        if len(some) == 1:
            return some[0].separator
    tabs = columns["\t"]
    if usual == "\t" and tabs in several and tabs.share >= 0.9:
        return usual
    ways = " or ".join(
        f"{_NAMES[one.separator]}s, which make {', '.join(map(repr, one.names[:4]))}"
        f"{'…' if len(one.names) > 4 else ''} and fit {one.fitting:,} of {one.rows:,} rows"
        for one in several
    )
    shown = {"\t": "'\\t'"}
    options = " or ".join(f"--separator {shown.get(one.separator, repr(one.separator))}" for one in several)
    raise ReadError(
        path, f"the columns may be separated by {ways}. Choose one: {options} (table=TableFormat(separator=…))", line=1
    )


# -- Excel, Parquet and Arrow

TABLE_FILES = {
    ".xlsx": "excel", ".xlsm": "excel", ".parquet": "arrow", ".feather": "arrow", ".arrow": "arrow", ".ipc": "arrow",
}  # fmt: skip
"""The module that reads a file, by suffix."""
_REFUSED = {".xls": "an old Excel file", ".xlsb": "a binary Excel file", ".ods": "an OpenDocument file"}
TABLE_FILES |= dict.fromkeys(_REFUSED, "none")


@dataclass(frozen=True)
class TableFile:
    """The columns of a table and their kinds, and functions that read its rows or a column of numbers."""

    path: Path
    columns: Mapping[str, str]
    """Kinds as in :mod:`modalhash.data.formats.arrow`; ``"cells"`` if a column may have any values."""
    sheet: str | None
    rows: Callable[..., Iterator[tuple[int, dict[str, Any]]]]
    """Yields the number and the fields of each row; takes a callback for invalid rows."""
    numbers: Callable[[str], Array] | None
    n_rows: int | None


def open_table(
    path: Path, given: TableFormat, *, warn: bool = False, head: bool = False, limits: ReadLimits | None = None
) -> TableFile:
    """Return the table in an Excel, Parquet or Arrow file; ``head`` reads no rows.

    The sheet of an Excel file is ``given.sheet`` or the first one; ``warn`` warns if there are others.
    """
    suffix = path.suffix.lower()
    if what := _REFUSED.get(suffix):
        raise ReadError(path, f"{what}, which is not supported; save it as .xlsx or .csv")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.stat().st_size:
        raise ReadError(path, "the file is empty")
    kind = TABLE_FILES[suffix]
    options = {"sheet": given.sheet, "head": head} if kind == "excel" else {}
    file = ForeignFile(path.absolute(), path, kind, limits or ReadLimits(), options=options)
    parts = {one.name: one for one in file.variables()}
    listed = [json.loads(text) for text in parts["columns"].load().tolist()]
    names = [str(name).strip() for name, _ in listed]
    while names and not names[-1]:
        names.pop()
    if kind == "excel":
        return _excel(path, parts, names, given, warn=warn)
    check_names(path, names, None)
    return _arrow(path, file, parts, dict(zip(names, (kind for _, kind in listed), strict=True)))


def check_names(path: Path, names: list[str], line: int | None) -> list[str]:
    """Return the names of columns; raise ReadError if one is missing or occurs twice."""
    for number, name in enumerate(names):
        if not name:
            raise ReadError(path, f"column {number + 1} has no name, but later ones do; name it", line=line)
        if name in names[:number]:
            both = f"{names.index(name) + 1} and {number + 1}"
            raise ReadError(path, f"two columns are called {name!r} ({both}); rename one", line=line)
    return names


def _excel(path: Path, parts: Mapping[str, Any], names: list[str], given: TableFormat, *, warn: bool) -> TableFile:
    sheets, lines = parts["sheets"].load().tolist(), parts["lines"].load().tolist()
    if not names:
        others = f"; other sheets: {', '.join(sheets[1:])} (--sheet)" if len(sheets) > 1 else ""
        raise ReadError(path, f"the sheet {sheets[0]!r} is empty; expected a row with the names of the columns{others}")
    check_names(path, names, lines[0])
    if warn and given.sheet is None and len(sheets) > 1:
        warnings.warn(
            f"{path}: read the first sheet, {sheets[0]!r}; others: {', '.join(sheets[1:])}. To read another, "
            "name it: --sheet (table=TableFormat(sheet=…))",
            UserWarning,
            stacklevel=4,
        )

    def rows(problem: Callable[[int, str], None] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        for line, text in zip(lines[1:], parts["rows"].load().tolist(), strict=True):
            cells = json.loads(text)
            wrong = None
            if any(cell is not None for cell in cells[len(names) :]):
                wrong = f"a value in column {len(cells)}, which has no name in row {lines[0]}"
            for name, cell in zip(names, cells, strict=False):
                if isinstance(cell, dict):
                    wrong = f"column {name!r} is the error {cell.get(ERROR)}; repair the formula, or clear the cell"
            if wrong is None:
                yield line, dict(zip(names, cells, strict=False))
            elif problem is None:
                raise ReadError(path, wrong, line=line)
            else:
                problem(line, wrong)

    return TableFile(path, dict.fromkeys(names, "cells"), sheets[0], rows, None, max(0, len(lines) - 1))


def _arrow(path: Path, file: ForeignFile, parts: Mapping[str, Any], kinds: Mapping[str, str]) -> TableFile:
    portions = [one for name, one in parts.items() if name.startswith("rows ")]

    def rows(problem: Callable[[int, str], None] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        for portion in portions:
            for text in portion.load().tolist():
                number += 1
                yield number, {name: _cell(value) for name, value in json.loads(text).items()}
            file.taken.pop(portion.name, None)  # its memory is free again

    def numbers(name: str) -> Array:
        return np.asarray(parts[f"column {name}"].load())

    return TableFile(path, kinds, None, rows, numbers, sum(one.shape[0] for one in portions))


def _cell(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {BYTES}:
        return base64.b64decode(value[BYTES])
    return value


def column_list(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_LISTED]) + (f", … ({len(names):,})" if len(names) > MAX_LISTED else "")
