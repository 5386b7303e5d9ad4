"""How many iterations step 2 of AMSH and of RLH needs, on folds of training items: no test query is loaded.

The folds are those of rlh_choices.py. Each number of accelerated iterations is compared with fifteen plain ones, which
are the paper's: the squared hinge of every modality, and mAP against learned, hashed and unseen codes.

    python benchmarks/quality/iterations.py                   # all data sets, two folds, 16 and 64 bits; 15 minutes
    python benchmarks/quality/iterations.py wiki mfeat

Results go to benchmarks/results/iterations.json; rows of other data sets stay there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from modalhash import AMSH, RLH
from modalhash.methods import rlh
from modalhash.methods.amsh.functions import learn_functions
from record import RESULTS, write
from rlh_choices import DATA, DATABASES, fitted, folds, measure

STEPS = (1, 2, 3, 4, 5, 8, 15)
PLAIN = "15 plain"


def model_of(method: str, steps: int) -> Any:
    return (AMSH if method == "amsh" else RLH)(function_iter=steps, random_state=0)


def plainly(*args: Any, **options: Any) -> Any:
    return learn_functions(*args, **{**options, "accelerated": False})


def measured(method: str, steps: int, plain: bool, parts: Any, bits: list[int]) -> dict[int, dict[str, Any]]:
    """mAP, the last value of the hinge by modality, and processor seconds, for each length."""
    model, start = model_of(method, steps), time.process_time()
    if plain and method == "amsh":
        model.set_params(accelerated=False)
    with mock.patch.object(rlh, "learn_functions", plainly if plain else learn_functions):
        models = dict(fitted(model, parts, bits))
    seconds = time.process_time() - start
    return {
        n: {
            "map": measure(one, parts),
            "hinge": [float(trace[-1]) for trace in one.objective_["functions"].values()],
            "processor_seconds": seconds / len(bits),
        }
        for n, one in models.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", default=list(DATA), help=", ".join(DATA))
    parser.add_argument("--folds", default="0,1")
    parser.add_argument("--bits", default="16,64")
    options = parser.parse_args()
    bits, wanted = ([int(text) for text in given.split(",")] for given in (options.bits, options.folds))
    warnings.simplefilter("ignore")
    file = RESULTS / "iterations.json"
    known = json.loads(file.read_text())["rows"] if file.exists() else []
    rows: list[dict[str, Any]] = []
    done = []
    for name in options.datasets:
        done.append(name)
        for method in ("amsh", "rlh"):
            found: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for _, parts in folds(name, wanted):
                for steps, plain in [(15, True), *((steps, False) for steps in STEPS)]:
                    found[PLAIN if plain else str(steps)] += measured(method, steps, plain, parts, bits).values()
            plain_hinge = np.array([one["hinge"] for one in found[PLAIN]])
            for steps, runs in found.items():
                maps = np.array([one["map"] for one in runs]).reshape(len(runs), -1, len(DATABASES))
                ratio = np.array([one["hinge"] for one in runs]) / plain_hinge
                row = {
                    "row": f"{name}-{method}-{steps}",
                    "dataset": name,
                    "method": method,
                    "steps": steps,
                    "map": {kind: round(float(maps[:, :, i].mean()), 4) for i, kind in enumerate(DATABASES)},
                    "hinge_of_plain": [round(float(value), 4) for value in (ratio.min(), ratio.max())],
                    "processor_seconds": round(float(np.mean([one["processor_seconds"] for one in runs])), 2),
                }
                rows.append(row)
                print(
                    f"{name:10} {method:5} {steps:>8}: mAP "
                    + " ".join(f"{kind} {value:.4f}" for kind, value in row["map"].items())
                    + f", hinge {ratio.min():.3f} to {ratio.max():.3f} of 15 plain, {row['processor_seconds']} s",
                    flush=True,
                )
        write("iterations", [*rows, *(row for row in known if row["dataset"] not in done)])


if __name__ == "__main__":
    main()
