"""The unpaired comparison: methods that need no pairs, what pairs bring to those that can use them, six modalities.

    python benchmarks/unpaired_table.py [table shares six] [--datasets wiki] [--methods edmh] [--bits 16] [--seeds 3]
    python benchmarks/unpaired_table.py --markdown docs/unpaired.md

The first form fits what is not yet in the result files, of the parts named or of all, and writes after every fit, so
a run that was stopped goes on where it was. The second fits nothing; it writes the page, and the figure into the
folder ``images`` beside it. ``table`` has every modality shuffled on its own; ``shares`` keeps a share of the pairs;
``six`` learns from all modalities of mfeat at once. A method's ``--methods`` name stands for all its rows,
``method:variant`` for one of them; all parts chosen must have it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modalhash._files import write_atomically
from modalhash.registry import METHODS, Method
from tables import FOLDER, Comparison, Row, read
from unpaired_page import FIGURE, draw_shares, page

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
NEEDING_PAIRS = ("batch", "scratch")
"""The leaders of the paired comparison on Wiki, to see what few pairs cost methods that learn from nothing else."""
VARIANTS = [
    Row("amsh", "paired", paired=1.0),
    Row("label-oracle", "queries too", labels_as_features=True, paired=0.0),
]


def by_year(methods: list[Method]) -> list[Method]:
    """AMSH after the others, controls last."""
    return sorted(methods, key=lambda m: (m.control, m.name == "amsh", m.year or 0))


def table_rows() -> list[Row]:
    """Methods that need no pairs, on data without any; AMSH also on the same data, paired."""
    chosen = by_year([m for m in METHODS.values() if m.pairing != "needed"])
    return [row for m in chosen for row in (Row(m.name, paired=0.0), *(v for v in VARIANTS if v.method == m.name))]


def share_rows() -> list[Row]:
    """Those methods, and some that need pairs, with a share of the pairs kept."""
    known = [m for m in METHODS.values() if not m.control and (m.pairing != "needed" or m.name in NEEDING_PAIRS)]
    return [
        Row(m.name, f"{100 * share:g} % paired", paired=share)
        for m in by_year(known)
        for share in SHARES
        if share > 0 or m.pairing != "needed"
    ]


def six_rows() -> list[Row]:
    """Methods that take more than two modalities and need no pairs."""
    chosen = [m for m in METHODS.values() if m.modalities.endswith("+") and m.pairing != "needed" and not m.control]
    return [Row(m.name, paired=0.0) for m in by_year(chosen)]


PARTS = {
    "table": Comparison("unpaired", table_rows, {"wiki": {}, "iapr-tc12": {"text": "de"}}),
    "shares": Comparison("pair_shares", share_rows, {"wiki": {}}, bits=(64,)),
    "six": Comparison("six_modalities", six_rows, {"mfeat": {}}, bits=(64,), intra=True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--datasets", nargs="+", choices=sorted({name for p in PARTS.values() for name in p.datasets}))
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--bits", nargs="+", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--results", type=Path, default=FOLDER, help="folder of the result files (default: %(default)s)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="fit nothing; write the page from the results")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    files = {name: options.results / part.results.name for name, part in PARTS.items()}
    if options.markdown is not None:
        return write_page(files, options.markdown)
    failures = 0
    for name in options.parts or PARTS:
        part = PARTS[name]
        datasets = [d for d in part.datasets if options.datasets is None or d in options.datasets]
        chosen = part.select(options.methods)
        failures += part.run(chosen, datasets, options.bits or part.bits, options.seeds, files[name])
    return 1 if failures else 0


def write_page(files: dict[str, Path], target: Path) -> int:
    if missing := [str(path) for path in files.values() if not path.exists()]:
        raise SystemExit(f"{', '.join(missing)} not there yet: run without --markdown first")
    contents = {name: read(path) for name, path in files.items()}
    rows = {name: part.rows() for name, part in PARTS.items()}
    write_atomically(target, page(contents, rows).encode())
    write_atomically(target.parent / FIGURE, lambda file: draw_shares(contents["shares"], rows["shares"], file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
