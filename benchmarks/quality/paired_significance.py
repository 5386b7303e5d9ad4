"""Which methods of the paired comparison are significantly above or below AMSH and RLH.

    modalhash experiment run benchmarks/quality/paired.toml --results results/paired
    python benchmarks/quality/paired_significance.py results/paired
    modalhash experiment pack --no-per-query results/paired benchmarks/results/paired.json.xz
    python benchmarks/quality/comparison_pages.py

The test needs the average precision of every query, which would make the packed results ten times as large; so what it
says is kept in a file of its own, ``benchmarks/results/paired_significance.json``: for every data set and reference,
row, length, direction and kind of database the difference of mAP and its p-value. A query counts with its mean over
the seeds; 20,000 random signs; Holm's correction over all comparisons of a data set with one reference.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from modalhash._files import write_atomically
from modalhash._typing import Array
from modalhash.evaluation import holm, randomisation_tests
from modalhash.experiments import Results, Study, load_grid, read_studies

HERE = Path(__file__).resolve().parent
FILE = HERE.parent / "results" / "paired_significance.json"
REFERENCES = ("AMSH", "RLH")
DRAWS = 20_000


def against(study: Study, reference: str) -> dict[str, dict[str, list[float]]]:
    """Return for every row and ``bits direction database`` how far it is above the reference, and the p-value."""
    differences: dict[tuple[str, str], Array] = {}
    for label, _ in study.rows:
        for bits in study.bits if label != reference else ():
            seeds = sorted(set(study.of(label, bits)) & set(study.of(reference, bits)))
            for direction in study.directions:
                for database in study.databases:
                    first, second = (
                        study.per_query(row, bits, direction, database, seeds) for row in (label, reference)
                    )
                    if first is not None and second is not None:
                        differences[label, f"{bits} {direction} {database}"] = first - second
    p_values = holm(randomisation_tests(list(differences.values()), draws=DRAWS))
    found: dict[str, dict[str, list[float]]] = {}
    for ((label, cell), difference), p in zip(differences.items(), p_values, strict=True):
        found.setdefault(label, {})[cell] = [round(float(np.nanmean(difference)), 5), round(p, 5)]
    return found


def main() -> None:
    studies = read_studies(Results(Path(sys.argv[1])), load_grid(HERE / "paired.toml"))
    found = {name: {row: against(study, row) for row in REFERENCES} for name, study in studies.items()}
    write_atomically(FILE, (json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n").encode())


if __name__ == "__main__":
    main()
