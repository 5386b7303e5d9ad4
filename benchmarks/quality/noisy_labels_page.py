"""The page docs/measurements/noisy-labels.md: a pure function of the packed results.

modalhash experiment run benchmarks/quality/noisy_labels.toml --results results/noisy_labels
modalhash experiment pack results/noisy_labels benchmarks/results/noisy_labels.json.xz
python benchmarks/quality/noisy_labels_doubts.py
python benchmarks/quality/noisy_labels_page.py
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np

from modalhash.core.files import write_atomically
from modalhash.evaluation import Spread
from modalhash.experiments import Results, Study, load_grid, read_studies

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE.parent / "results", HERE.parents[1] / "docs" / "measurements" / "noisy-labels.md"
GRIDS = ("noisy_labels", "noisy_labels_iapr")
METHODS = ("WASH", "AMSH", "RLH")
TITLES = {
    "wiki": "Wiki",
    "openmoji": "OpenMoji",
    "mfeat": "Mfeat (pix, fou)",
    "iapr-tc12": "IAPR TC-12 (German captions)",
}
HEAD = """\
# Wrong labels

What happens to a search if a share of the labels of the training items is wrong? This page compares WASH, which is
made for that case and learns from pairs, with AMSH and RLH, which are not and ignore the pairs. Each label of a
training pair is moved, with the probability at the top of a column, to a class that the pair does not have. Both
items of a pair have the same labels, and all methods get the same wrong ones. Relevance is judged by the true labels.
{bits} bits, RLH with its defaults, AMSH with 15 iterations of step 2 and WASH with its authors' parameters, mean ±
standard deviation over {seeds} seeds, each with flips of its own; two seeds on IAPR TC-12. mAP over the full ranking,
ties in expectation. The best of each column is **bold**.

A **learned** database holds the codes that training made from the wrong labels; a **hashed** one holds what the same
items get from their features alone; an **unseen** one holds the other queries. Everything was measured once, and
nothing was chosen on these queries (`benchmarks/quality/noisy_labels.toml`, `noisy_labels_iapr.toml`).
"""
FINDINGS = """\
## Who wins where

How often each method is first, in both directions and at every share of wrong labels above none:

{firsts}

- **Learned codes**: WASH leads on Wiki, OpenMoji and Mfeat in 21 of 24 cells with wrong labels. With a fifth of them
  wrong, it is 8 points ahead of RLH on Wiki (text → image; image → text they are level), 3 and 5 on OpenMoji, and 17
  and 14 on Mfeat. On IAPR TC-12 RLH is first, except for text → image with two fifths wrong.
- **Hashed codes**: RLH leads on Wiki and IAPR TC-12, WASH on OpenMoji from a fifth on, and AMSH on Mfeat, where RLH
  remembers the wrong labels of training items: with a fifth wrong, it is 18 points behind WASH from pix to fou.
- **New items**: RLH leads on Wiki, Mfeat and IAPR TC-12 in 20 of 24 cells, and on OpenMoji up to a tenth of wrong
  labels; from a fifth on WASH is level there or ahead, by 2 points with two fifths wrong.
- **No wrong labels**: RLH is first in every cell. On IAPR TC-12, WASH starts 10 points below the others (learned,
  text → image) and loses less from there.

In short: take `wash` if training items are paired and few (here 1,500 to 2,200), more than a tenth of their labels is
wrong, and they are also the database. Take `rlh` for new items, for data like IAPR TC-12, which has 17,664 pairs and
291 labels, and wherever there are no pairs.
"""
DOUBTS = """\
## Which labels are wrong

WASH tells how much it doubts each given label. The table shows how often a wrong label is doubted more than a right
one (the area under the ROC curve; .5 is chance), for training pairs only, as a mean over {seeds} seeds, and one seed
on IAPR TC-12. In brackets is what the number of items of the label's class alone would give: labels move to all
classes alike, so a label of a rare class is more likely to be wrong.

{table}

On Wiki, Mfeat and IAPR TC-12, the doubt finds wrong labels well, and far better than rarity does. On OpenMoji, with
107 labels for 1,517 pairs, it is no better than rarity. Do not rely on it if most classes have only a handful of
items.

```python
import numpy as np

import modalhash
from modalhash.data import noisy_labels, twin

data = noisy_labels(twin("mirflickr25k", scale=0.02), 0.2, shared=True).parts().training
model = modalhash.method("wash")(n_bits=16, n_anchors=100, random_state=0)
noise = model.fit(data.features, data.labels, pairs="aligned").noise_
for n in np.argsort(-noise["doubt"])[:10]:  # look at these labels first
    pair, label, doubt = noise["pair"][n], noise["class"][n], noise["doubt"][n]
```
"""


def rate_of(scenario: str) -> float:
    """Return the share of wrong labels that a scenario makes."""
    return float(scenario.partition("noisy_labels:")[2] or 0)


def table(study: Study) -> list[str]:
    """Return the table of one data set: rows by database, direction and method, a column per share of wrong labels."""
    scenarios = sorted({scenario for _, scenario in study.rows}, key=rate_of)
    (bits,) = study.bits
    lines = [
        f"### {TITLES[study.dataset]}",
        "",
        "| database | direction | method | " + " | ".join(f"{rate_of(s):.0%}" for s in scenarios) + " |",
        "|---|---|---|" + "---|" * len(scenarios),
    ]
    for database, direction in product(study.databases, study.directions):
        found = {m: [study.spread(m, bits, direction, database, scenario=s) for s in scenarios] for m in METHODS}
        best = [max(found, key=lambda m, n=n: found[m][n].mean) for n in range(len(scenarios))]
        for method, spreads in found.items():
            cells = [_cell(spread, bold=best[n] == method) for n, spread in enumerate(spreads)]
            lines.append("| " + " | ".join([database, direction, method, *cells]) + " |")
    chance = "; ".join(f"{way} {study.chance(way, 'unseen'):.3f}" for way in study.directions)
    lines += ["", f"A random ranking of unseen items: {chance}."]
    seconds = ", ".join(f"{m} {study.seconds(m, bits, scenario=scenarios[0]).mean:.1f}" for m in METHODS)
    return [*lines, f"CPU seconds of a fit without wrong labels: {seconds}.", ""]


def _cell(spread: Spread | None, *, bold: bool) -> str:
    assert spread is not None
    mark = "**" if bold else ""
    return f"{mark}{spread.mean:.3f}{mark}" + (f" ± {spread.sd:.3f}" if spread.n > 1 else "")


def first_places(studies: list[Study]) -> str:
    """Return how often each method is first where some labels are wrong, by data set and database."""
    lines = ["| | " + " | ".join(studies[0].databases) + " |", "|---|" + "---|" * len(studies[0].databases)]
    for study in studies:
        scenarios = sorted({scenario for _, scenario in study.rows if rate_of(scenario)})
        cells = []
        for database in study.databases:
            firsts = [
                max(METHODS, key=lambda m, w=way, s=s: study.mean(m, study.bits[0], w, database, scenario=s))
                for way, s in product(study.directions, scenarios)
            ]
            counts = {method: firsts.count(method) for method in METHODS}
            cells.append(", ".join(f"{m} {count}" for m, count in counts.items() if count) + f" of {len(firsts)}")
        lines.append("| " + " | ".join([TITLES[study.dataset], *cells]) + " |")
    return "\n".join(lines)


def doubts() -> str:
    """Return the table of how well wrong labels are found."""
    known = json.loads((RESULTS / "noisy_labels_doubts.json").read_text(encoding="utf-8"))
    parts: dict[tuple[str, str], list[dict[str, float]]] = {}
    for key, entry in known.items():
        name, rate, _ = key.split(", ")
        parts.setdefault((name, rate), []).append(entry)
    names, rates = (list(dict.fromkeys(part[k] for part in parts)) for k in (0, 1))
    lines = ["| | " + " | ".join(f"{float(rate):.0%} wrong" for rate in rates) + " |", "|---|" + "---|" * len(rates)]
    for name in names:
        cells = []
        for entries in (parts.get((name, rate), []) for rate in rates):
            doubt, rarity = ([entry[kind] for entry in entries] for kind in ("doubt", "rarity"))
            cells.append(f"{np.mean(doubt):.3f} ({np.mean(rarity):.3f})" if entries else "–")
        lines.append("| " + " | ".join([TITLES[name], *cells]) + " |")
    head = DOUBTS.format(table="\n".join(lines), seeds=max(map(len, parts.values())))
    return head


def page() -> str:
    """Return the whole page."""
    grids = [load_grid(HERE / f"{name}.toml") for name in GRIDS]
    results = Results(RESULTS / "noisy_labels.json.xz")
    studies = [study for grid in grids for study in read_studies(results, grid).values()]
    tables = [line for study in studies for line in table(study)]
    head = HEAD.format(bits=", ".join(map(str, grids[0].bits)), seeds=grids[0].seeds)
    findings = FINDINGS.format(firsts=first_places(studies))
    return "\n".join([head, findings, doubts(), "## Tables", "", *tables])


if __name__ == "__main__":
    write_atomically(PAGE, page().encode())
