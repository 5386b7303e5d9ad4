"""Texts as counts of words and of pieces of words.

A text is brought to one form (Unicode NFKC, then case-folded: ``Straße`` and ``STRASSE`` are one word) and cut into
words. Pieces of a word, runs of a few letters with its borders marked by a space, let ``Segelboot`` meet ``Boote``.
All pieces of a word come with it, so they are counted by one sparse product of words in texts and pieces in words:
the slow part, in Python, is done once per distinct word and not once per word of every text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.encoders.protocol import ItemError

WORD = re.compile(
    # all but white space and punctuation; \w would cut words of Hindi or Thai at their vowel signs, and drop emoji
    r"[^\s\x00-/:-@\[-`{-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf×÷\u2000-\u200b\u200e-\u206f\u3000-\u3004\u3008-\u3020\u30fb]+"
)
SHOWN = 40


def words_of(text: Any) -> list[str]:
    """The words of a text in order.

    Examples
    --------
    >>> words_of("Die Straße (nach Süden) – 2 Boote; blaue.")
    ['die', 'strasse', 'nach', 'süden', '2', 'boote', 'blaue']
    """
    if not isinstance(text, str):
        raise ItemError(f"got {type(text).__name__}; expected a text")
    found = WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    if not found:
        raise ItemError("the text is empty" if not text.strip() else f"no word in the text {text[:SHOWN]!r}")
    return found


def pieces_of(word: str, low: int, high: int) -> list[str]:
    """Runs of ``low`` to ``high`` characters of a word with a space at both ends.

    Examples
    --------
    >>> pieces_of("boot", 3, 4)
    [' bo', 'boo', 'oot', 'ot ', ' boo', 'boot', 'oot ']
    """
    marked = f" {word} "
    return [marked[i : i + n] for n in range(low, high + 1) for i in range(len(marked) - n + 1)]


def count_words(texts: Sequence[Any]) -> tuple[sparse.csr_array, list[str]]:
    """How often each distinct word stands in each text: float32 CSR ``(texts, words)``, and the words."""
    column: dict[str, int] = {}
    return count_terms(texts, words_of, column), list(column)


def count_terms(
    things: Iterable[Any], terms_of: Callable[[Any], list[str]], column: dict[str, int], *, fixed: bool = False
) -> sparse.csr_array:
    """Counts of each thing's terms, in the columns that ``column`` gives; it grows by new terms unless ``fixed``."""
    indices: list[int] = []
    starts = [0]
    for thing in things:
        if fixed:
            indices.extend(column[term] for term in terms_of(thing) if term in column)
        else:
            indices.extend([column.setdefault(term, len(column)) for term in terms_of(thing)])
        starts.append(len(indices))
    values = np.ones(len(indices), dtype=np.float32)
    counts = sparse.csr_array(
        (values, np.array(indices, dtype=np.int32), np.array(starts)), shape=(len(starts) - 1, len(column))
    )
    counts.sum_duplicates()
    return counts


def joined(parts: Sequence[sparse.csr_array]) -> sparse.csr_array:
    """Parts side by side, each row of each part scaled to length 1 and the whole to length 1 where all have one."""
    from sklearn.preprocessing import normalize

    whole = sparse.hstack([normalize(part, copy=False) for part in parts], format="csr", dtype=np.float32)
    whole.data /= np.float32(np.sqrt(len(parts)))
    whole.sort_indices()
    return sparse.csr_array(whole)


def dampened(counts: sparse.csr_array) -> sparse.csr_array:
    """Counts c to 1 + log c: the tenth ``the`` says less than the first."""
    counts.data = 1 + np.log(counts.data, dtype=np.float32)
    return counts
