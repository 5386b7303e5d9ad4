"""``modalhash methods``: the registry as a table."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Annotated, Any

import typer

from modalhash.cli._common import console, print_json
from modalhash.registry import METHODS, Method, get, outside

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

    modalhash methods --json | jq '.[] | select(.pairing == "none") | .name'

    With --json every method also has its parameters with their defaults and what
    [b]modalhash tune[/b] searches of them.
    """
    if markdown:
        from modalhash.cli._methods_page import page

        typer.echo(page(), nl=False)
        return
    known = [*METHODS.values(), *outside()]
    if as_json:
        print_json([_facts(method) for method in known])
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


def _facts(method: Method) -> dict[str, Any]:
    """Return the row of a method with all that its class says of itself."""
    cls = get(method.name)
    parameters = inspect.signature(cls).parameters.values()
    return {
        **asdict(method),
        "reimplementation": method.reimplementation,
        "max_modalities": cls.max_modalities,
        "takes_dask_arrays": getattr(cls, "distributed", False),  # one outside may have the interface alone
        "parameters": {one.name: _plain(one.default) for one in parameters},
    }


def _plain(value: Any) -> Any:
    """Return a default as JSON has it; what it has no word for, as text."""
    if value is inspect.Parameter.empty:
        return None
    return value if isinstance(value, bool | int | float | str | list | dict | None) else str(value)
