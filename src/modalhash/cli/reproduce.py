"""``modalhash reproduce``: the paper's tables and figures, measured here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from modalhash.reproduce.config import Experiment
    from modalhash.reproduce.plan import Plan
    from modalhash.reproduce.runner import Event
    from modalhash.reproduce.store import Store


def reproduce(
    experiments: Annotated[list[str] | None, typer.Argument(help="E.g. table2 sensitivity; all by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A part of it, in about ten minutes on two cores.")] = False,
    datasets: Annotated[str, typer.Option(help="Only these data sets, separated by commas.")] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="At most so many seeds.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once, one BLAS thread each.")] = 2,
    results: Annotated[Path, typer.Option(help="Folder of the results; a run goes on where it was.")] = Path("results"),
    report: Annotated[Path | None, typer.Option(help="Folder of the report; by default RESULTS/report.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder that holds the data sets.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try cells again that failed.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Measure nothing; write the report.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be measured, and how long.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Say what experiments there are.")] = False,
) -> None:
    """Measure the paper's tables and figures on the data that are here, and write the report.

    Every result is a JSON file in the results folder; a run that was stopped goes on where it was.
    Data that are absent are named, with how to get them.
    """
    from rich.console import Console

    from modalhash.reproduce.config import load_all
    from modalhash.reproduce.plan import choose, make_plan, record
    from modalhash.reproduce.store import Store

    console = Console(highlight=False, soft_wrap=True)
    known = load_all()
    if list_:
        show_list(console, known)
        return
    chosen = choose(known, experiments or [])
    store = Store(results)
    failed = 0
    if not report_only:
        with console.status("looking at the data"):
            wanted = [name.strip() for name in datasets.split(",") if name.strip()]
            plan = make_plan(chosen, root=root, quick=quick, datasets=wanted, seeds=seeds)
        show_plan(console, plan, store, jobs=jobs, retry=retry)
        if dry_run:
            return
        record(plan, store)
        failed = measure(console, plan, store, root=root, jobs=jobs, retry=retry)
    write(console, store, known, report or results / "report")
    if failed:
        console.print(f"[yellow]{failed} of the cells failed: the report names them; --retry tries again[/yellow]")
        raise typer.Exit(1)


def show_list(console: Console, known: dict[str, Experiment]) -> None:
    """What there is to reproduce."""
    from rich.table import Table

    table = Table("name", "in the paper", "what", "data sets", "rows", box=None)
    for experiment in known.values():
        rows = str(len(experiment.rows) or "–")
        table.add_row(experiment.id, experiment.paper, experiment.title, ", ".join(experiment.datasets), rows)
    console.print(table)


def show_plan(console: Console, plan: Plan, store: Store, *, jobs: int, retry: bool) -> None:
    """How much there is to do, and what cannot be done."""
    from modalhash.reproduce.estimate import Estimates, spoken

    expected = Estimates(store)
    for name, cells in plan.by_experiment.items():
        missing = [cell for cell in cells if not store.done(cell, retry=retry)]
        console.print(f"  {name:<14} {len(cells):>5} cells, {len(missing):>5} to measure")
    missing = [cell for cell in plan.cells if not store.done(cell, retry=retry)]
    seconds = sum(map(expected, missing))
    console.print(
        f"[bold]{len(plan.cells)} cells[/bold] (shared ones once), {len(missing)} to measure: "
        f"about {spoken(seconds / jobs)} on an idle machine, {jobs} at once"
    )
    for name, how in plan.absent.items():
        console.print(f"  absent: [bold]{name}[/bold]. {how}", markup=True)
    for name, why in plan.broken.items():
        console.print(f"  [red]not readable: {name}[/red]. {why}")


def measure(console: Console, plan: Plan, store: Store, *, root: Path | None, jobs: int, retry: bool) -> int:
    """Run what is missing under a bar; Ctrl-C ends it cleanly."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from modalhash.reproduce.estimate import spoken
    from modalhash.reproduce.runner import run

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
                took = event.result["took"]
                console.print(f"{event.done}/{event.total} {event.cell}: {took:.1f} s; {left}")

        try:
            return run(plan.cells, store, root=root, jobs=jobs, retry=retry, notify=notify)
        except KeyboardInterrupt:
            display.stop()
            console.print(f"stopped; everything measured so far is in {store.folder}. The same command goes on.")
            raise typer.Exit(130) from None


def write(console: Console, store: Store, known: dict[str, Experiment], folder: Path) -> None:
    """The report, from the results folder alone."""
    from modalhash.reproduce.report import write_report

    with console.status("writing the report"):
        paths = write_report(store, known, folder)
    for path in paths:
        console.print(f"written: {path}")
