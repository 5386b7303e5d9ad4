"""A command whose options are in groups has all of them, with their defaults, on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from modalhash.cli.options import with_option_groups


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
