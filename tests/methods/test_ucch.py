"""UCCH: its losses and its memory are the printed sums, it finds the partner of an item without labels, and repeats."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from contract import block_data, make
from modalhash import load
from modalhash.core.codes import unpack_signs
from modalhash.core.imports import MissingExtraError, install_line
from modalhash.methods import ucch
from modalhash.methods.registry import info

torch = pytest.importorskip("torch")
METHOD = info("ucch")
LOSS = ucch.Loss(alpha=0.7, tau=1.3, margin=0.2, shift=0.1)


@pytest.fixture
def outputs(rng):
    h, g = rng.standard_normal((2, 12, 8)).astype(np.float32)
    return [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (h, g)]


def signs(x):
    return np.where(x > 0, 1.0, -1.0)


def slow_contrast(h, candidates):
    """Own code first; one item at a time."""
    terms = [np.exp(codes @ x / LOSS.tau) for x, codes in zip(h, candidates, strict=True)]
    return -np.mean([np.log(t[0] / t.sum()) for t in terms])


def slow_ranking(h, g):
    total = 0.0
    for i in range(len(h)):
        for a, b in ((h, g), (g, h)):
            own = a[i] @ b[i]
            scores = [a[i] @ x for x in b]
            scores = [s if s >= own - LOSS.margin else s - LOSS.shift for s in scores]
            total += LOSS.margin - own + np.log(np.exp(scores).sum())
    return total / len(h)


def test_the_loss_is_the_printed_sum(outputs, rng):
    h, g = outputs
    own, others = rng.standard_normal((12, 8)), rng.standard_normal((30, 8))
    candidates = [np.vstack([signs(mine), signs(others)]) for mine in own]
    expected = 0.7 * (slow_contrast(h, candidates) + slow_contrast(g, candidates)) + 0.3 * slow_ranking(h, g)
    found = LOSS(torch, *(torch.from_numpy(x.astype(np.float32)) for x in (h, g, own, others)))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_in_the_first_epoch_the_rest_of_the_batch_takes_the_place_of_the_memory(outputs):
    h, g = outputs
    codes = signs(h + g)
    candidates = [np.vstack([codes[i], np.delete(codes, i, axis=0)]) for i in range(12)]
    expected = 0.7 * (slow_contrast(h, candidates) + slow_contrast(g, candidates)) + 0.3 * slow_ranking(h, g)
    found = LOSS(torch, *(torch.from_numpy(x) for x in (h, g, h + g)), None)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_the_memory_is_a_running_mean_of_length_1(outputs, rng):
    h, g = outputs
    memory = rng.standard_normal((12, 8)).astype(np.float32)
    mean = (h + g) / np.linalg.norm(h + g, axis=1, keepdims=True)
    expected = 0.4 * memory + 0.6 * mean
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = ucch.updated(torch, *(torch.from_numpy(x) for x in (memory, h, g)), 0.4)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def pairs_with_known_neighbours(n=600, seed=0):
    """Two bent views of a position in four dimensions; the partner of an item is the nearest of the other modality."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 4))
    return {name: np.tanh(Z @ rng.normal(size=(4, d))) + 0.05 * rng.normal(size=(n, d)) for name, d in (("image", 30), ("text", 20))}  # fmt: skip


@pytest.mark.slow
def test_it_finds_the_partner_of_an_unseen_item():
    X = pairs_with_known_neighbours()
    model = ucch.UCCH(32, hidden=64, max_epochs=30, learning_rate=3e-3, batch_size=64, random_state=0)
    model.fit({name: values[:450] for name, values in X.items()}, pairs="aligned")
    codes = model.transform({name: values[450:] for name, values in X.items()})
    image, text = (unpack_signs(codes[name], 32) for name in X)
    closer = (image @ text.T) < np.einsum("ij,ij->i", image, text)[:, None]
    assert closer.mean() > 0.9  # share of the others that lie farther than the partner: 1/2 by chance
    assert "classes_" not in vars(model)


@pytest.mark.slow
def test_labels_change_nothing():
    data = block_data(METHOD)
    with_labels, without = (make(METHOD).fit(data.X, Y, pairs="aligned") for Y in (data.Y, None))
    for name in data.X:
        np.testing.assert_array_equal(with_labels.codes_[name], without.codes_[name])


@pytest.mark.slow
def test_neither_threads_nor_other_draws_change_the_result():
    data, threads = block_data(METHOD), torch.get_num_threads()
    first = make(METHOD).fit(data.X, pairs="aligned")
    torch.manual_seed(99)
    torch.set_num_threads(2)
    try:
        state = torch.get_rng_state()
        second = make(METHOD).fit(data.X, pairs="aligned")
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)
    for name in data.X:
        for weight, values in first.networks_[name].items():
            np.testing.assert_array_equal(values, second.networks_[name][weight])


def test_networks_are_those_of_the_authors_by_position_unless_given():
    data = block_data(METHOD)
    for depth, expected in ((None, (2, 1)), ({"text": 3, "image": 0}, (0, 3))):
        model = make(METHOD, depth=depth, max_epochs=1).fit(data.X, pairs="aligned")
        assert tuple(len(model.networks_[name]) // 2 - 1 for name in data.X) == expected


def test_every_pair_is_seen_and_none_twice_in_an_epoch(rng):
    seen = np.concatenate(list(ucch.batches(23, 5, rng)))
    assert len(seen) == len(set(seen.tolist())) == 20
    assert [len(batch) for batch in ucch.batches(4, 256, rng)] == [4]


def test_only_learning_needs_torch(tmp_path, monkeypatch):
    data = block_data(METHOD)
    make(METHOD).fit(data.X, pairs="aligned").save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert load(tmp_path / "model").transform(data.Xq)["text"].shape == (60, 2)
    with pytest.raises(MissingExtraError, match=re.escape(install_line("torch"))):
        make(METHOD).fit(data.X, pairs="aligned")
