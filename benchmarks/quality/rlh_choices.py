"""RLH's defaults, chosen on folds of training items: no query of a test split is loaded into a model or measured.

The training items of each data set are cut into five folds; a model learns from four, and the items of the fifth search
the learned and hashed codes of the four, and each other (unseen). Where test splits are drawn at random, the items that
are a query in any of the five splits of the comparison are left out. Every variant changes the defaults in one thing.

    python benchmarks/quality/rlh_choices.py                  # all data sets, three folds, 16 and 64 bits
    python benchmarks/quality/rlh_choices.py wiki --variant "before"

Results are written to benchmarks/results/rlh_choices.json; what it holds already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from modalhash import AMSH, RLH
from modalhash.core import features
from modalhash.core.files import write_atomically
from modalhash.data import Dataset, Split, SplitData, load_dataset, unpaired, with_split
from modalhash.engine.training.learn import count_collisions
from modalhash.evaluation import evaluate_databases
from modalhash.experiments import code_digest

RESULTS = Path(__file__).parents[1] / "results" / "rlh_choices.json"
DATA = {
    "mirflickr25k": ("image", "text"),
    "iapr-tc12-255": ("image", "text"),
    "wiki": ("image", "text"),
    "mfeat": ("pix", "fou"),
    "openmoji": ("image", "text"),
}
TEST_SPLITS = range(5)
BEFORE: dict[str, Any] = {"kernel": "rbf", "posterior_ridge": 0.01, "functions": "margin"}
"""RLH before the kernel was chosen and functions were averaged."""
MORE_CANDIDATES = (*features.CANDIDATES, "rbf-sqrt")
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "before": BEFORE,
    "before, and the kernel chosen": {**BEFORE, "kernel": "auto"},
    "and functions averaged": {"posterior_ridge": 0.01, "own_steps": 0},
    "and posterior ridge .1": {"own_steps": 0},
    "wide Gaussian of square roots as a fifth candidate": {"candidates": MORE_CANDIDATES},
    "posterior ridge .03": {"posterior_ridge": 0.03},
    "posterior ridge .3": {"posterior_ridge": 0.3},
    "ridge .001": {"ridge": 1e-3},
    "ridge .01": {"ridge": 1e-2},
    "functions: margin": {"functions": "margin"},
    "functions: posterior": {"functions": "posterior"},
    "no margins": {"margins": False},
    "no posteriors in step 1": {"cross_weight": 0.0, "mixed_weight": 0.0},
    "graded 0": {"graded": 0.0},
    "graded .5": {"graded": 0.5},
    "300 steps": {"steps": 300},
    "1,200 steps": {"steps": 1200},
    "5 iterations of step 2": {"function_iter": 5},
}
DATABASES = ("learned", "hashed", "unseen")


def training_items(name: str) -> Dataset:
    """Return the items of a data set that are in no test split."""
    whole: Dataset = load_dataset(name).only(*DATA[name])
    if whole.split is not None:
        return replace(whole.parts().training, split=None)
    ids = next(iter(whole.ids.values()))
    for seed in TEST_SPLITS:
        ids = ids[~np.isin(ids, with_split(whole, seed=seed).split.query[whole.modalities[0]])]
    return whole.take(ids)


def folds(name: str, wanted: list[int], n_folds: int = 5) -> Iterator[tuple[int, SplitData]]:
    """Yield the training items of a data set, a fifth of them as queries, with pairs shuffled apart."""
    training = training_items(name)
    ids = np.asarray(next(iter(training.ids.values())))
    part = np.random.default_rng(7).permutation(len(ids)) % n_folds
    for fold in wanted:
        own, queries = ids[part != fold], ids[part == fold]
        split = Split(dict.fromkeys(DATA[name], own), dict.fromkeys(DATA[name], queries))
        yield fold, unpaired(replace(training, split=split), seed=fold).parts()


def measure(model: Any, parts: SplitData) -> list[float]:
    """Return mAP, learned, hashed and unseen, in one direction and then in the other."""
    results = evaluate_databases(model, parts, databases=DATABASES)
    directions = list(results["learned"].directions)
    return [float(results[kind].directions[way].map) for way in directions for kind in DATABASES]


def misplaced(model: Any, parts: SplitData) -> float:
    """Return the share of training items that share a learned code with items labelled differently."""
    collisions = count_collisions(model.codes_, parts.training.labels)
    return collisions.misplaced / collisions.items


def fitted(variant: str, parts: SplitData, bits: list[int]) -> Iterator[tuple[int, Any]]:
    """Yield a model per code length; features and posteriors are computed once."""
    parameters = dict(VARIANTS.get(variant, {}))
    candidates = parameters.pop("candidates", features.CANDIDATES)
    method = AMSH(random_state=0) if variant == "amsh" else RLH(random_state=0, **parameters)
    method.set_params(n_anchors={name: min(1500, size) for name, size in parts.training.sizes.items()})
    with mock.patch.object(features, "CANDIDATES", candidates):
        yield from method.fit_path(parts.training.features, parts.training.labels, n_bits=bits).items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", default=list(DATA))
    parser.add_argument("--variant", action="append", choices=[*VARIANTS, "amsh"])
    parser.add_argument("--folds", default="0,1,2")
    parser.add_argument("--bits", default="16,64")
    options = parser.parse_args()
    bits, wanted = ([int(text) for text in value.split(",")] for value in (options.bits, options.folds))
    warnings.simplefilter("ignore")
    for name in options.datasets:
        for fold, parts in folds(name, wanted):
            for variant in ["amsh", *(options.variant or VARIANTS)]:
                measure_variant(name, fold, parts, bits, variant)


def measure_variant(name: str, fold: int, parts: SplitData, bits: list[int], variant: str) -> None:
    """Measure what the results lack of a variant on a fold, and print its gain over AMSH."""
    code = code_digest("amsh" if variant == "amsh" else "rlh")
    keys = {n: f"{name}, fold {fold}, {n} bits, {variant}" for n in bits}
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    left = [n for n in bits if known.get(keys[n], {}).get("code") != code]
    start, found = time.process_time(), {}
    for n, model in fitted(variant, parts, left) if left else ():
        values = [round(value, 4) for value in measure(model, parts)]
        found[keys[n]] = {"code": code, "map": values, "misplaced": round(misplaced(model, parts), 4)}
    for entry in found.values():
        entry["cpu_seconds"] = round((time.process_time() - start) / len(left), 1)
    if found:
        known = {**(json.loads(RESULTS.read_text()) if RESULTS.exists() else {}), **found}
        write_atomically(RESULTS, (json.dumps(known, indent=0, sort_keys=True) + "\n").encode())
    for n in bits:
        own, amsh = (np.array(known[f"{name}, fold {fold}, {n} bits, {which}"]["map"]) for which in (variant, "amsh"))
        gain = 100 * (own - amsh)
        print(f"{name:14} fold {fold} {n:4} bits {variant:50} {np.round(gain, 1)} mean {gain.mean():+.2f}", flush=True)


if __name__ == "__main__":
    main()
