"""Text search in SQLite's full-text index FTS5, ordered by BM25.

The index changes in the transaction that changes the items; ``meta`` has the last row id in it. It stores no text
(``content = ''``), so the words of an item are read from its row, also when it is removed. Words are folded to lower
case without accents and stemmed by Porter's English rules, in texts and queries, so *boats* finds *boat*.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from modalhash.store.filters import SEARCHED_FIELDS

MAX_WORDS = 64
"""Maximum number of words of a query; further words are ignored."""
MAX_RANKED, MIN_RANKED = 5000, 10
"""A word ranks items if at most 5,000 items, and at most half of all items or 10, have it. Ranking more takes long
(some 5 µs per item) and separates them little. If all words of a query are more common, the first items with all of
them are returned, unless more than half of a small store has the word."""
COMMON_RATIO = 10
"""A word that is 10 times as common as the rarest word of the query affects the order only and selects no items."""
MIN_SHARE_OF_BEST = 0.9
"""If no item has all words of the query, items with BM25 below this fraction of the best are dropped because they match
only common words. Chosen on folds of training items by ``benchmarks/quality/words_choices.py``."""
MAX_REMEMBERED = 20_000
"""Maximum number of cached words and expressions."""
MERGED_PAGES = 100
"""Pages of the index merged per transaction, which takes a few milliseconds and blocks other writers."""

_WORD = re.compile(r"[^\W_]+\*?")
_CREATE = """
CREATE VIRTUAL TABLE item_word USING fts5 (
    text, captions, id, content = '', tokenize = 'porter unicode61 remove_diacritics 2'
)"""
_CAPTIONS = """(
    SELECT group_concat(own.value, ' ') FROM json_each(item.extra) AS own
    WHERE own.type IN ('text', 'array')
    AND own.key IN (SELECT value FROM json_each((SELECT value FROM meta WHERE key = 'searched_fields')))
)"""
_ADD = f"""
INSERT INTO item_word (rowid, text, captions, id)
SELECT item.number, item.text, {_CAPTIONS}, item.id FROM item WHERE item.number > ? ORDER BY item.number
"""
_FORGET = f"""
INSERT INTO item_word (item_word, rowid, text, captions, id)
SELECT 'delete', item.number, item.text, {_CAPTIONS}, item.id FROM item WHERE item.number = ? AND item.number <= ?
"""


def has_words(connection: sqlite3.Connection) -> bool:
    """Return whether this SQLite was built with FTS5."""
    return bool(connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchall())


def is_current(connection: sqlite3.Connection, fields: Iterable[str] | None) -> bool:
    """Return whether the index exists, covers all items, and has these fields (None for any)."""
    last = connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()[0]
    return (
        bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'item_word'").fetchall())
        and _reached(connection) >= last
        and (fields is None or _get(connection, "searched_fields") == _as_json(fields))
    )


def update_index(connection: sqlite3.Connection, fields: Iterable[str] | None) -> None:
    """Create or complete the index in the caller's transaction."""
    before = _get(connection, "searched_fields")
    wanted = _as_json(fields) if fields is not None else before or _as_json(SEARCHED_FIELDS)
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'item_word'").fetchall():
        connection.execute(_CREATE)
        _set(connection, "words", "0")
    elif before != wanted:
        connection.execute("INSERT INTO item_word (item_word) VALUES ('delete-all')")
        _set(connection, "words", "0")
    if before != wanted:
        _set(connection, "searched_fields", wanted)
    add_items(connection)


def add_items(connection: sqlite3.Connection) -> None:
    """Add the items that are not yet in the index, in the caller's transaction."""
    connection.execute(_ADD, (_reached(connection),))
    last = connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()[0]
    if last > _reached(connection):
        _set(connection, "words", str(last))


def forget_items(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Remove items that are about to be deleted, in the caller's transaction."""
    reached = _reached(connection)
    connection.executemany(_FORGET, ((number, reached) for number in numbers))


def merge_some(connection: sqlite3.Connection, *, begin: bool) -> bool:
    """Continue to merge the segments of the index, in the caller's transaction; return whether some are left.

    A word is looked up in every segment. A million items added in twenty portions made nine segments, and a search took
    a third longer than with one. ``begin`` includes all current segments.
    """
    before = connection.total_changes
    pages = -MERGED_PAGES if begin else MERGED_PAGES  # a negative number tells FTS5 to merge all segments
    connection.execute("INSERT INTO item_word (item_word, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before >= 2  # FTS5 counts one change if there was nothing to do


class WordStatistics:
    """Cached numbers of items with a word, and whether any item has several words, until the store changes.

    A search needs the words of its text twice, and searches repeat words.
    """

    def __init__(self) -> None:
        self._state: tuple[int, int] | None = None
        self.most = 0
        """Maximum number of items with a word that ranks."""
        self._counts: dict[str, int] = {}
        self._together: dict[str, bool] = {}

    def update_index(self, connection: sqlite3.Connection) -> None:
        """Clear the cache if any process has written since the last call."""
        others, own = connection.execute("PRAGMA data_version").fetchone()[0], connection.total_changes
        if self._state != (others, own) or len(self._counts) + len(self._together) > MAX_REMEMBERED:
            self._state, self._counts, self._together = (others, own), {}, {}
            n_items = connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()[0]
            self.most = min(MAX_RANKED, max(MIN_RANKED, n_items // 2))

    def count(self, connection: sqlite3.Connection, word: str) -> int:
        """Return the number of items with a word, or ``most + 1`` if there are more."""
        n = self._counts.get(word)
        if n is None:
            sql = "SELECT count(*) FROM (SELECT 1 FROM item_word WHERE item_word MATCH ? LIMIT ?)"
            n = self._counts[word] = int(connection.execute(sql, (word, self.most + 1)).fetchone()[0])
        return n

    def are_together(self, connection: sqlite3.Connection, expression: str) -> bool:
        """Return whether any item matches an expression, which is faster than ranking all that do."""
        found = self._together.get(expression)
        if found is None:
            sql = "SELECT 1 FROM item_word WHERE item_word MATCH ? LIMIT 1"
            found = self._together[expression] = bool(connection.execute(sql, (expression,)).fetchall())
        return found


def find_items(
    connection: sqlite3.Connection,
    facts: WordStatistics,
    query: str,
    test: str,
    values: list[Any],
    limit: int,
    *,
    match_all: bool = False,
) -> list[int]:
    """Return the row ids of the items that have all words of the query, or else the best ones, and pass the test.

    With ``match_all``, items must have all words, except for words in most items.
    """
    facts.update_index(connection)
    most = facts.most
    counts = {word: facts.count(connection, word) for word in quoted_words(query)}
    ranked = {word: n for word, n in counts.items() if 0 < n <= most}
    if match_all and not (ranked and all(counts.values())):
        return []
    source = f"""
    FROM item_word CROSS JOIN item ON item.number = item_word.rowid WHERE item_word MATCH ? AND {test}
    """
    if not ranked:
        common = [word for word, n in counts.items() if n > MAX_RANKED]
        sql = f"SELECT item.number {source} LIMIT ?"
        rows = connection.execute(sql, (" AND ".join(common), *values, limit)).fetchall() if common else []
        return [number for (number,) in rows]
    sql = f"SELECT item.number, bm25(item_word) AS score {source} ORDER BY score, item.number LIMIT ?"
    expression, rows = " AND ".join(ranked), []
    if len(ranked) == 1 or facts.are_together(connection, expression):
        rows = connection.execute(sql, (expression, *values, limit)).fetchall()
    if rows or match_all:
        return [number for number, _ in rows]
    rows = connection.execute(sql, (_match(ranked), *values, limit)).fetchall()
    return [number for number, score in rows if score <= MIN_SHARE_OF_BEST * rows[0][1]]  # a good BM25 is negative


def quoted_words(query: str) -> list[str]:
    """Return the words of a query quoted for FTS5, so that none of its query syntax passes except a prefix's star."""
    return [f'"{word[:-1]}" *' if word.endswith("*") else f'"{word}"' for word in query_words(query)]


def query_words(query: str) -> list[str]:
    """Return the distinct words of a query in lower case, ``dino*`` with its star."""
    return list(dict.fromkeys(_WORD.findall(query.casefold())))[:MAX_WORDS]


def _match(counts: Mapping[str, int]) -> str:
    """Return the expression for items with a rare word; common words count only for the order."""
    bound = COMMON_RATIO * min(counts.values())
    rare = " OR ".join(word for word, n in counts.items() if n <= bound)
    common = " OR ".join(word for word, n in counts.items() if n > bound)
    return f"({rare}) OR (({rare}) AND ({common}))" if common else rare


def _as_json(fields: Iterable[str]) -> str:
    return json.dumps(list(fields), ensure_ascii=False)


def _reached(connection: sqlite3.Connection) -> int:
    reached = _get(connection, "words") or "0"
    if not re.fullmatch("[0-9]{1,19}", reached):
        raise sqlite3.DatabaseError(f"the full-text index has an invalid last row id {reached[:40]!r}")
    return int(reached)


def _get(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def _set(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))
