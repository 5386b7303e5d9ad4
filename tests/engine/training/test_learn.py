"""How label sets share codes, and code lengths chosen so that they do not."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from little_world import make_world
from modalhash.core.codes import pack_signs
from modalhash.core.features import Linear
from modalhash.data import Dataset, generate
from modalhash.engine import Engine
from modalhash.engine.training import learn
from modalhash.engine.training.learn import Collisions, count_collisions, lengths_to_try
from modalhash.methods.base import CrossModalHasher


class FewCodes(CrossModalHasher):
    """Each class has a code of its own if there are enough bits for that; otherwise classes share codes in turn."""

    enough = 64

    def __init__(self, n_bits=64, *, random_state=None):
        self.n_bits = n_bits
        self.random_state = random_state

    def _fit(self, data, report):
        n_codes = data.n_bits if data.n_bits >= self.enough else 2
        codes, maps, functions = {}, {}, {}
        for name, X in data.X.items():
            number = data.Y[name].argmax(axis=1) % n_codes
            B = np.where(number[:, None] >> np.arange(data.n_bits) & 1, 1.0, -1.0)
            codes[name] = pack_signs(B)
            maps[name] = Linear(dtype="float64")
            functions[name] = np.zeros((maps[name].fit_blocks(X).whole().shape[1], data.n_bits))
            report("functions", 1, 1)
        return {"codes_": codes, "maps_": maps, "functions_": functions}


class NeverEnough(FewCodes):
    enough = 10_000


class Unsupervised(FewCodes):
    supervised = False

    def _fit(self, data, report):
        fake = {name: np.eye(2, dtype=bool)[np.arange(X.shape[0]) % 2] for name, X in data.X.items()}
        return super()._fit(type(data)(data.X, fake, data.pairs, data.n_bits), report)


def slow_count(codes, labels):
    """The same numbers by going through all pairs of items' label sets, code by code."""
    held = {}
    for name in codes:
        for code, row in zip(codes[name], labels[name], strict=True):
            if row.any():
                own = held.setdefault(code.tobytes(), {})
                own[tuple(row)] = own.get(tuple(row), 0) + 1

    def common(a, b):
        return sum(x and y for x, y in zip(a, b, strict=True))

    def conflict(a, b):
        return 2 * common(a, b) < sum(x or y for x, y in zip(a, b, strict=True))

    pairs = {pair for own in held.values() for pair in itertools.combinations(sorted(own), 2)}
    misplaced = 0
    for own in held.values():
        most = max(own.values())
        frequent = min(labels for labels, n in own.items() if n == most)
        misplaced += sum(n for labels, n in own.items() if conflict(labels, frequent))
    return Collisions(
        label_sets=len({labels for own in held.values() for labels in own}),
        codes=len(held),
        pairs=len(pairs),
        conflicting=sum(conflict(*pair) for pair in pairs),
        disjoint=sum(common(*pair) == 0 for pair in pairs),
        misplaced=misplaced,
        items=sum(n for own in held.values() for n in own.values()),
    )


def test_medals_on_needles():
    activity, medal, needle = np.eye(3, dtype=bool)
    labels = {"image": np.array([activity | medal] * 3), "text": np.array([activity | needle, activity])}
    codes = {"image": np.array([[1], [1], [2]], np.uint8), "text": np.array([[1], [2]], np.uint8)}
    assert count_collisions(codes, labels) == Collisions(
        label_sets=3, codes=2, pairs=2, conflicting=1, disjoint=0, misplaced=1, items=5
    )


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_all_pairs(seed, block, monkeypatch):
    monkeypatch.setattr(learn, "_SETS_PER_BLOCK", block)
    rng = np.random.default_rng(seed)
    labels = {name: rng.random((n, 11)) < 0.2 for name, n in (("image", 60), ("text", 90))}
    codes = {name: rng.integers(8, size=(len(rows), 2)).astype(np.uint8) for name, rows in labels.items()}
    counted = count_collisions(codes, labels)
    assert counted == slow_count(codes, labels)
    assert counted.disjoint > 0
    assert counted.items < 150, "some have no label"


def test_one_percent_is_put_up_with():
    def collisions(misplaced):
        return Collisions(2, 1, 1, 1, 1, misplaced, items=300)

    assert not collisions(3).matter
    assert collisions(4).matter


@pytest.mark.parametrize(
    ("label_sets", "items", "expected"),
    [
        (1, 1000, [(32,), (64,), (128,), (256,)]),
        (32, 1000, [(32,), (64,), (128,), (256,)]),
        (33, 1000, [(32, 64), (128,), (256,)]),
        (65, 1000, [(64, 128), (256,)]),
        (129, 1000, [(128,), (256,)]),
        (100_000, 200_000, [(128,), (256,)]),
        (98, 128, [(64,)]),
        (500, 60, [(32,)]),
        (5, 32, [(16,)]),
        (2, 2, [(1,)]),
        (1, 1, [(1,)]),
    ],
)
def test_lengths_depend_on_label_sets_and_stay_below_the_items(label_sets, items, expected):
    assert lengths_to_try(label_sets, items) == expected


def dataset(n_items=200, n_classes=10):
    data = generate(n_items=n_items, seed=0)
    labels = np.eye(n_classes, dtype=bool)[np.arange(n_items) % n_classes]
    names = [f"class {number}" for number in range(n_classes)]
    return Dataset(data.X, dict.fromkeys(data.X, labels), class_names=names)


def train(tmp_path, method, data, **options):
    name = method if isinstance(method, str) else f"{__name__}:{method.__name__}"
    return Engine.train(data, tmp_path / "engine", method=name, overwrite=True, **options)


def test_the_first_length_that_keeps_label_sets_apart_is_taken(tmp_path):
    stages = []
    with train(tmp_path, FewCodes, dataset(), callback=lambda progress: stages.append(progress.stage)) as engine:
        assert engine.n_bits == engine.store.n_bits == engine.index.n_bits == engine.model.n_bits == 64
        assert engine.config["bits_tried"] == [32, 64]
        facts = engine.info()
    assert (facts["n_bits"], facts["label_sets"]) == (64, 10)
    assert facts["collisions"] == {
        "codes": 10, "pairs": 0, "conflicting": 0, "disjoint": 0, "misplaced": 0, "items": 400
    }  # fmt: skip
    assert {"32 bits: functions", "64 bits: functions"} <= set(stages)
    assert "128 bits: functions" not in stages


def test_without_one_it_is_the_shortest_with_the_fewest_misplaced(tmp_path):
    with train(tmp_path, NeverEnough, dataset()) as engine:
        assert engine.n_bits == 32
        assert engine.config["bits_tried"] == [32, 64, 128]
        assert engine.info()["collisions"]["misplaced"] == 400 - 2 * 2 * 20


@pytest.mark.slow
def test_amsh_tries_two_lengths_in_one_fit_and_they_are_what_it_would_learn_alone(tmp_path):
    stages = []
    data = dataset(n_items=240, n_classes=40)
    with train(tmp_path, "amsh", data, callback=lambda progress: stages.append(progress.stage)) as engine:
        chosen, tried = engine.n_bits, engine.config["bits_tried"]
        codes = [bytes(record.code) for record in engine.items()]
        collisions = engine.info()["collisions"]
    assert tried[0] == 32
    assert chosen in tried
    assert any(stage.startswith("32, 64 bits: functions") for stage in stages)
    assert collisions["misplaced"] <= 0.01 * collisions["items"] or tried[-1] == 128
    with train(tmp_path, "amsh", data, n_bits=chosen) as alone:
        assert [bytes(record.code) for record in alone.items()] == codes
        assert alone.info()["collisions"] == collisions
        assert "bits_tried" not in alone.config


def test_a_method_that_does_not_learn_from_labels(tmp_path):
    with train(tmp_path, Unsupervised, dataset()) as engine:
        assert engine.n_bits == 64
        assert engine.info()["label_sets"] is engine.info()["collisions"] is None
    with train(tmp_path, Unsupervised, dataset(n_items=40)) as engine:
        assert engine.n_bits == 32


@pytest.mark.slow
def test_auto_is_the_default_and_few_items_are_enough(tmp_path):
    manifest = make_world(tmp_path, n=30)
    with Engine.train(manifest, tmp_path / "engine") as engine:
        assert engine.n_bits == 16
        assert engine.info()["label_sets"] == 6
        assert engine.search(text="a red ball", want="image", k=1)
    config = json.loads((tmp_path / "engine" / "config.json").read_text())
    assert config["n_bits"] == 16


@pytest.mark.parametrize(
    ("wrong", "error"), [("many", ValueError), (0, ValueError), (-3, ValueError), (16.0, TypeError), (True, TypeError)]
)
def test_neither_auto_nor_an_integer(tmp_path, wrong, error):
    with pytest.raises(error, match=rf"n_bits is {wrong!r}; expected 'auto' or an integer ≥ 1"):
        Engine.train(dataset(), tmp_path / "engine", n_bits=wrong)


def test_the_length_is_no_parameter_of_the_method(tmp_path):
    with pytest.raises(ValueError, match="give it as n_bits="):
        Engine.train(dataset(), tmp_path / "engine", parameters={"n_bits": 16})
