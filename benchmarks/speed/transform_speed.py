"""Hashing new items: ``AMSH.transform`` against the matrix products that it cannot do without.

    python benchmarks/speed/transform_speed.py            # 200,000 items of 500 features, 64 bits, 1,500 anchors
    python benchmarks/speed/transform_speed.py --quick    # a tenth of the items, nothing is written

The floor is one float32 product for the distances to the anchors and one for the projection, of the same shapes, into
arrays that are there already, in blocks of the best of four sizes. Norms, exponentials, centring, signs and packing,
and the check of the input, are what ``transform`` adds. CSR input (2 % of the values are set, as in tags)
is held against the same floor. The items come in ten parts, each timed in turn with its floor: what counts is the sum
over the parts of the shortest times. A dense ratio below 1 cannot be, and means that the floor was disturbed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from modalhash import AMSH
from record import write
from speed_rows import best, in_turn, row, show, timed

FEATURES, ANCHORS, BITS, CLASSES, TRAINING, PARTS = 500, 1500, 64, 10, 4000, 10


def draw(n: int):
    """Dense features around a centre for each class, and tags that the class makes likelier."""
    rng = np.random.default_rng(0)
    classes = rng.integers(CLASSES, size=n)
    dense = rng.normal(size=(n, FEATURES)).astype(np.float32)
    dense += rng.normal(size=(CLASSES, FEATURES)).astype(np.float32)[classes]
    chosen = (rng.integers(FEATURES // CLASSES, size=(n, FEATURES // 50)) + 50 * classes[:, None]) % FEATURES
    tags = sparse.csr_array((np.ones(chosen.size, np.float32), chosen.ravel(), np.arange(0, chosen.size + 1, 10)))
    tags.resize((n, FEATURES))
    tags.sum_duplicates()
    return dense, tags, np.eye(CLASSES, dtype=bool)[classes]


def products(X, size: int) -> Callable[[], None]:
    """The two products, in blocks of ``size`` rows."""
    rng = np.random.default_rng(1)
    anchors = rng.normal(size=(FEATURES, ANCHORS)).astype(np.float32)
    functions = rng.normal(size=(ANCHORS, BITS)).astype(np.float32)
    values, out = np.empty((size, ANCHORS), np.float32), np.empty((len(X), BITS), np.float32)

    def work() -> None:
        for start in range(0, len(X), size):
            block = X[start : start + size]
            np.matmul(block, anchors, out=values[: len(block)])
            np.matmul(values[: len(block)], functions, out=out[start : start + size])

    return work


def best_block(X) -> int:
    """Rows of a block with which the products are fastest, tried on part of the items."""
    part = X[:20_000]
    sizes = (1000, 2000, 5000, 10_000)
    return min(sizes, key=lambda size: min(timed(products(part, size))[0].seconds for _ in range(5)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the items; write nothing")
    args = parser.parse_args()
    n = args.items // 10 if args.quick else args.items
    dense, tags, labels = draw(n)
    X = {"dense": dense, "tags": tags}
    few = {name: values[:TRAINING] for name, values in X.items()}
    model = AMSH(BITS, n_anchors=ANCHORS, random_state=0).fit(few, dict.fromkeys(few, labels[:TRAINING]))
    rows = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            size = best_block(dense)
            seconds = dict.fromkeys(("floor", *X), 0.0)
            for part in np.array_split(np.arange(n), PARTS):
                mine = slice(int(part[0]), int(part[-1]) + 1)
                works = {name: (lambda name=name, mine=mine: model.transform({name: X[name][mine]})) for name in X}
                runs = in_turn({"floor": products(dense[mine], size), **works}, args.repeat)
                seconds = {name: total + best(runs[name]) for name, total in seconds.items()}
        for name, kind in (("dense", "dense"), ("tags", "CSR, 2 % set")):
            disturbed = name == "dense" and seconds[name] < seconds["floor"]
            line = row(
                f"transform-{name}-{threads}",
                f"transform, {n:,} × {FEATURES} ({kind}) → {BITS} bits, {threads} BLAS thread{'s'[: threads > 1]}",
                against="float32 products alone",
                ours=seconds[name],
                theirs=seconds["floor"],
                mark="<= 1.6 x",
                note=f"{PARTS} parts, best of {args.repeat} in turn for each"
                + ("; below the floor: the machine was disturbed, measure again" if disturbed else ""),
            )
            rows.append({**line, "met": line["met"] and not disturbed})
            show(rows[-1])
    if not args.quick:
        write("transform_speed", rows)


if __name__ == "__main__":
    main()
