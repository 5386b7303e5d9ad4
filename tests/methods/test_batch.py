"""BATCH: the objective never rises, the sums are those of the dense matrices, anchors by position."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.core.linalg import balanced_procrustes, sign, unit_rows
from modalhash.methods import alech, batch
from modalhash.methods.registry import info

METHOD = info("batch")


@pytest.fixture
def problem(rng):
    """Labels, two modalities' features, feasible V and codes B."""
    L = (rng.random((60, 7)) < 0.3).astype(float)
    targets = [rng.standard_normal((60, 11)), rng.standard_normal((60, 5)), L]
    V = balanced_procrustes(rng.standard_normal((60, 9)), rng)
    return unit_rows(L), targets, V, sign(rng.standard_normal((60, 9)))


def dense_objective(G, targets, V, B, U, omega, weights):
    """As the paper prints it, with S as a matrix, and the ridge of the U-step."""
    r = B.shape[1]
    value = np.sum((r * (G @ G.T) - V @ B.T) ** 2) + omega * np.sum((B - V) ** 2)
    for eta, F, u in zip(weights, targets, U, strict=True):
        value += eta * (np.sum((F - V @ u) ** 2) + batch.LATENT_RIDGE * np.sum(u**2))
    return value


def test_no_step_raises_the_objective_and_the_sums_are_exact(problem, rng):
    G, targets, V, B = problem
    r, omega, weights = B.shape[1], 0.01, [0.05, 0.2, 0.9]
    U = batch.update_U(V, targets)
    values = [dense_objective(G, targets, V, B, U, omega, weights)]
    for _ in range(5):
        U = batch.update_U(V, targets)
        values.append(dense_objective(G, targets, V, B, U, omega, weights))
        drawn = batch.reconstruction_pull(targets, U, weights)
        V = balanced_procrustes(batch.pull(B, G, omega) + drawn, rng)
        values.append(dense_objective(G, targets, V, B, U, omega, weights))
        B = sign(batch.pull(V, G, omega))
        values.append(dense_objective(G, targets, V, B, U, omega, weights))
        constant = r**2 * np.sum((G @ G.T) ** 2) + sum(
            eta * np.sum(F**2) for eta, F in zip(weights, targets, strict=True)
        )
        assert constant + batch.objective(V, B, U, G, drawn, omega, weights) == pytest.approx(values[-1])
    assert np.all(np.diff(values) <= 1e-9 * values[0])


def test_similarity_is_never_formed_but_applied(problem):
    G, _, V, _ = problem
    np.testing.assert_allclose(batch.pull(V, G, 0.3), V.shape[1] * (G @ G.T) @ V + 0.3 * V)


@pytest.mark.parametrize("cls", [batch.BATCH, alech.ALECH])
@pytest.mark.parametrize(
    ("n_anchors", "expected"), [(None, (500, 1000)), (70, (70, 70)), ({"sound": 9, "sketch": 8}, (8, 9))]
)
def test_anchors_are_those_of_the_authors_by_position_unless_given(rng, cls, n_anchors, expected):
    X = {"sketch": rng.normal(size=(1050, 5)), "sound": rng.normal(size=(1050, 4))}
    Y = np.eye(3, dtype=int)[rng.integers(3, size=1050)]
    model = cls(4, n_anchors=n_anchors, max_iter=1, random_state=0)
    model.fit(X, dict.fromkeys(X, Y), pairs="aligned")
    assert tuple(len(model.maps_[name].anchors_) for name in X) == expected


def test_anchors_are_given_for_every_modality(rng):
    X = {"sketch": rng.normal(size=(50, 5)), "sound": rng.normal(size=(50, 4))}
    Y = np.eye(3, dtype=int)[rng.integers(3, size=50)]
    with pytest.raises(ValueError, match="n_anchors is given for 'sketch'"):
        batch.BATCH(8, n_anchors={"sketch": 8}).fit(X, dict.fromkeys(X, Y), pairs="aligned")
