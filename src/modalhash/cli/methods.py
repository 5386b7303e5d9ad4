"""The command methods: the registry as a table, as JSON, or as the page docs/methods.md."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from modalhash.cli.common import console, print_json
from modalhash.methods.registry import METHODS, Method, get, outside

PAGE_COLUMNS = (
    *("name", "what it is", "year", "labels", "pairs", "modalities", "codes", "kernel", "time grows with"),
    *("equations from", "best at"),
)


def page() -> str:
    """Return docs/methods.md: the template methods.md with the tables and references of the registry."""
    methods = METHODS.values()
    return (
        Path(__file__)
        .with_name("methods.md")
        .read_text(encoding="utf-8")
        .replace("@methods@", _table(PAGE_COLUMNS, [_row(method) for method in methods]))
        .replace("@calls@", _table(("call", "other parameters"), [_call(method) for method in methods]))
        .replace("@references@", "\n".join(f"- `{one.name}`: {one.citation}" for one in methods if one.year))
    )


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    first, *others = (f"| {' | '.join(row)} |" for row in (columns, *rows))
    return "\n".join([first, "|" + "---|" * len(columns), *others])


def _row(method: Method) -> tuple[str, ...]:
    return (
        f"`{method.name}`",
        method.title,
        str(method.year or "–"),
        "needed" if method.supervised else "none",
        method.pairing,
        method.modalities,
        method.codes,
        method.kernel,
        method.growth,
        ("control; " if method.control else "") + method.equations,
        method.best_at,
    )


def _call(method: Method) -> tuple[str, str]:
    """Return a constructor call, and the parameters other than the code length."""
    parameters = inspect.signature(get(method.name)).parameters.values()
    others = [f"`{p.name}={p.default!r}`" for p in parameters if p.name not in ("n_bits", "random_state")]
    return f'`modalhash.method("{method.name}")(n_bits=32)`', ", ".join(others) or "–"


COLUMNS = ("name", "year", "supervised", "pairing", "modalities", "equations from", "what it is")
WIDE = 120
"""Terminal width from which the last column is shown."""


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
) -> None:
    """List the methods: supervision, pairing, modalities and the source of their equations.

    Methods registered by installed packages (entry points [b]modalhash.methods[/b])
    follow modalhash's own. Commands also accept any other as [b]module:Class[/b].

    [bold]Examples[/bold]

    modalhash methods

    modalhash methods --json | jq '.[] | select(.pairing == "none") | .name'

    With --json, every method also has its parameters with their defaults, and those
    that [b]modalhash tune[/b] searches.
    """
    if markdown:
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
    cls = get(method.name)
    parameters = inspect.signature(cls).parameters.values()
    return {
        **asdict(method),
        "reimplementation": method.reimplementation,
        "max_modalities": cls.max_modalities,
        "takes_dask_arrays": getattr(cls, "distributed", False),  # may be missing in external methods
        "parameters": {one.name: _plain(one.default) for one in parameters},
    }


def _plain(value: Any) -> Any:
    """Return a default as a JSON value, or as text."""
    if value is inspect.Parameter.empty:
        return None
    return value if isinstance(value, bool | int | float | str | list | dict | None) else str(value)
