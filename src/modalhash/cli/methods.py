"""``modalhash methods``: the registry as a table."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from modalhash.registry import METHODS, Method

COLUMNS = ("name", "year", "supervised", "pairing", "modalities", "equations from", "what it is")
WIDE = 120
"""Columns of a terminal that has room for the last one."""


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
) -> None:
    """List the methods: supervision, pairing, modalities and where the equations come from."""
    if as_json:
        typer.echo(json.dumps([asdict(method) for method in METHODS.values()], indent=1, ensure_ascii=False))
    elif markdown:
        typer.echo(page())
    else:
        from rich.console import Console
        from rich.table import Table

        console = Console()
        shown = COLUMNS if console.width >= WIDE else COLUMNS[:-1]
        table = Table(title=f"{len(METHODS)} methods", title_justify="left")
        for column in shown:
            table.add_column(column, no_wrap=column != "equations from", overflow="fold")
        for method in METHODS.values():
            table.add_row(*_cells(method)[: len(shown)])
        console.print(table)


def page() -> str:
    """The methods as Markdown, with what to cite."""
    lines = [
        "# Methods",
        "",
        "Made by `modalhash methods --markdown`. A *control* is not a method to use but a level to compare with. A",
        "*re-implementation* was written without the authors' code or full text at hand: its numbers are not theirs.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join((f"`{cells[0]}`", *cells[1:])) + " |" for cells in map(_cells, METHODS.values())),
        "",
        "## References",
        "",
        *(f"- `{method.name}`: {method.citation}" for method in METHODS.values() if method.year),
    ]
    return "\n".join(lines)


def _cells(method: Method) -> tuple[str, ...]:
    return (
        method.name,
        str(method.year or "–"),
        "yes" if method.supervised else "no",
        method.pairing,
        method.modalities,
        ("control; " if method.control else "") + method.equations,
        method.title,
    )
