"""What hypothesis draws for the methods: label matrices of every awkward kind, and weights."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


@st.composite
def labels(draw, n, n_classes):
    """Labels (n, n_classes): single- or multi-label, perhaps with duplicate rows or unused classes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["single", "multi", "dense", "few rows"]))
    L = np.zeros((n, n_classes), dtype=bool)
    L[np.arange(n), rng.integers(n_classes, size=n)] = True
    if kind == "multi":
        L |= rng.random((n, n_classes)) < 0.2
    elif kind == "dense":
        L |= rng.random((n, n_classes)) < 0.7
    elif kind == "few rows":
        L = L[rng.integers(min(3, n), size=n)]
    return L


@st.composite
def problems(draw, max_modalities=3):
    """Labels and an initial V for one to three modalities; n may be barely above r, r may exceed c."""
    r = draw(st.integers(1, 9))
    n_classes = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    L, V = [], []
    for _ in range(draw(st.integers(1, max_modalities))):
        n = r + draw(st.sampled_from([1, 2, 5, 20, 60]))
        L.append(draw(labels(n, n_classes)))
        V.append(rng.standard_normal((n, r)))
    return L, V


weights = st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 30.0])
