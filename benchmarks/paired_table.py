"""The paired comparison: every paired method, AMSH with its ablations, and the controls, on Wiki and IAPR TC-12.

    python benchmarks/paired_table.py [--datasets wiki] [--methods batch amsh:s] [--bits 16 32] [--seeds 3]
    python benchmarks/paired_table.py --markdown docs/paired.md

The first form fits what is not yet in the result file and writes the file after every fit, so a run that was
stopped goes on where it was. The second fits nothing and writes the page. A method's ``--methods`` name stands
for all its rows; ``method:variant`` for one of them. Data are looked for as ``load_dataset`` says.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modalhash._files import write_atomically
from modalhash.registry import METHODS
from pages import page
from tables import Comparison, Row, read

VARIANTS = [
    Row("amsh", "s", {"intra": 0}),
    Row("amsh", "t", {"inter": 0}),
    Row("amsh", "k", {"kernel": None}),
    Row("amsh", "m", {"margins": False}),
    Row("smfh", "L", {"variant": "liu", "negative": "clip"}),  # diverges on negative features
    Row("label-oracle", "queries too", labels_as_features=True),
]
INTRODUCTION = """\
# The paired comparison

Every method that learns from pairs, AMSH (which is given the same rows but not told that they are pairs) and its
ablations, and the controls. Every method runs with its default parameters on every data set, on the official
split, with the training items as the database. Numbers are mAP, mean ± standard deviation over {seeds}.

A **learned** database holds the codes that training made, from labels where the method is supervised; a
**hashed** one holds what the same items get from their features alone. Compare within one kind of database only.
The best of each column is **bold**, controls left out.

- † re-implementation: neither the authors' code nor the full text was at hand.
- ‡ control: a level to compare with, not a method to use. `Chance` has random codes; `CCA-ITQ` sees no labels;
  `LabelOracle` has database codes from the true labels, *queries too* makes those of the queries from their labels.
- AMSH-s has no similarity within modalities (`intra=0`), AMSH-t none between them (`inter=0`), AMSH-k no kernel
  (`kernel=None`), AMSH-m no margins (`margins=False`). SMFH-L is the variant of Liu et al.
"""
SOURCE = (
    "Every cell is in `benchmarks/results/paired.json`, made by `python benchmarks/paired_table.py`; "
    "this page by `python benchmarks/paired_table.py --markdown docs/paired.md`."
)


def rows() -> list[Row]:
    """Paired methods by year, AMSH and its ablations, controls."""
    chosen = [m for m in METHODS.values() if m.control or m.pairing == "needed" or m.name == "amsh"]
    chosen.sort(key=lambda m: (m.control, m.name == "amsh", m.year or 0))
    return [row for m in chosen for row in (Row(m.name), *(v for v in VARIANTS if v.method == m.name))]


PAIRED = Comparison("paired", rows, {"wiki": {}, "iapr-tc12": {"text": "de"}})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", choices=list(PAIRED.datasets), default=list(PAIRED.datasets))
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--bits", nargs="+", type=int, default=PAIRED.bits)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=PAIRED.results, help="result file (default: %(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="fit nothing; write the page from the results")
    options = parser.parse_args()
    if options.markdown is None:
        chosen = PAIRED.select(options.methods)
        return 1 if PAIRED.run(chosen, options.datasets, options.bits, options.seeds, options.out) else 0
    if not options.out.exists():
        raise SystemExit(f"{options.out} is not there yet: run without --markdown first")
    order = [(row.method, row.variant) for row in rows()]
    write_atomically(options.markdown, page(read(options.out), order, INTRODUCTION, SOURCE).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
