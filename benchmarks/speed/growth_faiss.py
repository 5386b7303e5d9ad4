"""How search grows with the number of codes, beside FAISS: flat, inverted lists and HNSW at equal recall.

    python benchmarks/speed/growth_faiss.py --folder F --build    # codes and indexes of FAISS; an hour or more
    python benchmarks/speed/growth_faiss.py --folder F            # measures them; some ten minutes, 8 GB
    python benchmarks/speed/growth_faiss.py --quick               # a hundredth of the codes; writes nothing

Codes of 64 bits lie around 1,000 centres, as in :mod:`growth`, in a file that is memory-mapped while indexes are filled
from it. Ours is written as a snapshot, and read from it. It is measured a second time with clusters
(``build_clusters``), which is as exact; what these take is in their rows. Queries are such codes, none of them in the
index, and 100 hits are wanted: one query at a time, and 128 together, with one thread on either side. An approximate
index gets the least effort (lists read, or length of HNSW's queue) that finds 0.95 of the exact answer for 512 other
queries, by so much more that it finds that much for the timed ones too, but for one time in 40; its recall for these is
in the row. A hit counts as found if it is no farther away than the k-th of the exact answer: which of equally near
items comes is open.

Works take turns, and the median counts. Results go to benchmarks/results/growth_faiss.json, and from there to the
table. This is not part of ``make bench``, which has twenty minutes.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before FAISS is loaded, or its threads spin

import faiss
import numpy as np

from growth import BITS, BLOCK, SIZES, make_codes
from modalhash.index import HammingIndex, Snapshot, freeze, write_snapshot
from record import write
from speed_rows import in_turn, middle, row, show, timed

K, BATCH, N_ALONE, N_TUNING, RECALL = 100, 128, 20, 512, 0.95
LISTS = {1_000_000: 4096, 10_000_000: 8192, 100_000_000: 16384}
CODES_PER_LIST = 40  # to learn the centres of the lists from
HNSW_LINKS, HNSW_UP_TO = 32, 10_000_000
HNSW_BYTES = 2 * 4 * HNSW_LINKS + BITS // 8  # of an item: links on the lowest level, and the code
EFFORTS = {
    "lists": (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 256),
    "HNSW": (100, 140, 200, 280, 400, 570, 800, 1130, 1600, 2260, 3200, 4530, 6400, 9050, 12800, 25600),
}
OURS = {"ours": "exact", "clusters": "exact, with clusters,"}
NAMES = {"flat": "FAISS IndexBinaryFlat", "lists": "FAISS IndexBinaryIVF", "HNSW": "FAISS IndexBinaryHNSW"}


# -- building, which is not timed against anything


def codes_file(folder: Path, n: int) -> np.ndarray:
    """The codes, memory-mapped; they are made when the file is not there yet."""
    path = folder / f"codes-{n}.npy"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        codes = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.uint8, shape=(n, BITS // 8))
        for start in range(0, n, BLOCK):
            codes[start : start + BLOCK] = make_codes(min(BLOCK, n - start), seed=start)
        codes.flush()
        unfinished.rename(path)
    return np.load(path, mmap_mode="r")


def build(folder: Path, n: int) -> None:
    """Make the codes and FAISS's approximate indexes of them, each with the processor seconds that it took."""
    codes = codes_file(folder, n)
    if not (snapshot := snapshot_file(folder, n)).exists():
        write_snapshot(snapshot, freeze({"codes": filled(HammingIndex(BITS), codes)}, {}), {"items": n})
    for kind, made in (("lists", make_lists), ("HNSW", make_hnsw)):
        path = folder / f"{kind}-{n}.faiss"
        if path.exists() or (kind == "HNSW" and n > HNSW_UP_TO):
            continue
        run, index = timed(lambda made=made: made(codes))
        faiss.write_index_binary(index, str(path))
        about = {"processor_seconds": round(run.processor), "seconds": round(run.seconds), "bytes": path.stat().st_size}
        path.with_suffix(".json").write_text(json.dumps(about))
        print(f"{kind} of {n:,} codes: {about}", flush=True)


def snapshot_file(folder: Path, n: int) -> Path:
    return folder / f"ours-{n}.snapshot"


def filled(index: HammingIndex, codes: np.ndarray) -> HammingIndex:
    for start in range(0, len(codes), BLOCK):
        block = np.ascontiguousarray(codes[start : start + BLOCK])
        index.add(np.arange(start, start + len(block)), block)
    return index


def make_lists(codes: np.ndarray) -> Any:
    """Inverted lists. Which list a code belongs to is looked up by HammingIndex, which is faster and equally exact."""
    n_lists = LISTS.get(len(codes), 256)
    quantizer = faiss.IndexBinaryFlat(BITS)
    index = faiss.IndexBinaryIVF(quantizer, BITS, n_lists)
    chosen = np.random.default_rng(0).choice(len(codes), min(len(codes), CODES_PER_LIST * n_lists), replace=False)
    index.train(np.ascontiguousarray(codes[np.sort(chosen)]))
    centres = HammingIndex(BITS)
    centres.add(np.arange(n_lists), faiss.vector_to_array(quantizer.xb).reshape(n_lists, -1))
    for start in range(0, len(codes), BLOCK):
        block = np.ascontiguousarray(codes[start : start + BLOCK])
        lists = np.ascontiguousarray(centres.search(block, k=1).ids[:, 0])
        ids = np.arange(start, start + len(block))
        index.add_core(len(block), faiss.swig_ptr(block), faiss.swig_ptr(ids), faiss.swig_ptr(lists))
    return index


def make_hnsw(codes: np.ndarray) -> Any:
    index = faiss.IndexBinaryHNSW(BITS, HNSW_LINKS)
    for start in range(0, len(codes), BLOCK):
        index.add(np.ascontiguousarray(codes[start : start + BLOCK]))
        print(f"HNSW: {start + BLOCK:,}", flush=True)
    return index


# -- measuring


@contextmanager
def held(path: Path | None) -> Iterator[None]:
    """Hold the lock of a file, on a machine where others measure too."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(folder: Path, n: int, lock: Path | None) -> dict[str, Any]:
    """Seconds of one query, alone and in a batch, of every index there is for ``n`` codes."""
    faiss.omp_set_num_threads(1)
    codes = codes_file(folder, n)
    queries = make_codes(N_TUNING + BATCH, seed=2**40)
    tuning, asked = queries[:N_TUNING], queries[N_TUNING:]
    ours, flat = HammingIndex(BITS, n_threads=1), faiss.IndexBinaryFlat(BITS)
    Snapshot(snapshot_file(folder, n)).thaw({"codes": ours}, {})
    assert len(ours) == n
    for start in range(0, n, BLOCK):
        flat.add(np.ascontiguousarray(codes[start : start + BLOCK]))
    exact = ours.search(queries, k=K).distances
    assert (exact[:8] == flat.search(queries[:8], K)[0]).all(), (
        "both exact indexes find the same distances for 8 queries"
    )
    clustered = HammingIndex(BITS, n_threads=1)
    Snapshot(snapshot_file(folder, n)).thaw({"codes": clustered}, {})
    run, taken = timed(clustered.build_clusters)
    about: dict[str, Any] = {"clusters": {"processor_seconds": round(run.processor, 1), "bytes": taken}}
    same = clustered.search(asked, k=K), ours.search(asked, k=K)
    assert (same[0].ids == same[1].ids).all(), "clusters change nothing but the time"
    searches: dict[str, Callable[[np.ndarray], Any]] = {
        "ours": lambda some: ours.search(some, k=K),
        "clusters": lambda some: clustered.search(some, k=K),
        "flat": lambda some: flat.search(some, K),
    }
    for kind in ("lists", "HNSW"):
        path = folder / f"{kind}-{n}.faiss"
        if path.exists():
            index = faiss.read_index_binary(str(path))
            effort = tune(kind, index, tuning, exact[:N_TUNING])
            recall = float(found(index.search(asked, K)[0], exact[N_TUNING:]).mean())
            about[kind] = {"effort": effort, "recall": recall, **json.loads(path.with_suffix(".json").read_text())}
            searches[kind] = lambda some, index=index: index.search(some, K)
    singles = np.array_split(asked[:N_ALONE], N_ALONE)
    seconds: dict[str, dict[str, list[float]]] = {}
    for way, parts in (("alone", singles), ("batch", [asked])):
        works = {
            name: lambda search=search, parts=parts: [search(part) for part in parts]
            for name, search in searches.items()
        }
        with held(lock):
            runs = in_turn(works, 5 if n < SIZES[-1] else 3)
        asked_now = sum(map(len, parts))
        for name, own in runs.items():
            times = sorted(run.seconds / asked_now for run in own)
            seconds.setdefault(name, {})[way] = [middle(own) / asked_now, times[0], times[-1]]
    return {"items": n, "seconds": seconds, "about": about}


def tune(kind: str, index: Any, queries: np.ndarray, exact: np.ndarray) -> int:
    """Set the least effort that reaches the recall, for the timed queries too, or the greatest there is; return it.

    The mean of as many queries as are timed differs from that of these by chance: twice its standard error is added.
    """
    for effort in EFFORTS[kind]:
        if kind == "lists":
            index.nprobe = effort
        else:
            index.hnsw.efSearch = effort
        recalls = found(index.search(queries, K)[0], exact)
        if recalls.mean() - 2 * recalls.std() * (1 / len(recalls) + 1 / BATCH) ** 0.5 >= RECALL:
            break
    return effort


def found(distances: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Share of each exact answer that was found: hits no farther away than the k-th; missing ones have distance < 0."""
    distances = np.where(distances < 0, 2 * BITS, distances)
    return (distances <= exact[:, -1:]).mean(axis=1)


WAYS = {"alone": "queries one by one", "batch": f"{BATCH} queries together"}


def rows_of(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for way, how in WAYS.items():
        for one in measured:
            n = one["items"]
            for side, what in OURS.items():
                ours = one["seconds"][side][way]
                for kind, name in NAMES.items():
                    theirs = one["seconds"].get(kind, {}).get(way)
                    rows.append(
                        row(
                            f"growth-{n}-{kind}-{way}" if side == "ours" else f"growth-{n}-{side}-{kind}-{way}",
                            f"{what} top-{K}, {n:,} × {BITS} bits (clustered), {how}, 1 thread",
                            against=name,
                            ours=1e3 * ours[0],
                            theirs=None if theirs is None else 1e3 * theirs[0],
                            mark="-",
                            unit="ms/query",
                            note=note(one, kind, ours, theirs) + (clusters_note(one) if side == "clusters" else ""),
                        )
                    )
        for kind, name in {"ours": "HammingIndex", "clusters": "HammingIndex with clusters", **NAMES}.items():
            points = [(one["items"], one["seconds"][kind][way][0]) for one in measured if kind in one["seconds"]]
            if len(points) > 1:
                rows.append(
                    row(
                        f"growth-exponent-{kind}-{way}",
                        f"exponent of time from {points[0][0]:,} to {points[-1][0]:,} codes, {how}: {name}",
                        against="",
                        ours=float(np.polyfit(*np.log(np.array(points)).T, 1)[0]),
                        theirs=None,
                        mark="-",
                        unit="",
                        note="ms a query: " + ", ".join(f"{1e3 * seconds:.3g}" for _, seconds in points),
                    )
                )
    return rows


def clusters_note(one: dict[str, Any]) -> str:
    about = one["about"]["clusters"]
    return (
        f"; clusters built in {about['processor_seconds']:,} processor seconds, "
        f"{about['bytes'] / one['items']:.1f} bytes a code; same hits for all queries"
    )


def note(one: dict[str, Any], kind: str, ours: list[float], theirs: list[float] | None) -> str:
    n = one["items"]
    if theirs is None:
        return (
            f"not built: {n * HNSW_BYTES / 1e9:.0f} GB, and hours: 10,000,000 codes took half an hour of processor time"
            if kind == "HNSW"
            else "not built"
        )
    ranges = (
        f"ms from {1e3 * ours[1]:.3g} to {1e3 * ours[2]:.3g} against {1e3 * theirs[1]:.3g} to {1e3 * theirs[2]:.3g}"
    )
    if kind == "flat":
        return f"medians in turn, {ranges}; same distances for 8 queries"
    about = one["about"][kind]
    effort = f"{about['effort']} of {LISTS.get(n, 256):,} lists" if kind == "lists" else f"efSearch {about['effort']}"
    reached = "" if about["recall"] >= RECALL else f", below the {RECALL} that was wanted"
    built = "centres by FAISS, assignment by HammingIndex; built in" if kind == "lists" else "built in"
    return (
        f"recall {about['recall']:.3f}{reached} against 1 (exact); {effort}; {built} {about['processor_seconds']:,} "
        f"processor seconds, {about['bytes'] / n:.0f} bytes a code; medians in turn, {ranges}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for codes and indexes, 8 GB; a temporary one by default")
    parser.add_argument("--build", action="store_true", help="only build what is not there yet")
    parser.add_argument("--items", type=int, nargs="+", default=SIZES)
    parser.add_argument("--lock", type=Path, help="a file whose lock is held while something is timed")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the codes; write nothing")
    parser.add_argument("--one", type=int, metavar="ITEMS", help="print the times of one size as JSON")
    args = parser.parse_args()
    if args.one:
        times = json.dumps(measure(args.folder, args.one, args.lock))
        (args.folder / f"measured-{args.one}.json").write_text(times)  # hours of work should not hang on one pipe
        print(times)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        measured = []
        for n in args.items:
            size = n // 100 if args.quick else n
            build(folder, size)
            if not args.build:
                command = [sys.executable, __file__, "--folder", str(folder), "--one", str(size)]
                command += ["--lock", str(args.lock)] if args.lock else []
                printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                measured.append(json.loads(printed))
    rows = rows_of(measured) if measured else []
    for each in rows:
        show(each)
    if rows and not args.quick:
        write("growth_faiss", rows)


if __name__ == "__main__":
    main()
