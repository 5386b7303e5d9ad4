"""What holds of every deep method, whatever it minimises; :func:`check_deep` adds these tests to a module."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from contract import block_data
from modalhash import load
from modalhash.evaluation import mean_average_precision
from modalhash.methods.dcmh import PairBatch
from modalhash.methods.registry import info, name_of

SMALL = {"hidden": 32, "batch_size": 24, "learning_rate": 0.01, "max_epochs": 8, "random_state": 0}


def small(cls: type[Any], n_bits: int = 16, **parameters: Any) -> Any:
    """The method, small enough for a test."""
    extra = {"hash_hidden": 32} if cls.__name__ == "AADAH" else {}
    return cls(n_bits, **SMALL | extra | parameters)


def word_data(n: int = 200, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pairs of four classes: features with noise, and texts of five words, four of ten that belong to the class."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(4, size=n)
    Y = np.eye(4, dtype=np.uint8)[classes]
    image = Y @ rng.normal(size=(4, 12)) + 0.5 * rng.normal(size=(n, 12))
    own = 10 * classes[:, None] + rng.integers(10, size=(n, 4))
    words = np.hstack([own, rng.integers(60, size=(n, 1))])
    text = sparse.csr_array((np.ones(words.size), (np.repeat(np.arange(n), 5), words.ravel())), shape=(n, 60))
    text.sum_duplicates()
    return {"image": image, "text": text}, {"image": Y, "text": Y}


def unseen(model: Any, X: dict[str, Any], Y: dict[str, Any]) -> float:
    """mAP over both directions, queries and database hashed from features."""
    codes = model.transform(X)
    return float(
        np.mean(
            [
                mean_average_precision(codes[a], Y[a], codes[b], Y[b], n_bits=model.n_bits)
                for a, b in (("image", "text"), ("text", "image"))
            ]
        )
    )


def loss_of(h, own, other, S, B, positions, *, gamma, eta):
    """DCMH's objective for one batch, term by term, for autograd."""
    import torch

    theta = h @ other.T / 2
    value = (torch.nn.functional.softplus(theta) - S * theta).sum() + gamma * ((B - h) ** 2).sum()
    rest = own.clone()
    rest[positions] = 0
    return value + eta * ((h.sum(0) + rest.sum(0)) ** 2).sum()


def random_batch(n=30, b=7, r=5):
    """Outputs, similarities and codes without any meaning, in double precision."""
    import torch

    generator = torch.Generator().manual_seed(0)
    own, other = (torch.randn(n, r, generator=generator, dtype=torch.float64) for _ in range(2))
    positions = torch.randperm(n, generator=generator)[:b]
    S = torch.rand(b, n, generator=generator) < 0.3
    S[torch.arange(b), positions] = True
    return PairBatch(own[positions], own, other, S, torch.sign(own + other)[positions], positions)


def split(X: dict[str, Any], Y: dict[str, Any], n: int) -> tuple[dict[str, Any], ...]:
    return tuple({k: v[rows] for k, v in part.items()} for rows in (slice(n), slice(n, None)) for part in (X, Y))


def check_deep(cls: type[Any]) -> None:
    """Add the tests to the module that calls this."""
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    module = sys._getframe(1).f_globals
    data = block_data(info(name_of(cls)))

    def test_it_learns_and_from_what_is_shuffled_it_does_not():
        X, Y, Xq, Yq = split(*word_data(300), 200)
        learned = unseen(small(cls).fit(X, Y, pairs="aligned"), Xq, Yq)
        labels, texts = (np.random.default_rng(seed).permutation(200) for seed in (1, 2))
        # labels alone would leave the pairs, which tell which photos and texts belong together
        X, Y = X | {"text": X["text"][texts]}, {name: values[labels] for name, values in Y.items()}
        control = unseen(small(cls).fit(X, Y, pairs="aligned"), Xq, Yq)
        assert learned > 0.8, "chance is a quarter"
        assert control < 0.4, control

    def test_sparse_and_dense_words_give_the_same_codes():
        X, Y = word_data()
        dense = X | {"text": X["text"].toarray()}
        first, second = (small(cls).fit(values, Y, pairs="aligned") for values in (X, dense))
        for name in X:
            np.testing.assert_array_equal(first.codes_[name], second.codes_[name])
        np.testing.assert_array_equal(first.transform(X)["text"], second.transform(dense)["text"])
        np.testing.assert_array_equal(first.transform(dense)["text"], second.transform(X)["text"])

    def test_the_callers_threads_and_generator_stay_as_they_were():
        before, state = torch.get_num_threads(), torch.get_rng_state()
        try:
            codes = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                codes.append(small(cls).fit(data.X, data.Y, **data.fit).codes_["text"])
                assert torch.get_num_threads() == threads
            np.testing.assert_array_equal(*codes)
            with pytest.raises(RuntimeError, match="stop"):
                small(cls).fit(data.X, data.Y, **data.fit, callback=fail)
            assert torch.get_num_threads() == 2
            assert torch.equal(torch.get_rng_state(), state)
        finally:
            torch.set_num_threads(before)

    def test_the_best_epoch_is_kept():
        X, Y = word_data()
        model = small(cls, validation=0.3, max_epochs=12, patience=3).fit(X, Y, pairs="aligned")
        trace = model.objective_["map"]
        assert model.n_iter_ == 1 + max(range(len(trace)), key=lambda k: (trace[k], -model.objective_["validation"][k]))
        assert len(trace) <= min(12, model.n_iter_ + 3)
        again = small(cls, validation=0.3, max_epochs=12, patience=12).fit(X, Y, pairs="aligned")
        np.testing.assert_array_equal(again.objective_["map"][: len(trace)], trace)
        assert len(again.objective_["map"]) == 12
        last = small(cls, validation=0, max_epochs=3).fit(X, Y, pairs="aligned")
        assert last.n_iter_ == 3
        assert "map" not in last.objective_

    def test_progress_by_epoch():
        seen = []
        model = small(cls).fit(data.X, data.Y, **data.fit, callback=seen.append)
        epochs = [p for p in seen if p.stage == "epochs"]
        assert [p.step for p in epochs] == list(range(1, len(model.objective_["training"]) + 1))
        assert [p.objective for p in epochs] == model.objective_["training"].tolist()
        assert {p.total for p in epochs} == {8}

    def test_the_number_of_epochs_follows_the_number_of_pairs():
        seen = []

        def stop(progress):
            seen.append(progress)
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            small(cls, max_epochs=None).fit(data.X, data.Y, **data.fit, callback=stop)
        assert seen[0].total == 1600 * 24 // 240

    def test_saving_keeps_every_array(tmp_path):
        X, Y = word_data()
        model = small(cls).fit(X, Y, pairs="aligned")
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        for name, values in model.decision_function(X).items():
            np.testing.assert_array_equal(again.decision_function(X)[name], values)

    def fail(progress):
        raise RuntimeError("stop")

    module.update({name: test for name, test in locals().items() if name.startswith("test_")})
