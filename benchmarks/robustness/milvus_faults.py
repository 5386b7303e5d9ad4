"""Search on Milvus, under changes and faults: equal to the index in memory, nothing acknowledged lost or doubled.

    python benchmarks/robustness/milvus_faults.py                       # some 25 minutes; needs `make milvus`
    python benchmarks/robustness/milvus_faults.py --searches 500 --kills 4
    python benchmarks/robustness/milvus_faults.py --posts 0 --kills 0   # only the comparison of searches

1. A store in PostgreSQL is changed at random while its codes are followed in Milvus. Between the changes, searches on
   Milvus (k, radius, shortlists with ties; groups, ids) are compared with those of an index in memory.
2. Two services on one Milvus and one PostgreSQL: what is posted to one is found through the other at the next search.
3. Under a client that posts and searches without a pause, one of two services, PostgreSQL or Milvus is killed and
   started again, many times. In the end, all that was acknowledged is there once, and the codes in Milvus are those of
   the store. One of the services is the one that writes to Milvus, so its successor is killed too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "speed"), str(ROOT / "tests")]

from modalhash.engine import Engine, refresh  # noqa: E402
from modalhash.engine.storage.milvus_follower import Followed, MilvusFollower  # noqa: E402
from modalhash.index import HammingIndex, Milvus, MilvusCollection, MilvusIndex  # noqa: E402
from modalhash.store import PostgresStore, Record, Revision  # noqa: E402

N_BITS, N_CENTRES = 32, 40
PATIENCE = 120.0
"""Seconds after which something hangs."""


# -- equal to the index in memory


class Changing:
    """A store that changes, with an index in memory and one on Milvus that follow it."""

    def __init__(self, postgres: Any, milvus: Any) -> None:
        self.rng = np.random.default_rng(0)
        self.centres = self.rng.integers(0, 256, (N_CENTRES, N_BITS // 8), dtype=np.uint8)
        self.store = PostgresStore(postgres.url, schema="changing", n_bits=N_BITS)
        collection = MilvusCollection(Milvus(milvus.uri), "changing_codes", N_BITS, {"engine": "changing"})
        part = Followed(collection, lambda since, until: self.store.codes(since=since, until=until))
        self.follower = MilvusFollower(self.store, [part], replaced={}, lead=True)
        self.plain, self.reached = HammingIndex(N_BITS), None
        self.index, self.in_milvus, self.since = MilvusIndex(collection), None, None
        self.added, self.ids, self.counts = 0, [], Counter()

    def codes(self, n: int) -> np.ndarray:
        """Draw codes near centres, of which many are equal."""
        flips = self.rng.random((n, N_BITS)) < self.rng.choice([0, 0.02, 0.1], (n, 1))
        return self.centres[self.rng.integers(N_CENTRES, size=n)] ^ np.packbits(flips, axis=1)

    def change(self) -> None:
        if self.rng.random() < 0.7 or len(self.ids) < 500:
            codes = self.codes(int(self.rng.choice([1, 20, 400])))
            names = [f"{self.added + n}" for n in range(len(codes))]
            self.added += len(codes)
            modalities = self.rng.choice(["image", "text", "sound"], len(codes))
            self.ids += list(zip(modalities.tolist(), names, strict=True))
            self.store.add(
                Record(id, modality, code) for (modality, id), code in zip(self.ids[-len(codes) :], codes, strict=True)
            )
            self.counts["added"] += len(codes)
        else:
            self.rng.shuffle(self.ids)
            n = int(self.rng.choice([1, 20, 200]))
            gone, self.ids = [tuple(key) for key in self.ids[:n]], self.ids[n:]
            self.counts["removed"] += self.store.remove(gone)

    def follow(self) -> None:
        self.reached = refresh(self.plain, self.store, self.reached)
        states = self.follower.newer(self.in_milvus)
        if states is not None:
            self.index, self.in_milvus = MilvusIndex(self.follower.parts[0].collection, states[0]), states
            self.since = Revision(*states[0][1:3])
            self.counts["bases"] += 1
        self.since = refresh(self.index, self.store, self.since)

    def compare(self) -> None:
        queries = self.codes(1)
        group = [None, 1, (1, 3), 2][self.rng.integers(4)]
        among = (
            None if self.rng.random() < 0.7 else self.rng.integers(1, self.added + 2, int(self.rng.choice([20, 2000])))
        )
        how = self.rng.integers(3)
        k = int(self.rng.choice([1, 10, 100, 1000]))

        def ask(index: Any) -> Any:
            if how == 0:
                return index.search(queries, k=k, ids=among, group=group)
            if how == 1:
                return index.search(queries, radius=k % 9, ids=among, group=group)
            return index.shortlist(queries, k, max_hits=8 * k, ids=among, group=group)

        found, expected = ask(self.index), ask(self.plain)
        assert np.array_equal(found.ids, expected.ids), (how, k, group)
        assert np.array_equal(found.distances, expected.distances)
        self.counts["searches"] += 1
        self.counts["in_memory_too"] += len(self.index._recent) > 0


def compare_searches(postgres: Any, milvus: Any, searches: int) -> dict[str, Any]:
    changing = Changing(postgres, milvus)
    begin = time.monotonic()
    while changing.counts["searches"] < searches:
        changing.change()
        for _ in range(int(changing.rng.integers(1, 20))):
            changing.follow()
            changing.compare()
        print(dict(changing.counts), flush=True)
    changing.follower.close()
    counts = {**changing.counts, "left": len(changing.store)}
    changing.store.close()
    return {"what": "equal to HammingIndex", **counts, "seconds": round(time.monotonic() - begin)}


# -- services


class Serving:
    """``modalhash serve`` on Milvus, in a process of its own that may be killed."""

    def __init__(self, engine: Path, url: str, uri: str) -> None:
        self._engine, self._environment = (
            engine,
            {**os.environ, "MODALHASH_DATABASE_URL": url, "MODALHASH_MILVUS_URI": uri},
        )
        self.start()

    def start(self) -> None:
        code = "from modalhash.cli import main; main()"
        options = ["serve", str(self._engine), "--port", "0", "--writable", "--quiet", "--index", "milvus"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2] or 0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and answer; 0 if there is no connection."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, HTTPException, json.JSONDecodeError):
            return 0, {}
        finally:
            connection.close()


def post_and_find(services: list[Serving], posts: int) -> dict[str, Any]:
    found = 0
    for number in range(posts):
        text = f"a red ball number {number}"
        here, there = services[number % 2], services[1 - number % 2]
        status, _ = here.ask("POST", "/items", {"id": f"post-{number}", "text": text})
        assert status == 201, status
        status, answer = there.ask("POST", "/search", {"text": text, "want": "text", "k": 20})
        assert status == 200, answer
        found += f"post-{number}" in [hit["id"] for hit in answer["hits"]]
    return {"what": "posted to one service, found through the other", "posted": posts, "found": found}


class Load:
    """A client that posts, removes and searches without a pause."""

    def __init__(self, services: list[Serving]) -> None:
        self.services, self.counts = services, Counter()
        self.there: set[str] = set()
        self.unknown: set[str] = set()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        draw, number = random.Random(0), 0
        while not self.stop.is_set():
            service, number = draw.choice(self.services), number + 1
            id, own = f"load-{number}", sorted(self.there)
            if own and draw.random() < 0.2:
                id = draw.choice(own)
                status, _ = service.ask("DELETE", f"/items/{id}")
                self.there.discard(id)
                if status != 200:
                    self.unknown.add(id)
            else:
                status, _ = service.ask("POST", "/items", {"id": id, "text": f"a red ball in load {number}"})
                (self.there if status == 201 else self.unknown).add(id)
            self.counts[f"change {status}"] += 1
            status, answer = service.ask(
                "POST", "/search", {"text": f"a red ball in load {number}", "want": "text", "k": 20}
            )
            self.counts[f"search {status}"] += 1
            if status == 200 and id in self.there:
                self.counts["not found at once"] += id not in [hit["id"] for hit in answer["hits"]]


def kill_many(engine: Path, services: list[Serving], postgres: Any, milvus: Any, kills: int) -> dict[str, Any]:
    load, draw, killed, recovered = Load(services), random.Random(1), Counter(), []
    for _ in range(kills):
        what = draw.choices(["service", "PostgreSQL", "Milvus"], [5, 3, 2])[0]
        time.sleep(draw.uniform(0.2, 3))
        begin = time.monotonic()
        if what == "service":
            one = draw.choice(services)
            one.kill()
            one.start()
        elif what == "PostgreSQL":
            postgres.stop()
            postgres.start()
        else:
            milvus.kill()
            milvus.start()
        while any(service.ask("POST", "/search", {"text": "a red ball"})[0] != 200 for service in services):
            assert time.monotonic() < begin + PATIENCE, f"no recovery after {what}"
            time.sleep(0.1)
        recovered.append(time.monotonic() - begin)
        killed[what] += 1
        print(what, round(recovered[-1], 1), dict(load.counts), flush=True)
    load.stop.set()
    load.thread.join()
    return {
        "what": "kills under load",
        "kills": dict(killed),
        "requests": dict(sorted(load.counts.items())),
        "seconds_to_recover": {"median": round(float(np.median(recovered)), 1), "longest": round(max(recovered), 1)},
        "acknowledged": len(load.there),
        **compare_with_truth(engine, postgres, load),
    }


def compare_with_truth(engine: Path, postgres: Any, load: Load) -> dict[str, Any]:
    """Compare the store with what was acknowledged, and Milvus with the store."""
    with (
        Engine.open(engine, database=postgres.url, backend="milvus") as opened,
        Engine.open(engine, database=postgres.url) as plain,
    ):
        ids = Counter(record.id for record in plain.items() if record.id.startswith("load-"))
        lost = load.there - ids.keys() - load.unknown
        invented = ids.keys() - load.there - load.unknown
        end = time.monotonic() + PATIENCE
        while not all(
            part.state and part.state[1:3] == tuple(plain.store.revision()) for part in opened._follower.parts
        ):
            assert time.monotonic() < end, opened._follower.problem
            time.sleep(0.1)
        (codes, *_) = opened._follower.parts
        stored = {
            n: (bytes(c), g)
            for ns, gs, cs in plain.store.codes()
            for n, g, c in zip(ns.tolist(), gs.tolist(), cs, strict=True)
        }
        in_milvus = codes.collection.codes(codes.state.name, np.arange(1, plain.store.revision().items + 1))
        searches = [
            {"text": f"a red ball in load {n}", "k": 50, "refine": refine}
            for n in range(50)
            for refine in (True, False)
        ]
        differing = sum(opened.search(**search) != plain.search(**search) for search in searches)
        return {
            "lost": len(lost),
            "not_removed_or_invented": len(invented),
            "doubled": sum(n > 1 for n in ids.values()),
            "in_milvus": codes.collection.count(codes.state.name),
            "in_store": len(stored),
            "codes_differ": sum(stored.get(n) != in_milvus.get(n) for n in stored.keys() | in_milvus.keys()),
            "searches_that_differ": differing,
            "searches_compared": len(searches),
        }


def joined(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that were written before, where there is no new one, and the new ones."""
    before = json.loads((ROOT / "benchmarks" / "results" / "milvus_faults.json").read_text())["rows"]
    return [row for row in before if row["what"] not in {new["what"] for new in rows}] + rows


def main() -> None:
    from little_world import make_world
    from milvus_server import MilvusServer
    from postgres_server import PostgresServer, find_programs
    from record import commit, write

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=10_000)
    parser.add_argument("--posts", type=int, default=100)
    parser.add_argument("--kills", type=int, default=50)
    args = parser.parse_args()
    postgres, milvus = PostgresServer(*find_programs(), durable=True), MilvusServer()
    os.environ["MODALHASH_MILVUS_URI"] = milvus.uri
    folder = Path(tempfile.mkdtemp())
    rows, services = [], []
    try:
        if args.posts or args.kills:
            make_world(folder)
            Engine.train(folder / "items.csv", folder / "engine", n_bits=16, store=postgres.url).close()
            services = [Serving(folder / "engine", postgres.url, milvus.uri) for _ in range(2)]
        steps = (
            (args.posts, lambda: post_and_find(services, args.posts)),
            (args.kills, lambda: kill_many(folder / "engine", services, postgres, milvus, args.kills)),
            (args.searches, lambda: compare_searches(postgres, milvus, args.searches)),
        )
        for number, step in steps:
            if number:
                rows.append({**step(), "commit": commit()})
                print(json.dumps(rows[-1]), flush=True)
                write("milvus_faults", joined(rows))
    finally:
        for service in services:
            service.kill()
        milvus.close()
        postgres.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
