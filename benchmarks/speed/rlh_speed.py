"""Training RLH against AMSH on the synthetic twins of MIRFlickr-25K and NUS-WIDE, in turn, and step 1 at growing size.

    python benchmarks/speed/rlh_speed.py

Ratios of one run: RLH over AMSH, 64 bits, 1,500 anchors, defaults; processor seconds and seconds on the clock. Step 1
is timed between its first and last report, 25,000 to 400,000 items per modality; features (200 anchors, no step 2) are
not part of it. Results go to benchmarks/results/rlh_speed.json.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

from modalhash import AMSH, RLH
from modalhash.core.progress import Progress
from modalhash.data import twin
from record import write

NUSWIDE = 186_577
ROUNDS = {"mirflickr25k": 3, "nuswide10": 1}
SIZES = (25_000, 100_000, 400_000)


def fit_seconds(method: Any, data: Any) -> tuple[float, float]:
    """Processor seconds and seconds on the clock of one fit."""
    clock, processor = time.perf_counter(), time.process_time()
    method.fit(data.features, data.labels)
    return time.process_time() - processor, time.perf_counter() - clock


def against_amsh(name: str, rounds: int) -> dict[str, Any]:
    data = twin(name, seed=0).parts().training
    times: dict[str, list[tuple[float, float]]] = {"rlh": [], "amsh": []}
    for seed in range(rounds):
        times["amsh"].append(fit_seconds(AMSH(64, random_state=seed), data))
        times["rlh"].append(fit_seconds(RLH(64, random_state=seed), data))
    best = {method: [min(column) for column in zip(*values, strict=True)] for method, values in times.items()}
    ratios = [own / other for own, other in zip(best["rlh"], best["amsh"], strict=True)]
    return {
        "name": name,
        "items": data.sizes,
        "rounds": rounds,
        "processor_seconds": {method: round(values[0], 2) for method, values in best.items()},
        "clock_seconds": {method: round(values[1], 2) for method, values in best.items()},
        "processor_ratio": round(ratios[0], 3),
        "clock_ratio": round(ratios[1], 3),
    }


def step_1(items: int) -> float:
    """Processor seconds of step 1 alone."""
    data = twin("nuswide10", seed=0, scale=items / NUSWIDE).parts().training
    marks: dict[str, list[float]] = {}

    def note(progress: Progress) -> None:
        marks.setdefault(progress.stage.partition(":")[0], []).append(time.process_time())

    RLH(64, n_anchors=200, functions="posterior", random_state=0).fit(data.features, data.labels, callback=note)
    return marks["codes"][-1] - marks["posteriors"][-1]


def main() -> None:
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    for name, rounds in ROUNDS.items():
        rows.append(against_amsh(name, rounds))
        print(rows[-1], flush=True)
    for items in SIZES:
        rows.append({"name": "step 1", "items": items, "processor_seconds": round(step_1(items), 2)})
        print(rows[-1], flush=True)
    write("rlh_speed", rows)


if __name__ == "__main__":
    main()
