"""Near-duplicates of a million vectors: random ones, and one in a hundred planted as a changed copy of another.

    python benchmarks/speed/duplicates_speed.py            # 1,000,000 vectors of 64 values
    python benchmarks/speed/duplicates_speed.py --quick    # a tenth of them, nothing is written

All planted copies have to be found and nothing else.
"""

from __future__ import annotations

import argparse

import numpy as np

from modalhash.engine import DUPLICATE_RADIUS, DUPLICATE_THRESHOLD
from modalhash.engine.search.near_duplicates import group_vectors
from record import write
from speed_rows import peak_megabytes, row, show, timed

WIDTH = 64


def planted(n: int) -> tuple[np.ndarray, set[tuple[int, int]]]:
    """Return random vectors with changed copies of some at their end, and the pairs."""
    rng = np.random.default_rng(0)
    n_copies = n // 100
    vectors = np.rint(rng.normal(0, 35, (n, WIDTH))).clip(-127, 127).astype(np.int8)
    sources = rng.permutation(n - n_copies)[:n_copies]
    changed = vectors[sources] + np.rint(rng.normal(0, 3, (n_copies, WIDTH)))
    vectors[n - n_copies :] = changed.clip(-127, 127).astype(np.int8)
    return vectors, set(zip(sources.tolist(), range(n - n_copies, n), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    n = 100_000 if quick else 1_000_000
    vectors, pairs = planted(n)

    def find(some: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        return group_vectors(some, radius=DUPLICATE_RADIUS, threshold=DUPLICATE_THRESHOLD)

    find(vectors[:50_000])  # compiled once, cached on disk
    peak, (taken, groups) = peak_megabytes(lambda: timed(lambda: find(vectors)))
    assert {tuple(rows.tolist()) for rows, _ in groups} == pairs
    rows = [
        row(
            f"duplicates-{n}",
            f"near-duplicates of {n:,} vectors of {WIDTH} values, {len(pairs):,} planted copies, all found",
            against="",
            ours=taken.processor,
            theirs=None,
            mark="-",
            unit="s",
            note=f"processor time; radius {DUPLICATE_RADIUS}, cosine {DUPLICATE_THRESHOLD}; "
            f"{taken.seconds:.0f} s on the clock; {peak:.0f} MB at the peak beside {vectors.nbytes / 1e6:.0f} given",
        )
    ]
    show(rows[0])
    if not quick:
        write("duplicates_speed", rows)


if __name__ == "__main__":
    main()
