"""Tuning looks at training items alone, goes on where it was, and says what it found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modalhash.data import Split, generate, with_split
from modalhash.experiments import Dimension, Tuning, search_space
from modalhash.methods import registry
from modalhash.methods.registry import METHODS

pytest.importorskip("optuna")
METHOD = "seedless_method:FixedCodes"


@pytest.fixture(scope="module")
def data():
    return generate(n_items=90, n_queries=30, seed=0).dataset()


def parameters(tuning):
    return [trial.params for trial in tuning._study.get_trials()]


@pytest.mark.parametrize(
    "text", ["log:0.0001:10.0", "linear:0.0:1.0", "int:1:20", "logint:64:4096", "choice:rbf|none|3"]
)
def test_a_dimension_prints_as_it_is_parsed(text):
    assert str(Dimension.parse(text)) == text
    Dimension.parse(text).distribution()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:2", "expected e.g. log"), ("log:1", "expected e.g. log"), ("log:a:b", "expected e.g. log"),
        ("log:0:1", "a logarithm needs one above 0"), ("linear:2:1", "the smaller one first"),
        ("int:1:2.5", "whole numbers"), ("choice:a", "two choices or more"), ("linear:0:inf", "smaller one first"),
    ],
)  # fmt: skip
def test_bad_dimensions(text, message):
    with pytest.raises(ValueError, match=message):
        Dimension.parse(text)


@pytest.mark.parametrize("name", METHODS)
def test_every_space_holds_the_default_of_its_method(name):
    method = METHODS[name]
    defaults = registry.method(name)().get_params(deep=False)
    for parameter, text in method.space.items():
        dimension = Dimension.parse(text)
        default = defaults[parameter]
        if default is not None:  # None lets the method choose
            assert dimension.low <= default <= dimension.high, f"{parameter}: {default} outside {text}"
    assert method.space or name in ("itq", "chance")


def test_a_space_is_changed_extended_and_fixed():
    space = search_space("scm", {"ridge": "log:1:2"}, {"solver": "orthogonal"})
    assert {name: str(one) for name, one in space.items()} == {"ridge": "log:1.0:2.0"}
    assert list(search_space(METHOD)) == ["ridge"], "a class outside the package says what to search"
    for given, message in [
        (("chance",), "chance names nothing to search; add a space, e.g. --space chance"),
        (("scm", {}, {"ridge": 1}), "names nothing to search"),
        (("scm", {"ridge": "log:1:2"}, {"ridge": 1}), "both fixed and searched"),
        (("scm", {"rigde": "log:1:2"}), "did you mean 'ridge'"),
        (("scm", {"ridge": "log:2:1"}), "the space of ridge is 'log:2:1'"),
    ]:
        with pytest.raises(ValueError, match=message):
            search_space(*given)


def test_the_best_is_never_worse_than_the_defaults(data, tmp_path):
    seen = []
    tuning = Tuning(data, METHOD, tmp_path / "a.journal", n_bits=8)
    found = tuning.run(6, seen.append)
    scores = [trial.value for trial in tuning._study.get_trials()]
    assert found.score == max(scores) >= found.default_score == scores[0]
    assert (found.trials, found.failed) == (6, 0)
    assert [(one.step, one.total) for one in seen] == [(n, 6) for n in range(1, 7)]
    assert tuning._score(found.parameters) == found.score
    assert "3 folds of the training items alone" in " ".join(found.notes())


def test_only_training_items_are_looked_at(data, tmp_path):
    ids = data.parts().query.ids
    spoiled = {name: values.copy() for name, values in data.features.items()}
    labels = {name: values.copy() for name, values in data.labels.items()}
    for name in spoiled:
        rows = data.rows_of(name, ids[name])
        spoiled[name][rows] = 1e6
        labels[name][rows] = True
    other = replace(data, features=spoiled, labels=labels)
    first, second = (
        Tuning(one, METHOD, tmp_path / f"{number}.journal", n_bits=8) for number, one in enumerate((data, other))
    )
    assert first.settings == second.settings
    assert first.run(3) == second.run(3)


def test_pairs_stay_within_a_fold(data, tmp_path):
    image, labels = data.features["image"], data.labels["image"]
    data = replace(data, features={"image": image, "text": image[:, :9]}, labels={"image": labels, "text": labels})
    tuning = Tuning(data, "batch", tmp_path / "a.journal", n_bits=8, folds=4, fixed={"n_anchors": 20})
    assert tuning.settings["scenario"] == "paired"
    every = np.concatenate(tuning._folds)
    assert sorted(every) == sorted(data.parts().training.ids["image"])
    assert 0 < tuning.run(1).score <= 1


@pytest.mark.slow
def test_an_interrupted_study_goes_on_as_if_it_had_not_been(data, tmp_path, monkeypatch):
    whole = Tuning(data, METHOD, tmp_path / "whole.journal", n_bits=8)
    whole.run(14)
    part = Tuning(data, METHOD, tmp_path / "part.journal", n_bits=8)
    part.run(4)
    monkeypatch.setattr(part, "_score", lambda given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        part.run(14)
    assert part.found().trials == 4, "what was running does not count"
    again = Tuning(data, METHOD, tmp_path / "part.journal", n_bits=8)
    found = again.run(14)
    ended = [trial.params for trial in again._ended()]
    assert ended == parameters(whole)
    assert found == whole.found()
    assert again.run(3).trials == 14, "nothing is left to do"


def test_a_study_killed_while_it_writes_goes_on(data, tmp_path):
    path = tmp_path / "a.journal"
    Tuning(data, METHOD, path, n_bits=8).run(3)
    path.write_bytes(path.read_bytes()[:-9])  # the last line is cut: its trial has not ended
    assert Tuning(data, METHOD, path, n_bits=8).run(4).trials == 4


def test_a_study_of_something_else_is_refused(data, tmp_path):
    path = tmp_path / "a.journal"
    Tuning(data, METHOD, path, n_bits=8).run(1)
    with pytest.raises(ValueError, match=r"a\.journal is a study with other settings: bits is 16, in the file 8"):
        Tuning(data, METHOD, path, n_bits=16)
    other = replace(data, features={name: values + 1 for name, values in data.features.items()})
    with pytest.raises(ValueError, match="other settings: training is"):
        Tuning(other, METHOD, path, n_bits=8)
    (tmp_path / "b.journal").write_text("hello\nworld\n")
    with pytest.raises(ValueError, match="damaged, or not a study of modalhash"):
        Tuning(data, METHOD, tmp_path / "b.journal", n_bits=8)


def test_refused_values_fail_alone_and_refused_defaults_at_once(data, tmp_path):
    tuning = Tuning(data, METHOD, tmp_path / "a.journal", n_bits=8, space={"ridge": "linear:-5:1"})
    found = tuning.run(8)
    assert found.trials == 8
    assert 0 < found.failed < 8
    broken = Tuning(data, "edmh", tmp_path / "b.journal", n_bits=8, fixed={"ridge": -1})
    with pytest.raises(ValueError, match="ridge is -1"):
        broken.run(2)


def test_without_a_split_the_first_seeds_queries_are_left_out(data, tmp_path):
    unsplit = replace(data, split=None)
    tuning = Tuning(unsplit, METHOD, tmp_path / "a.journal", n_bits=8)
    queries = with_split(unsplit, seed=0, share=0.2).parts().query.ids["image"]
    assert not np.isin(np.concatenate(tuning._folds), queries).any()
    assert isinstance(data.split, Split)


def test_every_fold_fits_its_own_principal_components(data, tmp_path, monkeypatch):
    from modalhash.core.linalg import PrincipalComponents

    tuning = Tuning(replace(data, components={"image": 5}), METHOD, tmp_path / "a.journal", n_bits=8, folds=3)
    rows = []
    fit = PrincipalComponents.fit
    monkeypatch.setattr(PrincipalComponents, "fit", lambda X, *rest: rows.append(len(X)) or fit(X, *rest))
    tuning.run(1)
    assert rows == [60, 60, 60]  # of 90 training items
