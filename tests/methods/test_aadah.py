"""AADAH: its triplet loss against one that goes through all triplets, attention, and what holds of every deep method."""

from __future__ import annotations

import numpy as np
import pytest

from contract import block_data
from deep_checks import check_deep, small
from modalhash.methods import aadah
from modalhash.methods.aadah import AADAH, attended, distances, triplet_loss
from modalhash.methods.registry import info

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")


def every_triplet(d, S, margin, same):
    """The same mean, triplet by triplet."""
    positive = S & ~torch.eye(len(S), dtype=torch.bool) if same else S
    valid = positive[:, :, None] & ~S[:, None, :]
    hinge = torch.relu(margin + d[:, :, None] - d[:, None, :])
    return (hinge * valid).sum() / max(int(valid.sum()), 1)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_loss_and_its_gradient_are_those_of_all_triplets(same, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.tanh(2 * torch.randn(12, 8, generator=generator, dtype=torch.float64)) for _ in range(2))
    S = torch.rand(12, 12, generator=generator) < 0.4
    S = S | S.T | torch.eye(12, dtype=torch.bool)
    fast, slow = (a.clone().requires_grad_() for _ in range(2))
    first = triplet_loss(torch, distances(fast, fast if same else b), S, 0.25, same=same)
    second = every_triplet(distances(slow, slow if same else b), S, 0.25, same)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
    first.backward()
    second.backward()
    torch.testing.assert_close(fast.grad, slow.grad, rtol=0, atol=1e-12)


def test_a_batch_without_triplets_has_no_loss():
    d = torch.rand(4, 4, requires_grad=True)
    loss = triplet_loss(torch, d, torch.ones(4, 4, dtype=torch.bool), 0.25, same=True)
    loss.backward()
    assert float(loss.detach()) == 0
    assert not d.grad.any()


def test_what_is_attended_is_what_the_softmax_prefers():
    logits = np.random.default_rng(0).normal(size=(5, 9))
    P = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(attended(np, logits), P >= 1 / 9)
    np.testing.assert_array_equal(attended(torch, torch.from_numpy(logits)).numpy(), P >= 1 / 9)


check_deep(AADAH)


@pytest.mark.slow
def test_codes_of_numpy_are_those_of_training():
    data = block_data(info("aadah"))
    learners = []
    make = aadah.TripletLearner.__init__

    def remember(self, *arguments):
        make(self, *arguments)
        learners.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aadah.TripletLearner, "__init__", remember)
        # no validation, so that the last epoch is kept
        model = small(AADAH, adversary=True, validation=0).fit(data.X, data.Y, **data.fit)
    learners[0].data.held = np.arange(50)
    for name in data.X:
        found = np.tanh(model.decision_function({name: data.X[name][:50]})[name])
        np.testing.assert_allclose(found, learners[0].outputs(name).numpy(), atol=1e-4)


@pytest.mark.slow
def test_attention_is_reported_and_rests_without_the_adversary():
    data = block_data(info("aadah"))
    seen = []
    with_it = small(AADAH, adversary=True).fit(data.X, data.Y, **data.fit, callback=seen.append)
    without = small(AADAH, adversary=False).fit(data.X, data.Y, **data.fit)
    for name in data.X:
        shares = [p.objective for p in seen if p.stage == f"attended: {name}"]
        assert shares == with_it.attended_[name].tolist()
        assert len(shares) == len(with_it.objective_["training"])
        assert without.attended_[name].min() > 0.3
        assert with_it.attended_[name][0] == without.attended_[name][0]  # warming up
    start = small(AADAH, adversary=False, max_epochs=1).fit(data.X, data.Y, **data.fit)
    for name in data.X:
        W = without.networks_[name]["attention"]["W0"]
        np.testing.assert_array_equal(W, start.networks_[name]["attention"]["W0"])
        assert np.any(with_it.networks_[name]["attention"]["W0"] != W)


def test_a_small_attended_share_is_warned_of(monkeypatch):
    data = block_data(info("aadah"))
    monkeypatch.setattr(aadah, "SPREAD", 30.0)  # nearly one-hot from the start
    with pytest.warns(UserWarning, match=r"attention keeps \d\.\d % of the hidden features of 'image'"):
        small(AADAH, hidden=64, max_epochs=2).fit(data.X, data.Y, **data.fit)
