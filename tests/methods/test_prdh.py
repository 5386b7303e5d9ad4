"""PRDH: the gradients of its own terms against autograd, and what holds of every deep method."""

from __future__ import annotations

import pytest

from contract import block_data
from deep_checks import check_deep, loss_of, random_batch, small
from modalhash.methods.prdh import PRDH, decorrelation_gradient, within_gradient
from modalhash.methods.registry import info

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")


def within(h, own, S, positions):
    theta = h @ own.T / 2
    nll = torch.nn.functional.softplus(theta) - S * theta
    mask = torch.ones_like(nll)
    mask[torch.arange(len(h)), positions] = 0
    return (nll * mask).sum()


def decorrelation(h):
    centred = h - h.mean(0)
    C = centred.T @ centred / len(h)
    return 0.5 * ((C**2).sum() - (C.diagonal() ** 2).sum())


def test_the_gradients_of_its_terms_are_those_of_autograd():
    batch = random_batch()
    h = batch.h.clone().requires_grad_()
    within(h, batch.own, batch.S, batch.positions).backward()
    found = within_gradient(batch.h, batch.own, batch.S, batch.positions)
    torch.testing.assert_close(found, h.grad, rtol=0, atol=1e-12)
    h.grad = None
    decorrelation(h).backward()
    torch.testing.assert_close(decorrelation_gradient(batch.h), h.grad, rtol=0, atol=1e-12)


def test_the_gradient_is_that_of_the_objective():
    batch = random_batch()
    h = batch.h.clone().requires_grad_()
    loss = loss_of(h, batch.own, batch.other, batch.S, batch.B, batch.positions, gamma=0.3, eta=0.7)
    loss = loss + 0.5 * within(h, batch.own, batch.S, batch.positions)
    loss = loss + 0.01 * len(batch.own) * len(h) * decorrelation(h)  # not divided by the number of pairs
    loss.backward()
    method = PRDH(5, intra=0.5, decorrelation=0.01, quantization=0.3, balance="penalty", balance_weight=0.7)
    torch.testing.assert_close(method._gradient(batch), h.grad, rtol=0, atol=1e-12)


check_deep(PRDH)


def test_decorrelation_lowers_what_it_is_a_penalty_of():
    data = block_data(info("prdh"))

    def penalty(weight):
        model = small(PRDH, decorrelation=weight, validation=0).fit(data.X, data.Y, **data.fit)
        return float(decorrelation(torch.from_numpy(model.decision_function(data.X)["image"])))

    assert penalty(0.1) < 0.5 * penalty(0.0)
