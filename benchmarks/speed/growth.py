"""How exact search grows with the number of codes: time of a search, alone and in batches, and memory.

    python benchmarks/speed/growth.py            # 1, 10 and 100 million codes of 64 bits; some 5 minutes, 4 GB
    python benchmarks/speed/growth.py --quick    # a hundredth of the codes, nothing is written

Codes lie around 1,000 centres, with an eighth of their bits flipped; queries are such codes, and 20 hits are wanted.
Every row is measured in a process of its own. Times are the shortest of several runs on the
clock (*alone*: the median of 20 queries), with processor seconds of all threads beside them. Memory is what the process
has more than before, ids and codes included, and its highest point while it is filled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from modalhash.index import HammingIndex
from record import write
from speed_rows import timed

BITS, BLOCK, K, BATCH, N_ALONE = 64, 1_000_000, 20, 256, 20
SIZES = (1_000_000, 10_000_000, 100_000_000)


def make_codes(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).integers(0, 256, (1000, BITS // 8), dtype=np.uint8)
    flips = np.frombuffer(rng.bytes(3 * n * BITS // 8), dtype=np.uint8).reshape(3, n, BITS // 8)
    return centres[rng.integers(1000, size=n)] ^ flips[0] & flips[1] & flips[2]


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def measure(n: int) -> dict[str, Any]:
    """Fill an index of ``n`` codes in this process and search it."""
    index = HammingIndex(BITS)
    queries = make_codes(BATCH, seed=10**6)
    warm = HammingIndex(BITS)
    warm.add([1], queries[:1])
    warm.search(queries, k=1)  # loads what is compiled
    before = resident("VmRSS")
    filling = 0.0
    for start in range(0, n, BLOCK):
        ids, codes = np.arange(start, min(n, start + BLOCK)), make_codes(min(BLOCK, n - start), seed=start)
        begin = time.perf_counter()
        index.add(ids, codes)
        filling += time.perf_counter() - begin
    index.search(queries[:2], k=K)
    alone = [timed(lambda q=q: index.search(queries[q : q + 1], k=K))[0] for q in range(N_ALONE)]
    batches = [timed(lambda: index.search(queries, k=K))[0] for _ in range(3)]
    return {
        "items": n,
        "bits": BITS,
        "fill_seconds": round(filling, 2),
        "bytes_per_item": round((resident("VmRSS") - before) / n, 1),
        "peak_bytes_per_item": round((resident("VmHWM") - before) / n, 1),
        "alone_ms": round(1e3 * median(run.seconds for run in alone), 3),
        "alone_processor_ms": round(1e3 * median(run.processor for run in alone), 3),
        "batch_ms_per_query": round(1e3 * min(run.seconds for run in batches) / BATCH, 3),
        "batch_processor_ms_per_query": round(1e3 * min(run.processor for run in batches) / BATCH, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=SIZES)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the codes; write nothing")
    parser.add_argument("--one", type=int, metavar="ITEMS", help="print one row as JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one)))
        return
    rows = []
    for n in args.items:
        command = [sys.executable, __file__, "--one", str(n // 100 if args.quick else n)]
        row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if not args.quick:
        write("growth", rows)


if __name__ == "__main__":
    main()
