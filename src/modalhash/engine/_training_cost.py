"""What training takes, about: a simple model of the cost of the default method, scaled to this machine.

With n items and m anchors (at most 1,500) of a modality, learning sums n·m² for the Gram matrix and factors it in m³;
what it does besides hardly depends on the collection. The constants were fitted to processor seconds on IAPR TC-12 (300
to 20,000 photos, and as many German captions). :func:`machine_slowness` repeats a small piece of such work, so that the
estimate is one for the machine as it is now.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from modalhash.engine.confidence import HELD_OUT, MIN_HELD_OUT

METHOD = "rlh"
"""The method whose cost is known."""
ANCHORS = 1500
STAGES = {  # seconds: once, per 1e9 of n·m², per 1e9 of m³, per 1,000 items
    "learn": (1.5, 0.112, 0.159, 0.0),
    "refine": (0.2, 0.126, 0.158, 0.0),
    "confidence": (1.1, 0.296, 0.479, 0.0),
    "store": (0.0, 0.0, 0.0, 0.19),
}
ENOUGH_FOR_CONFIDENCE = HELD_OUT * MIN_HELD_OUT
"""Items to learn from, of each modality, from which on confidence is learned."""
BASE_BYTES, BYTES_PER_ANCHORS, BYTES_PER_ITEM = 230e6, 125, 24e3
"""Of memory: of the process, per m², per item."""
DISK_BASE, DISK_PER_ITEM = 2e6, 1.5e3
REFERENCE_SECONDS = 0.0138
"""What :func:`machine_slowness` takes on the machine that the constants are of, with one thread."""


class Cost(NamedTuple):
    """What training takes besides encoding, about."""

    seconds: dict[str, float] | None
    """By stage; None for a method whose cost is not known."""
    memory: int | None
    disk: int


def estimate_cost(
    method: str,
    sizes: Mapping[str, int],
    training: Mapping[str, int],
    dims: Mapping[str, int],
    *,
    slowness: float = 1.0,
) -> Cost:
    """Return the cost of a training, about.

    Parameters
    ----------
    method : its name
    sizes : items by modality
    training : items that are learned from, by modality
    dims : features by modality
    slowness : how many times longer this machine takes than the one that was measured
    """
    anchors = {modality: min(n, ANCHORS) for modality, n in training.items()}
    grams = sum(training[modality] * m**2 for modality, m in anchors.items()) / 1e9
    factors = sum(m**3 for m in anchors.values()) / 1e9
    items = sum(sizes.values())
    disk = DISK_BASE + DISK_PER_ITEM * items + 4 * sum(m * dims[modality] for modality, m in anchors.items())
    if method != METHOD:
        return Cost(None, None, int(disk))
    stages = dict(STAGES)
    if min(training.values()) < ENOUGH_FOR_CONFIDENCE:
        del stages["confidence"]
    seconds = {
        stage: slowness * (once + by_gram * grams + by_factor * factors + by_item * items / 1000)
        for stage, (once, by_gram, by_factor, by_item) in stages.items()
    }
    memory = BASE_BYTES + BYTES_PER_ANCHORS * sum(m**2 for m in anchors.values()) + BYTES_PER_ITEM * items
    return Cost(seconds, int(memory), int(disk))


def machine_slowness(repeats: int = 3) -> float:
    """Return how many times longer a piece of linear algebra takes than on the machine that was measured."""
    rows = np.ones((600, 600))

    def once() -> float:
        begin = time.perf_counter()
        np.linalg.cholesky(rows.T @ rows + len(rows) * np.eye(len(rows)))
        return time.perf_counter() - begin

    with threadpool_limits(1):
        once()  # what is loaded at the first time
        return sorted(once() for _ in range(repeats))[repeats // 2] / REFERENCE_SECONDS
