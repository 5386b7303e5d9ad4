"""SAPMH and UAPMH: low-rank = dense, the objective falls, pairs of any share, the authors' form."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data
from modalhash.core.features import AnchorKernel
from modalhash.core.linalg import sign
from modalhash.evaluation import mean_average_precision
from modalhash.methods import sapmh
from modalhash.methods.base import Training
from modalhash.methods.registry import info
from modalhash.methods.sapmh import (
    SAPMH,
    UAPMH,
    PartialState,
    SAPMHWeights,
    Similarity,
    authors_U,
    authors_W,
    balanced_step,
    code_target,
    update_B,
    update_W,
)

PAIRED = block_data(info("batch"))
"""Row k of both modalities is one item."""


def labels(rng, n=40, c=5):
    return np.eye(c)[rng.integers(c, size=n)] + (rng.random((n, c)) < 0.1) > 0


def problem(rng, n_pairs, k=6, r=4, n=(40, 30)):
    """Layout and state with random features, labels equal within pairs."""
    L = labels(rng)
    Y = {"image": L, "text": np.vstack([L[:n_pairs], labels(rng)])[: n[1]]}
    X = {name: rng.normal(size=(len(Y[name]), 7)) for name in Y}
    pairs = np.repeat(np.arange(n_pairs)[:, None], 2, axis=1) if n_pairs else None
    data = Training(X, Y, pairs, r)
    maps = {name: AnchorKernel(12, centred=False, dtype="float64", random_state=0) for name in X}
    layout = sapmh.lay_out(data, maps)
    H, B = rng.standard_normal((layout.size, k)), sign(rng.standard_normal((layout.size, r)))
    return data, maps, layout, PartialState(H, B, rng.standard_normal((k, r)))


def dense(layout, state, maps, data, S, w):
    """The objective with every matrix as such."""
    Y, r = state.H @ state.W, state.B.shape[1]
    total = w.theta * np.sum((state.B - Y) ** 2) + w.rho * np.sum((r * S - state.B @ Y.T) ** 2)
    total += w.ridge * np.sum(state.H**2)
    for name, view in layout.views.items():
        total += np.linalg.norm(maps[name].map(data.X[name]) - state.H[view.rows] @ view.U)
        total += view.ridge * np.sum(view.U**2)
    return total


@pytest.mark.parametrize("offset", [None, 1.0])
def test_low_rank_similarity_is_the_dense_one(rng, offset):
    L, M = labels(rng).astype(float), rng.normal(size=(40, 3))
    low = Similarity(L, offset)
    S = 2 * L @ L.T - low.offset
    np.testing.assert_allclose(low.times(M), S @ M, atol=1e-10)
    assert low.square == pytest.approx(np.sum(S**2))
    np.testing.assert_allclose(low.within(slice(5, 20), M), S[5:20, 5:20] @ M[5:20], atol=1e-10)
    if offset is None:
        assert abs(S.sum()) < 1e-9 * np.abs(S).sum()


@pytest.mark.parametrize("n_pairs", [0, 10, 30])
def test_the_layout_faces_each_item_with_its_row(rng, n_pairs):
    _, _, layout, _ = problem(rng, n_pairs)
    image, text = layout.views.values()
    assert layout.size == 70 - n_pairs
    np.testing.assert_array_equal(image.rows[:n_pairs], text.rows[:n_pairs])
    assert len(np.intersect1d(image.rows, text.rows)) == n_pairs
    assert sorted(i for rows, _ in layout.blocks for i in range(rows.start, rows.stop)) == list(range(layout.size))


@pytest.mark.parametrize("n_pairs", [0, 10, 30])
def test_no_round_raises_the_objective_and_the_trace_is_it(rng, n_pairs):
    data, maps, layout, state = problem(rng, n_pairs)
    S, w = Similarity(sapmh.shared_labels(data, layout, "SAPMH")), SAPMHWeights(0.01, 1e-3, 0.02)
    for view in layout.views.values():
        view.ridge = 0.02
        sapmh.update_U(view, state.H)
        sapmh.update_mu(view)
    matrix = 2 * S.L @ S.L.T - S.offset
    before = dense(layout, state, maps, data, matrix, w)
    for _ in range(15):
        value = balanced_step(layout, state, S, w)
        assert value == pytest.approx(dense(layout, state, maps, data, matrix, w), rel=1e-8)
        assert value <= before * (1 + 1e-10)
        before = value


def test_h_w_and_b_are_the_minimisers(rng):
    data, maps, layout, state = problem(rng, 10)
    S, w = Similarity(sapmh.shared_labels(data, layout, "SAPMH")), SAPMHWeights(0.01, 1e-3, 0.02)
    matrix = 2 * S.L @ S.L.T - S.offset
    for view in layout.views.values():
        sapmh.update_U(view, state.H)
        sapmh.update_mu(view)
    layout.proximal = 0.0
    right, gram = code_target(state.B, S, w)
    H = sapmh.update_H(layout, state.H, right @ state.W.T, state.W @ gram @ state.W.T, w.ridge)
    slope = 2 * (w.ridge * H + H @ state.W @ gram @ state.W.T - right @ state.W.T)
    for name, view in layout.views.items():
        slope[view.rows] += 2 * view.mu * (H[view.rows] @ view.U - maps[name].map(data.X[name])) @ view.U.T
    np.testing.assert_allclose(slope, 0, atol=1e-8)
    W = update_W(H, right, gram)
    Y, r = H @ W, state.B.shape[1]
    slope = H.T @ (w.theta * (Y - state.B) + w.rho * (Y @ state.B.T - r * matrix) @ state.B)
    np.testing.assert_allclose(slope, 0, atol=1e-3 * np.abs(H.T @ right).max())
    value = lambda B: w.theta * np.sum((B - Y) ** 2) + w.rho * np.sum((r * matrix - B @ Y.T) ** 2)  # noqa: E731
    assert value(update_B(state.B, Y, S, w)) < value(state.B)


def test_the_encoder_is_the_iteration_of_the_paper(rng):
    _, maps, layout, state = problem(rng, 0)
    view = layout.views["image"]
    sapmh.update_U(view, state.H)
    theta, phi = 0.3, maps["image"].map(rng.normal(size=(5, 7)))
    inverse = np.linalg.inv(view.mu * view.U @ view.U.T + theta * state.W @ state.W.T)
    b = np.zeros((5, 4))
    for _ in range(10):
        h = (view.mu * phi @ view.U.T + theta * b @ state.W.T) @ inverse
        b = sign(h @ state.W)
    P, Q = sapmh.encoder(view, state.W, theta, np.zeros((6, 6)), 0.0)
    np.testing.assert_allclose(sapmh.encode(phi, P, Q), h @ state.W, atol=1e-8)


def score(model, data, database=None):
    queries = model.transform(data.Xq)
    return min(
        mean_average_precision(queries[q], data.Yq[q], model.codes_[d], data.Y[d], n_bits=model.n_bits)
        for q, d in (("image", "text"), ("text", "image"))
    )


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 0.75, 1])
def test_any_share_of_pairs(share):
    n = int(240 * share)
    pairs = np.repeat(np.random.default_rng(0).permutation(240)[:n, None], 2, axis=1)
    model = SAPMH(16, n_anchors=60, random_state=0).fit(PAIRED.X, PAIRED.Y, pairs=pairs)
    assert (np.diff(model.objective_) <= 1e-9 * model.objective_[:-1]).all()
    np.testing.assert_array_equal(model.codes_["image"][pairs[:, 0]], model.codes_["text"][pairs[:, 1]])
    assert score(model, PAIRED) >= 0.95


def test_pairs_with_other_labels_are_refused():
    pairs = np.column_stack([np.arange(240), np.roll(np.arange(240), 1)])
    with pytest.raises(ValueError, match=r"240 pairs have other labels in 'text'"):
        SAPMH(8, n_anchors=60).fit(PAIRED.X, PAIRED.Y, pairs=pairs)


def test_one_modality_and_three():
    X, Y = dict(PAIRED.X), dict(PAIRED.Y)
    X["sound"], Y["sound"] = X["text"][::-1][:100] * 2, Y["text"][::-1][:100]
    model = SAPMH(16, n_anchors=60, random_state=0).fit(X, Y)
    sound = model.transform({"sound": PAIRED.Xq["text"] * 2})["sound"]
    assert mean_average_precision(sound, PAIRED.Yq["text"], model.codes_["image"], Y["image"], n_bits=16) >= 0.95
    assert SAPMH(8, n_anchors=60, random_state=0).fit({"image": X["image"]}, {"image": Y["image"]}).n_iter_ > 3


def test_the_authors_form_hardly_leaves_its_start():
    model = SAPMH(16, variant="authors", latent=20, n_anchors=60, random_state=0)
    model.fit(PAIRED.X, PAIRED.Y, pairs="aligned")
    assert score(model, PAIRED) < 0.3


def test_the_authors_slips(rng):
    data, maps, layout, state = problem(rng, 10)
    text, H = layout.views["text"], state.H
    text.mu, text.ridge = 0.2, 0.5
    authors_U(text, H, layout.n_pairs, first_mu=0.7)
    weight = np.diag(np.where(np.arange(30) < 10, 0.2, 0.7))  # items without a pair: the first modality's μ
    Ht, phi = H[text.rows], maps["text"].map(data.X["text"])
    np.testing.assert_allclose(text.U, np.linalg.solve(Ht.T @ weight @ Ht + 0.5 * np.eye(6), Ht.T @ weight @ phi))
    assert text.residual == pytest.approx(np.linalg.norm(phi - Ht @ text.U))
    S, w, B = Similarity(sapmh.shared_labels(data, layout, "SAPMH"), 1.0), SAPMHWeights(0.1, 0.01), state.B
    right = H.T @ (0.1 * B + 0.01 * S.times(B))
    expected = np.linalg.solve(H.T @ H, right) @ np.linalg.inv(0.1 * np.eye(4) + 0.3 * B.T @ B)  # μ, not ρ
    np.testing.assert_allclose(authors_W(H, B, S, w, 0.3), expected, rtol=1e-6, atol=1e-10)


def test_unsupervised_learns_from_pairs_and_only_from_them():
    fit = UAPMH(16, n_anchors=60, random_state=0).fit
    paired = fit(PAIRED.X, pairs="aligned")
    assert (np.diff(paired.objective_) <= 1e-9 * paired.objective_[:-1]).all()
    assert score(paired, PAIRED) > 0.8
    half = np.repeat(np.arange(120)[:, None], 2, axis=1)
    assert score(fit(PAIRED.X, pairs=half), PAIRED) > 0.6
    assert score(fit(PAIRED.X), PAIRED) < 0.5
