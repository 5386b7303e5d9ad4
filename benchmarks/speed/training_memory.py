"""Training AMSH where memory counts: each fit in a process of its own, whose peak is then its own as well.

Part of training_speed.py. ``memory_limit`` bounds the kernel features that a fit keeps; what does not fit is computed
anew in every iteration, so that memory no longer grows with them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from modalhash import AMSH
from modalhash.data import twin
from speed_rows import peak_megabytes, row, timed

Row = dict[str, Any]
NUSWIDE = 184_577
PAPER_SECONDS = 30.36
SIZES = (25_000, 50_000, 100_000)
FEW_ANCHORS = 500


def fit_once(items: int, parameters: dict[str, Any]) -> dict[str, Any]:
    """Fit the NUS-WIDE twin at some size: seconds, and memory in MB of the whole process and of the fit alone."""
    data = twin("nuswide10", seed=0, scale=items / NUSWIDE)
    training = data.split.apply(data).training
    X, Y, labels = dict(training.features), dict(training.labels), data.provenance["labels"]
    del data, training
    AMSH(8, n_anchors=20, random_state=0).fit({k: v[:200] for k, v in X.items()}, {k: v[:200] for k, v in Y.items()})
    made = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    model = AMSH(64, random_state=0, **parameters)
    extra, (run, _) = peak_megabytes(lambda: timed(lambda: model.fit(X, Y)))
    whole = max(made, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    return {"seconds": run.seconds, "processor": run.processor, "extra": extra, "whole": whole, "labels": labels}


def in_child(items: int, **parameters: Any) -> dict[str, Any]:
    """:func:`fit_once` in a process of its own."""
    command = [sys.executable, __file__, json.dumps([items, parameters])]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def fit_nuswide(quick: bool) -> Iterator[Row]:
    run = in_child(NUSWIDE // 20 if quick else NUSWIDE, function_iter=15)
    what = "AMSH fit, NUS-WIDE twin, all included, 64 bits, 1,500 anchors, 15 + 15 steps"
    yield row(
        "fit-nuswide",
        what,
        against="the paper, on another machine",
        ours=run["seconds"],
        theirs=PAPER_SECONDS,
        mark="-",
        note=f"once; {run['processor']:.0f} processor seconds; {run['labels']} labels",
    )
    yield row(
        "fit-nuswide-memory",
        f"{what}: peak memory of the process, data included",
        against="",
        ours=run["whole"] / 1e3,
        theirs=None,
        mark="<= 4",
        unit="GB",
        note=f"the fit alone {run['extra'] / 1e3:.2f} GB; memory_limit='2GB', the default",
    )


def megabytes(runs: list[dict[str, float]]) -> str:
    return ", ".join(f"{run['extra']:.0f}" for run in runs)


def growth(quick: bool) -> Iterator[Row]:
    sizes = SIZES[:2] if quick else SIZES
    kept = [in_child(n, n_anchors=FEW_ANCHORS, memory_limit=None) for n in sizes]
    anew = [in_child(n, n_anchors=FEW_ANCHORS, memory_limit=1) for n in sizes]
    for name, how, runs in (("kept", "features kept", kept), ("anew", "features computed anew", anew)):
        seconds = [run["seconds"] for run in runs]
        yield row(
            f"growth-{name}",
            f"AMSH fit, {FEW_ANCHORS} anchors, {sizes[0]:,} to {sizes[-1]:,} items, {how}: exponent of time",
            against="",
            ours=float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]),
            theirs=None,
            mark="<= 1.05",
            unit="",
            note="seconds " + ", ".join(f"{s:.1f}" for s in seconds),
        )
    per_item = {name: 1e6 * (runs[-1]["extra"] - runs[0]["extra"]) / (sizes[-1] - sizes[0])
                for name, runs in (("kept", kept), ("anew", anew))}  # fmt: skip
    yield row(
        "growth-memory",
        f"memory of the fit beside the data, {sizes[0]:,} to {sizes[-1]:,} items, bytes for each further item, "
        "features computed anew",
        against="features kept",
        ours=per_item["anew"],
        theirs=per_item["kept"],
        mark="<= 0.2 x",
        unit="B",
        note=f"MB at the peak: anew {megabytes(anew)}; kept {megabytes(kept)}. What is left are labels, codes and keys",
    )


if __name__ == "__main__":
    print(json.dumps(fit_once(*json.loads(sys.argv[1]))))
