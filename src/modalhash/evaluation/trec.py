"""Run and qrels files, for trec_eval and everything that reads its formats."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalhash._typing import Array
from modalhash.blocks import row_slices
from modalhash.evaluation.ranking import Ranking

PAIRS_AT_ONCE = 2**22
RUN_LINE = "query Q0 item rank score tag"
QRELS_LINE = "query 0 item relevance"
Qrels = Mapping[str, Mapping[str, int]]
"""Query → item → relevance, as :func:`read_qrels` returns it; what is not listed is not relevant."""


@dataclass(frozen=True)
class TrecRun:
    """What a system found, by query."""

    tag: str
    """Its name, by the file."""
    items: Mapping[str, Sequence[str]]
    """Query → items, best first."""


def read_run(path: str | Path) -> TrecRun:
    """Read a run file, plain or gzip: a line is ``query Q0 item rank score tag``.

    Items are ordered by falling score, as trec_eval does it: the rank in the file does not count, and of equal scores
    the item whose name comes last in the alphabet goes first. A line that is not as it should be is an error with its
    number.
    """
    scores: dict[str, dict[str, float]] = {}
    tag = ""
    for number, (query, _, item, _, score, own) in _read_lines(path, RUN_LINE):
        found = scores.setdefault(query, {})
        if item in found:
            raise ValueError(f"{path}, line {number}: the item {item!r} was given for the query {query!r} before")
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{path}, line {number}: the score is {score!r}; expected a finite number")
        if tag not in ("", own):
            raise ValueError(
                f"{path}, line {number}: the tag is {own!r}, before it was {tag!r}; expected one run per file"
            )
        found[item], tag = value, own
    ordered = {
        query: [item for item, _ in sorted(found.items(), key=lambda one: (one[1], one[0]), reverse=True)]
        for query, found in scores.items()
    }
    return TrecRun(tag, ordered)


def read_qrels(path: str | Path) -> dict[str, dict[str, int]]:
    """Read a qrels file, plain or gzip: a line is ``query 0 item relevance``, where 0 and less is not relevant."""
    qrels: dict[str, dict[str, int]] = {}
    for number, (query, _, item, relevance) in _read_lines(path, QRELS_LINE):
        found = qrels.setdefault(query, {})
        if item in found:
            raise ValueError(f"{path}, line {number}: the item {item!r} was judged for the query {query!r} before")
        try:
            found[item] = int(relevance)
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: the relevance is {relevance!r}; expected a whole number"
            ) from None
    return qrels


def _read_lines(path: str | Path, layout: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbers of lines and their words, as many as the layout has."""
    path, n = Path(path), len(layout.split())
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    number = 0
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                words = line.split()  # at ASCII spaces, as trec_eval does
                if not words:
                    continue
                if len(words) != n:
                    raise ValueError(f"{path}, line {number}: {len(words)} words; expected {n}: {layout}")
                try:
                    yield number, [word.decode() for word in words]
                except UnicodeDecodeError:
                    raise ValueError(f"{path}, line {number}: not in UTF-8; save the file as UTF-8") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: truncated or damaged after line {number} ({error}); copy it anew") from None
    if not number:
        raise ValueError(f"{path}: the file is empty; expected lines {layout!r}")


def write_run(
    path: str | Path,
    ranking: Ranking,
    *,
    query_ids: Any,
    database_ids: Any,
    k: int | None = None,
    tag: str = "modalhash",
) -> None:
    """Write the first ``k`` items of each query (all by default), ties in the order of the database.

    The score is ``k + 1 − rank``, so that no two are equal: a reader that breaks ties its own way finds
    none to break.
    """
    queries, items = _ids(query_ids, database_ids, ranking)
    depth = ranking.n_items if k is None else k
    if not 1 <= depth <= ranking.n_items:
        raise ValueError(f"k is {k}; expected 1 to {ranking.n_items}, the size of the database")
    if not tag or tag.split() != [tag]:
        raise ValueError(f"tag is {tag!r}; expected one word")
    with open(path, "w", encoding="utf-8") as file:
        for query, distances, _ in _rows(ranking):
            order = np.argsort(distances, kind="stable")
            order = order[order != ranking.excluded[query]][:depth]
            file.writelines(
                f"{queries[query]} Q0 {item} {rank} {depth + 1 - rank} {tag}\n"
                for rank, item in enumerate(items[order], start=1)
            )


def write_qrels(path: str | Path, ranking: Ranking, *, query_ids: Any, database_ids: Any) -> None:
    """Write the relevant items of each query; what is not listed is not relevant."""
    queries, items = _ids(query_ids, database_ids, ranking)
    with open(path, "w", encoding="utf-8") as file:
        for query, _, relevant in _rows(ranking):
            file.writelines(f"{queries[query]} 0 {item} 1\n" for item in items[relevant])


def _rows(ranking: Ranking) -> Iterator[tuple[int, Array, Array]]:
    """Per query: its number, the distances of all items, and which are relevant."""
    from modalhash import kernels

    codes = np.ascontiguousarray(ranking.codes.T)
    for rows in row_slices(ranking.n_queries, max(1, PAIRS_AT_ONCE // len(codes))):
        distances = kernels.hamming(ranking.query_codes[rows], codes)
        for query, row in zip(range(rows.start, rows.stop), distances, strict=True):
            relevant = (ranking.labels & ranking.query_labels[query][:, None]).any(axis=0)
            if ranking.excluded[query] >= 0:
                relevant[ranking.excluded[query]] = False
            yield query, row, relevant


def _ids(query_ids: Any, database_ids: Any, ranking: Ranking) -> tuple[Array, Array]:
    out = []
    for name, ids, n in (
        ("query", query_ids, ranking.n_queries),
        ("database", database_ids, ranking.n_items),
    ):
        given = np.asarray(ids, dtype=object)  # numpy's own texts lose a NUL at their end
        if given.shape != (n,):
            raise ValueError(f"{name}_ids have shape {given.shape}; expected one id for each of {n} items")
        texts = np.array([one.decode() if isinstance(one, bytes) else str(one) for one in given], dtype=object)
        if len(np.unique(texts)) != n:
            raise ValueError(f"{name}_ids: some occur twice; every id must occur once")
        if bad := [text for text in texts.tolist() if text.split() != [text] or not _is_utf8(text)]:
            raise ValueError(
                f"{name}_ids: {bad[0]!r} is empty or has a space, by which the format separates, "
                "or half of a UTF-16 pair"
            )
        out.append(texts)
    return out[0], out[1]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
