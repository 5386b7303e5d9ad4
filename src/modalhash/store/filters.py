"""Filters: conditions on the fields of items, as text, as JSON, or as a tree of values.

===================  =======================================================================
text                 ``label = boat and not (year < 2005 or kind = learned)``
JSON                 ``{"label": "boat", "not": {"or": [{"year": {"<": 2005}}, {"kind": "learned"}]}}``
tree                 ``Comparison("label", "=", "boat") & ~(Comparison("year", "<", 2005) | …)``
===================  =======================================================================

A field is ``label``, ``modality``, ``kind``, ``id``, ``text``, ``uri``, or any other field of an item (``camera.model``
for ``model`` inside ``camera``; ``extra.kind`` for a field with one of the former names). Stores evaluate filters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
KINDS = ("learned", "hashed")
"""Origin of a code: labels in training, or features alone."""
PICTURE_TEXT = "picture_text"
"""Field of ``extra`` with the text recognized in a picture."""
SEARCHED_FIELDS = ("title", "caption", "description", PICTURE_TEXT)
"""Default fields of ``extra`` whose words are searched."""
MAX_LENGTH, MAX_DEPTH, MAX_COMPARISONS, MAX_FIELD_LENGTH = 4000, 20, 200, 200
"""Limits of a filter: characters, nested brackets, comparisons, characters of a field name."""
MAX_INTEGER = 2**63 - 1
"""Largest integer that stores compare exactly."""

_TOKENS = re.compile(
    r"""\s*(?:
        (?P<bracket>[(),])
      | (?P<operator><=|>=|!=|=|<|>)
      | "(?P<quoted>(?:[^"\\]|\\.)*)"
      | (?P<word>[^\s()<>=!,"]+)
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_PLAIN_FIELD = re.compile(r"[^\W\d][\w.:-]*")
_PLAIN_VALUE = re.compile(r"[\w.:/+-]+")
_KEYWORDS = frozenset({"and", "or", "not", "in"})
_CONSTANTS: dict[str, bool] = {"true": True, "false": False}

Value = str | int | float | bool


class FilterError(ValueError):
    """A filter cannot be parsed or has an invalid field or value; the message gives the position."""


class Filter:
    """A condition on items. Filters are combined with ``&``, ``|`` and ``~``, and print as parseable text.

    Examples
    --------
    >>> boats = Filter.parse("label = boat and not (year < 2005 or kind = learned)")
    >>> boats.to_json()
    {'and': [{'label': 'boat'}, {'not': {'or': [{'year': {'<': 2005}}, {'kind': 'learned'}]}}]}
    >>> print(boats & Comparison("taken", ">=", "2024-01-01"))
    label = boat and not (year < 2005 or kind = learned) and taken >= 2024-01-01
    """

    @staticmethod
    def parse(text: str) -> Filter:
        """Parse a filter from text, or from JSON as text; FilterError gives the position of a mistake."""
        if len(text) > MAX_LENGTH:
            raise FilterError(f"the filter has {len(text):,} characters; expected at most {MAX_LENGTH:,}")
        if text.lstrip().startswith("{"):
            try:
                return Filter.from_json(json.loads(text))
            except json.JSONDecodeError as error:
                raise FilterError(f"the filter at character {error.pos + 1}: not valid JSON ({error.msg})") from None
            except RecursionError:
                raise FilterError(f"the filter has more than {MAX_DEPTH} objects inside objects") from None
        return _check_size(_Parser(text).filter())

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Filter:
        """Return the filter of a JSON form."""
        return _check_size(_from_json(value, 0))

    @staticmethod
    def of(where: Filter | str | Mapping[str, Any]) -> Filter:
        """Return a filter that is given in any form."""
        if isinstance(where, Filter):
            return _check_size(where)
        if isinstance(where, str):
            return Filter.parse(where)
        if isinstance(where, Mapping):
            return Filter.from_json(where)
        raise TypeError(f"where is {type(where).__name__}; expected a filter, its text, or its JSON form")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        raise NotImplementedError

    def comparisons(self) -> Iterator[Comparison]:
        """Iterate over the comparisons in the filter."""
        raise NotImplementedError

    def __and__(self, other: Filter) -> Filter:
        return And(_parts(And, self) + _parts(And, other))

    def __or__(self, other: Filter) -> Filter:
        return Or(_parts(Or, self) + _parts(Or, other))

    def __invert__(self) -> Filter:
        return Not(self)


@dataclass(frozen=True)
class Comparison(Filter):
    """A field compared with a value. A missing field is neither equal to, less nor greater than any value.

    ``!=`` is ``not … =``, so it matches items without the field. A field with several values, such as ``label``, equals
    a value if one of them does.
    """

    field: str
    operator: str
    value: Value

    def __post_init__(self) -> None:
        checked_field(self.field)
        if self.operator not in OPERATORS:
            raise FilterError(f"{self.field} {self.operator!r}: expected one of {' '.join(OPERATORS)}")
        _check_value(self.field, self.value)
        if self.field in ("label", "modality", "kind") and self.operator not in ("=", "!="):
            raise FilterError(f"{self.field} {self.operator} {self.value}: {self.field} has no order; use = or !=")

    def __str__(self) -> str:
        field = self.field if _is_plain(_PLAIN_FIELD, self.field) else json.dumps(self.field, ensure_ascii=False)
        return f"{field} {self.operator} {_value_text(self.value)}"

    def to_json(self) -> dict[str, Any]:
        field = f"extra.{self.field}" if self.field in _KEYWORDS else self.field
        return {field: self.value if self.operator == "=" else {self.operator: self.value}}

    def comparisons(self) -> Iterator[Comparison]:
        yield self


@dataclass(frozen=True)
class _Joined(Filter):
    parts: tuple[Filter, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise FilterError(f"{type(self).__name__.lower()}: expected at least one filter")

    def to_json(self) -> dict[str, Any]:
        return {type(self).__name__.lower(): [part.to_json() for part in self.parts]}

    def comparisons(self) -> Iterator[Comparison]:
        for part in self.parts:
            yield from part.comparisons()


class And(_Joined):
    """All of several filters."""

    def __str__(self) -> str:
        return " and ".join(f"({part})" if isinstance(part, Or) else str(part) for part in self.parts)


class Or(_Joined):
    """At least one of several filters."""

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


@dataclass(frozen=True)
class Not(Filter):
    """The complement of a filter."""

    part: Filter

    def __str__(self) -> str:
        # the parser cancels two adjacent nots, so a doubly negated filter needs brackets too
        return f"not {self.part}" if isinstance(self.part, Comparison) else f"not ({self.part})"

    def to_json(self) -> dict[str, Any]:
        return {"not": self.part.to_json()}

    def comparisons(self) -> Iterator[Comparison]:
        yield from self.part.comparisons()


def all_of(*filters: Filter | None) -> Filter | None:
    """Return the conjunction of the filters that are not None, or None."""
    given = [one for one in filters if one is not None]
    return And(tuple(part for one in given for part in _parts(And, one))) if len(given) > 1 else next(iter(given), None)


def is_year(value: Value) -> bool:
    """Return whether a value compared with dates is a year; 2024 covers the whole year."""
    return isinstance(value, int) and 1000 <= value <= 9999


def any_value(field: str, values: Any) -> Filter:
    """Return the filter for items whose field equals one of several values."""
    parts = tuple(Comparison(field, "=", value) for value in values)
    return parts[0] if len(parts) == 1 else Or(parts)


def _parts(kind: type[_Joined], one: Filter) -> tuple[Filter, ...]:
    return one.parts if isinstance(one, kind) else (one,)


# -- checks


def _check_size(one: Filter) -> Filter:
    if (n := sum(1 for _ in one.comparisons())) > MAX_COMPARISONS:
        raise FilterError(f"the filter has {n} comparisons; expected at most {MAX_COMPARISONS}")
    _check_depth(one, 0)
    return one


def _check_depth(one: Filter, depth: int) -> None:
    if depth > 2 * MAX_DEPTH:  # a bracket is an and or an or, with a not before it
        raise FilterError(f"the filter has more than {MAX_DEPTH} brackets inside brackets")
    for part in one.parts if isinstance(one, _Joined) else (one.part,) if isinstance(one, Not) else ():
        _check_depth(part, depth + 1)


def checked_field(field: Any) -> str:
    """Return the name of a field, or raise FilterError if it is invalid."""
    if not isinstance(field, str) or not 0 < len(field) <= MAX_FIELD_LENGTH:
        raise FilterError(f"the field is {str(field)[:40]!r}; expected a name of 1 to {MAX_FIELD_LENGTH} characters")
    if any(character in '"\\' or not character.isprintable() for character in field):
        raise FilterError(f"the field {field!r} has a quote, a backslash or a control character, which no filter takes")
    return field


def _check_value(field: str, value: Any) -> None:
    if not isinstance(value, str | int | float):  # a bool is an int
        raise FilterError(f"{field}: the value is {type(value).__name__}; expected a text, a number, true or false")
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= character <= "\udfff" for character in value)):
        raise FilterError(f"{field}: the value has a NUL or an unpaired surrogate; remove it")
    if isinstance(value, float) and not math.isfinite(value):
        raise FilterError(f"{field}: the value is {value}; expected a finite number")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise FilterError(f"{field}: the value {value} is too large; expected at most {MAX_INTEGER}")


# -- text


class _Token(NamedTuple):
    kind: str
    text: str
    position: int
    """Of its first character in the text, from 1."""

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        return f"the text {self.text!r}" if self.kind == "quoted" else repr(self.text)

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    def is_bracket(self, text: str) -> bool:
        return self.kind == "bracket" and self.text == text


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while True:
        match = _TOKENS.match(text, position)
        if match is None:
            start = len(text) - len(text[position:].lstrip())
            what = "a quote that does not end" if text[start] == '"' else repr(text[start])
            raise FilterError(f"the filter at character {start + 1}: {what}")
        kind = str(match.lastgroup)
        found = match[kind]
        yield _Token(kind, re.sub(r"\\(.)", r"\1", found, flags=re.DOTALL) if kind == "quoted" else found,
                     match.start(kind) + (0 if kind == "quoted" else 1))  # fmt: skip
        if kind == "end":
            return
        position = match.end()


class _Parser:
    """Recursive-descent parser: ``or`` of ``and`` of ``not`` of comparisons and brackets."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.next = 0
        self.depth = 0

    def filter(self) -> Filter:
        found = self.either()
        if self.token.kind != "end":
            raise self.error("and, or, or the end")
        return found

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def take(self) -> _Token:
        self.next += 1
        return self.tokens[self.next - 1]

    def error(self, expected: str) -> FilterError:
        return FilterError(f"the filter at character {self.token.position}: expected {expected}, got {self.token}")

    def either(self) -> Filter:
        return self.joined("or", self.both, Or)

    def both(self) -> Filter:
        return self.joined("and", self.one, And)

    def joined(self, word: str, part: Callable[[], Filter], kind: type[_Joined]) -> Filter:
        parts = [part()]
        while self.token.is_word(word):
            self.take()
            parts.append(part())
        return parts[0] if len(parts) == 1 else kind(tuple(parts))

    def one(self) -> Filter:
        negated = False
        while self.token.is_word("not"):
            self.take()
            negated = not negated
        found = self.bracket() if self.token.is_bracket("(") else self.comparison()
        return Not(found) if negated else found

    def bracket(self) -> Filter:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"at most {MAX_DEPTH} brackets inside brackets")
        self.take()
        found = self.either()
        if not self.token.is_bracket(")"):
            raise self.error("and, or, or )")
        self.take()
        self.depth -= 1
        return found

    def comparison(self) -> Filter:
        if self.token.kind not in ("word", "quoted") or self.token.is_word(*_KEYWORDS):
            raise self.error("a field such as label, kind or year, or (")
        field = self.take().text
        if self.token.is_word("in"):
            self.take()
            return any_value(field, self.values())
        if self.token.kind != "operator":
            raise self.error(f"one of {' '.join(OPERATORS)} or in after {field!r}")
        operator = self.take().text
        return Comparison(field, operator, self.value())

    def values(self) -> list[Value]:
        if not self.token.is_bracket("("):
            raise self.error("( and values, as in (boat, sea)")
        found: list[Value] = []
        while not found or self.token.is_bracket(","):
            self.take()
            found.append(self.value())
        if not self.token.is_bracket(")"):
            raise self.error(", or )")
        self.take()
        return found

    def value(self) -> Value:
        if self.token.kind not in ("word", "quoted") or self.token.is_word(*_KEYWORDS):
            raise self.error('a value; "put it in quotes" if it has spaces, brackets, or is a word of filters')
        token = self.take()
        if token.kind == "quoted":
            return token.text
        words = [token.text]
        while self.token.kind == "word" and not self.token.is_word(*_KEYWORDS):  # label = hot air balloon
            words.append(self.take().text)
        return _parse_value(" ".join(words))


def _parse_value(text: str) -> Value:
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return _CONSTANTS.get(text.lower(), text)


def _value_text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return _decimal(value)
    plain = _is_plain(_PLAIN_VALUE, value) and _parse_value(value) == value
    return value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _decimal(value: float) -> str:
    """Return a number without an exponent, so that it parses as a number."""
    text = repr(value)
    return text if "e" not in text else f"{value:.1f}" if abs(value) > 1 else f"{value:.340f}".rstrip("0")


def _is_plain(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.fullmatch(text) is not None and text.lower() not in _KEYWORDS


# -- JSON


def _from_json(value: Any, depth: int) -> Filter:
    if not isinstance(value, Mapping) or not value:
        raise FilterError(f"a filter is {_shown(value)}; expected an object such as {{'label': 'boat'}}")
    if depth > 2 * MAX_DEPTH:
        raise FilterError(f"the filter has more than {MAX_DEPTH} objects inside objects")
    parts = tuple(_entry(str(name), entry, depth) for name, entry in value.items())
    return parts[0] if len(parts) == 1 else And(parts)


def _entry(name: str, entry: Any, depth: int) -> Filter:
    if name in ("and", "or"):
        if not isinstance(entry, list | tuple) or not entry:
            raise FilterError(f"{name!r} has {_shown(entry)}; expected a list of filters")
        if len(entry) > MAX_COMPARISONS:
            raise FilterError(f"{name!r} has {len(entry)} filters; expected at most {MAX_COMPARISONS}")
        parts = tuple(_from_json(part, depth + 1) for part in entry)
        if len(parts) == 1:
            return parts[0]
        return And(parts) if name == "and" else Or(parts)
    if name == "not":
        return Not(_from_json(entry, depth + 1))
    if isinstance(entry, Mapping):
        if not entry:
            raise FilterError(f"{name!r} has {{}}; expected operators and values, as in {{'<': 2005}}")
        parts = tuple(_operation(name, str(operator), one) for operator, one in entry.items())
        return parts[0] if len(parts) == 1 else And(parts)
    return _any_of(name, entry) if isinstance(entry, list | tuple) else Comparison(name, "=", entry)


def _operation(field: str, operator: str, value: Any) -> Filter:
    if operator == "in":
        return _any_of(field, value)
    if operator not in OPERATORS:
        raise FilterError(f"{field!r} has the operator {operator[:40]!r}; expected one of {' '.join(OPERATORS)} in")
    return Comparison(field, operator, value)


def _any_of(field: str, values: Any) -> Filter:
    if not isinstance(values, list | tuple) or not 0 < len(values) <= MAX_COMPARISONS:
        raise FilterError(f"{field!r} has {_shown(values)}; expected a list of 1 to {MAX_COMPARISONS} values")
    return any_value(field, values)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
