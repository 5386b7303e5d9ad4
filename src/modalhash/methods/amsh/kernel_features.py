"""AMSH: kernel features of each modality, within a limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from modalhash._parallel import submit
from modalhash._typing import Array, Matrix
from modalhash.blocks import FeatureRows
from modalhash.features import FeatureMap
from modalhash.linalg import RidgeFactor


class KernelFeatures:
    """Φ of each modality, computed when it is asked for, and (ΦᵀΦ + ρI)⁻¹.

    Parameters
    ----------
    X : features by modality
    maps : feature maps by modality, not yet fitted
    memory_limit : bytes for features held in memory, or None
    keep : hold the features of all modalities, which share the limit, because they are asked for again: where V starts
        from them, and for the other code lengths of ``fit_path``
    """

    def __init__(
        self, X: Mapping[str, Matrix], maps: dict[str, FeatureMap], memory_limit: int | None, *, keep: bool
    ) -> None:
        self.maps, self._X, self._keep = maps, X, keep
        self._memory = memory_limit // len(maps) if keep and memory_limit is not None else memory_limit
        self._kept: dict[str, FeatureRows] = {}
        self._inverses: dict[str, Callable[[], Array]] = {}

    def __getitem__(self, name: str) -> FeatureRows:
        if name in self._kept:
            return self._kept[name]
        phi = self.maps[name].fit_parts(self._X[name], memory_limit=self._memory)
        if self._keep:
            self._kept[name] = phi
        return phi

    def __call__(self, name: str, ridge: float) -> tuple[FeatureRows, Callable[[], Array]]:
        """Return Φ, and a function that waits for (ΦᵀΦ + ρI)⁻¹, which a worker computes."""
        phi = self[name]
        if name in self._inverses:
            return phi, self._inverses[name]
        inverse = submit(_inverse, phi.gram(), ridge)
        if self._keep:
            self._inverses[name] = inverse
        return phi, inverse


def _inverse(gram: Array, ridge: float) -> Array:
    return RidgeFactor(gram, ridge).inverse()
