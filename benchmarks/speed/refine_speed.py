"""A refined top-24 against a plain one, at a million items: scans with vectors alone, and whole answers of an engine.

The codes are random, which is the hardest case for a shortlist: thousands of items are about as near as the k-th.

    python benchmarks/speed/refine_speed.py [--items 1000000]

Results go to benchmarks/results/refine_speed.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from modalhash import Engine
from modalhash.data import generate
from modalhash.engine import SearchOptions
from modalhash.store import Record
from record import write

QUERIES, ROUNDS, TOP = 100, 15, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    n = parser.parse_args().items
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        data = generate(n_items=600, n_classes=80, n_features={"image": 128, "text": 128}, seed=0)
        with Engine.train(data.dataset(), Path(folder) / "engine", n_bits=64, codes="hashed") as engine:
            fill(engine, n, rng)
            measure(engine, data.X, n)


def fill(engine: Engine, n: int, rng: np.random.Generator) -> None:
    """Add items with random codes and vectors, half of them images and half texts, past the encoders."""
    width = {name: engine.refinement.width(name) for name in ("image", "text")}
    for start in range(0, n, 50_000):
        size = min(50_000, n - start)
        codes = rng.integers(0, 256, (size, 8), dtype=np.uint8)
        vectors = rng.integers(-127, 128, (size, 128), dtype=np.int8)
        names = ["image" if i % 2 else "text" for i in range(size)]
        engine.store.add(
            Record(f"r{start + i}", name, codes[i], refinement=vectors[i, : width[name]].tobytes())
            for i, name in enumerate(names)
        )
    start = time.perf_counter()
    engine.refresh()
    print(f"{len(engine):,} items, taken into the index in {time.perf_counter() - start:.1f} s")


def measure(engine: Engine, X: Any, n: int) -> None:
    """Time plain and refined answers in turn, one query after the other."""
    queries = engine.prepare(features=X["text"][:QUERIES], modality="text")
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (QUERIES, 8), dtype=np.uint8)  # as random as the items'
    queries = [replace(query, code=code) for query, code in zip(queries, codes, strict=True)]
    rows = []
    for want in ("image", "text", None):
        options = {what: SearchOptions(k=TOP, want=want, refine=what == "refined") for what in ("plain", "refined")}

        def ask(what: str, row: int, options: dict[str, SearchOptions] = options) -> None:
            engine.answer([queries[row]], options[what])

        seconds = best_of(ask)
        ratio = seconds["refined"] / seconds["plain"]
        rows.append(
            {
                "measure": f"engine, top-{TOP} of {n:,}, text query, want {want or 'all'}",
                "plain_us": round(1e6 * seconds["plain"]),
                "refined_us": round(1e6 * seconds["refined"]),
                "ratio": round(ratio, 2),
                "reach": "<= 2 x",
                "met": ratio <= 2,
            }
        )
        print(rows[-1], flush=True)
    write("refine_speed", rows)


def best_of(ask: Callable[[str, int], None]) -> dict[str, float]:
    """Return the median seconds of a query, of the best of several rounds in turn.

    Seconds of the processor: both kinds of answer run in one thread, and what else the machine does stays out.
    """
    best = {"plain": np.inf, "refined": np.inf}
    for _ in range(ROUNDS):
        for what in best:
            times = []
            for row in range(QUERIES):
                start = time.thread_time()
                ask(what, row)
                times.append(time.thread_time() - start)
            best[what] = min(best[what], float(np.median(times)))
    return best


if __name__ == "__main__":
    main()
