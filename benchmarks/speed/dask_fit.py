"""A fit on a Dask cluster against the same fit in memory: results, time, processor time and memory.

    python benchmarks/speed/dask_fit.py                     # 100,000 items both ways, then 400,000 on workers
    python benchmarks/speed/dask_fit.py --large 0 --methods AMSH    # some of it; the other rows stay as they are
    python benchmarks/speed/dask_fit.py --items 20000 --large 0     # a quick look; nothing is written

A scheduler and two workers of one thread each, all processes of this machine that talk over TCP; the fit in memory has
two threads. Features lie in .npy shards of 20,000 rows, 150 and 500 wide, drawn around the prototypes of 24 labels.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from modalhash import AMSH
from modalhash.data import open_feature_files
from modalhash.methods.rlh import RLH

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from dask_cluster import Cluster
from record import RESULTS, write
from speed_rows import row, timed

WIDTHS = {"image": 150, "text": 500}
CLASSES, SHARD, NEW = 24, 20_000, 10_000
METHODS = {"AMSH": AMSH, "RLH": RLH}


def rows_of(name: str, shard: int, n: int) -> tuple[Any, Any]:
    """Features and labels of one shard of a modality."""
    width = WIDTHS[name]
    prototypes = np.random.default_rng(width).normal(size=(CLASSES, width)) * (2 / np.sqrt(width))
    rng = np.random.default_rng([width, shard])
    labels = rng.random((n, CLASSES)) < 0.08
    labels[np.arange(n), rng.integers(CLASSES, size=n)] = True
    noise = rng.standard_normal((n, width), dtype=np.float32) / np.float32(np.sqrt(width))
    return np.tanh(labels.astype(np.float32) @ prototypes.astype(np.float32) + noise), labels


def write_shards(folder: Path, items: int) -> None:
    for name in WIDTHS:
        for kind in ("features", "labels"):
            (folder / f"{name}-{kind}").mkdir(parents=True)
        for shard, start in enumerate(range(0, items, SHARD)):
            X, Y = rows_of(name, shard, min(SHARD, items - start))
            np.save(folder / f"{name}-features" / f"{shard:04}.npy", X)
            np.save(folder / f"{name}-labels" / f"{shard:04}.npy", Y)


def opened(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Features and labels as dask arrays."""
    return (
        {name: open_feature_files(folder / f"{name}-features") for name in WIDTHS},
        {name: open_feature_files(folder / f"{name}-labels") for name in WIDTHS},
    )


def status(pid: int, field: str) -> float:
    """A field of /proc in megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def compare(method: str, folder: Path, items: int) -> list[dict[str, Any]]:
    """The same fit both ways; rows of what must hold."""
    model = METHODS[method](64, n_anchors=1500, random_state=0)
    X, Y = ({name: values.compute() for name, values in part.items()} for part in opened(folder))
    new = {name: rows_of(name, 10**6, NEW)[0] for name in WIDTHS}
    here, _ = timed(lambda: model.fit(X, Y))
    codes, objective, hashed = dict(model.codes_), model.objective_["functions"], model.transform(new)
    del X, Y
    with Cluster(2, memory_limit="4GB") as cluster:
        client = cluster.client()
        client.run(_import_all)  # a worker that has just started loads its modules once
        X, Y = opened(folder)
        before = sum(processor_seconds(worker.pid) for worker in cluster.workers)
        there, _ = timed(lambda: model.fit(X, Y))
        used = sum(processor_seconds(worker.pid) for worker in cluster.workers) - before
        memory = max(status(worker.pid, "VmHWM") for worker in cluster.workers)
    wrong = sum(int((np.asarray(model.codes_[name]) != codes[name]).sum()) for name in WIDTHS)
    relative = max(abs(model.objective_["functions"][name][-1] / objective[name][-1] - 1) for name in WIDTHS)
    again = model.transform(new)
    flipped = sum(int(np.bitwise_count(again[name] ^ hashed[name]).sum()) for name in WIDTHS) / (2 * NEW * 64)
    what, size = f"{method}, {items:,} × (150 + 500), 1,500 anchors, 64 bits", "fit in memory, two threads"
    key = f"dask-{method.lower()}"
    note = f"workers took {memory:.0f} MB at most; the process that fits {there.processor:.1f} processor seconds"
    return [
        row(f"{key}-wall", f"{what}: clock", against=size, ours=there.seconds, theirs=here.seconds, mark="<= 2.2 x",
            note=note),
        row(f"{key}-processor", f"{what}: processor time of the workers", against=size, ours=used,
            theirs=here.processor, mark="<= 2 x"),
        {"row": f"{key}-results", "what": what, "learned bytes different": wrong,
         "objective, relative": float(relative), "bits of new items different": flipped,
         "met": wrong == 0 and relative <= 1e-6 and flipped <= 1e-4},
    ]  # fmt: skip


def _import_all() -> None:
    import modalhash.distributed.arrays
    import modalhash.methods.amsh
    import modalhash.methods.rlh  # noqa: F401


def large(method: str, folder: Path, items: int, limit: str) -> dict[str, Any]:
    """A fit of many items on workers with little memory, with every iteration that it has by default."""
    model = METHODS[method](64, n_anchors=1500, random_state=0)
    with Cluster(2, memory_limit=limit) as cluster:
        X, Y = opened(folder)
        run, _ = timed(lambda: model.fit(X, Y))
        memory = [status(worker.pid, "VmHWM") for worker in cluster.workers]
        used = sum(processor_seconds(worker.pid) for worker in cluster.workers)
        alive = sum(worker.poll() is None for worker in cluster.workers)
    what = f"{method}, {items:,} items, workers of {limit}"
    return {"row": f"dask-{method.lower()}-{items}-{limit}", "what": what,
            "seconds": round(run.seconds, 1), "processor seconds of workers": round(used, 1),
            "workers' memory, MB": [round(m) for m in memory], "workers alive": alive,
            "met": max(memory) <= 1500}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=400_000)
    parser.add_argument("--methods", nargs="+", default=["AMSH", "RLH"], choices=METHODS)
    parser.add_argument("--limits", nargs="+", default=["1.5GB", "1GB"])
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        if args.items:
            write_shards(Path(folder) / "small", args.items)
        if args.large:
            write_shards(Path(folder) / "large", args.large)
        for method in args.methods:
            if args.items:
                rows += compare(method, Path(folder) / "small", args.items)
                for each in rows[-3:]:
                    print(each, flush=True)
            for limit in args.limits if args.large else []:
                rows.append(large(method, Path(folder) / "large", args.large, limit))
                print(rows[-1], flush=True)
    if args.items in (0, 100_000) and args.large in (0, 400_000):
        measured = {each["row"] for each in rows}
        before = json.loads(file.read_text())["rows"] if (file := RESULTS / "dask_fit.json").exists() else []
        write(
            "dask_fit",
            sorted([*(each for each in before if each["row"] not in measured), *rows], key=itemgetter("row")),
        )


if __name__ == "__main__":
    main()
