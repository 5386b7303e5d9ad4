r"""Similarity by labels between −1 and 1, S = 2GxGyᵀ − 11ᵀ for label rows of length 1: applied, never formed.

SCM, ALECH and FCMH make the products of codes resemble rS. Items with the same labels have S = 1, items that share
none −1. Two products with thin matrices take the place of one with S.
"""

from __future__ import annotations

import numpy as np

from modalhash._typing import Array


def similarity_times(Gx: Array, Gy: Array, M: Array) -> Array:
    """S M."""
    product = Gx @ (2 * (Gy.T @ M))
    product -= M.sum(axis=0)
    return np.asarray(product)


def squared_similarity(Gx: Array, Gy: Array) -> float:
    """‖S‖²."""
    overlap = float(np.vdot(Gx.T @ Gx, Gy.T @ Gy))
    total = float(Gx.sum(axis=0) @ Gy.sum(axis=0))
    return 4 * overlap - 4 * total + len(Gx) * len(Gy)
