"""DCMH: its closed-form gradient against autograd, what it learns, repeatability, and what a caller keeps."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

from contract import block_data
from deep_checks import check_deep, loss_of, random_batch, small, word_data
from modalhash import load
from modalhash.core.imports import MissingExtraError, install_line
from modalhash.methods._deep import DeepData, learning_rates, scaled, scaling
from modalhash.methods.dcmh import DCMH, LikelihoodLearner, likelihood_gradient
from modalhash.methods.registry import info

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")


@pytest.mark.parametrize("balance", ["centred", "penalty"])
def test_the_gradient_is_that_of_the_objective(balance):
    batch = random_batch()
    h = batch.h.clone().requires_grad_()
    eta = 0.7 if balance == "penalty" else 0.0
    loss_of(h, batch.own, batch.other, batch.S, batch.B, batch.positions, gamma=0.3, eta=eta).backward()
    found = DCMH(5, quantization=0.3, balance=balance, balance_weight=0.7)._gradient(batch)
    torch.testing.assert_close(found, h.grad, rtol=0, atol=1e-12)


def test_the_gradient_of_the_likelihood_is_that_of_autograd():
    batch = random_batch()
    h = batch.h.clone().requires_grad_()
    loss_of(h, batch.own, batch.other, batch.S, batch.B, batch.positions, gamma=0, eta=0).backward()
    torch.testing.assert_close(likelihood_gradient(batch.h, batch.other, batch.S), h.grad, rtol=0, atol=1e-12)


check_deep(DCMH)


def test_the_literal_penalty_runs_with_the_authors_optimizer():
    data = block_data(info("dcmh"))
    model = small(DCMH, balance="penalty", optimizer="sgd", learning_rate=None, max_epochs=5, validation=0)
    model.fit(data.X, data.Y, **data.fit)
    assert model.n_iter_ == 5
    assert set(model.objective_) == {"training"}
    assert np.isfinite(model.objective_["training"]).all()
    assert model.networks_["text"]["layers"]["b1"].any()  # learned, in place of minus the mean
    centred = small(DCMH, optimizer="sgd", learning_rate=None, max_epochs=5, validation=0)
    centred.fit(data.X, data.Y, **data.fit)
    assert np.any(centred.codes_["text"] != model.codes_["text"])


def test_centred_outputs_are_balanced():
    data = block_data(info("dcmh"))
    model = small(DCMH, learning_rate=0.002, max_epochs=20, validation=0).fit(data.X, data.Y, **data.fit)
    for values in model.decision_function(data.X).values():
        assert np.abs(values.mean(axis=0)).max() < 0.05 * values.std()


def test_similarity_is_sharing_a_label():
    rng = np.random.default_rng(0)
    L = rng.random((40, 6)) < 0.3
    X = {"image": rng.random((40, 3)), "text": rng.random((40, 4))}
    kept = np.arange(1, 39)
    data = DeepData(torch, X, L, kept, np.array([0, 39]), 4, 0, {}, "cpu")
    positions = np.array([3, 0, 17])
    expected = (L[kept[positions]].astype(int) @ L[kept].T.astype(int)) > 0
    np.testing.assert_array_equal(data.similar_to_all(positions).numpy(), expected)
    np.testing.assert_array_equal(data.similar(kept[positions], kept).numpy(), expected)


def test_a_step_touches_only_the_words_of_its_batch():
    X, Y = word_data()
    data = DeepData(torch, X, Y["text"].astype(bool), np.arange(200), np.arange(0), 8, 0, {}, "cpu")
    learner = LikelihoodLearner(DCMH(8, hidden=16, batch_size=16, random_state=0), data)
    before = learner.networks["text"].weights[0].clone()
    learner._step("text", "image", np.arange(10), 0.01)
    changed = (learner.networks["text"].weights[0] != before).any(dim=1).numpy()
    used = np.zeros(X["text"].shape[1], dtype=bool)
    used[X["text"][:10].indices] = True
    np.testing.assert_array_equal(changed, used)


def test_words_are_scaled_and_others_standardised():
    rng = np.random.default_rng(0)
    words = sparse.random_array((300, 40), density=0.1, rng=rng, format="csr") * 7
    how = scaling(words)
    assert list(how) == list(scaling(words.toarray())) == ["scale"]
    assert np.sqrt((scaled(how, words).data ** 2).mean()) == pytest.approx(1)
    numbers = rng.normal(5, 3, size=(300, 8))
    numbers[:, 2] = 4.0
    values = scaled(scaling(numbers), numbers)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(np.delete(values.std(axis=0), 2), 1, rtol=1e-4)
    np.testing.assert_array_equal(values[:, 2], 0)


def test_learning_rates_fall():
    adam = learning_rates("adam", None, 5)
    assert adam[0] == pytest.approx(3e-4)
    assert adam[-1] == pytest.approx(3e-5)
    assert learning_rates("sgd", None, 500)[0] == pytest.approx(10**-1.5)
    assert learning_rates("sgd", None, 500)[-1] == pytest.approx(1e-6)
    assert learning_rates("adam", 0.1, 3).tolist() == pytest.approx([0.1, 0.1 * 10**-0.5, 0.01])


def test_a_missing_extra_is_named(monkeypatch):
    data = block_data(info("dcmh"))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingExtraError, match="Training DCMH needs the package 'torch'.*" + re.escape(install_line("torch"))
    ):
        small(DCMH).fit(data.X, data.Y, **data.fit)


@pytest.mark.slow
def test_a_loaded_model_hashes_without_torch(tmp_path):
    data = block_data(info("dcmh"))
    model = small(DCMH).fit(data.X, data.Y, **data.fit)
    model.save(tmp_path / "model")
    np.save(tmp_path / "queries.npy", data.Xq["text"])
    code = f"""
import sys
import numpy as np
from modalhash import load
model = load({str(tmp_path / "model")!r})
np.save({str(tmp_path / "codes.npy")!r}, model.transform({{"text": np.load({str(tmp_path / "queries.npy")!r})}})["text"])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), model.transform(data.Xq)["text"])


class TestImageNetwork:
    """A torch module of the caller's in place of the hidden layer."""

    @pytest.fixture
    def network(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return torch.nn.Sequential(
                torch.nn.Linear(30, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Dropout(0.1)
            )

    @pytest.mark.slow
    def test_it_is_trained_and_the_callers_stays_as_it_was(self, network):
        data = block_data(info("dcmh"))
        before = network[0].weight.detach().clone()
        first, second = (small(DCMH, image_network=network).fit(data.X, data.Y, **data.fit) for _ in range(2))
        torch.testing.assert_close(network[0].weight, before)
        assert not torch.equal(first.image_network_[0].weight, before)
        for name in data.X:
            np.testing.assert_array_equal(first.codes_[name], second.codes_[name])
        assert first.decision_function(data.Xq)["image"].shape == (60, 16)

    def test_it_cannot_be_saved_and_says_what_to_do(self, network, tmp_path):
        data = block_data(info("dcmh"))
        model = small(DCMH, image_network=network).fit(data.X, data.Y, **data.fit)
        with pytest.raises(TypeError, match=r"image_network.*cannot hold.*torch\.save\(model\.image_network_"):
            model.save(tmp_path / "model")
        assert not (tmp_path / "model").exists()

    def test_what_cannot_be_used_is_refused(self, network):
        data = block_data(info("dcmh"))
        with pytest.raises(TypeError, match=r"image_network is a str; expected a torch\.nn\.Module"):
            small(DCMH, image_network="resnet").fit(data.X, data.Y, **data.fit)
        X, Y = ({"picture" if k == "image" else k: v for k, v in part.items()} for part in (data.X, data.Y))
        with pytest.raises(ValueError, match="reads the modality 'image'; there are 'picture', 'text'"):
            small(DCMH, image_network=network).fit(X, Y, **data.fit)
        with pytest.raises(TypeError, match="takes dense features"):
            small(DCMH, image_network=network).fit(
                data.X | {"image": sparse.csr_array(data.X["image"])}, data.Y, **data.fit
            )
        with pytest.raises(ValueError, match=r"returned a tensor of shape \(228,\)"):
            small(DCMH, image_network=torch.nn.Flatten(0)).fit(
                data.X | {"image": data.X["image"][:, :1]}, data.Y, **data.fit
            )


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"validation": 0.7}, ValueError, "validation is 0.7; expected a finite number ≥ 0 and ≤ 0.5"),
        ({"hidden": "many"}, TypeError, "hidden is 'many'; expected units"),
        ({"hidden": {"image": 32}}, ValueError, "hidden is given for 'image'; expected one value, or a dict"),
        ({"hidden": 0}, ValueError, "hidden is 0"),
        ({"batch_size": 1}, ValueError, "batch_size is 1"),
    ],
)
def test_impossible_parameters_are_refused(parameters, error, message):
    data = block_data(info("dcmh"))
    with pytest.raises(error, match=message):
        small(DCMH, **parameters).fit(data.X, data.Y, **data.fit)


def test_layers_may_differ_by_modality(tmp_path):
    data = block_data(info("dcmh"))
    model = small(DCMH, hidden={"image": [24, 12], "text": 16}).fit(data.X, data.Y, **data.fit)
    shapes = {name: array.shape for name, array in model.networks_["image"]["layers"].items()}
    assert [shapes[f"W{k}"] for k in range(3)] == [(30, 24), (24, 12), (12, 16)]
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.transform(data.Xq)["image"], model.transform(data.Xq)["image"])
