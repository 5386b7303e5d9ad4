"""What check says is what train does."""

from __future__ import annotations

import pytest

from little_world import BAD_CODES, make_bad_manifest, make_world
from modalhash import Engine
from modalhash.engine import check_sources, group_problems
from modalhash.engine.training.check import estimate_cost


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


def test_nothing_wrong(folder):
    seen = []
    found = check_sources(folder / "items.csv", callback=seen.append)
    assert (found.exit_code, found.error, found.problems) == (0, None, ())
    assert {name: (one.items, one.training, one.labels) for name, one in found.modalities.items()} == {
        "image": (60, 60, 5),
        "text": (60, 60, 5),
    }
    assert found.label_sets == 6
    assert len(found.labels.shared) == 5
    assert (found.plan.method, found.plan.n_bits, found.plan.lengths) == ("rlh", 32, (32,))
    assert {name: one.encoder for name, one in found.plan.encoders.items()} == {"image": "image", "text": "tfidf"}
    assert set(found.plan.seconds) == {"encode", "learn", "refine", "store"}
    assert [remark.code for remark in found.remarks] == ["no_confidence"]  # of 60 items too few are held out
    assert {one.stage for one in seen} == {"decode: image", "encode: text"}
    assert not (folder / "engine").exists()


@pytest.mark.slow
def test_leaves_out_what_train_leaves_out(folder):
    path = make_bad_manifest(folder)
    found = check_sources([folder / "items.csv", path])
    assert found.exit_code == 1
    assert sorted(problem.code for problem in found.problems) == sorted(BAD_CODES)
    told = []
    with Engine.train([folder / "items.csv", path], folder / "bad", n_bits=16, on_problem=told.append) as engine:
        assert sorted(map(str, told)) == sorted(map(str, found.problems))
        assert {name: sum(one["items"].values()) for name, one in engine.info()["modalities"].items()} == {
            name: one.items for name, one in found.modalities.items()
        }


def test_encoders_that_are_given_stay_as_they_are(folder):
    from modalhash.encoders import get_encoder

    encoder = get_encoder("tfidf")
    check_sources(folder / "items.csv", encoders={"text": encoder})
    with pytest.raises(ValueError, match="fit"):
        _ = encoder.dim


def test_slow_text_encoders_are_tried_on_a_sample(folder, monkeypatch):
    monkeypatch.setattr("modalhash.engine.training.check.ALL_WITHIN", 0.0)
    monkeypatch.setattr("modalhash.engine.training.check.TRIAL_SECONDS", 0.0)
    found = check_sources(folder / "items.csv")
    assert "sampled" in {remark.code for remark in found.remarks}
    assert found.exit_code == 0


def test_without_labels_and_with_names(folder):
    found = check_sources(folder / "photos", labels="none")
    assert (found.plan.method, found.labels, found.plan.seconds) == ("itq", None, None)
    texts = [{"id": str(number), "text": "a red ball"} for number in range(9)]
    labelled = [{"id": f"l{number}", "text": "a ball", "labels": ["red"]} for number in range(9)]
    named = check_sources(texts + labelled, labels="names")
    assert named.modalities["text"].training == 18


def test_the_keys_that_scripts_rely_on(folder):
    keys = check_sources(folder / "items.csv").to_dict()
    assert list(keys) == [
        "exit_code", "error", "details", "sources", "modalities", "labels", "left_out", "remarks", "plan"
    ]  # fmt: skip
    assert set(keys["modalities"]["image"]) == {"items", "training", "labelled", "labels", "left_out"}
    assert set(keys["labels"]) == {
        "labels", "shared", "only", "label_sets", "rare_below", "rare", "several_in_one", "alike"
    }  # fmt: skip
    assert set(keys["plan"]) == {
        "method", "n_bits", "lengths", "why_bits", "encoders", "seconds", "memory", "disk"
    }  # fmt: skip
    broken = check_sources(folder / "nosuch.csv").to_dict()
    assert list(broken) == list(keys)
    assert (broken["exit_code"], broken["plan"]) == (2, None)


def test_cost_grows_with_items_and_with_the_slowness_of_the_machine():
    def total(n: int, slowness: float = 1.0) -> float:
        sizes = {"image": n, "text": n}
        cost = estimate_cost("rlh", sizes, sizes, dict.fromkeys(sizes, 1249), slowness=slowness)
        return sum(cost.seconds.values())

    assert total(300) == pytest.approx(3.2, rel=0.3)  # processor seconds as measured on IAPR TC-12
    assert total(20_000) == pytest.approx(63, rel=0.3)
    assert total(2000, slowness=3) == pytest.approx(3 * total(2000))


def test_problems_by_reason(folder):
    found = check_sources([folder / "items.csv", make_bad_manifest(folder)])
    groups = group_problems(found.problems)
    assert next(iter(groups)) == "unreadable"
    assert groups["not JSON"][0].line == 9
