"""The commands of modalhash experiment: measure and report grids of methods, data sets, code lengths and seeds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli.common import Commands, Terminated, check_drawing, import_from_here, say
from modalhash.cli.options import ReadLimitOptions, with_option_groups

if TYPE_CHECKING:
    from rich.console import Console

    from modalhash.experiments import Estimates, Event, Grid, Plan, Results, Study

EXAMPLE = """\
Measure a grid of methods, data sets, code lengths and seeds from a TOML file, and report it.

A stopped run continues where it was. Only cells that changed are measured again.

[bold]Example[/bold] (grid.toml):

\b
    datasets = ["openmoji", {name = "mine", file = "mine.npz"}]
    bits = [16, 32]
    seeds = 3
    scenario = "unpaired"
\b
    \\[\\[rows]]
    label = "AMSH, few anchors"
    method = "amsh"
    parameters = {n_anchors = 300}
\b
    \\[\\[rows]]
    label = "Mine"
    method = "mypackage.module:Mine"

\b
    modalhash experiment run grid.toml
    modalhash experiment report grid.toml --curves figures --output report.md

All keys: `modalhash experiment keys`. See also docs/experiments.md.
"""
app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode="rich", help=EXAMPLE)

File = Annotated[Path, typer.Argument(help="The grid, a TOML file.", metavar="FILE.toml")]
Folder = Annotated[Path | None, typer.Option(help="Folder of the results; by default results/NAME, after the file.")]
Root = Annotated[Path | None, typer.Option(help="Folder of the data sets.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Use the section \\[quick] of the file; without one, a single seed.")
]


@dataclass(frozen=True)
class MeasuringOptions:
    """Which cells are measured, and how."""

    datasets: Annotated[str, typer.Option(help="Only these data sets, separated by commas.")] = ""
    seeds: Annotated[int | None, typer.Option(min=1, help="At most this many seeds.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes, with one BLAS thread each.")] = 2
    retry: Annotated[bool, typer.Option("--retry", help="Retry failed cells.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be measured and how long it would take.")
    ] = False
    root: Root = None


@app.command("run")
@with_option_groups
def run_grid(
    *, file: File, results: Folder = None, quick: Quick = False, measuring: MeasuringOptions, limits: ReadLimitOptions
) -> None:
    """Measure the missing cells of a grid. You can stop at any time; every result is a file.

    First prints the number of fits and an estimate of their time, from existing
    results and small fits.
    """
    from rich.console import Console

    from modalhash.experiments import Results

    console = Console(highlight=False, soft_wrap=True)
    grid = open_grid(file)
    store = Results(results or default_folder(file))
    failed = measure_missing(console, [grid], store, measuring, quick=quick)
    if failed is None:
        return
    console.print(f"results: {store.path}. `modalhash experiment report {file}` shows them.")
    if failed:
        console.print(f"[yellow]{failed} cells failed; --retry tries them again[/yellow]")
        raise typer.Exit(1)


@app.command("list")
def list_cells(file: File, results: Folder = None, root: Root = None, quick: Quick = False) -> None:
    """List the cells of a grid and their state."""
    from rich.console import Console

    from modalhash.experiments import Results, make_plan

    console = Console(highlight=False, soft_wrap=True)
    store = Results(results or default_folder(file))
    plan = make_plan([open_grid(file)], root=root, quick=quick)
    counts = {"done": 0, "failed": 0, "to do": 0}
    for cell in plan.cells:
        known = store.read(cell)
        state = "failed" if known is not None and "error" in known else "done" if store.done(cell) else "to do"
        counts[state] += 1
        console.print(
            f"{state:<7} {cell}" + (f": {known['error']}" if known and "error" in known else ""), markup=False
        )
    console.print(", ".join(f"{count} {state}" for state, count in counts.items()))
    show_missing_data(console, plan)


@app.command("report")
def report(
    file: File,
    results: Folder = None,
    against: Annotated[
        str, typer.Option(metavar="LABEL", help="Test the other rows against this one.", show_default="the first")
    ] = "",
    curves: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Draw precision over recall into this folder, a file per data set (SVG, with --latex PDF), and show "
            "it in the report. Needs the extra [b]plot[/b].",
        ),
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX (booktabs) instead of Markdown.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
) -> None:
    """Print mAP (mean ± standard deviation over seeds) on learned, hashed and unseen databases, without fitting.

    Arrows mark rows that differ significantly from the first, or from --against: a paired
    randomisation test over queries with Holm correction for each data set.

    [bold]Examples[/bold]

    modalhash experiment report grid.toml

    modalhash experiment report grid.toml --against AMSH --curves figures --output report.md

    modalhash experiment report grid.toml --latex --curves figures --output report.tex
    """
    from modalhash.core.files import write_atomically
    from modalhash.experiments import Results, environments, quality_tables, read_studies, seconds_table

    if curves is not None:
        check_drawing(curves / "curves.svg")
    grid = open_grid(file)
    store = Results(results or default_folder(file))
    studies = read_studies(store, grid)
    if not studies:
        raise FileNotFoundError(f"{store.path} has no results of {file}; run `modalhash experiment run {file}` first")
    parts = []
    for study in studies.values():
        tables = [table for table in (*quality_tables(study, against), seconds_table(study)) if table.rows]
        parts += [table.to_latex() if latex else table.to_markdown() for table in tables]
        if curves is not None:
            parts += draw_study(study, against, curves, latex=latex, shown_in=output)
    if not latex:
        failures = [f"- {study.title}, {point.label}, {point.bits} bits, seed {point.seed}: {error}"
                    for study in studies.values() for point, error in study.failures.items()]  # fmt: skip
        measured = environments(result for study in studies.values() for result in study.results.values())
        parts = [f"# {grid.title or grid.name}\n", *parts]
        parts += ["Cells that failed:\n", *failures, ""] if failures else []
        parts += [*(f"- {count} cells: {text}" for text, count in measured.items()), ""]
    text = "\n".join(parts)
    if output is None:
        typer.echo(text)
    else:
        write_atomically(output, text.encode())


def draw_study(study: Study, against: str, folder: Path, *, latex: bool, shown_in: Path | None) -> list[str]:
    """Draw the curves of a data set into the folder; return the lines of the report that include it."""
    from modalhash.core.files import write_atomically
    from modalhash.experiments import curve_figure

    kind = "pdf" if latex else "svg"
    content = curve_figure(study, against, kind)
    if content is None:
        say(f"{study.title}: no curves were saved (`per_query = false`, packed without, or a sweep)", colour="yellow")
        return []
    path = folder / f"{study.grid.name}-{study.dataset}.{kind}"
    write_atomically(path, content)
    say(f"written: {path}")
    link = Path(os.path.relpath(path, shown_in.parent if shown_in else ".")).as_posix()
    if latex:
        return [f"\\begin{{figure}}\n\\centering\n\\includegraphics[width=\\textwidth]{{{link}}}\n\\end{{figure}}\n"]
    return [f"![Precision over recall, {study.title}]({link})\n"]


@app.command("pack")
def pack_results(
    folder: Annotated[Path, typer.Argument(help="Folder of results.")],
    file: Annotated[
        Path, typer.Argument(help="File to write, NAME.json.xz; `report --results` reads it like a folder.")
    ],
    per_query: Annotated[
        bool, typer.Option(help="Keep curves and the average precision of every query, which take 90 % of the size.")
    ] = True,
) -> None:
    """Pack a folder of results into one small file, e.g. to commit it."""
    from modalhash.core.files import write_atomically
    from modalhash.experiments import pack

    if not file.name.endswith(".json.xz"):
        raise ValueError(f"{file}: expected a name that ends in .json.xz")
    content = pack(folder, per_query=per_query)
    write_atomically(file, content)
    typer.echo(f"{file}: {len(content) / 1e6:.2f} MB")


@app.command("unpack")
def unpack_results(
    file: Annotated[Path, typer.Argument(help="A file written by `pack`.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write the results to, e.g. to continue measuring.")],
) -> None:
    """Unpack a file of results into a folder."""
    from modalhash.experiments import unpack

    try:
        unpack(file.read_bytes(), folder)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


@app.command("keys")
def keys() -> None:
    """List the keys of a grid file."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from modalhash.experiments import KEYS

    table = Table("key", "what", box=None)
    for name, meaning in KEYS.items():
        table.add_row(name, escape(meaning))
    Console(highlight=False).print(table)


def open_grid(file: Path) -> Grid:
    """Read a grid; ``module:Class`` may be a module in the current folder."""
    from modalhash.experiments import load_grid

    import_from_here()
    return load_grid(file)


def default_folder(file: Path) -> Path:
    return Path("results") / file.stem


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def measure_missing(
    console: Console, grids: Sequence[Grid], results: Results, measuring: MeasuringOptions, *, quick: bool
) -> int | None:
    """Measure the missing cells of grids, and return how many failed; None if they are only listed."""
    from modalhash.experiments import make_plan

    with resumable(console, results):
        with console.status("looking at the data"):
            names = names_in(measuring.datasets)
            plan = make_plan(grids, root=measuring.root, quick=quick, datasets=names, seeds=measuring.seeds)
        estimates = _show_plan(console, plan, results, measuring)
        return None if measuring.dry_run else _measure_plan(console, plan, results, estimates, measuring)


def _show_plan(console: Console, plan: Plan, results: Results, measuring: MeasuringOptions) -> Estimates:
    """Print the number of cells, the expected time and missing data; return the estimates."""
    from modalhash.experiments import Estimates, describe_plan

    for name, cells in plan.by_grid.items():
        n_missing = sum(not results.done(cell, retry=measuring.retry) for cell in cells)
        console.print(f"  {name:<14} {len(cells):>5} cells, {n_missing:>5} to measure")
    missing = [cell for cell in plan.cells if not results.done(cell, retry=measuring.retry)]
    estimates = Estimates(results, plan.facts)
    with console.status("timing small fits"):
        estimates.time_small_fits(missing, plan.inputs, measuring.root)
    console.print(
        f"[bold]{len(plan.cells)} cells[/bold] (shared ones once), {len(missing)} to measure, "
        f"{measuring.jobs} at a time"
    )
    if missing:
        console.print(describe_plan(missing, estimates, measuring.jobs), markup=False)
    show_missing_data(console, plan)
    return estimates


def show_missing_data(console: Console, plan: Plan) -> None:
    from rich.markup import escape

    for name, how in plan.absent.items():
        console.print(f"  absent: [bold]{name}[/bold]. {escape(how)}")
    for name, why in plan.broken.items():
        console.print(f"  [red]not readable: {name}[/red]. {escape(why)}")


@contextlib.contextmanager
def resumable(console: Console, results: Results) -> Iterator[None]:
    """Exit cleanly on Ctrl-C or SIGTERM, and print where the results are."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stopped:
        console.print(f"stopped; everything measured so far is in {results.path}. The same command continues.")
        if isinstance(stopped, Terminated):
            raise
        raise typer.Exit(130) from None


def _measure_plan(
    console: Console, plan: Plan, results: Results, estimates: Estimates, measuring: MeasuringOptions
) -> int:
    """Measure missing cells with a progress bar; return the number of failed cells."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from modalhash.experiments import record, run_cells, spoken

    record(plan, results)
    columns = (BarColumn(bar_width=28), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as display:
        task: Any = None

        def notify(event: Event) -> None:
            nonlocal task
            if task is None:
                task = display.add_task("", total=event.total)
            left = f"about {spoken(event.seconds_left)} left"
            display.update(task, completed=event.done, description=f"{left} · {event.cell}")
            if event.result is not None and "error" in event.result:
                display.console.print(f"[red]failed:[/red] {event.cell}: {event.result['error']}")
            elif event.result is not None and not console.is_terminal:
                console.print(f"{event.done}/{event.total} {event.cell}: {event.result['took']:.1f} s; {left}")

        how: dict[str, Any] = {"root": measuring.root, "jobs": measuring.jobs, "retry": measuring.retry}
        return run_cells(plan, results, **how, notify=notify, estimates=estimates)
