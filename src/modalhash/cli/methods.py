"""``modalhash methods``: the registry as a table."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from modalhash.registry import METHODS


def methods(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """List the methods: supervision, pairing, modalities and where the equations come from."""
    if as_json:
        typer.echo(json.dumps([asdict(method) for method in METHODS.values()], indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{len(METHODS)} methods", title_justify="left")
    for column in ("name", "year", "labels", "pairs", "modalities", "equations from", "what it is"):
        table.add_column(column, no_wrap=column == "name")
    for method in METHODS.values():
        table.add_row(
            method.name,
            str(method.year or "–"),
            "needed" if method.supervised else "not used",
            {"none": "not used"}.get(method.pairing, method.pairing),
            method.modalities,
            method.equations,
            method.title + (" [dim](control)[/dim]" if method.control else ""),
        )
    Console().print(table)
