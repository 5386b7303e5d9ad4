"""Inputs made of others: bits flipped, pieces moved, sizes set to extremes, words of the format put in."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MAX_BYTES = 2**18
"""Of an input; what grows beyond is cut."""
INTEGERS = (
    0,
    1,
    -1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
NUMBERS = (
    b"0", b"-1", b"1e999", b"-1e-999", b"NaN", b"Infinity", b"9" * 20, b"9" * 400, b"9" * 5000, b"0.5", b"1e5", b"-0",
    b"2147483648", b"9223372036854775808", b"00", b"0x1f", b"1_000", "٣".encode(),
)  # fmt: skip
BYTES = (
    b"\0", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"\r", b"\n", b"\r\n", b"\x1a",
    b"\x85", "\u2028".encode(), b"%00", b"..", b"/", b"\\", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"=", b"#",
    b"\t", b" ",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, 1e308, float("nan"), float("inf"), "",
    "x", "\0", "\ud800", "\u2028", "../x", "a" * 5000, [], {}, [[]], [None], {"": ""}, {"x": {}}, [1, "x"], ["x", "x"],
    "none", "1e999",
)  # fmt: skip
DIGITS = re.compile(rb"-?\d+(\.\d+)?")


class Mutator:
    """Makes inputs for one target.

    Parameters
    ----------
    tokens
        words of the format
    is_json
        change values of JSON too, in whole documents or line by line
    stays_json
        change nothing else
    """

    def __init__(self, tokens: Sequence[bytes] = (), *, is_json: bool = False, stays_json: bool = False) -> None:
        self._tokens = [*tokens, *BYTES]
        self._is_json, self._stays_json = is_json, stays_json
        self._ways: list[Callable[[Random, bytearray, Sequence[bytes]], None]] = [
            flip_bit, set_byte, set_integer, set_integer, self._insert, self._insert, self._overwrite, remove,
            duplicate, splice, truncate, set_number, self._repeat,
        ]  # fmt: skip

    def __call__(self, draw: Random, corpus: Sequence[bytes]) -> bytes:
        """Return an input made of one of a corpus; the latest, which reached something new, are taken more often."""
        newest = corpus[-max(8, len(corpus) // 4) :]
        data = draw.choice(newest if draw.random() < 0.5 else corpus)
        if self._is_json and (self._stays_json or draw.random() < 0.6):
            data = change_json(draw, data)
            if self._stays_json or draw.random() < 0.7:
                return data[:MAX_BYTES]
        out = bytearray(data)
        for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4, 8))):
            draw.choice(self._ways)(draw, out, corpus)
        return bytes(out[:MAX_BYTES])

    def _insert(self, draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
        at = draw.randint(0, len(data))
        data[at:at] = draw.choice(self._tokens)

    def _overwrite(self, draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
        at, token = draw.randint(0, len(data)), draw.choice(self._tokens)
        data[at : at + len(token)] = token

    def _repeat(self, draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
        if draw.random() < 0.2:
            at = draw.randint(0, len(data))
            data[at:at] = draw.choice(self._tokens) * draw.choice((3, 40, 300, 3000))


def flip_bit(draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def set_byte(draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[draw.randrange(len(data))] = draw.randrange(256)


def set_integer(draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    """Set what may be a size to an extreme, in any width and byte order."""
    width, order = draw.choice("BHIQ"), draw.choice("<>")
    size = struct.calcsize(width)
    if len(data) >= size:
        at = draw.randint(0, len(data) - size)
        value = draw.choice(INTEGERS) if draw.random() < 0.8 else draw.choice((len(data), len(data) - at, at))
        data[at : at + size] = struct.pack(order + width, value % 256**size)


def set_number(draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    """Replace a number in a text by another, perhaps one that is none."""
    found = [match.span() for match in DIGITS.finditer(data[: 2**14])]
    if found:
        start, end = draw.choice(found)
        data[start:end] = draw.choice(NUMBERS)


def remove(draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    start = draw.randint(0, len(data))
    del data[start : start + draw.choice((1, 2, 4, 16, 100))]


def duplicate(draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    start, at = draw.randint(0, len(data)), draw.randint(0, len(data))
    data[at:at] = data[start : start + draw.choice((1, 4, 16, 64, 512))]


def splice(draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = draw.choice(corpus)
    start, at = draw.randint(0, len(other)), draw.randint(0, len(data))
    if draw.random() < 0.5:
        data[at:] = other[start:]
    else:
        data[at:at] = other[start : start + draw.choice((8, 64, 512))]


def truncate(draw: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if draw.random() < 0.4:
        del data[draw.randint(0, len(data)) :]


def change_json(draw: Random, data: bytes) -> bytes:
    """Change a value somewhere in a JSON document, or in one line of several; what is no JSON stays as it is."""
    lines = data.split(b"\n")
    number = draw.randrange(len(lines))
    for whole, text in ((True, data), (False, lines[number])):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            value = _changed(draw, value)
        try:
            new = json.dumps(value, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            return data
        return new if whole else b"\n".join([*lines[:number], new, *lines[number + 1 :]])
    return data


def _changed(draw: Random, value: Any) -> Any:
    """Return a value with one part of it changed, at any depth."""
    if draw.random() < 0.12 or not isinstance(value, dict | list) or not value:
        return _other(draw, value)
    if isinstance(value, list):
        at, new = draw.randrange(len(value)), list(value)
        way = draw.random()
        if way < 0.1:
            del new[at]
        elif way < 0.2:
            new.insert(at, new[draw.randrange(len(new))])
        else:
            new[at] = _changed(draw, new[at])
        return new
    key, new_dict = draw.choice(list(value)), dict(value)
    way = draw.random()
    if way < 0.1:
        del new_dict[key]
    elif way < 0.2:
        new_dict[draw.choice([*value, "", "x", "\0", "__class__", key + "x"])] = new_dict.pop(key)
    else:
        new_dict[key] = _changed(draw, value[key])
    return new_dict


def _other(draw: Random, value: Any) -> Any:
    """Return another value: of the same type, of another, or deep."""
    way = draw.random()
    if way < 0.1:
        for _ in range(draw.choice((1, 3, 150, 900))):
            value = [value] if draw.random() < 0.5 else {"x": value}
        return value
    if way < 0.3 and isinstance(value, int | float) and not isinstance(value, bool):
        return draw.choice((value + 1, -value, value * 2**32, float(value), str(value)))
    if way < 0.3 and isinstance(value, str) and value:
        at = draw.randrange(len(value))
        return value[:at] + draw.choice(("", "\0", "é", "\ud800", "/", "..", ":", " ", "9")) + value[at + 1 :]
    return draw.choice(VALUES)
