"""What the sheets of SePH, SDMCH and TECH leave open, tried on folds of training items: no test query is measured.

The training pairs of each data set are cut into five folds; a model learns from four and the fifth asks, against the
learned and hashed codes of the four, and against itself (unseen). Every variant changes the defaults in one thing.

    python benchmarks/quality/paired_choices.py                       # all data sets and methods, then the table
    python benchmarks/quality/paired_choices.py wiki --method tech

Results go to benchmarks/results/paired_choices.json and are taken up from there: what is measured already is not again.
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

from modalhash.core.files import write_atomically
from modalhash.data import Dataset, Split, SplitData, load_dataset
from modalhash.evaluation import evaluate_databases
from modalhash.methods import registry

RESULTS = Path(__file__).parents[1] / "results" / "paired_choices.json"
DATA: dict[str, tuple[tuple[str, str], dict[str, str], tuple[int, ...]]] = {  # modalities, options, folds
    "wiki": (("image", "text"), {}, (0, 1)),
    "openmoji": (("image", "text"), {}, (0, 1)),
    "mfeat": (("pix", "fou"), {}, (0, 1)),
    "iapr-tc12": (("image", "text"), {"text": "de"}, (0,)),
}
BITS = (16, 64)
DATABASES = ("learned", "hashed", "unseen")
UNSEEN = DATABASES.index("unseen")
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "seph": {
        "default": {},
        "random anchors": {"anchors": "random"},
        "codes of step 1": {"unify": False},
    },
    "sdmch": {
        "default": {},
        "label weight 10": {"label_weight": 10.0},
        "label weight 1,000": {"label_weight": 1000.0},
        "quantization .1": {"quantization": 0.1},
        "no manifold": {"manifold": 0.0},
        "5 neighbours": {"n_neighbors": 5},
        "functions after the codes": {"function_weight": 0.0},
        "functions 1": {"function_weight": 1.0},
        "ridge .001": {"ridge": 0.001},
        "ridge 1": {"ridge": 1.0},
        "start from components": {"init": "pca"},
    },
    "tech": {
        "default": {},
        "similarity .01": {"similarity": 0.01},
        "similarity 1": {"similarity": 1.0},
        "correlation 10": {"correlation": 10.0},
        "features 1": {"feature_weight": 1.0},
        "features 100": {"feature_weight": 100.0},
        "codes 1": {"code_weight": 1.0},
        "codes 100": {"code_weight": 100.0},
        "codes 1,000,000": {"code_weight": 1e6},
        "ridge .001": {"ridge": 0.001},
        "ridge 1": {"ridge": 1.0},
    },
}


def folds(name: str) -> Iterator[tuple[int, SplitData]]:
    """Yield the training pairs of a data set, a fifth of them as queries."""
    modalities, options, wanted = DATA[name]
    whole: Dataset = load_dataset(name, **options).only(*modalities)
    training = replace(whole.parts().training, split=None)
    ids = np.asarray(next(iter(training.ids.values())))
    part = np.random.default_rng(7).permutation(len(ids)) % 5
    for fold in wanted:
        own, queries = ids[part != fold], ids[part == fold]
        yield (
            fold,
            replace(training, split=Split(dict.fromkeys(modalities, own), dict.fromkeys(modalities, queries))).parts(),
        )


def measure(model: Any, parts: SplitData) -> list[float]:
    """Return mAP, learned, hashed and unseen, in one direction and then in the other."""
    results = evaluate_databases(model, parts, databases=DATABASES)
    directions = list(results["learned"].directions)
    return [round(float(results[kind].directions[way].map), 5) for way in directions for kind in DATABASES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="*", default=list(DATA))
    parser.add_argument("--method", action="append", choices=list(VARIANTS))
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    warnings.simplefilter("ignore")
    for name in options.datasets:
        for fold, parts in folds(name):
            for method in options.method or VARIANTS:
                for variant, parameters in VARIANTS[method].items():
                    for bits in BITS:
                        key = f"{name} | fold {fold} | {method} | {variant} | {bits} bits"
                        if known.get(key, {}).get("parameters") != parameters:
                            model, start = (
                                registry.method(method)(bits, random_state=0, **parameters),
                                time.process_time(),
                            )
                            model.fit(parts.training.features, parts.training.labels, pairs="aligned")
                            seconds = round(time.process_time() - start, 1)
                            values = measure(model, parts)
                            known[key] = {"parameters": parameters, "map": values, "cpu_seconds": seconds}
                            write_atomically(RESULTS, (json.dumps(known, indent=1) + "\n").encode())
    if set(options.datasets) == set(DATA):
        print(summary(known, options.method or list(VARIANTS)))


def summary(known: dict[str, Any], methods: list[str]) -> str:
    """Return the table of choices.md: mAP of new items among new items, over folds, directions and lengths."""
    lines = [
        "| method | changed | " + " | ".join(DATA) + " | mean of the first three |",
        "|---" * (len(DATA) + 3) + "|",
    ]
    for method in methods:
        for variant in VARIANTS[method]:
            means = []
            for name, (*_, wanted) in DATA.items():
                keys = [
                    f"{name} | fold {fold} | {method} | {variant} | {bits} bits" for fold in wanted for bits in BITS
                ]
                measured = [known[key]["map"][UNSEEN::3] for key in keys if key in known]
                means.append(float(np.mean(measured)) if len(measured) == len(keys) else np.nan)
            cells = [f"{value:.3f}".lstrip("0").replace("nan", "–") for value in (*means, float(np.mean(means[:3])))]
            lines.append(f"| `{method}` | {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
