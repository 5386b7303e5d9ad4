"""RLH's defaults, chosen on folds of training items: no query of a test split is loaded into a model or measured.

The training items of each data set are cut into five folds; a model learns from four and the fifth asks, against the
learned and hashed codes of the four, and against itself (unseen). Every variant changes the defaults in one thing.

    python benchmarks/quality/rlh_choices.py                  # all data sets, two folds, 16 and 64 bits
    python benchmarks/quality/rlh_choices.py wiki --variant "labels 3"

Results go to benchmarks/results/rlh_choices.json and are taken up from there: what is measured already is not again.
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

import numpy as np

from modalhash import AMSH
from modalhash._files import write_atomically
from modalhash.data import Dataset, Parts, Split, load_dataset, unpaired
from modalhash.engine._code_length import count_collisions
from modalhash.evaluation import evaluate_databases
from modalhash.experiments import code_digest
from modalhash.methods.rlh import RLH

RESULTS = Path(__file__).parents[1] / "results" / "rlh_choices.json"
DATA = {
    "wiki": (("image", "text"), {}),
    "openmoji": (("image", "text"), {}),
    "mfeat": (("pix", "fou"), {}),
    "iapr-tc12": (("image", "text"), {"text": "de"}),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "ridge .001": {"ridge": 1e-3},
    "ridge .01": {"ridge": 1e-2},
    "ridge .1": {"ridge": 0.1},
    "narrow kernel": {"bandwidth": "pairs"},
    "narrow kernel, ridge .01": {"bandwidth": "pairs", "ridge": 1e-2},
    "posterior ridge .001": {"posterior_ridge": 1e-3},
    "posterior ridge .1": {"posterior_ridge": 0.1},
    "labels x3": {"label_weight": 3.0},
    "posteriors x3": {"cross_weight": 3.0},
    "mixed x3": {"mixed_weight": 3.0},
    "no posteriors": {"cross_weight": 0.0, "mixed_weight": 0.0},
    "no margins": {"margins": False},
    "functions: posterior": {"functions": "posterior"},
    "graded 0": {"graded": 0.0},
    "graded .1": {"graded": 0.1},
    "graded .3": {"graded": 0.3},
    "graded .5": {"graded": 0.5},
    "squared instead of logistic": {"loss": "squared"},
    "balance": {"balance": True},
    "3 iterations": {"function_iter": 3},
    "10 iterations": {"function_iter": 10},
    "300 steps": {"steps": 300},
    "1,200 steps": {"steps": 1200},
    "batch 64": {"batch_size": 64},
    "batch 256": {"batch_size": 256},
    "batch 512": {"batch_size": 512},
    "sharpness to 8": {"sharpness": 8.0},
}
DATABASES = ("learned", "hashed", "unseen")


def folds(name: str, wanted: list[int], n_folds: int = 5) -> Iterator[tuple[int, Parts]]:
    """Yield the training items of a data set, a fifth of them as queries, with pairs shuffled apart."""
    modalities, options = DATA[name]
    whole: Dataset = load_dataset(name, **options).only(*modalities)
    training = replace(whole.parts().training, split=None)
    ids = np.asarray(next(iter(training.ids.values())))
    part = np.random.default_rng(7).permutation(len(ids)) % n_folds
    for fold in wanted:
        own, queries = ids[part != fold], ids[part == fold]
        split = Split(dict.fromkeys(modalities, own), dict.fromkeys(modalities, queries))
        yield fold, unpaired(replace(training, split=split), seed=fold).parts()


def measure(model: Any, parts: Parts) -> list[float]:
    """Return mAP, learned, hashed and unseen, in one direction and then in the other."""
    results = evaluate_databases(model, parts, databases=DATABASES)
    directions = list(results["learned"].directions)
    return [float(results[kind].directions[way].map) for way in directions for kind in DATABASES]


def misplaced(model: Any, parts: Parts) -> float:
    """Return the share of training items with the learned code of items that are labelled otherwise."""
    collisions = count_collisions(model.codes_, parts.training.labels)
    return collisions.misplaced / collisions.items


def fitted(method: Any, parts: Parts, bits: list[int]) -> Iterator[tuple[int, Any]]:
    """Yield a model per code length; features and posteriors are computed once."""
    n_anchors = {name: min(1500, size) for name, size in parts.training.sizes.items()}
    method.set_params(n_anchors=n_anchors)
    yield from method.fit_path(parts.training.features, parts.training.labels, n_bits=bits).items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", default=list(DATA))
    parser.add_argument("--variant", action="append", choices=[*VARIANTS, "amsh"])
    parser.add_argument("--folds", default="0,1")
    parser.add_argument("--bits", default="16,64")
    options = parser.parse_args()
    bits = [int(text) for text in options.bits.split(",")]
    wanted = [int(text) for text in options.folds.split(",")]
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    warnings.simplefilter("ignore")
    for name in options.datasets:
        for fold, parts in folds(name, wanted):
            for variant in ["amsh", *(options.variant or VARIANTS)]:
                method = AMSH(random_state=0) if variant == "amsh" else RLH(random_state=0, **VARIANTS[variant])
                code = code_digest("amsh" if variant == "amsh" else "rlh")
                keys = {n: f"{name}, fold {fold}, {n} bits, {variant}" for n in bits}
                left = [n for n in bits if known.get(keys[n], {}).get("code") != code]
                start = time.process_time()
                for n, model in fitted(method, parts, left) if left else ():
                    known[keys[n]] = {
                        "code": code,
                        "map": [round(value, 4) for value in measure(model, parts)],
                        "misplaced": round(misplaced(model, parts), 4),
                    }
                if left:
                    for n in left:
                        known[keys[n]]["cpu_seconds"] = round((time.process_time() - start) / len(left), 1)
                    own = {keys[n]: known[keys[n]] for n in left}  # another process may measure another data set
                    known = {**(json.loads(RESULTS.read_text()) if RESULTS.exists() else {}), **own}
                    write_atomically(RESULTS, (json.dumps(known, indent=0, sort_keys=True) + "\n").encode())
                show(name, fold, bits, variant, known)


def show(name: str, fold: int, bits: list[int], variant: str, known: dict[str, Any]) -> None:
    for n in bits:
        own, amsh = (known[f"{name}, fold {fold}, {n} bits, {which}"]["map"] for which in (variant, "amsh"))
        if variant == "amsh":
            print(f"{name:10} fold {fold} {n:4} bits AMSH   {np.round(own, 3)}", flush=True)
        else:
            gain = 100 * (np.array(own) - amsh)
            print(
                f"{name:10} fold {fold} {n:4} bits {variant:28} {np.round(gain, 1)} mean {gain.mean():+.2f}", flush=True
            )


if __name__ == "__main__":
    main()
