"""Data and construction shared by the tests that run over every registered method, and over one outside."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from modalhash.methods import registry
from modalhash.methods.registry import METHODS, Method, info

OUTSIDE = "toy_method:ClassCodes"
"""The example of docs/methods.md: a method outside the package keeps the same contract."""
EXAMPLE = "example_method:ClassMeans"
"""What a new method starts from: CONTRIBUTING.md."""
ALL = [
    pytest.param(method, id=method.name, marks=[pytest.mark.slow] if method.extra or method.name == "smfh" else [])
    for method in (*METHODS.values(), info(OUTSIDE), info(EXAMPLE))
]
"""Methods whose fits take seconds, and those that need an extra, are marked slow."""
SUPERVISED = [p for p in ALL if p.values[0].supervised and not p.values[0].control]
UNPAIRED = [p for p in ALL if p.values[0].pairing != "needed"]
PAIRED = [p for p in ALL if p.values[0].pairing == "needed"]


@dataclass
class Problem:
    """Block data: an item's class is plain from its features in both modalities."""

    X: dict[str, Any]
    Y: dict[str, Any]
    Xq: dict[str, Any]
    Yq: dict[str, Any]
    fit: dict[str, Any]


def block_data(method: Method, *, n=240, n_query=60, n_classes=6, noise=0.15, seed=0) -> Problem:
    """Known answer: each class is a block of features, non-negative, with a little noise.

    Paired where the method needs it; otherwise every modality has its own items, in its own order.
    """
    rng = np.random.default_rng(seed)
    X, Y, Xq, Yq = {}, {}, {}, {}
    aligned = np.arange(n + n_query) % n_classes
    for name, width in {"image": 30, "text": 18}.items():
        classes = aligned if method.pairing == "needed" else rng.permutation(aligned)
        per_class = width // n_classes
        features = np.repeat(np.eye(n_classes)[classes], per_class, axis=1)
        features = np.abs(features + noise * rng.normal(size=features.shape))
        labels = np.eye(n_classes, dtype=np.uint8)[classes]
        X[name], Xq[name] = features[:n], features[n:]
        Y[name], Yq[name] = labels[:n], labels[n:]
    return Problem(X, Y, Xq, Yq, {"pairs": "aligned"} if method.pairing == "needed" else {})


def make(method: Method, n_bits: int = 16, **parameters: Any):
    """The method, small enough for a test."""
    cls = registry.method(method.name)
    known = inspect.signature(cls).parameters
    small = {"n_anchors": 60, "steps": 60, "own_steps": 30, "random_state": 0}
    if "hidden" in known:  # networks
        small |= {"hidden": 32, "hash_hidden": 32, "batch_size": 24, "learning_rate": 0.01, "max_epochs": 8}
    return cls(n_bits, **{k: v for k, v in small.items() if k in known} | parameters)


@cache
def _fitted(name: str):
    method = info(name)
    data = block_data(method)
    return make(method).fit(data.X, data.Y, **data.fit), data


def fitted(method: Method):
    """Return a fitted model and its data, which tests share and must not change."""
    return _fitted(method.name)
