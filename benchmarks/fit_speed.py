"""AMSH's fit against a textbook implementation of the paper, in one run.

The textbook is tests/reference/amsh.py: dense float64, R, E and M as matrices, the Gram matrix formed and
inverted in every iteration, as the authors' code is organised. Both fit the size of MIRFlickr-25K: 15,902
items, 150 + 500 features, 24 labels, 1,500 anchors, 64 bits, 15 + 15 iterations.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from record import write

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from modalhash import AMSH
from modalhash.data import twin
from modalhash.features import AnchorKernel
from modalhash.linalg import RidgeFactor
from modalhash.methods._amsh_functions import learn_functions
from reference import amsh as textbook


def squared_hinge(F: np.ndarray, B: np.ndarray, phi: np.ndarray, ridge: float = 0.01) -> float:
    return float((np.maximum(0, 1 - B * (F @ phi)) ** 2).sum() + ridge * (F**2).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the items, for a quick try")
    options = parser.parse_args()
    data = twin("mirflickr25k", seed=0, scale=options.scale)
    training = data.split.apply(data).training
    X, Y = dict(training.features), dict(training.labels)
    n = {name: labels.shape[0] for name, labels in Y.items()}
    print(f"{n} items, {options.bits} bits, 1,500 anchors, 15 + 15 iterations")
    times = {}
    for solver in ("samples", "patterns"):
        start = time.perf_counter()
        AMSH(options.bits, solver=solver, init="pca", random_state=0).fit(X, Y)
        times[solver] = time.perf_counter() - start
        print(f"modalhash, solver={solver!r}: {times[solver]:.2f} s", flush=True)

    dense = {k: np.asarray(v.toarray() if hasattr(v, "toarray") else v, dtype=np.float64) for k, v in X.items()}
    start = time.perf_counter()
    L, V, phi = [], [], []
    for name, values in dense.items():
        anchors = values[np.random.default_rng(0).permutation(len(values))[:1500]]
        features = textbook.kernel_features(values.T, anchors.T)
        directions = np.linalg.eigh(np.cov(features[:, :1000]))[1][:, : -options.bits - 1 : -1]
        phi.append(features)
        V.append(directions.T @ features)
        L.append(np.asarray(Y[name], dtype=np.float64).T)
    B, _ = textbook.step_1(L, V)
    for b, p in zip(B, phi, strict=True):
        textbook.step_2(b, p)
    slow = time.perf_counter() - start
    print(f"textbook: {slow:.2f} s")
    for solver, seconds in times.items():
        print(f"ratio, solver={solver!r}: {slow / seconds:.1f} × faster")

    # the same codes and anchors for both: is the objective reached the same?
    name = next(iter(X))
    mine = AnchorKernel(1500, dtype="float32", random_state=0)
    blocks = mine.fit_blocks(X[name])
    codes = B[0].T.astype(np.float32)
    mine_F, _ = learn_functions(blocks, codes, RidgeFactor(blocks.gram(), 0.01), ridge=0.01, max_iter=15, tol=0)
    exact = textbook.kernel_features(dense[name].T, mine.anchors_.astype(np.float64).T)
    theirs = squared_hinge(textbook.step_2(B[0], exact), B[0], exact)
    ours = squared_hinge(mine_F.T, B[0], exact)
    print(f"squared hinge after 15 iterations: {ours:,.1f} here, {theirs:,.1f} in the textbook ({ours / theirs:.5f})")
    rows = [
        {"measure": f"fit, MIRFlickr twin, solver={solver}", "seconds": seconds, "textbook_seconds": slow,
         "ratio": slow / seconds, "hinge_ratio": ours / theirs, "bits": options.bits, "items": n}
        for solver, seconds in times.items()
    ]  # fmt: skip
    write("fit_speed", rows)


if __name__ == "__main__":
    main()
