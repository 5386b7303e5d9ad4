"""The command line: thin, each command calls the library."""

from __future__ import annotations

from typing import Annotated

import typer

from modalhash import __version__
from modalhash.cli import datasets as datasets_commands
from modalhash.cli import engine_items
from modalhash.cli import experiment as experiment_commands
from modalhash.cli.demo import demo
from modalhash.cli.evaluate import evaluate
from modalhash.cli.methods import methods
from modalhash.cli.reproduce import OPTIONS, reproduce
from modalhash.cli.search import search
from modalhash.cli.serve import serve
from modalhash.cli.train import train

app = typer.Typer(
    name="modalhash",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"modalhash {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Short binary codes for photos, texts and other modalities that were never paired.

    Start with [bold]modalhash demo[/bold]: it trains AMSH on two modalities and
    measures how well items of one find items of the other. Then make a search
    engine of your own with [bold]modalhash train[/bold].
    """


ENGINE = "A search engine of your own"
app.command()(demo)
app.command(rich_help_panel=ENGINE)(train)
app.command(rich_help_panel=ENGINE)(engine_items.add)
app.command(rich_help_panel=ENGINE)(engine_items.remove)
app.command(rich_help_panel=ENGINE)(search)
app.command(rich_help_panel=ENGINE)(serve)
app.command(rich_help_panel=ENGINE)(engine_items.export)
app.command(rich_help_panel=ENGINE)(engine_items.info)
app.command()(methods)
app.add_typer(datasets_commands.app, name="datasets")
app.command()(evaluate)
app.add_typer(experiment_commands.app, name="experiment")
app.command(context_settings=OPTIONS)(reproduce)


def main() -> None:
    """Entry point: a user's mistake is one clear line and exit code 2, anything else a traceback."""
    import sys

    try:
        app()
    except (ValueError, TypeError, FileNotFoundError, FileExistsError, ImportError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
