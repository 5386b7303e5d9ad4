"""Ours against the authors' own code, cell by cell, on the same data and splits.

    python benchmarks/quality/fidelity.py RESULTS.csv [METHOD ...] [--dataset wiki] [--bits 16] [--seeds 3] [--keep]

RESULTS.csv holds what the authors' code gives: method, variant, dataset, bits, database, task, runs, map, sd and
cpu_seconds. Every variant of it that is listed in VARIANTS is fitted with the same parameters and evaluated alike:
tie-expected mAP over the full ranking, learned and hashed databases. ``--keep`` puts the cells, with how far they are
above or below, into benchmarks/results/fidelity.json in the place of earlier ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.files import write_atomically
from modalhash.data import load_dataset
from modalhash.evaluation import mean_average_precision
from modalhash.methods import registry

VARIANTS = {
    ("AMSH", "unpaired"): ("amsh", {"intra": 1e-3, "inter": 1e-3, "init": "pca", "accelerated": False}),
    ("AMSH", "full"): ("amsh", {"intra": 1e-3, "inter": 1e-3, "init": "pca", "accelerated": False}),
    ("AMSH", "no_m"): ("amsh", {"intra": 1e-3, "inter": 1e-3, "init": "pca", "margins": False}),
    ("AMSH", "no_s"): ("amsh", {"intra": 0, "inter": 1e-3, "init": "pca", "accelerated": False}),
    ("AMSH", "no_t"): ("amsh", {"intra": 1e-3, "inter": 0, "init": "pca", "accelerated": False}),
    ("AMSH", "no_k"): ("amsh", {"intra": 1e-3, "inter": 1e-3, "kernel": None, "accelerated": False}),
    ("BATCH", "default"): ("batch", {}),
    ("SRLCH", "default"): ("srlch", {"max_iter": 50}),
    ("SRLCH", "5sweeps"): ("srlch", {"max_iter": 5}),
    ("DCH", "dcc"): ("dch", {"feature_weight": 0}),
    ("DCH", "dcc-nu1e-5"): ("dch", {}),
    ("DCH", "relaxed"): ("dch", {"feature_weight": 0, "b_step": "relaxed"}),
    ("SCRATCH", "o"): ("scratch", {}),
    ("CMFH", "v1"): ("cmfh", {}),
    ("CMFH", "v1-1000sweeps"): ("cmfh", {"tol": 0}),
    ("CMFH", "v2"): ("cmfh", {"variant": "v2"}),
    ("SMFH", "T"): ("smfh", {}),
    ("SMFH", "L"): ("smfh", {"variant": "liu"}),
    ("FSH", "default"): ("fsh", {}),
    ("GSPH", "unpaired"): ("gsph", {}),
    ("SAPMH", "paired_sig100"): ("sapmh", {"variant": "authors", "bandwidth": 1e4}),
    ("SAPMH", "paired_sigmean"): ("sapmh", {"variant": "authors"}),
    ("UAPMH", "paired_sigmean"): ("uapmh", {}),
    ("SCM", "seq_scm_orig"): ("scm", {}),
    ("SCM", "seq_scm_sym"): ("scm", {}),
    ("SCM", "orth_scm_sym"): ("scm", {"solver": "orthogonal"}),
    ("ALECH", "default"): ("alech", {}),
    ("FCMH", "default"): ("fcmh", {}),
    ("FDDH", "default"): ("fddh", {}),
}  # fmt: skip
UNPAIRED = {"AMSH", "GSPH"}
"""Methods whose rows were measured with each modality shuffled on its own."""
TRAINED_ON = {("GSPH", "iapr"): 5000, ("UAPMH", "iapr"): 5000}
"""Where the authors' code was trained on so many items: the learned database is these, the hashed one is all."""
RESULTS = Path(__file__).parents[1] / "results" / "fidelity.json"
CELL = ("method", "variant", "dataset", "bits", "database", "task")


def parts(name: str):
    dataset = load_dataset("iapr-tc12" if name == "iapr" else name)
    split = dataset.split.apply(dataset)
    return split.training, split.query


def run(method: str, variant: str, dataset: str, bits: int, seeds: int) -> tuple[dict, float]:
    """The mAP of every seed by (database, task), and processor seconds per fit."""
    name, parameters = VARIANTS[method, variant]
    training, query = parts(dataset)
    cells, seconds = defaultdict(list), []
    for seed in range(seeds):
        X, Y, fit = dict(training.features), dict(training.labels), {}
        if method in UNPAIRED:
            rng = np.random.default_rng(seed)
            for modality in X:
                order = rng.permutation(len(Y[modality]))
                X[modality], Y[modality] = X[modality][order], Y[modality][order]
        else:
            fit["pairs"] = "aligned"
            if (method, dataset) in TRAINED_ON:  # the files have an order: the first items are not like the rest
                order = np.random.default_rng(seed).permutation(len(next(iter(Y.values()))))
                X, Y = ({modality: values[order] for modality, values in part.items()} for part in (X, Y))
        first = slice(TRAINED_ON.get((method, dataset)))
        X_fit, Y_fit = ({modality: values[first] for modality, values in part.items()} for part in (X, Y))
        start = time.process_time()
        model = registry.method(name)(bits, random_state=seed, **parameters).fit(X_fit, Y_fit, **fit)
        seconds.append(time.process_time() - start)
        queries = model.transform(query.features)
        for database, codes, labels in (("learned", model.codes_, Y_fit), ("hashed", model.transform(X), Y)):
            for task, q, d in (("I2T", "image", "text"), ("T2I", "text", "image")):
                cells[database, task].append(
                    mean_average_precision(queries[q], query.labels[q], codes[d], labels[d], n_bits=bits)
                )
    return cells, float(np.mean(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--dataset")
    parser.add_argument("--bits", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="write the cells to benchmarks/results/fidelity.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    theirs = defaultdict(dict)
    with open(options.results) as file:
        for row in csv.DictReader(file):
            key = row["method"], row["variant"], row["dataset"], int(row["bits"])
            theirs[key][row["database"], row["task"]] = float(row["map"])
    found: list[dict[str, Any]] = []
    print(f"{'method':8} {'variant':14} {'data':5} bits  {'database':8} task   ours      sd   theirs    diff   s/fit")
    for (method, variant, dataset, bits), cells in theirs.items():
        if (method, variant) not in VARIANTS or (options.methods and method not in options.methods):
            continue
        if options.dataset not in (None, dataset) or options.bits not in (None, bits):
            continue
        ours, seconds = run(method, variant, dataset, bits, options.seeds)
        for (database, task), published in cells.items():
            values = ours[database, task]
            sd = np.std(values, ddof=1) if len(values) > 1 else 0
            difference = np.mean(values) - published
            flag = "" if difference > -0.02 else "  <-- below by more than .02"
            print(
                f"{method:8} {variant:14} {dataset:5} {bits:4}  {database:8} {task:4} {np.mean(values):7.4f} "
                f"{sd:7.4f} {published:8.4f} {difference:+7.4f} {seconds:7.1f}{flag}",
                flush=True,
            )
            cell = dict(zip(CELL, (method, variant, dataset, bits, database, task), strict=True))
            measured = {"map": np.mean(values), "sd": sd, "difference": difference, "cpu_seconds": seconds}
            found.append(cell | {"seeds": options.seeds} | {name: round(float(x), 4) for name, x in measured.items()})
        if options.keep:
            keep(found)


def keep(found: list[dict[str, Any]]) -> None:
    """Write the cells in the place of those that were measured earlier."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    cells = {tuple(row[name] for name in CELL): row for row in [*known, *found]}
    lines = ",\n".join(json.dumps(cells[key]) for key in sorted(cells))
    write_atomically(RESULTS, f"[\n{lines}\n]\n".encode())


if __name__ == "__main__":
    main()
