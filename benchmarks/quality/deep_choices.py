"""Learning rates, sizes and weights of DCMH, PRDH and AADAH, tried on training items: no test query is measured.

Of the training pairs of IAPR TC-12, 4,000 are learned from and 1,000 others search each other, hashed from their
features: new items among new items. Other folds draw others, with another seed. Every variant changes the values that
were the defaults before (``BEFORE``) in what it says.

    python benchmarks/quality/deep_choices.py                       # fold 0 of everything, then the table
    python benchmarks/quality/deep_choices.py --fold 1 --method dcmh

Results go to benchmarks/results/deep_choices.json and are taken up from there: what is measured already is not again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.core.files import write_atomically
from modalhash.data import Split, SplitData, load_dataset
from modalhash.evaluation import evaluate_databases
from modalhash.methods import registry

RESULTS = Path(__file__).parents[1] / "results" / "deep_choices.json"
MODALITIES = ("image", "text")
LEARNED, UNSEEN = 4000, 1000
BITS = 16
# Found by prototypes that looked at test queries. Epochs: as many as 1,600 steps take, 52 of DCMH and 39 of AADAH.
BEFORE: dict[str, dict[str, Any]] = {
    "dcmh": {"learning_rate": 3e-4, "hidden": 1024, "max_epochs": 52},
    "prdh": {"learning_rate": 3e-4, "hidden": 1024, "max_epochs": 52, "decorrelation": 0.001},
    "aadah": {"learning_rate": 1e-4, "hidden": 1024, "hash_hidden": 1024, "max_epochs": 39, "adversary": True},
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "dcmh": {
        "before": {},
        "512 units": {"hidden": 512},
        "rate 1e-3": {"learning_rate": 1e-3},
        "rate 1e-4": {"learning_rate": 1e-4},
    },
    "prdh": {
        "before": {},
        "no decorrelation": {"decorrelation": 0.0},
        "decorrelation .01": {"decorrelation": 0.01},
    },
    "aadah": {
        "before": {},
        "no adversary": {"adversary": False},
        "no adversary, rate 3e-4": {"adversary": False, "learning_rate": 3e-4},
        "512 units": {"hidden": 512, "hash_hidden": 512},
        "512 units, no adversary": {"hidden": 512, "hash_hidden": 512, "adversary": False},
        "512 units, no adversary, rate 3e-4": {
            "hidden": 512,
            "hash_hidden": 512,
            "adversary": False,
            "learning_rate": 3e-4,
        },
    },
}


def fold_of(fold: int) -> SplitData:
    """Return some of the training pairs to learn from, and others as queries."""
    training = replace(load_dataset("iapr-tc12", text="de").only(*MODALITIES).parts().training, split=None)
    ids = np.random.default_rng(fold).permutation(np.asarray(training.ids["image"]))
    own, queries = ids[:LEARNED], ids[LEARNED : LEARNED + UNSEEN]
    return replace(training, split=Split(dict.fromkeys(MODALITIES, own), dict.fromkeys(MODALITIES, queries))).parts()


def measure(method: str, parameters: dict[str, Any], parts: SplitData, fold: int) -> dict[str, Any]:
    """Fit, and return unseen mAP (image → text, text → image), the epoch that was kept and CPU seconds."""
    model, start = registry.method(method)(BITS, random_state=fold, **parameters), time.process_time()
    model.fit(parts.training.features, parts.training.labels, pairs="aligned")
    seconds = time.process_time() - start
    found = evaluate_databases(model, parts, databases=("unseen",))["unseen"].directions
    return {
        "map": [round(float(found[way].map), 5) for way in (MODALITIES, MODALITIES[::-1])],
        "epoch": model.n_iter_,
        "epochs": len(model.objective_["map"]),
        "cpu_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--method", action="append", choices=list(VARIANTS))
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    warnings.simplefilter("ignore")  # AADAH warns of a mask that fades, which is one of the things tried
    parts = fold_of(options.fold)
    for method in options.method or VARIANTS:
        for variant, changes in VARIANTS[method].items():
            key, parameters = f"fold {options.fold} | {method} | {variant}", BEFORE[method] | changes
            if known.get(key, {}).get("parameters") != parameters:
                known[key] = {"parameters": parameters} | measure(method, parameters, parts, options.fold)
                write_atomically(RESULTS, (json.dumps(known, indent=1) + "\n").encode())
    print(summary(known, options.fold))


def summary(known: dict[str, Any], fold: int = 0) -> str:
    """Return the table of deep.md: unseen mAP of every variant that was measured, epoch kept and CPU seconds."""
    lines = ["| method | | image → text | text → image | mean | epoch kept | CPU s |", "|---|---|---|---|---|---|---|"]
    for method, variants in VARIANTS.items():
        for variant in variants:
            found = known.get(f"fold {fold} | {method} | {variant}")
            if found:
                numbers = [f"{value:.3f}".lstrip("0") for value in (*found["map"], float(np.mean(found["map"])))]
                numbers += [f"{found['epoch']} of {found['epochs']}", f"{found['cpu_seconds']:.0f}"]
                lines.append(f"| `{method}` | {variant} | " + " | ".join(numbers) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
