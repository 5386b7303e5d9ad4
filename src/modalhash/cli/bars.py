"""Progress callbacks drawn as bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modalhash.progress import Callback, Progress

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def bars(console: Console) -> Iterator[Callback]:
    """A callback that shows one bar per stage, with the objective where there is one."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("  {task.description:<22}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Bars(*columns, console=console) as display:
        tasks = {}

        def show(progress: Progress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = display.add_task(progress.stage, total=progress.total, note="")
            note = "" if progress.objective is None else f"objective {progress.objective:,.1f}"
            display.update(tasks[progress.stage], completed=progress.step, total=progress.total, note=note)

        yield show
