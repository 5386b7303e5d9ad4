"""Exact search: HammingIndex against FAISS's IndexBinaryFlat, with the same threads.

    OMP_WAIT_POLICY=passive python benchmarks/search_speed.py            # 2,000,000 codes of 64 bits, 1,000 queries
    python benchmarks/search_speed.py --bits 16 32 128 256 --items 500000 --threads 1
    python benchmarks/search_speed.py --lists --items 1000000            # FAISS's inverted lists as well

Random codes; the two take turns and the shortest of three runs counts, as seconds on the clock and as processor
seconds of all threads, which say more where others use the machine. All distances are compared.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before FAISS is loaded, or its threads spin

import faiss
import numpy as np

from modalhash.search import FaissIndex, HammingIndex
from record import write


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    clock, processor = time.perf_counter(), time.process_time()
    value = work()
    return time.perf_counter() - clock, time.process_time() - processor, value


def compare(codes, queries, n_bits: int, threads: int, k: int) -> dict[str, Any]:
    ours, theirs = HammingIndex(n_bits, n_threads=threads), faiss.IndexBinaryFlat(n_bits)
    ours.add(np.arange(len(codes)), codes)
    theirs.add(codes)
    faiss.omp_set_num_threads(threads)
    ours.search(queries[:1], k=1)  # compiled once, cached on disk
    runs: dict[str, list[tuple[float, float]]] = {"modalhash": [], "faiss": []}
    for _ in range(3):
        *seconds, hits = timed(lambda: ours.search(queries, k=k))
        runs["modalhash"].append(tuple(seconds))
        *seconds, (distances, _) = timed(lambda: theirs.search(queries, k))
        runs["faiss"].append(tuple(seconds))
        assert (hits.distances == distances).all()
    row: dict[str, Any] = {"items": len(codes), "queries": len(queries), "bits": n_bits, "threads": threads, "k": k}
    for number, what in enumerate(("seconds", "processor_seconds")):
        fastest = {name: min(run[number] for run in each) for name, each in runs.items()}
        row |= {f"{name}_{what}": round(value, 4) for name, value in fastest.items()}
        row[f"ratio_{what}"] = round(fastest["faiss"] / fastest["modalhash"], 2)
    return row


def lists(codes, queries, n_bits: int, k: int) -> dict[str, Any]:
    """Inverted lists on codes in clusters: what is gained over exact search, at which recall."""
    index = FaissIndex(n_bits)
    index.add(np.arange(len(codes)), codes)
    index.search(queries[:1], k=k)  # compiled once, cached on disk
    exact = min(timed(lambda: index.search(queries, k=k))[1] for _ in range(3))
    building, _, report = timed(lambda: index.build(k=k))
    listed = min(timed(lambda: index.search(queries, k=k))[1] for _ in range(3))
    print(report[0])
    seconds = {"build_seconds": building, "exact_processor_seconds": exact, "lists_processor_seconds": listed}
    return {**vars(report[0]), **{name: round(value, 4) for name, value in seconds.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--bits", type=int, nargs="+", default=[64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--k", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--lists", action="store_true")
    parser.add_argument("--output", default="search_speed", help="name of the file in benchmarks/results")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = []
    for n_bits in args.bits:
        codes = rng.integers(0, 256, (args.items, n_bits // 8), dtype=np.uint8)
        queries = rng.integers(0, 256, (args.queries, n_bits // 8), dtype=np.uint8)
        if args.lists:
            codes = codes[rng.integers(1000, size=args.items)] ^ np.packbits(
                rng.random((args.items, n_bits)) < 0.1, axis=1
            )
            rows.append(lists(codes, codes[: args.queries] ^ np.uint8(1), n_bits, max(args.k)))
            print(rows[-1])
            continue
        for threads in args.threads:
            for k in args.k:
                rows.append(compare(codes, queries, n_bits, threads, k))
                print(rows[-1], flush=True)
    write(args.output, rows)


if __name__ == "__main__":
    main()
