"""What learning online loses against a full training, on folds of training items: no test query is loaded.

The folds are those of rlh_choices.py. LEMON learns from half of the items, then by ``partial_fit`` from the others in
five chunks. They arrive in random order ("shuffled"), or with all items of one frequent label last ("late"). It is
compared with itself fitted to the half ("before") and to all items ("full"), and with RLH fitted to all. The items of
the fold search learned codes, hashed codes and each other; "late" has only the queries with the late label.

    python benchmarks/quality/online.py                      # all data sets, two folds, 64 bits; ten minutes
    python benchmarks/quality/online.py wiki mfeat
    python benchmarks/quality/online.py --table              # print the table of docs/training.md

Results go to benchmarks/results/online.json; rows of other data sets stay there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from modalhash import RLH
from modalhash.data import SplitData
from modalhash.evaluation import evaluate_databases
from modalhash.methods.lemon import LEMON
from record import RESULTS, write
from rlh_choices import folds

DATA = ("wiki", "mfeat", "openmoji", "iapr-tc12-255", "mirflickr25k")
FIRST, CHUNKS = 0.5, 5
"""Share of the items that are learned from first, and number of chunks of the others."""
DATABASES = ("learned", "hashed", "unseen")


def orders(labels: dict[str, Any], arrival: str, seed: int) -> tuple[dict[str, np.ndarray], int]:
    """Return the order in which the items of each modality arrive, and the label that is late."""
    rng = np.random.default_rng(seed)
    counts = np.sum([values.sum(axis=0) for values in labels.values()], axis=0)
    label = int(np.argsort(counts)[len(counts) * 3 // 4])  # frequent, but not the most frequent
    found = {name: rng.permutation(len(values)) for name, values in labels.items()}
    if arrival == "late":
        found = {name: order[np.argsort(labels[name][order, label], kind="stable")] for name, order in found.items()}
    return found, label


def take(values: dict[str, Any], rows: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name][rows[name]] for name in rows}


def measured(model: Any, parts: SplitData, label: int | None, databases: Sequence[str] = DATABASES) -> dict[str, float]:
    """Return mAP by database, the mean of both directions; with a label, of the queries that have it."""
    if label is not None:
        wanted = {name: values[:, label].astype(bool) for name, values in parts.query.labels.items()}
        ids = {name: np.asarray(parts.query.ids[name])[own] for name, own in wanted.items()}
        parts = parts._replace(query=parts.query.take(ids))
        databases = databases[:2]  # all queries that search each other would be relevant
    results = evaluate_databases(model, parts, databases=databases)
    return {kind: float(np.mean([one.map for one in result.directions.values()])) for kind, result in results.items()}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return call(), time.process_time() - start


def learned_online(
    X: dict[str, Any], Y: dict[str, Any], order: dict[str, Any], kernel: str | None
) -> tuple[Any, Any, float]:
    """Return LEMON after the first part, LEMON after all chunks, with all codes, and the seconds of a chunk."""
    first = {name: rows[: int(FIRST * len(rows))] for name, rows in order.items()}
    rest = {name: np.array_split(rows[int(FIRST * len(rows)) :], CHUNKS) for name, rows in order.items()}
    model = new_model(kernel).fit(take(X, first), take(Y, first))
    before = deepcopy(model)
    codes = {name: np.zeros((len(rows), model.codes_[name].shape[1]), np.uint8) for name, rows in order.items()}
    for name, rows in first.items():
        codes[name][rows] = model.codes_[name]
    spent = 0.0
    for number in range(CHUNKS):
        chunk = {name: rows[number] for name, rows in rest.items()}
        _, seconds = timed(lambda chunk=chunk: model.partial_fit(take(X, chunk), take(Y, chunk)))
        spent += seconds / CHUNKS
        for name, rows in chunk.items():
            codes[name][rows] = model.codes_[name]
    model.codes_ = codes
    return before, model, spent


def new_model(kernel: str | None) -> LEMON:
    return LEMON(64, kernel=kernel, n_anchors=1000, random_state=0)


def measure_fold(parts: SplitData, seed: int) -> Iterator[tuple[str, str, dict[str, float], float]]:
    """Yield arrival, model, mAP and processor seconds."""
    X, Y = parts.training.features, parts.training.labels
    rlh, rlh_seconds = timed(lambda: RLH(64, random_state=0).fit(X, Y))
    for kernel in (None, "rbf"):
        full, seconds = timed(lambda kernel=kernel: new_model(kernel).fit(X, Y))
        for arrival in ("shuffled", "late"):
            order, label = orders(Y, arrival, seed)
            label = label if arrival == "late" else None
            before, online, of_chunk = learned_online(X, Y, order, kernel)
            name = f"lemon, {kernel or 'linear'}"
            if label is None:
                yield arrival, f"{name}, before", measured(before, parts, label, DATABASES[1:]), 0.0
            yield arrival, f"{name}, online", measured(online, parts, label), of_chunk
            yield arrival, f"{name}, full", measured(full, parts, label), seconds
            if kernel is None:
                yield arrival, "rlh, full", measured(rlh, parts, label), rlh_seconds


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/training.md: hashed and unseen mAP, and seconds of a chunk or of a fit."""
    lines = [
        "| data set | functions | before | online | full | late label, online | late label, full | a chunk takes |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    by_key = {(row["dataset"], row["arrival"], row["model"]): row for row in rows}
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        for kernel in ("linear", "rbf"):
            name = f"lemon, {kernel}"
            online, full = (by_key[dataset, "shuffled", f"{name}, {what}"] for what in ("online", "full"))
            cells = [
                " / ".join(
                    f"{by_key[dataset, 'shuffled', f'{name}, {what}']['map'][kind]:.3f}".lstrip("0")
                    for kind in ("hashed", "unseen")
                )
                for what in ("before", "online", "full")
            ]
            cells += [
                " / ".join(
                    f"{by_key[dataset, 'late', f'{name}, {what}']['map'][kind]:.3f}".lstrip("0")
                    for kind in ("learned", "hashed")
                )
                for what in ("online", "full")
            ]
            share = online["processor_seconds"] / full["processor_seconds"]
            lines.append(f"| {dataset} | {kernel} | {' | '.join(cells)} | {share:.0%} of a fit |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", default=list(DATA), help=", ".join(DATA))
    parser.add_argument("--folds", default="0,1")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    file = RESULTS / "online.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    for name in () if options.table else options.datasets:
        found: dict[tuple[str, str], list[tuple[dict[str, float], float]]] = defaultdict(list)
        for fold, parts in folds(name, [int(text) for text in options.folds.split(",")]):
            for arrival, model, maps, seconds in measure_fold(parts, fold):
                found[arrival, model].append((maps, seconds))
        new = []
        for (arrival, model), runs in found.items():
            maps = {kind: round(float(np.mean([one[kind] for one, _ in runs])), 4) for kind in runs[0][0]}
            seconds = round(float(np.mean([one for _, one in runs])), 3)
            row = {"row": f"{name}-{arrival}-{model}", "dataset": name, "arrival": arrival, "model": model}
            new.append({**row, "map": maps, "processor_seconds": seconds})
            print(f"{name:14} {arrival:8} {model:24} {maps} {seconds} s", flush=True)
        rows = [*(row for row in rows if row["dataset"] != name), *new]
        write("online", rows)
    print(table(rows))


if __name__ == "__main__":
    main()
