"""Full-ranking mAP: histograms against distances by matrix product and argsort.

    python benchmarks/speed/evaluation_speed.py # 2,000 queries, 184,577 items (NUS-WIDE's size), 16 to 128 bits
    python benchmarks/speed/evaluation_speed.py --quick    # 200 queries, 20,000 items, nothing is written

The sorted way is what research code does: ±1 codes in float32, ``d = (n_bits − Q Bᵀ) / 2`` for blocks of queries,
``argsort`` per query, cumulative precision. It sorts for some of the queries only, in turn with ours, and its time is
scaled up. Expected ties are held against numpy's default sort, stable ties against its stable one, which gives the same
average precisions: compared here to 1e-9. Both may use all cores, but ``argsort`` cannot.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

from modalhash.core.codes import unpack_signs
from modalhash.evaluation import Protocol, average_precision, mean_average_precision, measure, rank
from record import write
from speed_rows import in_turn, middle, ratio_spread, row, show, timed

BITS = (16, 32, 64, 128)
CLASSES = 10
SORTED_AT_ONCE = 100
SORTS = {"expected": "quicksort", "stable": "stable"}


def draw(n_queries: int, n_items: int, n_bits: int, seed: int):
    """Codes that carry their labels: each class pulls some bits, so that rankings are not mere chance."""
    rng = np.random.default_rng(seed)
    prototypes = rng.integers(2, size=(CLASSES, n_bits)).astype(bool)

    def items(n: int):
        labels = rng.random((n, CLASSES)) < 0.12
        labels[np.arange(n), rng.integers(CLASSES, size=n)] = True
        main = labels.argmax(axis=1)
        flips = rng.random((n, n_bits), dtype=np.float32) < 0.3
        return np.packbits(prototypes[main] ^ flips, axis=1), labels

    return *items(n_queries), *items(n_items)


def sorted_way(query_codes, query_labels, codes, labels, n_bits: int, kind: str):
    """Average precision of each query by sorting the whole database."""
    signs, items = unpack_signs(query_codes, n_bits), unpack_signs(codes, n_bits)
    wanted, given = query_labels.astype(np.float32), labels.astype(np.float32)
    ranks = np.arange(1, len(codes) + 1)
    out = np.empty(len(query_codes))
    for start in range(0, len(out), SORTED_AT_ONCE):
        rows = slice(start, start + SORTED_AT_ONCE)
        distances = (n_bits - signs[rows] @ items.T) / 2
        relevant = wanted[rows] @ given.T > 0
        for i in range(len(distances)):
            hits = relevant[i][np.argsort(distances[i], kind=kind)]
            precision = np.cumsum(hits) / ranks
            out[start + i] = (precision * hits).sum() / max(hits.sum(), 1)
    return out


PEAK = """
import sys
sys.path.insert(0, {folder!r})
from evaluation_speed import draw
from modalhash.evaluation import Protocol, measure, rank
from speed_rows import peak_megabytes

case = draw({queries}, {items}, {bits}, 0)
small = [part[:50] for part in case]
measure(rank(*small, n_bits={bits}), Protocol(ties={ties!r}))  # load numba and the kernels
print(peak_megabytes(lambda: measure(rank(*case, n_bits={bits}), Protocol(ties={ties!r})))[0])
"""


def memory(queries: int, items: int, bits: int, ties: str) -> float:
    """Megabytes that all measures together take on top of their input, in a process of its own."""
    code = PEAK.format(folder=str(Path(__file__).parent), queries=queries, items=items, bits=bits, ties=ties)
    return float(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout)


def compare(case, n_bits: int, ties: str, n_sorted: int, repeat: int):
    """A row for one length and one tie rule."""
    query_codes, query_labels, codes, labels = case
    some = (query_codes[:n_sorted], query_labels[:n_sorted], codes, labels)
    mean_average_precision(*(part[:50] for part in case), n_bits=n_bits, ties=ties)  # compiled once, cached on disk
    if ties == "stable":
        exact = average_precision(rank(*some, n_bits=n_bits), ties=ties)
        assert np.abs(exact - sorted_way(*some, n_bits, SORTS[ties])).max() < 1e-9
    works = {
        "ours": lambda: mean_average_precision(*case, n_bits=n_bits, ties=ties),
        "sorted": lambda: sorted_way(*some, n_bits, SORTS[ties]),
    }
    runs = in_turn(works, repeat)
    scale = len(query_codes) / n_sorted
    processor = [min(run.processor for run in runs[side]) for side in ("sorted", "ours")]
    everything = min(
        timed(lambda: measure(rank(*case, n_bits=n_bits), Protocol(ties=ties)))[0].seconds for _ in range(repeat)
    )
    extra = memory(len(query_codes), len(codes), n_bits, ties)
    return row(
        f"map-{ties}-{n_bits}",
        f"full-ranking mAP, {len(query_codes):,} × {len(codes):,}, {n_bits} bits, {ties} ties",
        against=f"product + argsort ({SORTS[ties]})",
        ours=middle(runs["ours"]),
        theirs=middle(runs["sorted"]) * scale,
        mark=">= 40 x" if n_bits == 128 else "-",
        note=f"{ratio_spread(runs['ours'], runs['sorted'], scale)}; sorted for {n_sorted} queries and scaled up; "
        f"{scale * processor[0] / processor[1]:.0f} x by processor seconds; all measures in {everything:.2f} s; "
        f"{extra:.0f} MB beside the input",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--items", type=int, default=184_577)
    parser.add_argument("--bits", type=int, nargs="+", default=BITS)
    parser.add_argument("--sorted", type=int, default=200, help="queries to sort for; the time is scaled up")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of all; write nothing")
    args = parser.parse_args()
    n_queries, n_items = (args.queries // 10, args.items // 10) if args.quick else (args.queries, args.items)
    rows = []
    for n_bits in args.bits:
        case = draw(n_queries, n_items, n_bits, seed=0)
        for ties in SORTS:
            rows.append(compare(case, n_bits, ties, min(args.sorted, n_queries), args.repeat))
            show(rows[-1])
    if not args.quick:
        write("evaluation_speed", rows)


if __name__ == "__main__":
    main()
