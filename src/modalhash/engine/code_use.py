"""How well codes use their bits: how often each is set, which of them say the same, how many items share a code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modalhash._typing import Array, Codes

if TYPE_CHECKING:
    from modalhash.store import Store

MAX_CODES = 100_000
"""Codes that are looked at, evenly spread over all: more would hardly change a share."""


@dataclass(frozen=True, eq=False)
class CodeStatistics:
    """How the codes of some items use their bits."""

    n: int
    """Codes that were looked at."""
    ones: Array
    """The share of codes that have each bit set."""
    correlation: Array
    """Of each bit with each; 0 of a bit that is the same everywhere."""
    distinct: int
    """Different codes."""
    largest: int
    """The most items that share one."""

    @property
    def entropy(self) -> Array:
        """Bits of information in each bit: 1 if half of the codes have it set, 0 if all or none have."""
        p = np.clip(self.ones, 1e-12, 1 - 1e-12)
        return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))

    @property
    def n_constant(self) -> int:
        """Bits that are the same in all codes."""
        return int(((self.ones == 0) | (self.ones == 1)).sum())

    @property
    def effective_bits(self) -> float:
        """How many uncorrelated bits would spread as much: the participation ratio of the correlations."""
        total = float((self.correlation**2).sum())
        return float(np.trace(self.correlation)) ** 2 / total if total else 0.0


def use_of_codes(codes: Codes, n_bits: int) -> CodeStatistics:
    """Look at packed codes, one or more.

    Examples
    --------
    >>> used = use_of_codes(np.array([[0b0110_0000], [0b1010_0000], [0b0010_0000], [0b1110_0000]], dtype=np.uint8), 3)
    >>> used.ones.tolist(), used.distinct, used.n_constant, used.effective_bits
    ([0.5, 0.5, 1.0], 4, 1, 2.0)
    """
    bits = np.unpackbits(codes, axis=1, count=n_bits).astype(np.float32)
    ones = bits.mean(axis=0, dtype=np.float64)
    spread = np.sqrt(ones * (1 - ones))
    standard = (bits - ones.astype(np.float32)) / np.where(spread > 0, spread, 1).astype(np.float32)
    correlation = np.asarray(standard.T @ standard, dtype=np.float64) / len(codes)
    rows = np.ascontiguousarray(codes).view(np.dtype((np.void, codes.shape[1])))
    counts = np.unique(rows, return_counts=True)[1]
    return CodeStatistics(len(codes), ones, np.round(correlation, 6), len(counts), int(counts.max()))


def code_statistics(store: Store, *, max_codes: int = MAX_CODES) -> dict[str, CodeStatistics]:
    """Return how the codes of each modality of a store use their bits, without modalities that have none."""
    every = max(1, -(-store.count() // max_codes))
    parts: dict[int, list[Codes]] = {}
    seen = 0
    for _, modalities, codes in store.codes():
        chosen = slice(-seen % every, None, every)
        seen += len(codes)
        for number in np.unique(modalities[chosen]).tolist():
            parts.setdefault(number, []).append(codes[chosen][modalities[chosen] == number])
    names = {number: name for name, number in store.modalities().items()}
    return {names[number]: use_of_codes(np.concatenate(some), store.n_bits) for number, some in parts.items()}
