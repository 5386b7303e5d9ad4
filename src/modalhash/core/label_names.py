"""When two labels are one: a key without case, normalization and extra spaces, and the spelling that is shown."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

MAX_EXAMPLES = 3


@lru_cache(2**16)
def label_key(label: str | int) -> str:
    """Return the form of a label that all its spellings share.

    Examples
    --------
    >>> label_key("  New  York"), label_key("CAT") == label_key("cat ")
    ('new york', True)
    """
    folded = unicodedata.normalize("NFD", str(label)).casefold()
    return unicodedata.normalize("NFC", " ".join(folded.split()))


class LabelNames:
    """Gives every label the spelling in which it was first written, without extra spaces.

    Parameters
    ----------
    names : known spellings
    more : reads further ones, when a label is not among ``names``
    """

    def __init__(self, names: Iterable[str | int] = (), more: Callable[[], Iterable[str | int]] | None = None) -> None:
        self._shown: dict[str, str] = {}
        self._written: dict[str, dict[str, None]] = {}
        self._more = more
        self._add(names)

    def of(self, labels: Iterable[str | int]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._of_one(str(label)) for label in labels))

    def describe_joined(self) -> str | None:
        joined = [key for key, spellings in self._written.items() if len(spellings) > 1]
        if not joined:
            return None
        described = [_describe(self._shown[key], list(self._written[key])) for key in joined[:MAX_EXAMPLES]]
        more = len(joined) - len(described)
        return "; ".join(described) + (f"; and {more:,} more" if more else "")

    def _of_one(self, label: str) -> str:
        key = label_key(label)
        if key not in self._shown and self._more is not None:
            more, self._more = self._more, None
            self._add(more())
        shown = self._shown.setdefault(key, " ".join(label.split()) or label)
        self._written.setdefault(key, {})[label] = None
        return shown

    def _add(self, names: Iterable[str | int]) -> None:
        for name in map(str, names):
            if self._shown.setdefault(label_key(name), name) is name:
                self._written[label_key(name)] = {name: None}


def _describe(shown: str, spellings: list[str]) -> str:
    in_two_ways = len({unicodedata.normalize("NFC", one) for one in spellings}) < len(spellings)
    listed = f"{', '.join(map(repr, spellings[:-1]))} and {spellings[-1]!r}"
    return f"{listed} are one label{' (accents stored in two ways)' if in_two_ways else ''}: shown as {shown!r}"
