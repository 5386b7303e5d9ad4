"""Searches within a small radius: the tables of ``HammingIndex.build_radius`` against a scan of all codes.

    python benchmarks/speed/radius_speed.py            # 20,000,000 codes of 64 bits, radius 0 to 4
    python benchmarks/speed/radius_speed.py --quick    # a twentieth of the codes, nothing is written

Queries are stored codes with a few bits flipped. The scan is the same index without tables, one thread both,
all queries at once (256 of them scan a block of codes while it is in the first cache, its best case) and one
by one. All ids and distances are compared. Codes are random, or "clustered": 1,000 centres and a tenth of the bits
flipped, which fills some buckets far more than others.
"""

from __future__ import annotations

import argparse

import numpy as np

from modalhash.index import HammingIndex
from record import write
from search_speed import in_clusters, random_codes
from speed_rows import in_turn, middle, peak_megabytes, ratio_spread, row, show, timed

BITS, MARK = 64, ">= 20 x"


def same(left, right) -> bool:
    return all((getattr(left, part) == getattr(right, part)).all() for part in ("ids", "distances", "offsets"))


def compare(kind: str, codes: np.ndarray, n_queries: int, n_scanned: int, repeat: int) -> list[dict]:
    """Return rows for one kind of codes. The scan answers ``n_scanned`` of the queries, and its time is scaled up."""
    rng = np.random.default_rng(1)
    flips = np.packbits(rng.random((n_queries, BITS)) < 1 / BITS, axis=1)
    queries = codes[rng.integers(len(codes), size=n_queries)] ^ flips
    small = HammingIndex(BITS)
    small.add(np.arange(10_000), codes[:10_000])
    small.build_radius(2)
    small.search(queries[:1], radius=2)  # compiled once, cached on disk
    index, plain = HammingIndex(BITS, n_threads=1), HammingIndex(BITS, n_threads=1)
    index.add(np.arange(len(codes)), codes)
    plain._groups = index._groups  # the same rows, without tables: not twice in memory
    peak, (building, taken) = peak_megabytes(lambda: timed(lambda: index.build_radius(2)))
    own = len(codes) * (8 + BITS // 8) / 1e6
    memory = f"tables {taken / 1e6:.0f} MB beside the {own:.0f} of ids and codes, {peak:.0f} at the peak of building"
    rows = []
    for radius in (0, 1, 2, 3, 4) if kind == "random" else (2,):
        hits = index.search(queries, radius=radius)
        assert same(index.search(queries[:n_scanned], radius=radius), plain.search(queries[:n_scanned], radius=radius))
        works = {
            "tables": lambda radius=radius: index.search(queries, radius=radius),
            "scan": lambda radius=radius: plain.search(queries[:n_scanned], radius=radius),
        }
        runs = in_turn(works, repeat)
        rows.append(
            row(
                f"radius-{radius}-{kind}",
                f"all within radius {radius}, {len(codes):,} × {BITS} bits ({kind}), {n_queries:,} queries, 1 thread",
                against="a scan of all codes",
                ours=middle(runs["tables"]) / n_queries * 1e6,
                theirs=middle(runs["scan"]) / n_scanned * 1e6,
                mark=MARK if radius <= 2 else "-",
                unit="µs/query",
                note=f"{ratio_spread(runs['tables'], runs['scan'], n_queries / n_scanned)}; "
                f"{len(hits.ids) / n_queries:.1f} hits a query; built in "
                f"{building.processor:.1f} processor seconds; {memory}",
            )
        )
        show(rows[-1])
    alone = {
        "tables": lambda: [index.search(queries[i : i + 1], radius=2) for i in range(200)],
        "scan": lambda: [plain.search(queries[i : i + 1], radius=2) for i in range(10)],
    }
    runs = in_turn(alone, repeat)
    rows.append(
        row(
            f"radius-2-{kind}-alone",
            f"all within radius 2, {len(codes):,} × {BITS} bits ({kind}), queries one by one, 1 thread",
            against="a scan of all codes",
            ours=middle(runs["tables"]) / 200 * 1e6,
            theirs=middle(runs["scan"]) / 10 * 1e6,
            mark=MARK,
            unit="µs/query",
            note=ratio_spread(runs["tables"], runs["scan"], 200 / 10),
        )
    )
    show(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=20_000_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--scanned", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the codes; write nothing")
    args = parser.parse_args()
    n = args.items // 20 if args.quick else args.items
    rows = compare("random", random_codes(n, BITS, seed=0), args.queries, args.scanned, args.repeat)
    rows += compare("clustered", in_clusters(n, BITS, seed=0), args.queries, args.scanned, args.repeat)
    if not args.quick:
        write("radius_speed", rows)


if __name__ == "__main__":
    main()
