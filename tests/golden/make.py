"""Wrote format-1; kept to show how. A golden file is never written again: later formats get their own.

python tests/golden/make.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from modalhash import AMSH
from modalhash.data import generate


def main(folder: Path) -> None:
    data = generate(n_items=40, n_queries=3, n_classes=4, n_features={"image": 6, "text": 5}, seed=7)
    kernel = {"image": "rbf", "text": None}
    model = AMSH(n_bits=10, n_anchors=8, kernel=kernel, random_state=7).fit(data.X, data.Y)
    model.save(folder)
    queries = {name: np.round(X.astype(float), 3) for name, X in data.queries[0].items()}
    expected = {
        "class": "AMSH",
        "queries": {name: X.tolist() for name, X in queries.items()},
        "projections": {
            name: np.round(P.astype(float), 6).tolist() for name, P in model.decision_function(queries).items()
        },
        "codes": {name: codes.tolist() for name, codes in model.codes_.items()},
        "n_iter": model.n_iter_,
    }
    folder.with_name(folder.name + ".expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
