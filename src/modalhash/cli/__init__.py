"""The command line: commands that call the library."""

from __future__ import annotations

from typing import Annotated

import typer

from modalhash import __version__
from modalhash.cli import demo, evaluate, experiment, items, listings, maintenance, search, serve, train
from modalhash.cli.common import Commands, Terminated, clean_stops, say

app = typer.Typer(
    name="modalhash",
    cls=Commands,
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
    """Search photos, texts and other modalities by short binary codes, without paired training data.

    Start with your photos: [bold]modalhash train photos/ -o engine[/bold], then
    [bold]modalhash search engine "a word"[/bold] and [bold]modalhash serve engine[/bold].

    No photos at hand? [bold]modalhash demo[/bold] trains on emoji and serves a page.

    Comparing methods? [bold]modalhash methods[/bold] lists them, and
    [bold]modalhash evaluate --help[/bold] measures them on your data.
    """


ENGINE = "A search engine of your own"
app.command()(demo.demo)
app.command(rich_help_panel=ENGINE)(train.check)
app.command(rich_help_panel=ENGINE)(train.train)
app.command(rich_help_panel=ENGINE)(items.add)
app.command(rich_help_panel=ENGINE)(maintenance.sync)
app.command(rich_help_panel=ENGINE)(items.encode)
app.command(rich_help_panel=ENGINE)(items.remove)
app.command(rich_help_panel=ENGINE)(items.relabel)
app.command(rich_help_panel=ENGINE)(train.retrain)
app.command(rich_help_panel=ENGINE)(search.search)
app.command(rich_help_panel=ENGINE)(items.duplicates)
app.command(rich_help_panel=ENGINE)(serve.serve)
app.add_typer(serve.tokens, name="tokens", rich_help_panel=ENGINE)
app.command(rich_help_panel=ENGINE)(items.export)
app.command(rich_help_panel=ENGINE, cls=maintenance.InfoCommand)(maintenance.info)
app.command(rich_help_panel=ENGINE)(maintenance.verify)
app.command(rich_help_panel=ENGINE)(maintenance.backup)
app.command(rich_help_panel=ENGINE)(maintenance.restore)
app.command(rich_help_panel=ENGINE)(maintenance.clone)
app.command()(listings.methods)
app.add_typer(listings.app, name="datasets")
app.command()(evaluate.evaluate)
app.command()(evaluate.tune)
app.command()(evaluate.compare)
app.add_typer(experiment.app, name="experiment")


def main() -> None:
    """Run the command line; entry point of the package."""
    with clean_stops():
        try:
            app()
        except Terminated as stopped:
            say(f"stopped by {stopped.name}")
            raise
