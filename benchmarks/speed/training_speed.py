"""Training AMSH: against a textbook implementation, against itself on samples, against the machine; RLH's lengths.

    python benchmarks/speed/training_speed.py                 # meant to take five minutes on two quiet cores
    python benchmarks/speed/training_speed.py --quick         # small twins, what fits half a minute; nothing is written
    python benchmarks/speed/training_speed.py --only path floor

Data are the synthetic twins of MIRFlickr-25K and NUS-WIDE: their sizes, not their contents. The textbook is
tests/reference/amsh.py: dense float64, R, E and M as matrices, the Gram matrix formed and inverted in every iteration,
as the authors' code is organised. The floor of step 2 is the time that its multiplications would take as plain
float32 matrix products of the best of four shapes. What needs a process of its own is in training_memory.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import training_memory
from modalhash import AMSH, RLH
from modalhash.core.blocks import FeatureRows
from modalhash.core.features import AnchorKernel, Linear
from modalhash.core.linalg import RidgeFactor
from modalhash.core.parallel import worker_threads
from modalhash.data import twin
from modalhash.evaluation import mean_average_precision
from modalhash.methods.amsh.codes import Start, Weights, step_1_threads, update_B, update_E, update_P, update_V
from modalhash.methods.amsh.functions import learn_functions
from record import RESULTS, write
from reference import amsh as textbook
from speed_rows import best, in_turn, middle, ratio_spread, rounded, row, show, timed

Row = dict[str, Any]
STEPS = 4
"""Accelerated iterations of step 2, AMSH's default, that reach the objective of the textbook's 15; checked here."""
LENGTHS = (16, 32, 64, 128)


def parts(name: str, scale: float, seed: int = 0):
    data = twin(name, seed=seed, scale=scale)
    return data.split.apply(data)


def textbook_fit(X, Y, bits: int, anchors: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Codes, hash functions and kernel features, from the authors' PCA start."""
    L, V, phi = [], [], []
    for name, values in X.items():
        chosen = values[np.random.default_rng(0).permutation(len(values))[:anchors]]
        features = textbook.kernel_features(values.T, chosen.T)
        directions = np.linalg.eigh(np.cov(features[:, :1000]))[1][:, : -bits - 1 : -1]
        phi.append(features)
        V.append(directions.T @ features)
        L.append(np.asarray(Y[name], dtype=np.float64).T)
    B, _ = textbook.step_1(L, V)
    return B, [textbook.step_2(b, p) for b, p in zip(B, phi, strict=True)], phi


def hinge(F, B, phi, ridge: float = 0.01) -> float:
    return float((np.maximum(0, 1 - B * (F @ phi)) ** 2).sum() + ridge * (F**2).sum())


def objective_ratios(B, F, phi) -> list[float]:
    """Our squared hinge over the textbook's, each modality, for the same codes and kernel features."""
    ratios = []
    for codes, theirs, features in zip(B, F, phi, strict=True):
        rows = np.ascontiguousarray(features.T, dtype=np.float32)
        blocks = Linear(dtype="float32").fit_blocks(rows)
        inverse = RidgeFactor(blocks.gram(), 0.01).inverse()
        mine = learn_functions(blocks, codes.T, lambda inverse=inverse: inverse, ridge=0.01, max_iter=STEPS).F
        ratios.append(hinge(mine.T, codes, features) / hinge(theirs, codes, features))
    return ratios


def fit_mirflickr(quick: bool) -> Iterator[Row]:
    training = parts("mirflickr25k", 0.1 if quick else 1.0).training
    X, Y, anchors = dict(training.features), dict(training.labels), 300 if quick else 1500
    dense = {name: np.asarray(values, dtype=np.float64) for name, values in X.items()}
    ours = {
        "fit-mirflickr": (f"{STEPS} accelerated steps", {"function_iter": STEPS}),
        "fit-mirflickr-15": ("15 accelerated steps, which go lower", {"function_iter": 15}),
        "fit-mirflickr-samples": (f"no label patterns, {STEPS} steps", {"function_iter": STEPS, "solver": "samples"}),
    }
    works = {
        name: (lambda options=options: AMSH(64, init="pca", n_anchors=anchors, random_state=0, **options).fit(X, Y))
        for name, (_, options) in ours.items()
    }
    reached = ""
    few = [{name: values[:200] for name, values in given.items()} for given in (X, Y)]
    AMSH(8, n_anchors=20, random_state=0).fit(*few)  # what only the first fit of a process pays for
    for threads, turns in ((2, 3), (1, 1)):
        if threads == 1:
            works = {"fit-mirflickr": works["fit-mirflickr"]}
        with threadpool_limits(threads, user_api="blas"):
            runs: dict[str, list[Any]] = {name: [] for name in works}
            slow = []
            for _ in range(turns):
                for name, one in in_turn(works, 1).items():
                    runs[name] += one
                run, found = timed(lambda: textbook_fit(dense, Y, 64, anchors))
                slow.append(run)
        reached = reached or ", ".join(f"{ratio:.4f}" for ratio in objective_ratios(*found))
        del found
        for name in works:
            note = f"{ratio_spread(runs[name], slow)}; processor seconds "
            note += f"{min(run.processor for run in runs[name]):.1f} against {min(run.processor for run in slow):.1f}"
            if name != "fit-mirflickr-15":
                note += f"; squared hinge {reached} of the textbook's"
            yield row(
                name if threads == 2 else f"{name}-1",
                f"AMSH fit, MIRFlickr twin, 64 bits, {ours[name][0]}, {threads} BLAS thread{'s'[: threads > 1]}",
                against="textbook float64 numpy, 15 + 15 plain steps",
                ours=middle(runs[name]),
                theirs=middle(slow),
                mark=">= 10 x" if name == "fit-mirflickr" else "-",
                note=note,
            )


def step_1(quick: bool) -> Iterator[Row]:
    training = parts("nuswide10", 0.05 if quick else 1.0).training
    X, Y = dict(training.features), dict(training.labels)
    weights = Weights(1.0, 1e-3, 1e-3)

    def learn(solver: str) -> None:
        """All of step 1, from labels to codes; the rows are hashed and sorted too."""
        starts = [Start.of(X[name], Y[name], None, 64, 0) for name in X]
        views = [start.view(64, shared=solver == "patterns") for start in starts]
        with step_1_threads(views):
            for _ in range(AMSH().code_iter):
                for view in views:
                    update_P(view)
                    update_V(view, views, weights)
                    update_B(view, weights)
                    update_E(view, weights)

    fast = in_turn({"patterns": lambda: learn("patterns")}, 3)["patterns"]
    slow = in_turn({"samples": lambda: learn("samples")}, 1)["samples"]
    found = {solver: solver_maps(solver, 3) for solver in ("patterns", "samples") if not quick}
    maps = "; ".join(f"{solver} {np.mean(m):.4f} ± {np.std(m, ddof=1):.4f}" for solver, m in found.items())
    note = f"mAP over 3 seeds at a tenth of the items: {maps}; best of 3 against 1" if found else "best of 3 against 1"
    yield row(
        "step-1-patterns",
        f"AMSH step 1, NUS-WIDE twin, {len(Y['image']):,} × 2, 64 bits, label patterns",
        against="the same on samples",
        ours=best(fast),
        theirs=best(slow),
        mark=">= 50 x",
        note=note,
    )


def solver_maps(solver: str, seeds: int) -> list[float]:
    """Mean of both directions, hashed queries against learned codes, a twin and a start for each seed."""
    maps = []
    for seed in range(seeds):
        split = parts("nuswide10", 0.1, seed)
        X, Y = dict(split.training.features), dict(split.training.labels)
        model = AMSH(64, solver=solver, n_anchors=300, random_state=seed).fit(X, Y)
        queries = model.transform(dict(split.query.features))
        directions = (("image", "text"), ("text", "image"))
        maps.append(
            np.mean(
                [
                    mean_average_precision(queries[q], split.query.labels[q], model.codes_[d], Y[d], n_bits=64)
                    for q, d in directions
                ]
            )
        )
    return maps


def all_of_step_2(blocks: FeatureRows, codes: np.ndarray, steps: int) -> None:
    inverse = RidgeFactor(blocks.gram(), 0.01).inverse()
    learn_functions(blocks, codes, lambda: inverse, ridge=0.01, max_iter=steps)


def step_2_floor(quick: bool) -> Iterator[Row]:
    training = parts("nuswide10", 0.1 if quick else 1.0).training
    X, bits = training.features["image"], 64
    blocks = AnchorKernel(1500, dtype="float32", random_state=0).fit_blocks(X)
    n, d = blocks.n, blocks.width
    rng = np.random.default_rng(0)
    # codes that the features can tell, as those of step 1 are
    codes = np.where(blocks.project(rng.normal(size=(d, bits))) + rng.normal(size=(n, bits)) > 0, 1, -1).astype(np.int8)
    steps = 15
    shapes = [(2000, 2000, 2000), (3000, 3000, 3000), (6000, 1500, 1500), (1500, 6000, 1500)]
    pairs = {s: [rng.random(size, dtype=np.float32) for size in (s[:2], s[1:])] for s in shapes}
    products = {str(shape): (lambda A=A, B=B: A @ B) for shape, (A, B) in pairs.items()}
    times, rate = [], 0.0
    for _ in range(2):
        for shape, runs in zip(shapes, in_turn(products, 4).values(), strict=True):
            rate = max(rate, 2 * float(np.prod(shape)) / best(runs))
        with worker_threads():
            times.append(timed(lambda: all_of_step_2(blocks, codes, steps))[0])
    work = n * d**2 + steps * 4 * n * d * bits  # SYRK once; ΦF and ΦᵀR in every iteration
    yield row(
        "step-2-floor",
        f"AMSH step 2, NUS-WIDE twin, one modality, {n:,} items, 1,500 anchors, 64 bits, 15 steps",
        against=f"{work / 1e9:,.0f} GFLOP as plain float32 products",
        ours=best(times),
        theirs=work / rate,
        mark="<= 1.5 x",
        note=f"Gram matrix, factor and 15 steps; products reach {rate / 1e9:.0f} GFLOP/s at their best; best of 2",
    )


def path(quick: bool) -> Iterator[Row]:
    training = parts("mirflickr25k", 0.1 if quick else 1.0).training
    X, Y, anchors = dict(training.features), dict(training.labels), 300 if quick else 1500
    common = {"n_anchors": anchors, "random_state": 0}
    amsh, rlh = AMSH(function_iter=STEPS, **common), RLH(**common)
    yield path_row("fit-path", f"AMSH.fit_path, MIRFlickr twin, {STEPS} steps", amsh, X, Y, 3)
    yield path_row("fit-path-15", "AMSH.fit_path, MIRFlickr twin, 15 steps", AMSH(function_iter=15, **common), X, Y, 1)
    yield path_row("fit-path-rlh", f"RLH.fit_path, MIRFlickr twin, {rlh.function_iter} steps", rlh, X, Y, 2)


def path_row(name: str, what: str, model: Any, X: Any, Y: Any, repeat: int) -> Row:
    """Four lengths together against four fits, and whether both found the same."""
    kept: dict[str, Any] = {}

    def separate() -> None:
        kept["separate"] = {bits: clone(model).set_params(n_bits=bits).fit(X, Y) for bits in LENGTHS}

    def together() -> None:
        kept["together"] = model.fit_path(X, Y, n_bits=LENGTHS)

    runs = in_turn({"separate": separate, "together": together}, repeat)
    both = [(kept["separate"][bits], kept["together"][bits]) for bits in LENGTHS]
    codes = all(np.array_equal(one.codes_[m], other.codes_[m]) for one, other in both for m in X)
    functions = all(np.array_equal(one.functions_[m], other.functions_[m]) for one, other in both for m in X)
    return row(
        name,
        f"{what}, {' + '.join(map(str, LENGTHS))} bits",
        against="four separate fits",
        ours=middle(runs["together"]),
        theirs=middle(runs["separate"]),
        mark="-",
        note=f"{ratio_spread(runs['together'], runs['separate'])}; codes {'equal' if codes else 'DIFFER'}, functions "
        f"{'equal bit for bit' if functions else 'differ by rounding'}; processor seconds "
        f"{rounded(min(r.processor for r in runs['together']))} against "
        f"{rounded(min(r.processor for r in runs['separate']))}, ratio "
        f"{min(r.processor for r in runs['separate']) / min(r.processor for r in runs['together']):.2f}",
    )


PARTS = {
    "fit": fit_mirflickr,
    "step-1": step_1,
    "floor": step_2_floor,
    "nuswide": training_memory.fit_nuswide,
    "growth": training_memory.growth,
    "path": path,
}


LARGE = ("floor", "nuswide", "growth")
"""Parts that only say something at the size of NUS-WIDE; a quick run leaves them out unless asked for."""


def written() -> dict[str, Row]:
    """Rows of an earlier run, by id."""
    file = RESULTS / "training_speed.json"
    return {line["row"]: line for line in json.loads(file.read_text())["rows"]} if file.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data; write nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="some parts; rows of others are kept as they are")
    options = parser.parse_args()
    rows = {} if options.only is None or options.quick else written()
    for name in options.only or [name for name in PARTS if not (options.quick and name in LARGE)]:
        for line in PARTS[name](options.quick):
            show(line)
            sys.stdout.flush()
            rows[line["row"]] = line
            if not options.quick:
                write("training_speed", list(rows.values()))


if __name__ == "__main__":
    main()
