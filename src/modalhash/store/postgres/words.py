"""Text search in a ``tsvector`` of PostgreSQL, ordered by BM25.

Words are folded to lower case without accents here, because a server may not have ``unaccent``; PostgreSQL stems them
(Snowball's English, without stop words). It has no BM25, so that is computed here from the word frequencies.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from modalhash.store.records import Record
from modalhash.store.sqlite.words import (
    COMMON_RATIO,
    MAX_RANKED,
    MAX_REMEMBERED,
    MIN_RANKED,
    MIN_SHARE_OF_BEST,
    query_words,
)

CREATE_WORDS = (
    "CREATE TEXT SEARCH DICTIONARY {schema}.stem (TEMPLATE = pg_catalog.snowball, LANGUAGE = english)",
    'CREATE TEXT SEARCH CONFIGURATION {schema}.words (PARSER = pg_catalog."default")',
    "ALTER TEXT SEARCH CONFIGURATION {schema}.words ADD MAPPING FOR"
    " asciiword, word, numword, int, uint, float, sfloat WITH {schema}.stem",
)
MAX_WORD_LENGTH = 100
"""Maximum length of a searched word in characters; longer ones are not words of a language."""
MAX_SEARCHED_BYTES = 300_000
"""Searched bytes per item, because a ``tsvector`` holds a megabyte. The rest is not searched."""
K1, B = 1.2, 0.75
"""Parameters of BM25, as in FTS5."""

_WORD = re.compile(r"[^\W_]+")
_COUNTS = """
SELECT wanted.query, tsvector_to_array(to_tsvector('words', wanted.word)), (
    SELECT count(*) FROM (SELECT 1 FROM item WHERE item.words @@ to_tsquery('words', wanted.query) LIMIT %s) AS own
) FROM unnest(%s::text[], %s::text[]) AS wanted (word, query)
"""
_FREQUENCIES = """
SELECT item.number, item.n_words, own.lexeme, cardinality(own.positions)
FROM item CROSS JOIN LATERAL unnest(item.words) AS own
WHERE item.words @@ to_tsquery('words', %s) AND {test} AND own.lexeme ^@ ANY(%s)
"""
_FIRST = "SELECT item.number FROM item WHERE item.words @@ to_tsquery('words', %s) AND {test} ORDER BY 1 LIMIT %s"


def searched_words(record: Record, fields: Sequence[str]) -> tuple[str, int]:
    """Return the searched words of an item in one text, and their number."""
    parts = [record.text or "", record.id]
    for name in fields:
        if (value := record.extra.get(name)) is not None:
            values = value if isinstance(value, list | tuple) else [value] if isinstance(value, str) else ()
            parts += (str(one) for one in values if isinstance(one, str | int | float))
    words = _WORD.findall(fold(" ".join(parts)))
    text = " ".join(words)
    if len(text) > MAX_WORD_LENGTH:
        words = [word for word in words if len(word) <= MAX_WORD_LENGTH]
        text = " ".join(words)
    if len(text) * 4 > MAX_SEARCHED_BYTES and len(text.encode()) > MAX_SEARCHED_BYTES:
        text = text.encode()[:MAX_SEARCHED_BYTES].decode(errors="ignore").rpartition(" ")[0]
        words = text.split()
    return text, len(words)


def fold(text: str) -> str:
    """Return a text in lower case, without accents.

    Examples
    --------
    >>> fold("Zwei Bücher, CAFÉ")
    'zwei bucher, cafe'
    """
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character)).casefold()


class LexemeCounts:
    """Cached lexemes of words and numbers of items with them, until the store changes; threads may share them."""

    def __init__(self) -> None:
        self._known: tuple[Any, dict[str, tuple[list[str], int]]] = None, {}

    def read(
        self, connection: Any, state: tuple[Any, ...], most: int, words: Sequence[str]
    ) -> dict[str, tuple[list[str], int]]:
        """Return the lexemes of each word and the number of items with it, ``most + 1`` if there are more.

        Words are as in queries of PostgreSQL. ``state`` changes with every write.
        """
        of, known = self._known
        if of != state or len(known) > MAX_REMEMBERED:
            known = {}  # the other may be in use
            self._known = state, known
        queries = {f"'{word[:-1]}':*" if word.endswith("*") else f"'{word}'": word.rstrip("*") for word in words}
        if missing := {query: word for query, word in queries.items() if query not in known}:
            rows = connection.execute(_COUNTS, (most + 1, list(missing.values()), list(missing))).fetchall()
            known |= {query: (lexemes, n) for query, lexemes, n in rows}
        return {query: known[query] for query in queries}


def find_items(
    connection: Any,
    facts: LexemeCounts,
    query: str,
    test: str,
    values: Sequence[Any],
    limit: int,
    *,
    match_all: bool = False,
) -> list[int]:
    """Return the row ids of the items that have all words of the query, or else the best ones, and pass the test.

    The rules are those of :func:`modalhash.store.sqlite.words.find_items`.
    """
    state = connection.execute("SELECT items, items_there, words, xmin::text FROM counter").fetchone()
    last, n_items, n_words, _ = state  # xmin is the transaction of the last change
    most = min(MAX_RANKED, max(MIN_RANKED, last // 2))
    words = [word for word in query_words(fold(query)) if len(word) <= MAX_WORD_LENGTH]
    known = facts.read(connection, state, most, words)
    counts = {query: n for query, (_, n) in known.items()}
    ranked = {query: n for query, n in counts.items() if 0 < n <= most}
    if match_all and not (ranked and all(counts.values())):
        return []
    if not ranked:
        common = [query for query, n in counts.items() if n > MAX_RANKED]
        if not common:
            return []
        found = connection.execute(_FIRST.format(test=test), (" & ".join(common), *values, limit)).fetchall()
        return [number for (number,) in found]
    lexemes = {query: known[query][0] for query in ranked}
    weights = {query: max(1e-6, np.log((n_items - n + 0.5) / (n + 0.5))) for query, n in ranked.items()}
    starts = [lexeme for own in lexemes.values() for lexeme in own]

    def best(joined: str) -> tuple[list[int], dict[int, float]]:
        rows = connection.execute(_FREQUENCIES.format(test=test), (joined, *values, starts)).fetchall()
        scores = _bm25(rows, lexemes, weights, n_words / n_items)
        return sorted(scores, key=lambda number: (-scores[number], number))[:limit], scores

    numbers, _ = best(" & ".join(ranked))
    if numbers or match_all:
        return numbers
    bound = COMMON_RATIO * min(ranked.values())
    numbers, scores = best(" | ".join(query for query, n in ranked.items() if n <= bound))
    return [number for number in numbers if scores[number] >= MIN_SHARE_OF_BEST * scores[numbers[0]]]


def _bm25(
    rows: Iterable[tuple[int, int, str, int]],
    lexemes: Mapping[str, Sequence[str]],
    weights: Mapping[str, float],
    mean_length: float,
) -> dict[int, float]:
    """Return the score of each item from the frequencies of its words."""
    frequencies: dict[tuple[int, str], int] = {}
    lengths: dict[int, int] = {}
    for number, length, lexeme, n in rows:
        lengths[number] = length
        for query, own in lexemes.items():
            if lexeme in own or (query.endswith("*") and lexeme.startswith(tuple(own))):
                frequencies[number, query] = frequencies.get((number, query), 0) + n
    scores: dict[int, float] = dict.fromkeys(lengths, 0.0)
    for (number, query), n in frequencies.items():
        slope = K1 * (1 - B + B * lengths[number] / mean_length)
        scores[number] += weights[query] * n * (K1 + 1) / (n + slope)
    return scores
