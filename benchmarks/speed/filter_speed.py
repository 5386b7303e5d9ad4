"""Searches with a filter, and by words, against the plain search of the same queries.

    python benchmarks/speed/filter_speed.py            # 1 and 10 million items, some 15 minutes to store them
    python benchmarks/speed/filter_speed.py --stores DIR    # keeps the stores there, or takes those that are there
    python benchmarks/speed/filter_speed.py --quick    # a twentieth of the items, nothing is written

Items are texts and pictures with three of 300 labels, some frequent and some rare, fields, and codes of 64 bits that
lie around those of their labels, so that a filter by label may pass all of the nearest or none. Searches have 24 hits.
*First* is the first search with a filter, *again* the median of a second round of all queries: the store knows by then
which items pass, and has read their pages. *Matching* is how long the store takes to say which items pass, right after
an item was added. Times are processor seconds of all threads, which a busy machine changes least. Hits are compared
with a scan of what passes. The row "given ids" is a search among all ids, which ascend, as a store gives them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from modalhash.engine import Query, SearchOptions, refresh
from modalhash.engine.search.hits import HitFinder
from modalhash.engine.search.query import Asked
from modalhash.index import HammingIndex
from modalhash.store import Filter, Record, SqliteStore
from record import write
from speed_rows import timed

BITS, BATCH, K, QUERIES = 64, 10_000, 24, 15
FILTERS = (
    "label = topic 1",
    "label = topic 30",
    "label = topic 150",
    "label = topic 30 and not label = topic 1",
    "label = topic 150 and year < 2005",
    "not label = topic 1",
    "modality = image",
    "kind = learned and year >= 2005",
    "taken >= 2024-01-01 and taken < 2024-02",
    "note = rare",
)
WORDS = ("word3000", "word40 word3000", "word1 word2 word3000", "word1")


def fill(store: SqliteStore, n: int) -> None:
    rng = np.random.default_rng(0)
    centres = rng.integers(0, 256, (300, BITS // 8), dtype=np.uint8)
    for start in range(0, n, BATCH):
        labels = rng.zipf(1.3, (BATCH, 3)) % 300
        flips = np.packbits(rng.random((BATCH, BITS)) < 0.1, axis=1)
        codes = centres[labels[:, 0]] ^ flips
        words = rng.zipf(1.2, (BATCH, 8)) % 5000
        days = np.datetime64("2000-01-01") + rng.integers(0, 9500, BATCH)
        years = rng.integers(1990, 2025, BATCH)
        store.add(
            Record(
                str(start + i),
                ("image", "text")[i % 2],
                codes[i],
                ("learned", "hashed")[i % 3 == 0],
                text=" ".join(f"word{word}" for word in words[i]) if i % 2 else None,
                uri=None if i % 2 else f"pictures/{start + i}.jpg",
                labels=tuple(dict.fromkeys(f"Topic {label}" for label in labels[i])),
                extra={
                    "year": int(years[i]),
                    "taken": str(days[i]),
                    "note": "rare" if i == 7 else "common",
                },
                refinement=bytes(96),
            )
            for i in range(BATCH)
        )


def seconds(asked: list[Asked], index: HammingIndex, store: SqliteStore) -> tuple[list[float], list[int]]:
    taken, found, finder = [], [], HitFinder(index, store, store.modalities())
    for one in asked:
        start = time.process_time()
        (hits,) = finder.find([one])
        taken.append(time.process_time() - start)
        found.append(hits[-1].distance if hits else -1)
    return taken, found


def matching_seconds(where: Filter, store: SqliteStore) -> tuple[float, int]:
    """Return how long the store takes to find what passes right after a write, and how many do."""
    added = Record("just now", "text", bytes(BITS // 8), labels=("Topic 30",))
    store.add([added])
    start = time.process_time()
    n = len(store.matching(where))
    taken = time.process_time() - start
    store.remove([added.key])
    return taken, n


def measure(store: SqliteStore) -> list[dict[str, Any]]:
    index = HammingIndex(BITS)
    start = time.process_time()
    refresh(index, store)
    opened = time.process_time() - start
    numbers, codes = index.dump()
    n = len(numbers)
    rng = np.random.default_rng(1)
    queries = codes[rng.integers(n, size=QUERIES)] ^ np.packbits(rng.random((QUERIES, BITS)) < 0.05, axis=1)
    rows = []

    def show(what: str, passing: int, first: float, again: float, **more: float) -> None:
        times = {"first_ms": first, "again_ms": again, **more}
        rows.append(
            {
                "search": what,
                "items": n,
                "passing": passing,
                **{name: round(1e3 * value, 2) for name, value in times.items()},
                "again_times_plain": round(again / plain, 2),
            }
        )
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)

    unfiltered = [(Query(code), SearchOptions(k=K)) for code in queries]
    seconds(unfiltered, index, store)  # compiled
    plain = median(seconds(unfiltered, index, store)[0])
    show("plain", n, plain, plain, index_from_store_ms=opened)
    among = [timed(lambda code=code: index.search(code[None], k=K, ids=numbers))[0].processor for code in queries[:5]]
    show("given ids", n, among[0], median(among))
    for where in FILTERS:
        filter = Filter.parse(where)
        asked = [(Query(code), SearchOptions(k=K, where=filter)) for code in queries]
        first, found = seconds(asked, index, store)
        again, _ = seconds(asked, index, store)
        passing = store.matching(filter)
        own = codes[np.isin(numbers, passing)]
        for code, distance in zip(queries[:3], found[:3], strict=True):
            distances = np.sort(np.bitwise_count(own ^ code).sum(axis=1))[:K]
            assert distance == distances[-1], where
        matching, _ = matching_seconds(filter, store)
        show(where, len(passing), first[0], median(again), matching_ms=matching)
    for text in WORDS:
        asked = [(Query(code, text=text), SearchOptions(k=K)) for code in queries]
        first, _ = seconds(asked, index, store)
        again, _ = seconds(asked, index, store)
        show(f"words: {text}", len(store.search_text(text, limit=n)), first[0], median(again))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=(1_000_000, 10_000_000))
    parser.add_argument("--stores", type=Path, help="folder of stores to keep, or to take as they are")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the items; write nothing")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for items in args.items:
            n = items // 20 if args.quick else items
            with SqliteStore((args.stores or Path(scratch)) / f"items-{n}.db", n_bits=BITS) as store:
                if len(store) != n:
                    fill(store, n)
                rows += measure(store)
    if not args.quick:
        write("filter_speed", rows)


if __name__ == "__main__":
    main()
