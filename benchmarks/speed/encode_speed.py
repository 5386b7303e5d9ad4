"""Photos of IAPR TC-12 encoded into files, in this process, in two of this machine, and on two Dask workers over TCP.

    python benchmarks/speed/encode_speed.py [--photos 6000] [--records 200000] [--quick]

The three ways take turns, and the shortest of each counts. Processes of this machine are started and ended within the
time, the scheduler and its workers are there before it. Then rows of such files are added to an engine in SQLite.

Results go to benchmarks/results/encode_speed.json. Needs the data set with its pictures, and the extra dask.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from distributed import LocalCluster
from modalhash import Engine
from modalhash.data import data_root
from modalhash.engine import Item
from modalhash.engine.storage.code_files import CodeRow, codes_as_bytes, engine_identity
from record import write
from speed_rows import best, in_turn, timed

N_TRAINED, PART_SIZE = 1000, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", type=int, default=6000)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="once, on a few; write nothing")
    args = parser.parse_args()
    photos, records, repeat = (600, 20_000, 1) if args.quick else (args.photos, args.records, args.repeat)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        train(folder, photos)
        rows = [*encode(folder, photos, repeat), add(folder, records)]
    for row in rows:
        print(json.dumps(row))
    if not args.quick:
        write("encode_speed", rows)


def train(folder: Path, photos: int) -> None:
    """Unpack photos, and train an engine on the first of them and on their German captions."""
    source = data_root() / "iapr-tc12"
    lines = [json.loads(line) for line in (source / "items.jsonl").read_text(encoding="utf-8").splitlines()]
    with zipfile.ZipFile(source / "images.zip") as archive:
        archive.extractall(folder / "photos", members=[line["image"] for line in lines[:photos]])
    some = lines[:N_TRAINED]
    items = [
        {"id": line["id"], "path": str(folder / "photos" / line["image"]), "labels": line["labels"]} for line in some
    ]
    items += [{"id": line["id"], "text": line["caption_de"], "labels": line["labels"]} for line in some]
    Engine.train(items, folder / "engine", n_bits=64).close()


def encode(folder: Path, photos: int, repeat: int) -> list[dict[str, Any]]:
    with (
        Engine.open(folder / "engine", read_only=True) as engine,
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
    ):

        def run(name: str, **where: Any) -> None:
            shutil.rmtree(folder / name, ignore_errors=True)
            done = engine.encode_to(folder / "photos", folder / name, part_size=PART_SIZE, **where)
            assert (done.inputs, done.n_problems) == (photos, 0)

        run("warm", scheduler=cluster.scheduler_address)  # workers import what they need
        ways = {
            "one process": lambda: run("one", workers=1),
            "two processes": lambda: run("two", workers=2),
            "two workers over TCP": lambda: run("tcp", scheduler=cluster.scheduler_address),
        }
        runs = in_turn(ways, repeat)
    files = {file.name: file.read_bytes() for file in (folder / "one").iterdir()}
    for name in ("two", "tcp"):
        assert files == {file.name: file.read_bytes() for file in (folder / name).iterdir()}
    alone = best(runs["one process"])
    return [
        {
            "measure": name,
            "photos": photos,
            "seconds": round(best(own), 2),
            "photos_per_second": round(photos / best(own), 1),
            "ratio": round(alone / best(own), 2),
            "files_equal": True,
        }
        for name, own in runs.items()
    ]


def add(folder: Path, records: int) -> dict[str, Any]:
    """Add rows with codes and vectors of the engine's lengths, drawn at random, to the engine."""
    rng = np.random.default_rng(0)
    with Engine.open(folder / "engine") as engine:
        width, identity = engine.refinement.width("image"), engine_identity(engine.config)
        files = []
        for start in range(0, records, 2048):
            n = min(2048, records - start)
            codes = rng.integers(0, 256, (n, 8), dtype=np.uint8)
            vectors = rng.integers(-127, 128, (n, width), dtype=np.int8)
            ids = [f"more/{start + i}.jpg" for i in range(n)]
            rows = [
                CodeRow(Item("image", id, uri=f"/photos/{id}", labels=("boat", "sea")), code=code, refinement=vector)
                for id, code, vector in zip(ids, codes, vectors, strict=True)
            ]
            files.append(folder / f"{start:08d}.parquet")
            files[-1].write_bytes(codes_as_bytes(rows, identity))
        run, done = timed(lambda: engine.add(files))
        assert done.added == records
    return {
        "measure": "records added to SQLite from Parquet",
        "records": records,
        "seconds": round(run.seconds, 2),
        "records_per_second": round(records / run.seconds),
        "records_per_processor_second": round(records / run.processor),
    }


if __name__ == "__main__":
    main()
