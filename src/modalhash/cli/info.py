"""``modalhash info``: what an engine is made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from modalhash.cli._common import (
    AsJson,
    EngineFolder,
    ReadOnly,
    Trust,
    console,
    describe_codes,
    describe_labels,
    describe_named_labels,
    describe_overlap,
    open_engine,
    print_json,
    say,
)

if TYPE_CHECKING:
    from modalhash.engine import Engine


def info(
    engine: EngineFolder,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="[FILE]",
            help="Write a page (HTML, to be opened in a browser, also offline): items, labels, quality on held-out "
            "items, confidence, codes, good and bad searches. Without a name, ENGINE-report.html in this folder.",
        ),
    ] = None,
    trust: Trust = False,
    read_only: ReadOnly = False,
    as_json: AsJson = False,
) -> None:
    """What an engine is made of, how many items are in it, and how good it is.

    [bold]Examples[/bold]

    modalhash info engine --json

    modalhash info engine --report

    modalhash info engine --report pages/engine.html
    """
    with open_engine(engine, trust=trust, read_only=read_only) as opened:
        facts = opened.info()
        if report is not None:
            report = _write_report(opened, report)
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if report is not None:
        say(f"The report is {report}; open it in a browser")


class InfoCommand(TyperCommand):
    """The command whose option ``--report`` may stand without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; ``--report`` before another option, or at the end, means this folder."""
        for place in reversed([row for row, word in enumerate(args) if word == "--report"]):
            if place + 1 == len(args) or args[place + 1].startswith("-"):
                args[place : place + 1] = ["--report", "."]
        return super().parse_args(ctx, args)


def _write_report(engine: Engine, path: Path) -> Path:
    """Write the page, into a folder under the name of the engine; return where it is."""
    from modalhash._files import write_atomically
    from modalhash.engine import report_page

    if path.is_dir():
        path = path / f"{engine.path.resolve().name}-report.html"
    write_atomically(path, report_page(engine).encode())
    return path


def _describe_snapshot(one: dict[str, Any]) -> str:
    age = f"{one['age'] / 3600:,.1f} hours" if one["age"] >= 5400 else f"{one['age'] / 60:,.0f} minutes"
    return (
        f"snapshot of the index: {one['items']:,} items, {one['bytes'] / 1e6:,.1f} MB, {age} old; "
        f"{one['changes_since']:,} changes since, which are read from the store"
    )


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table

    from modalhash.engine import describe_expected

    table = Table("modality", "items", "learned", "hashed", "trained on", "encoder", "features", title_justify="left")
    table.title = f"{facts['items']:,} items, {facts['n_bits']} bits, {facts['method']}, {describe_labels(facts)}"
    for name, one in facts["modalities"].items():
        kinds, encoder = one["items"], one["encoder"]
        numbers = [sum(kinds.values()), kinds["learned"], kinds["hashed"], one["trained_on"] or 0]
        made_by = f"{encoder['name']} {encoder['version']} ({encoder['digest'][:8]})"
        table.add_row(name, *(f"{number:,}" for number in numbers), made_by, f"{encoder['dim']:,}")
    out = console()
    out.print(table)
    if facts["collisions"] is not None:
        out.print(describe_codes(facts))
    for line in (*describe_named_labels(facts), *describe_overlap(facts)):
        out.print(line)
    out.print(describe_expected(facts["expected"], codes=facts["codes"]))
    if facts["labels"] == "none" and facts["why_no_confidence"] is not None:
        out.print("learned without labels: hits have no confidence, which would be that of sharing a label")
    if facts["snapshot"] is not None:
        out.print(_describe_snapshot(facts["snapshot"]))
    megabytes = facts["bytes"] / 1e6
    out.print(
        f"made {facts['created']} by modalhash {facts['modalhash']}, format {facts['format']}; {megabytes:.1f} MB"
    )
