"""What RLH makes of items without labels, chosen on folds of training items; no query of a test split takes part.

Nine tenths of the training items of each fold lose their labels. A model learns from the labelled ones alone, or the
others take part in step 2 with those bits of their posteriors' codes that are clear; what is chosen is how clear
(``RELIABLE`` of RLH). The fifth fold, with true labels, asks itself: unseen items in both directions.

    python benchmarks/quality/rlh_few_labels.py

Results go to benchmarks/results/rlh_few_labels.json.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np

from modalhash.core.files import write_atomically
from modalhash.data import missing_labels
from modalhash.evaluation import evaluate_databases
from modalhash.methods import rlh
from rlh_choices import fitted, folds

RESULTS = Path(__file__).parents[1] / "results" / "rlh_few_labels.json"
FOLDS = {"wiki": [0, 1, 2], "openmoji": [0, 1, 2], "iapr-tc12": [0]}
BITS = [32, 64]
CLEAR = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5)


def main() -> None:
    warnings.simplefilter("ignore")
    found: dict[str, list[float]] = {}
    for name, wanted in FOLDS.items():
        scores: dict[str, list[list[float]]] = {}
        for fold, parts in folds(name, wanted):
            few = parts._replace(training=missing_labels(parts.training, 0.9, seed=fold))
            for clear in (None, *CLEAR):
                rlh.RELIABLE = clear or 0.0
                method = rlh.RLH(unlabelled="allow" if clear is None else "posterior", random_state=0)
                for bits, model in fitted(method, few, BITS):
                    unseen = evaluate_databases(model, parts, databases=("unseen",))["unseen"]
                    variant = "labelled items alone" if clear is None else f"clear {clear:g}"
                    maps = [float(direction.map) for direction in unseen.directions.values()]
                    scores.setdefault(f"{name}, {bits} bits, {variant}", []).append(maps)
        for key, values in scores.items():
            found[key] = np.mean(values, axis=0).round(4).tolist()
            print(f"{key:45} {found[key]}", flush=True)
    write_atomically(RESULTS, (json.dumps(found, indent=0) + "\n").encode())


if __name__ == "__main__":
    main()
