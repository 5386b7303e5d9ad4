"""``python -m reproduction``: the paper's tables and figures, measured here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli.common import EXIT_ERROR, clean_stops, is_user_error, say
from modalhash.cli.experiment import MeasuringOptions, measure_missing
from modalhash.cli.options import with_option_groups

if TYPE_CHECKING:
    from rich.console import Console

    from reproduction.published import Experiment

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
@with_option_groups
def reproduce(
    *,
    experiments: Annotated[list[str] | None, typer.Argument(help="E.g. table2 sensitivity; all by default.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed: an hour on two cores with the paper's data, ten minutes without.")
    ] = False,
    measuring: MeasuringOptions,
    results: Annotated[Path, typer.Option(help="Folder of the results; an interrupted run is resumed.")] = Path(
        "results"
    ),
    report: Annotated[Path | None, typer.Option(help="Folder of the report; by default RESULTS/report.")] = None,
    report_only: Annotated[bool, typer.Option("--report-only", help="Measure nothing; write the report.")] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Write the report from these results, a folder or a packed file. Measures nothing."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say what experiments there are.")] = False,
) -> None:
    """Measure the paper's tables and figures on the data that are here, and write the report.

    Every result is a JSON file in the results folder; an interrupted run is resumed.
    Data that are absent are named, with how to get them.
    """
    from rich.console import Console

    from modalhash.experiments import Results
    from reproduction.published import choose, load_all
    from reproduction.report import write_report

    console = Console(highlight=False, soft_wrap=True)
    known = load_all()
    if list_:
        show_list(console, known)
        return
    chosen = choose(known, experiments or [])
    store = Results(source or results)
    failed: int | None = 0
    if not report_only and source is None:
        grids = [experiment.grid for experiment in chosen.values()]
        failed = measure_missing(console, grids, store, measuring, quick=quick)
        if failed is None:
            return
    with console.status("writing the report"):
        pages = write_report(store, known, report or results / "report")
    for page in pages:
        console.print(f"written: {page}")
    if failed:
        console.print(f"[yellow]{failed} of the cells failed: the report names them; --retry tries again[/yellow]")
        raise typer.Exit(1)


def show_list(console: Console, known: Mapping[str, Experiment]) -> None:
    """List the experiments."""
    from rich.table import Table

    table = Table("name", "in the paper", "what", "data sets", "rows", box=None)
    for experiment in known.values():
        rows = str(len(experiment.grid.rows) or "–")
        table.add_row(experiment.id, experiment.paper, experiment.title, ", ".join(experiment.datasets), rows)
    console.print(table)


def main() -> None:
    """Run the command line; a user error prints one line and exits with code 2."""
    try:
        with clean_stops():
            app(prog_name="python -m reproduction")
    except Exception as error:
        if not is_user_error(error):
            raise
        say(f"error: {error}", colour="red")
        sys.exit(EXIT_ERROR)


if __name__ == "__main__":
    main()
