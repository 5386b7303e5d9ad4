"""Searches with a filter, and by words, against the plain search of the same queries.

    python benchmarks/speed/filter_speed.py            # 1,000,000 items, some 5 minutes to store them
    python benchmarks/speed/filter_speed.py --quick    # a twentieth of the items, nothing is written

Items are texts and pictures with three of 300 labels, some frequent and some rare, fields, and codes of 64 bits that
lie around those of their labels, so that a filter by label may pass all of the nearest or none. Searches have 24 hits.
*First* is the first search with a filter, *again* the median of a second round of all queries: the store knows by then
which items pass, and has read their pages. Times are processor seconds of all threads, which a busy machine changes
least. Hits are compared with a scan of what passes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from modalhash.engine import SearchOptions, SearchRequest, refresh
from modalhash.engine.answer import answer_requests
from modalhash.index import HammingIndex
from modalhash.store import Filter, Record, SqliteStore
from record import write

BITS, BATCH, K, QUERIES = 64, 10_000, 24, 15
FILTERS = (
    "label = topic 1",
    "label = topic 150",
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


def seconds(requests: list[SearchRequest], index: HammingIndex, store: SqliteStore) -> tuple[list[float], list[int]]:
    taken, found = [], []
    for request in requests:
        start = time.process_time()
        (hits,) = answer_requests([request], index, store, lambda want: None)
        taken.append(time.process_time() - start)
        found.append(hits[-1].distance if hits else -1)
    return taken, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the items; write nothing")
    args = parser.parse_args()
    n = args.items // 20 if args.quick else args.items
    rows = []

    def show(what: str, first: float, again: float, plain: float, passing: int) -> None:
        rows.append(
            {
                "search": what,
                "items": n,
                "passing": passing,
                "first_ms": round(1e3 * first, 2),
                "again_ms": round(1e3 * again, 2),
                "again_times_plain": round(again / plain, 2),
            }
        )
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)

    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "items.db", n_bits=BITS) as store:
        fill(store, n)
        index = HammingIndex(BITS)
        refresh(index, store)
        numbers, codes = index.dump()
        rng = np.random.default_rng(1)
        queries = codes[rng.integers(n, size=QUERIES)] ^ np.packbits(rng.random((QUERIES, BITS)) < 0.05, axis=1)
        plain_requests = [SearchRequest(code, SearchOptions(k=K)) for code in queries]
        seconds(plain_requests, index, store)  # compiled
        plain = median(seconds(plain_requests, index, store)[0])
        show("plain", plain, plain, plain, n)
        for where in FILTERS:
            requests = [SearchRequest(code, SearchOptions(k=K, where=Filter.parse(where))) for code in queries]
            first, found = seconds(requests, index, store)
            again, _ = seconds(requests, index, store)
            passing = store.matching(Filter.parse(where))
            own = codes[np.isin(numbers, passing)]
            for code, distance in zip(queries[:3], found[:3], strict=True):
                distances = np.sort(np.bitwise_count(own ^ code).sum(axis=1))[:K]
                assert distance == distances[-1], where
            show(where, first[0], median(again), plain, len(passing))
        for text in WORDS:
            requests = [SearchRequest(code, SearchOptions(k=K), text=text) for code in queries]
            first, _ = seconds(requests, index, store)
            again, _ = seconds(requests, index, store)
            show(f"words: {text}", first[0], median(again), plain, len(store.words(text, limit=n)))
    if not args.quick:
        write("filter_speed", rows)


if __name__ == "__main__":
    main()
