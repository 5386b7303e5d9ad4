"""Options are declared once: keywords, documentation and checks follow."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, get_type_hints

import pytest

from modalhash import Engine
from modalhash.engine import (
    ReadOptionValues,
    ReadSettings,
    RetrainOptionValues,
    RetrainOverrides,
    TrainOptionValues,
    TrainSettings,
    check_sources,
)
from modalhash.engine.settings import Option, Options

PAIRS = [(ReadSettings, ReadOptionValues), (TrainSettings, TrainOptionValues), (RetrainOverrides, RetrainOptionValues)]


@pytest.mark.parametrize(("settings", "values"), PAIRS)
def test_keywords_are_the_fields(settings, values):
    hints = get_type_hints(settings)
    assert get_type_hints(values) == {field.name: hints[field.name] for field in fields(settings)}


@pytest.mark.parametrize("settings", [settings for settings, _ in PAIRS])
def test_every_field_is_described(settings):
    shown = inspect.getdoc(settings)
    for field in fields(settings):
        assert settings.options[field.name].help
        assert f"\n{field.name} : " in shown


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"n_bits": 0}, ValueError, "n_bits is 0; expected 'auto' or an integer ≥ 1"),
        ({"n_bits": "many"}, ValueError, "n_bits is 'many'; expected 'auto' or an integer ≥ 1"),
        ({"n_bits": 2.5}, TypeError, "n_bits is 2.5; expected 'auto' or an integer ≥ 1"),
        ({"n_bits": None}, TypeError, "n_bits is None"),
        ({"workers": 0}, ValueError, "workers is 0; expected an integer ≥ 1"),
        ({"labels": "some"}, ValueError, "labels is 'some'; expected one of 'given', 'folders', 'names', 'none'"),
        ({"labels": None}, ValueError, "labels is None"),
        ({"quality": "good"}, ValueError, "quality is 'good'; expected one of 'fast', 'best'"),
        ({"searched_fields": "title"}, TypeError, "expected names of fields"),
        ({"nosuch": 1}, TypeError, "nosuch"),
    ],
)
def test_wrong_values_are_refused_before_any_work(tmp_path, given, error, message):
    with pytest.raises(error, match=message):
        Engine.train([], tmp_path / "engine", **given)
    with pytest.raises(error, match=message):
        check_sources([], **given)
    assert not list(tmp_path.iterdir())


def test_a_retraining_takes_what_it_can_change_and_none_is_unchanged():
    assert RetrainOverrides(labels=None, n_bits=None) == RetrainOverrides()
    with pytest.raises(ValueError, match="labels is 'some'"):
        RetrainOverrides(labels="some")
    with pytest.raises(TypeError, match="store"):
        RetrainOverrides(store="sqlite")


def test_a_new_option_is_one_field():
    @dataclass(frozen=True, kw_only=True)
    class Mine(TrainSettings):
        depth: Annotated[int, Option("How deep.", at_least=2)] = 3

    @dataclass(frozen=True)
    class Some(Options, like=Mine):
        depth: int | None = None
        workers: int | None = None

    assert "depth : How deep." in inspect.getdoc(Mine)
    assert Mine().depth == 3
    for wrong in (Mine, Some):
        with pytest.raises(ValueError, match="depth is 1; expected an integer ≥ 2"):
            wrong(depth=1)
    assert list(Some.options) == ["depth", "workers"]
