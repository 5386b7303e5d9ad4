"""Codes in Milvus: filling a collection, exact searches against the index in memory, and BIN_IVF_FLAT.

    python benchmarks/speed/milvus_speed.py                     # a million codes; a few minutes; needs `make milvus`
    python benchmarks/speed/milvus_speed.py --items 20000 --quick

Codes of 64 bits lie around 1,000 centres as those of :mod:`growth`, or repeat as learned codes of labelled items do:
half of the items have one of 3,000 codes, frequent ones more often, the others differ from one of them in a few bits.
The 20 nearest are wanted, alone and in batches of 64; hits are compared with those of the index in memory, timed in
turn. *Filling* writes to Milvus and waits until it is indexed. Recall is that of ids, and of distances where ties may
be broken in another way. Labels as a field of Milvus are compared with the ids of a label's items, as
PostgreSQL says them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from growth import make_codes
from modalhash.index import HammingIndex, Milvus, MilvusCollection, MilvusIndex
from modalhash.index.milvus_collection import MOST_HITS
from record import write
from speed_rows import in_turn

BITS, K, BATCH, ALONE, BLOCK = 64, 20, 64, 30, 25_000
SHARES = (0.0001, 0.001, 0.01, 0.1, 0.5)
"""Of items that have a label."""


def repeated_codes(n: int, seed: int) -> np.ndarray:
    """Draw codes of which half are one of 3,000."""
    rng = np.random.default_rng(seed)
    own = np.random.default_rng(7).integers(0, 256, (3000, BITS // 8), dtype=np.uint8)
    codes = own[np.minimum(rng.zipf(1.3, n) - 1, 2999)]
    flips = np.packbits(rng.random((n, BITS)) < 0.08, axis=1)
    flips[rng.random(n) < 0.5] = 0
    return codes ^ flips


def fill(collection: MilvusCollection, codes: np.ndarray) -> tuple[Any, dict[str, float]]:
    """Write all codes to a new collection and wait for its index; return its state and seconds."""
    state, begin = collection.create(), time.perf_counter()
    ids = np.arange(1, len(codes) + 1)
    for start in range(0, len(codes), BLOCK):
        rows = slice(start, start + BLOCK)
        collection.write(state.name, ids[rows], codes[rows], ids[rows] % 2)
    state = collection.record(state._replace(items=len(codes)))
    written = time.perf_counter() - begin
    collection.server.call("flush", state.name, seconds=600)
    collection.server.call("release_collection", state.name, seconds=600)
    collection.load(state.name)
    assert collection.count(state.name) == len(codes)
    return state, {"write_seconds": round(written, 1), "indexed_seconds": round(time.perf_counter() - begin, 1)}


def compare(name: str, codes: np.ndarray, queries: np.ndarray, server: Milvus) -> dict[str, Any]:
    collection = MilvusCollection(server, f"speed_{name}", BITS)
    state, seconds = fill(collection, codes)
    plain, index = HammingIndex(BITS), MilvusIndex(collection, state)
    plain.add(np.arange(1, len(codes) + 1), codes, group=np.arange(1, len(codes) + 1) % 2)
    row: dict[str, Any] = {"items": len(codes), "codes": name, "index": "BIN_FLAT", **seconds}
    for size in (1, BATCH):
        parts = [queries[start : start + size] for start in range(0, ALONE if size == 1 else 2 * BATCH, size)]
        found = [(index.search(part, k=K), plain.search(part, k=K)) for part in parts]
        row[f"equal_{size}"] = all(np.array_equal(one.ids, other.ids) for one, other in found)
        turns = iter(range(10**6))
        works = {
            "milvus": lambda parts=parts, turns=turns: index.search(parts[next(turns) % len(parts)], k=K),
            "memory": lambda parts=parts, turns=turns: plain.search(parts[next(turns) % len(parts)], k=K),
            "one_call": lambda parts=parts, turns=turns: collection.nearest(state, parts[next(turns) % len(parts)], K),
        }
        for what, runs in in_turn(works, ALONE if size == 1 else 6).items():
            row[f"{what}_{size}_ms"] = round(1e3 * median(run.seconds for run in runs), 2)
            row[f"{what}_{size}_client_processor_ms"] = round(1e3 * median(run.processor for run in runs), 2)
    row["among_2000_ids_ms"] = timed_among(index, queries, 2000)
    row["among_50000_ids_ms"] = timed_among(index, queries, min(50_000, len(codes) // 2))
    return row


def timed_among(index: MilvusIndex, queries: np.ndarray, n: int) -> float:
    ids = np.random.default_rng(3).choice(index.state.items, n, replace=False) + 1
    times = []
    for query in queries[:5]:
        begin = time.perf_counter()
        index.search(query[None], k=K, ids=ids)
        times.append(time.perf_counter() - begin)
    return round(1e3 * median(times), 1)


def by_label(codes: np.ndarray, queries: np.ndarray, server: Milvus) -> list[dict[str, Any]]:
    """Search among the items of a label, given as a filter of a field of labels and as ids."""
    from pymilvus import DataType

    client, name, rng = server._connected(), "speed_labels", np.random.default_rng(4)
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("code", DataType.BINARY_VECTOR, dim=BITS)
    schema.add_field("labels", DataType.ARRAY, element_type=DataType.INT64, max_capacity=8)
    index = client.prepare_index_params()
    index.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
    server.call("create_collection", name, seconds=60, schema=schema, index_params=index)
    has = rng.random((len(codes), len(SHARES))) < SHARES
    for start in range(0, len(codes), BLOCK):
        rows = range(start, min(start + BLOCK, len(codes)))
        items = [{"id": row, "code": codes[row].tobytes(), "labels": np.flatnonzero(has[row]).tolist()} for row in rows]
        server.call("insert", name, items, seconds=None)
    server.call("flush", name, seconds=600)
    server.call("load_collection", name, seconds=600)
    rows = []
    for label, share in enumerate(SHARES):
        ids = np.flatnonzero(has[:, label])
        parts = [ids[start : start + MOST_HITS].tolist() for start in range(0, len(ids), MOST_HITS)]
        works = {
            "field": lambda label=label: nearest(server, name, queries, f"array_contains(labels, {label})"),
            "ids": lambda parts=parts: [nearest(server, name, queries, f"id in {part}") for part in parts],
        }
        runs = in_turn(works, 5)
        times = {f"{what}_ms": round(1e3 * median(run.seconds for run in runs[what]), 1) for what in works}
        rows.append({"items": len(codes), "what": "one label", "share": share, "items_of_label": len(ids), **times})
    return rows


def nearest(server: Milvus, name: str, queries: np.ndarray, where: str) -> Any:
    how = {"anns_field": "code", "limit": 256, "search_params": {"metric_type": "HAMMING"}}
    return server.call("search", name, [queries[0].tobytes()], filter=where, seconds=60, **how)


def approximate(name: str, codes: np.ndarray, queries: np.ndarray, server: Milvus) -> list[dict[str, Any]]:
    """Build BIN_IVF_FLAT over a collection and measure its recall at several nprobe."""
    (collection,) = (one for one in server.call("list_collections") if one.startswith(f"speed_{name}"))
    server.call("release_collection", collection, seconds=600)
    server.call("drop_index", collection, "code", seconds=600)
    params = server._connected().prepare_index_params()
    n_lists = 1024 if len(codes) > 500_000 else 64
    params.add_index("code", index_type="BIN_IVF_FLAT", metric_type="HAMMING", params={"nlist": n_lists})
    begin = time.perf_counter()
    server.call("create_index", collection, params, seconds=1200)
    server.call("load_collection", collection, seconds=1200)
    built, plain, rows = time.perf_counter() - begin, HammingIndex(BITS), []
    plain.add(np.arange(1, len(codes) + 1), codes)
    expected = plain.search(queries[:100], k=K)
    for n_probes in (1, 8, 32, 128):
        times, ids, near = [], 0, 0
        for query, own, distances in zip(queries[:100], expected.ids, expected.distances, strict=True):
            begin = time.perf_counter()
            search = {"metric_type": "HAMMING", "params": {"nprobe": min(n_probes, n_lists)}}
            (hits,) = server.call(
                "search", collection, [query.tobytes()], anns_field="code", limit=K, search_params=search
            )
            times.append(time.perf_counter() - begin)
            ids += len(set(hits.ids) & set(own.tolist()))
            near += int(np.count_nonzero(np.array(hits.distances) <= distances[-1]))
        recall = {
            "recall_of_ids": round(ids / expected.ids.size, 3),
            "recall_of_distances": round(near / expected.ids.size, 3),
        }
        about = {"items": len(codes), "codes": name, "index": "BIN_IVF_FLAT", "nlist": n_lists, "nprobe": n_probes}
        rows.append(
            {**about, "built_seconds": round(built, 1), **recall, "one_call_1_ms": round(1e3 * median(times), 2)}
        )
    return rows


def main() -> None:
    from milvus_server import MilvusServer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="write nothing")
    draws = {"repeated": repeated_codes, "centres": make_codes}
    parser.add_argument("--codes", nargs="+", choices=draws, default=list(draws))
    args = parser.parse_args()
    milvus, rows = MilvusServer(), []
    server = Milvus(milvus.uri)
    for name in args.codes:
        draw = draws[name]
        codes, queries = draw(args.items, seed=1), draw(256, seed=2)
        rows.append(compare(name, codes, queries, server))
        print(rows[-1], flush=True)
        if name == "repeated" and args.items <= 2_000_000:
            rows += by_label(codes, queries, server)
        if args.items <= 2_000_000:
            rows += approximate(name, codes, queries, server)
        for row in rows[-9:]:
            print(row, flush=True)
        if not args.quick:
            write("milvus_speed" if args.items <= 2_000_000 else "milvus_speed_10m", rows)
    milvus.close()


if __name__ == "__main__":
    main()
