"""A command whose options are in groups has all of them, with their defaults, on the command line.

An option that the engine declares is one field: the command line has it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from modalhash.cli.options import with_option_groups
from modalhash.core.option import Option, Options
from modalhash.engine import RetrainOverrides, TrainSettings
from modalhash.engine.settings import Workers


@dataclass(frozen=True)
class Place:
    where: Annotated[str, typer.Argument(metavar="WHERE")]
    depth: Annotated[int, typer.Option(min=1, help="How deep.")] = 3


@dataclass(frozen=True)
class Names:
    name: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None


def make_app():
    seen = []

    @with_option_groups
    def command(place: Place, names: Names, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Do it."""
        seen.append((place, names, loud))

    app = typer.Typer()
    app.command()(command)
    return app, seen


def test_fields_are_options():
    app, seen = make_app()
    assert CliRunner().invoke(app, ["here"]).exit_code == 0
    assert CliRunner().invoke(app, ["--name", "a", "--loud", "there", "--depth", "5", "--name", "b"]).exit_code == 0
    assert seen == [(Place("here"), Names(), False), (Place("there", 5), Names(["a", "b"]), True)]
    shown = CliRunner().invoke(app, ["--help"]).output
    for words in ("WHERE", "How deep.", "Do it.", "[default: 3]"):
        assert words in shown


def test_mistakes_are_those_of_typer():
    app, seen = make_app()
    assert CliRunner().invoke(app, []).exit_code == 2
    assert CliRunner().invoke(app, ["here", "--depth", "0"]).exit_code == 2
    assert seen == []


@dataclass(frozen=True, kw_only=True)
class Deeper(TrainSettings):
    """Options of training, and new ones."""

    depth: Annotated[int, Option("How ``deep``.", at_least=2)] = 3
    shape: Annotated[str | None, Option("Form.", choices=("round", "flat"), by_default="any", check=False)] = None
    parts: Annotated[Mapping[str, Any] | None, Option("Parts.", json=True, metavar="PART=NUMBER")] = None
    smooth: Annotated[bool | Callable[[], str], Option("Not rough.", python="Or a function.")] = True
    inner: Annotated[int, Option("Not on the command line.", flag="")] = 7


@dataclass(frozen=True, kw_only=True)
class Changes(Options, like=Deeper, by_default="as before"):
    """Changes of some options."""

    depth: int | None = None
    labels: str | None = None


def make_training(settings, **options):
    seen = []

    def command(settings, threads=None):
        """Do it."""
        seen.append((settings, threads))

    command.__annotations__ = {"settings": settings, "threads": Workers}
    app = typer.Typer()
    app.command()(partial(with_option_groups, **options)(command))
    return app, seen


def test_options_of_every_kind():
    @dataclass(frozen=True, kw_only=True)
    class Training(Options, like=Deeper):
        depth: int = 3
        shape: str | None = None
        parts: Mapping[str, Any] | None = None
        smooth: bool = True
        n_bits: int | str = "auto"
        inner: int = 7
        names: Annotated[tuple[str, ...], Option("Names.", flag="name")] = ()
        seconds: Annotated[float, Option("Hours.", flag="-s", at_least=1.0, unit=3600, envvar="HOURS")] = 7200.0

    app, seen = make_training(Training)
    assert CliRunner().invoke(app, []).exit_code == 0
    words = ["--depth", "4", "--shape", "flat", "--parts", "a=1", "--parts", "b=x", "--no-smooth", "--bits", "64"]
    words += ["--name", "a", "--name", "b", "--threads", "2"]
    assert CliRunner().invoke(app, words, env={"HOURS": "3"}).exit_code == 0
    given = Training(
        depth=4, shape="flat", parts={"a": 1, "b": "x"}, smooth=False, n_bits=64, names=("a", "b"), seconds=3 * 3600.0
    )
    assert seen == [(Training(), None), (given, 2)]
    assert type(seen[1][0].shape) is str
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for text in ("How deep.", "[default: 3]", "[default: 2.0]", "[default: (any)]", "PART=NUMBER", "May be repeated."):
        assert text in shown
    assert "Or a function" not in shown
    assert "inner" not in shown
    for wrong in (["--depth", "1"], ["--shape", "square"], ["--inner", "1"], ["--threads", "0"], ["-s", "0"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


def test_a_command_has_the_options_that_it_includes():
    app, seen = make_training(Deeper, include=lambda option: option.check)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert all(f"--{flag} " in shown for flag in ("depth", "smooth", "bits", "labels", "field"))
    assert not any(f"--{flag} " in shown for flag in ("shape", "codes", "seed", "store", "table"))
    assert CliRunner().invoke(app, ["--depth", "5", "--labels", "names"]).exit_code == 0
    assert seen == [(Deeper(depth=5, labels="names"), None)]


def test_what_is_not_given_stays_as_it_was():
    app, seen = make_training(Changes)
    assert CliRunner().invoke(app, ["--labels", "none"]).exit_code == 0
    assert seen == [(Changes(labels="none"), None)]
    assert "[default: (as before)]" in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert RetrainOverrides.options["labels"].by_default == "unchanged"
