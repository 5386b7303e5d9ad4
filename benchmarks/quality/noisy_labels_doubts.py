"""How well WASH tells wrong labels from right ones: the area under the curve of its doubt, where the flips are known.

    python benchmarks/quality/noisy_labels_doubts.py [--seeds 3] [--root DATA] [DATASET ...]

Labels of training pairs are moved as by the grid ``noisy_labels.toml``; no query is looked at. Beside it the area that
the number of items of a label's class gives: labels move to any class alike, so that those of rare classes are wrong
more often. What was measured already is kept in ``benchmarks/results/noisy_labels_doubts.json``, of which
``noisy_labels_page.py`` makes a table.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from modalhash.core.files import write_atomically
from modalhash.core.typing import Array
from modalhash.data import noisy_labels, paired
from modalhash.experiments import load_grid
from modalhash.methods.wash import WASH

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "noisy_labels_doubts.json"
GRIDS = ("noisy_labels.toml", "noisy_labels_iapr.toml")
BITS, RATES = 32, (0.1, 0.2, 0.4)


def measured(X: dict[str, Array], given: Array, truth: Array, seed: int) -> dict[str, float]:
    start = time.process_time()
    noise = WASH(BITS, random_state=seed).fit(X, dict.fromkeys(X, given), pairs="aligned").noise_
    seconds = time.process_time() - start
    wrong = ~truth[noise["pair"], noise["class"]]
    rarity = -given.sum(axis=0)[noise["class"]]
    return {
        "doubt": round(float(roc_auc_score(wrong, noise["doubt"])), 4),
        "rarity": round(float(roc_auc_score(wrong, rarity)), 4),
        "labels": len(wrong),
        "wrong": int(wrong.sum()),
        "cpu_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--root", type=Path, default=None)
    options = parser.parse_args()
    inputs = {n: i for grid in GRIDS for n, i in load_grid(HERE / grid).inputs.items()}
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in options.datasets or inputs:
        data = paired(inputs[name].load(options.root))
        first = data.modalities[0]
        for seed in range(options.seeds):
            for rate in RATES:
                key = f"{name}, {rate:g}, seed {seed}"
                if key not in known:
                    training = noisy_labels(data, rate, seed=seed, shared=True).parts().training
                    given, truth = (np.asarray(x[first], dtype=bool) for x in (training.labels, training.relevance))
                    known[key] = measured(training.features, given, truth, seed)
                    write_atomically(RESULTS, (json.dumps(known, indent=1) + "\n").encode())
                    print(key, known[key], flush=True)


if __name__ == "__main__":
    main()
