"""What the estimators SAPMH and UAPMH share: kernel features, start, iterations, the single-view encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from modalhash._typing import Array, Matrix, PerModality
from modalhash.base import CrossModalHasher, Training
from modalhash.codes import pack_signs
from modalhash.features import AnchorKernel, anchors_by_modality
from modalhash.linalg import sign
from modalhash.methods._apmh import Layout, State, encode, encoder, latent_prior, lay_out
from modalhash.progress import Reporter
from modalhash.randomness import RandomState, root_seed
from modalhash.validation import check_int, per_modality


class PartialHasher(CrossModalHasher):
    """Base of both forms; a subclass fills in the steps."""

    latent: int
    n_anchors: PerModality[int]
    bandwidth: PerModality[float | str]
    random_state: RandomState

    objective_: Array
    n_iter_: int
    projections_: dict[str, Array]
    feedback_: dict[str, Array]

    def _project(self, name: str, X: Matrix) -> Array:
        return encode(self.maps_[name].map(X), self.projections_[name], self.feedback_[name])

    def _start(self, data: Training) -> tuple[dict[str, AnchorKernel], Layout, State, np.random.Generator]:
        """Feature maps; H normal, B random signs, μ = 0.5, as in the authors' code; W is still to be made."""
        k, seed = check_int(self.latent, "latent", at_least=1), root_seed(self.random_state)
        anchors = anchors_by_modality(self.n_anchors, data.X)
        widths: dict[str, float | str] = per_modality(self.bandwidth, data.X, "bandwidth")
        maps = {
            name: AnchorKernel(anchors[name], bandwidth=widths[name], centred=False, dtype="float64", random_state=seed)
            for name in data.X
        }
        layout = lay_out(data, maps)
        rng = np.random.default_rng([seed, 0])
        H, B = rng.standard_normal((layout.size, k)), sign(rng.standard_normal((layout.size, data.n_bits)))
        return maps, layout, State(H, B, np.zeros((k, data.n_bits))), rng

    def _iterate(
        self, step: Callable[[], float], report: Reporter, *, max_iter: int, tol: float, relative: bool
    ) -> Array:
        """Steps until the watched value falls by less than tol, after the third at the earliest."""
        trace: list[float] = []
        for t in range(1, max_iter + 1):
            trace.append(step())
            report("codes", t, max_iter, trace[-1])
            scale = abs(trace[-1]) if relative else 1.0
            if tol and t > 3 and trace[-2] - trace[-1] < tol * scale:
                break
        return np.array(trace)

    def _learned(
        self,
        maps: dict[str, AnchorKernel],
        layout: Layout,
        state: State,
        theta: float,
        trace: Array,
        ridge: float = 0.0,
    ) -> dict[str, Any]:
        P, Q = {}, {}
        for name, view in layout.views.items():
            prior = latent_prior(view, state.H, ridge)
            P[name], Q[name] = encoder(view, state.W, theta, prior, layout.proximal)
        return {
            "codes_": {name: pack_signs(state.B[view.rows]) for name, view in layout.views.items()},
            "maps_": maps,
            "projections_": P,
            "feedback_": Q,
            "objective_": trace,
            "n_iter_": len(trace),
        }
