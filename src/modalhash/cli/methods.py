"""``modalhash methods``: the registry as a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from modalhash.cli._common import console, print_json
from modalhash.registry import METHODS, Method, outside

COLUMNS = ("name", "year", "supervised", "pairing", "modalities", "equations from", "what it is")
WIDE = 120
"""Columns of a terminal that has room for the last one."""


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
) -> None:
    """List the methods: supervision, pairing, modalities and where the equations come from.

    Methods that installed packages register (entry points [b]modalhash.methods[/b]) are listed after
    modalhash's own. Any other is given to commands as [b]module:Class[/b].

    [bold]Examples[/bold]

    modalhash methods

    modalhash methods --json
    """
    if markdown:
        from modalhash.cli._methods_page import page

        typer.echo(page(), nl=False)
        return
    known = [*METHODS.values(), *outside()]
    if as_json:
        print_json([asdict(method) for method in known])
        return
    from rich.table import Table

    out = console()
    shown = COLUMNS if out.width >= WIDE else COLUMNS[:-1]
    table = Table(title=f"{len(known)} methods", title_justify="left")
    for column in shown:
        table.add_column(column, no_wrap=column != "equations from", overflow="fold")
    for method in known:
        table.add_row(*_cells(method)[: len(shown)])
    out.print(table)


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
