"""Options are declared once: keywords, documentation and checks follow."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, get_type_hints

import pytest

from modalhash import engine, evaluation, experiments
from modalhash.core.option import Option, Options

PAIRS = [
    (engine.ReadSettings, engine.ReadOptionValues),
    (engine.AddOptions, engine.AddOptionValues),
    (engine.TrainSettings, engine.TrainOptionValues),
    (engine.RetrainOverrides, engine.RetrainOptionValues),
    (engine.EncodeOptions, engine.EncodeOptionValues),
    (evaluation.EvaluationOptions, evaluation.EvaluationOptionValues),
    (experiments.ComparisonOptions, experiments.ComparisonOptionValues),
]


@pytest.mark.parametrize(("options", "values"), PAIRS)
def test_keywords_are_the_fields(options, values):
    hints = get_type_hints(options)
    assert get_type_hints(values) == {field.name: hints[field.name] for field in fields(options)}


def test_keywords_of_a_search_are_the_fields():
    """Keywords take more types than fields have, e.g. the text of a filter."""
    assert list(get_type_hints(engine.OptionValues)) == [field.name for field in fields(engine.SearchOptions)]


@pytest.mark.parametrize("options", [engine.SearchOptions, *(options for options, _ in PAIRS)])
def test_every_field_is_described(options):
    shown = inspect.getdoc(options)
    for field in fields(options):
        assert options.options[field.name].help
        assert f"\n{field.name} : " in shown


@dataclass(frozen=True)
class Some(Options):
    """Some options."""

    port: Annotated[int, Option("Port.", at_least=0, at_most=9)] = 8
    share: Annotated[float | None, Option("Share.", at_least=0.0, at_most=1.0)] = None


@dataclass(frozen=True)
class Others(Options, like=Some, by_default="as before"):
    """The same options, of which none must be given."""

    port: int | None = None


def test_values_are_checked():
    assert Some(port=9, share=1) == Some(9, 1.0)
    wrong = {"port": 10, "share": 1.5}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"{name} is {value}; expected"):
            Some(**{name: value})
    with pytest.raises(TypeError, match="an integer"):
        Some(port=1.5)


def test_options_like_others_have_their_declarations():
    assert list(Others.options) == ["port"]
    assert Others().port is None
    assert "port : Port. By default, as before." in Others.__doc__
    with pytest.raises(ValueError, match="port is 10; expected an integer from 0 to 9"):
        Others(port=10)
