"""Run commands in this process, as typed."""

from __future__ import annotations

from typer.testing import CliRunner

from modalhash.cli import app


def run(*arguments, columns=160, **options):
    """Return the result of a command; ``options`` are those of ``CliRunner.invoke``, such as ``input``."""
    env = {"COLUMNS": str(columns), **options.pop("env", {})}
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=env, **options)
