"""Full-ranking mAP: histograms against distances by matrix product and argsort.

    python benchmarks/evaluation_speed.py               # 2,000 queries, 184,577 items, 64 bits: NUS-WIDE's size
    python benchmarks/evaluation_speed.py --sorted 100  # sort for 100 queries only and scale the time up

The sorted way is what research code does: ±1 codes in float32, ``d = (n_bits − Q Bᵀ) / 2`` for blocks of
queries, ``argsort`` per query, cumulative precision. Both give the mAP of the same queries under the same
tie rule, compared here to 1e-9. A result file goes to ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from modalhash.codes import unpack_signs
from modalhash.evaluation.average_precision import average_precision
from modalhash.evaluation.measures import measure
from modalhash.evaluation.protocol import Protocol
from modalhash.evaluation.ranking import mean_average_precision, rank

RESULTS = Path(__file__).parent / "results"
CLASSES = 10
SORTED_AT_ONCE = 100


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
        for row in range(len(distances)):
            hits = relevant[row][np.argsort(distances[row], kind=kind)]
            precision = np.cumsum(hits) / ranks
            out[start + row] = (precision * hits).sum() / max(hits.sum(), 1)
    return out


def all_measures(case, n_bits: int, ties: str):
    """MAP, P@N, recall@N and both curves."""
    return measure(rank(*case, n_bits=n_bits), Protocol(ties=ties))


def best(function, *args, repeat: int = 1, **kwargs):
    """Shortest of several runs, and the value."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        value = function(*args, **kwargs)
        seconds.append(time.perf_counter() - start)
    return min(seconds), value


PEAK = """
import ctypes, sys, threading
sys.path.insert(0, {folder!r})
import numpy as np
from evaluation_speed import draw
from modalhash.evaluation import Protocol, measure, rank

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

def peak(work):
    # a thread watches while the kernels run without the interpreter's lock
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the allocator keeps would hide what is taken
    seen, done = [resident()], threading.Event()
    def watch():
        while not done.is_set():
            seen.append(resident())
            done.wait(0.001)
    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(seen) - seen[0], len(seen)

case = draw({queries}, {items}, {bits}, 0)
small = [part[:50] for part in case]
measure(rank(*small, n_bits={bits}), Protocol(ties={ties!r}))  # load numba and the kernels
check, _ = peak(lambda: np.sort(np.ones(2_500_000)))  # 20 MB and a copy: what the watcher sees if it works
assert 30 < check < 60, check
print(*peak(lambda: measure(rank(*case, n_bits={bits}), Protocol(ties={ties!r}))))
"""


def peak_megabytes(args: argparse.Namespace, ties: str) -> float:
    """Memory that all measures together take on top of their input, watched in a process of its own."""
    code = PEAK.format(
        folder=str(Path(__file__).parent), queries=args.queries, items=args.items, bits=args.bits, ties=ties
    )
    out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(out.split()[0])


def environment() -> dict[str, object]:
    import numba

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), cpu)
    versions = {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__}
    load = round(os.getloadavg()[0], 2)  # others at work on the machine slow both ways down, not equally
    return {"cpu": cpu, "cores": os.cpu_count(), "load": load, "numba_threads": numba.get_num_threads(), **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--items", type=int, default=184_577)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--sorted", type=int, default=2000, help="queries to sort for; the time is scaled up")
    parser.add_argument("--output", type=Path, default=RESULTS / "evaluation_speed.json")
    args = parser.parse_args()

    query_codes, query_labels, codes, labels = case = draw(args.queries, args.items, args.bits, seed=0)
    small = [part[:50] for part in case]
    report: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "queries": args.queries,
        "items": args.items,
        "bits": args.bits,
        **environment(),
    }
    some = min(args.sorted, args.queries)
    found: dict[str, float] = {}
    for ties in ("expected", "stable"):
        mean_average_precision(*small, n_bits=args.bits, ties=ties)  # compiled once, cached on disk
        found[ties], value = best(mean_average_precision, *case, n_bits=args.bits, ties=ties, repeat=5)
        report[f"seconds_{ties}"], report[f"map_{ties}"] = round(found[ties], 4), value
        seconds, _ = best(all_measures, case, args.bits, ties, repeat=3)
        report[f"seconds_{ties}_all_measures"] = round(seconds, 4)
        print(f"histograms, ties {ties}: mAP {value:.6f} in {found[ties]:.3f} s; all measures in {seconds:.3f} s")
    for kind in ("quicksort", "stable"):
        seconds, each = best(sorted_way, query_codes[:some], query_labels[:some], codes, labels, args.bits, kind)
        scaled = seconds * args.queries / some
        report[f"seconds_argsort_{kind}"] = round(scaled, 2)
        note = "" if some == args.queries else f" (scaled up from {some} queries)"
        print(f"matrix product and argsort ({kind}): {scaled:.1f} s{note}")
        for ties, ours in found.items():
            report[f"ratio_{ties}_over_{kind}"] = round(scaled / ours, 1)
            print(f"  {scaled / ours:.0f} times the time of histograms with ties {ties}")
        if kind == "stable":
            ours = average_precision(rank(query_codes[:some], query_labels[:some], codes, labels), ties="stable")
            difference = float(np.abs(ours - each).max())
            assert difference < 1e-9, difference
            report["largest_difference_to_argsort"] = difference
    for ties in ("expected", "stable"):
        report[f"peak_extra_megabytes_{ties}"] = round(peak_megabytes(args, ties), 1)
        print(f"peak extra memory, ties {ties}: {report[f'peak_extra_megabytes_{ties}']} MB")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {args.output}")


if __name__ == "__main__":
    main()
