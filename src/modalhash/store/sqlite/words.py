"""Words of items in SQLite's full-text index, FTS5: what a word search finds, in order of BM25.

The index follows the items: ``meta`` has the last number that is in it, so what is missing is what came after. It is
changed in the transaction that changes the items. It holds no text of its own (``content = ''``); what an item has is
taken from its row, also when it leaves.

Words are folded to lower case without accents and reduced to their stems by Porter's rules: *boats* finds *boat*. The
rules are for English; in other languages they rarely apply, and do the same to the query as to the text.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from modalhash.store.records import SEARCHED_FIELDS

MAX_WORDS = 64
"""Words of a query that are searched for; further ones are left out."""
MAX_RANKED, MIN_RANKED = 5000, 10
"""Items are ranked by a word if at most 5,000 have it, and at most half of all or 10. More would take long (some 5 µs
an item), and the word tells them apart but little. Where all words of a query are such, the first items that have all
of them are found, unless more than half of a small store has the word."""
COMMON_RATIO = 10
"""A word that 10 times as many items have as the rarest word of the query orders what is found, and finds nothing."""
MIN_SHARE_OF_BEST = 0.9
"""Where no item has all words of the query, those whose BM25 is below this share of the best one's are left out: they
have lesser words only. Chosen on folds of training items: ``benchmarks/quality/words_choices.py``."""

MAX_REMEMBERED = 20_000
"""Words, and sets of words, of which is remembered how many items have them."""

MERGED_PAGES = 100
"""Pages of the index that are merged in one transaction: some milliseconds, for which other changes wait."""

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
    """Return whether this SQLite has FTS5; some are built without it."""
    return bool(connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchall())


def is_current(connection: sqlite3.Connection, fields: Iterable[str] | None) -> bool:
    """Return whether the index is there, has all items, and is of these fields (None: whatever it is of)."""
    last = connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()[0]
    return (
        bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'item_word'").fetchall())
        and _reached(connection) >= last
        and (fields is None or _get(connection, "searched_fields") == _as_json(fields))
    )


def update_index(connection: sqlite3.Connection, fields: Iterable[str] | None) -> None:
    """Make the index current, in the caller's transaction."""
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
    """Take in the items that came since the last time, in the caller's transaction."""
    connection.execute(_ADD, (_reached(connection),))
    last = connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()[0]
    if last > _reached(connection):
        _set(connection, "words", str(last))


def forget_items(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Take out items that are about to be deleted, in the caller's transaction."""
    reached = _reached(connection)
    connection.executemany(_FORGET, ((number, reached) for number in numbers))


def merge_some(connection: sqlite3.Connection, *, begin: bool) -> bool:
    """Go on merging the segments in which items were added, in the caller's transaction; return whether some are left.

    A word is looked up in every segment: of a million items that were added in twenty portions there were nine, and a
    search for words took a third longer than in one. ``begin`` takes in all that there are now.
    """
    before = connection.total_changes
    pages = -MERGED_PAGES if begin else MERGED_PAGES  # what FTS5 takes for an order to merge whatever there is
    connection.execute("INSERT INTO item_word (item_word, rank) VALUES ('merge', ?)", (pages,))
    return connection.total_changes - before >= 2  # one change is that nothing was to be done


class WordStatistics:
    """How many items have a word, and whether any has several words: remembered until the store changes.

    A search asks for the words of its text twice, and searches ask for the same words again and again.
    """

    def __init__(self) -> None:
        self._state: tuple[int, int] | None = None
        self.most = 0
        """Items that a word may have for items to be ranked by it."""
        self._counts: dict[str, int] = {}
        self._together: dict[str, bool] = {}

    def update_index(self, connection: sqlite3.Connection) -> None:
        """Forget all if anybody has written since the last call."""
        others, own = connection.execute("PRAGMA data_version").fetchone()[0], connection.total_changes
        if self._state != (others, own) or len(self._counts) + len(self._together) > MAX_REMEMBERED:
            self._state, self._counts, self._together = (others, own), {}, {}
            n_items = connection.execute("SELECT coalesce(max(number), 0) FROM item").fetchone()[0]
            self.most = min(MAX_RANKED, max(MIN_RANKED, n_items // 2))

    def count(self, connection: sqlite3.Connection, word: str) -> int:
        """Return how many items have a word, or one more than ``most``."""
        n = self._counts.get(word)
        if n is None:
            sql = "SELECT count(*) FROM (SELECT 1 FROM item_word WHERE item_word MATCH ? LIMIT ?)"
            n = self._counts[word] = int(connection.execute(sql, (word, self.most + 1)).fetchone()[0])
        return n

    def are_together(self, connection: sqlite3.Connection, expression: str) -> bool:
        """Return whether any item matches an expression: to look for one is quicker than to rank all that there are."""
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
    """Return the numbers of the items that have all words of the query, or else the best ones, and pass the test.

    ``match_all`` finds those alone that have all words, except for words that most items have.
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
    """Return the words of a query in FTS5's language, each in quotes; ``dino*`` is whatever begins so.

    Nothing else of that language passes, whatever is typed.
    """
    return [f'"{word[:-1]}" *' if word.endswith("*") else f'"{word}"' for word in query_words(query)]


def query_words(query: str) -> list[str]:
    """Return the different words of a query in lower case, ``dino*`` with its star."""
    return list(dict.fromkeys(_WORD.findall(query.casefold())))[:MAX_WORDS]


def _match(counts: Mapping[str, int]) -> str:
    """Return the expression for items that have a rare word, where common ones count too."""
    bound = COMMON_RATIO * min(counts.values())
    rare = " OR ".join(word for word, n in counts.items() if n <= bound)
    common = " OR ".join(word for word, n in counts.items() if n > bound)
    return f"({rare}) OR (({rare}) AND ({common}))" if common else rare


def _as_json(fields: Iterable[str]) -> str:
    return json.dumps(list(fields), ensure_ascii=False)


def _reached(connection: sqlite3.Connection) -> int:
    reached = _get(connection, "words") or "0"
    if not re.fullmatch("[0-9]{1,19}", reached):
        raise sqlite3.DatabaseError(f"the index of words says it has items up to {reached[:40]!r}")
    return int(reached)


def _get(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def _set(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))
