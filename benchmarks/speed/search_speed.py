"""Exact search: HammingIndex against FAISS's IndexBinaryFlat, with the same threads.

    python benchmarks/speed/search_speed.py # 2,000,000 codes of 16 to 256 bits, 1,000 queries, the 100 nearest
    python benchmarks/speed/search_speed.py --quick    # a tenth of the codes and queries, nothing is written
    python benchmarks/speed/search_speed.py --avx2     # both without AVX-512; a file of its own

Both take turns, with one thread and with two, all queries together and one by one; the shortest run counts. Every
distance is compared. FAISS leaves the order of equal distances open: ids are compared as sets below the k-th distance,
and at it each id is looked up. A row says which instructions FAISS has chosen; with ``--avx2``, both are compiled for
them in a process of their own. Codes are random; those "clustered" have 1,000 centres and a tenth of the bits flipped.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before FAISS is loaded, or its threads spin

from typing import Any

import faiss
import numpy as np
from llvmlite import binding as llvm

from modalhash.index import HammingIndex, Hits
from record import write
from speed_rows import in_turn, middle, ratio_spread, row, show

K = 100
BITS = (64, 16, 32, 128, 256)
N_SINGLE_QUERIES = 100  # queries that come one by one
INSTRUCTIONS = faiss.SIMDConfig.get_level_name()  # that FAISS has chosen
AVX2 = os.environ.get("FAISS_SIMD_LEVEL") == "AVX2"  # set by run_with_avx2, which compiles ours for the same
SMALL_BATCH = 300  # queries


def random_codes(n: int, n_bits: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, n_bits // 8), dtype=np.uint8)


def in_clusters(n: int, n_bits: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = random_codes(1000, n_bits, seed=7)
    flips = np.zeros((n, n_bits // 8), dtype=np.uint8)
    for bit in range(n_bits):  # one bit at a time: a matrix of all of them would not fit
        flips[:, bit // 8] |= (rng.random(n, dtype=np.float32) < 0.1).astype(np.uint8) << (bit % 8)
    return centres[rng.integers(1000, size=n)] ^ flips


def same_answer(hits: Hits, distances: np.ndarray, ids: np.ndarray, codes: np.ndarray, queries: np.ndarray) -> float:
    """Raise unless both answers are the same; return the share of queries whose ids at the k-th distance agree too."""
    assert (hits.distances == distances).all()
    agree = 0
    for q in range(len(queries)):
        last = distances[q, -1]
        nearer = distances[q] < last
        assert set(hits.ids[q][nearer].tolist()) == set(ids[q][nearer].tolist())
        assert (np.bitwise_count(codes[ids[q][~nearer]] ^ queries[q]).sum(axis=1) == last).all()
        assert (np.diff(np.rec.fromarrays([distances[q], hits.ids[q]]).argsort()) == 1).all(), "not canonical"
        agree += set(hits.ids[q].tolist()) == set(ids[q].tolist())
    return agree / len(queries)


def mark_of(n_bits: int, alone: bool) -> str:
    """The ratio to reach."""
    if n_bits == 64:
        return ">= 2 x" if alone else ">= 5 x"
    return ">= 1.5 x" if alone and n_bits > 64 else ">= 1 x"


def run_with_avx2(arguments: list[str]) -> None:
    """Run this again in a process that compiles for a processor without AVX-512, and has FAISS choose AVX2."""
    newer = ("avx512", "avx10", "amx")
    features = llvm.get_host_cpu_features()
    names = [f"{'+' if on and not name.startswith(newer) else '-'}{name}" for name, on in sorted(features.items())]
    with tempfile.TemporaryDirectory() as cache:
        chosen = {
            "NUMBA_CPU_NAME": "znver2",
            "NUMBA_CPU_FEATURES": ",".join(names),
            "NUMBA_CACHE_DIR": cache,
            "FAISS_SIMD_LEVEL": "AVX2",
        }
        subprocess.run([sys.executable, __file__, *arguments], env=os.environ | chosen, check=True)


def compare(codes, queries, n_bits: int, *, alone: bool, repeat: int, kind: str = "") -> list[dict[str, Any]]:
    """Return rows for one thread and for two."""
    name = f"{n_bits}-{kind}" if kind else str(n_bits)
    theirs = faiss.IndexBinaryFlat(n_bits)
    theirs.add(codes)
    parts = np.array_split(queries[:N_SINGLE_QUERIES], N_SINGLE_QUERIES) if alone else [queries]
    asked = N_SINGLE_QUERIES if alone else len(queries)
    mark = mark_of(n_bits, alone)
    rows = []
    for threads in (1, 2):
        faiss.omp_set_num_threads(threads)
        ours = HammingIndex(n_bits, n_threads=threads)
        ours.add(np.arange(len(codes)), codes)
        ours.search(queries[:1], k=1)  # compiled once, cached on disk
        answers = (ours.search(queries[:asked], k=K), *theirs.search(queries[:asked], K))
        agree = same_answer(*answers, codes, queries[:asked])
        works = {
            "ours": lambda ours=ours: [ours.search(q, k=K) for q in parts],
            "faiss": lambda: [theirs.search(q, K) for q in parts],
        }
        runs = in_turn(works, repeat)
        processor = [min(run.processor for run in runs[side]) for side in ("faiss", "ours")]
        rows.append(
            row(
                f"top{K}-{name}{'-alone' if alone else f'-{asked}'}-{threads}{'-avx2' if AVX2 else ''}",
                f"exact top-{K}, {len(codes):,} × {n_bits} bits{f' ({kind})' if kind else ''}, "
                f"{f'{asked} queries one by one' if alone else f'{asked:,} queries'}, "
                f"{threads} thread{'s'[: threads > 1]}, {INSTRUCTIONS}",
                against="FAISS IndexBinaryFlat",
                ours=middle(runs["ours"]),
                theirs=middle(runs["faiss"]),
                mark=mark,
                note=f"{asked / middle(runs['ours']):,.0f} queries/s; {ratio_spread(runs['ours'], runs['faiss'])}; "
                f"{processor[0] / processor[1]:.1f} x by processor seconds; same distances; same ids at the "
                f"k-th distance too for {agree:.0%} of the queries",
            )
        )
        show(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--bits", type=int, nargs="+", default=BITS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of all; write nothing")
    parser.add_argument("--avx2", action="store_true", help="only 64, 128 and 256 bits, without AVX-512")
    args = parser.parse_args()
    n, n_queries = (args.items // 10, args.queries // 10) if args.quick else (args.items, args.queries)
    if args.avx2 and not AVX2:
        run_with_avx2(sys.argv[1:])
        return
    rows = []
    for n_bits in (64, 128, 256) if args.avx2 else args.bits:
        codes, queries = random_codes(n, n_bits, seed=0), random_codes(n_queries, n_bits, seed=1)
        rows += compare(codes, queries, n_bits, alone=True, repeat=args.repeat)
        for batch in (SMALL_BATCH, n_queries) if n_bits == 64 and not args.quick else (n_queries,):
            rows += compare(codes, queries[:batch], n_bits, alone=False, repeat=args.repeat)
    codes, queries = in_clusters(n, 64, 0), in_clusters(n_queries, 64, 1)
    for batch in (n_queries,) if args.quick else (SMALL_BATCH, n_queries):
        rows += compare(codes, queries[:batch], 64, alone=False, repeat=args.repeat, kind="clustered")
    if not args.quick:
        write("search_speed_avx2" if args.avx2 else "search_speed", rows)


if __name__ == "__main__":
    main()
