"""``modalhash remove``: items out of an engine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from modalhash.audit import ids_summary
from modalhash.cli._common import AsJson, EngineFolder, Trust, audited, open_engine, say


def remove(
    engine: EngineFolder,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of items; read from the input, one per line, if none.")
    ] = None,
    modality: Annotated[str | None, typer.Option(help="Only items of this modality; of all by default.")] = None,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="Pass over ids that are not there.")] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Remove items from an engine: all of those named, or none if one of them is not there.

    [bold]Examples[/bold]

    modalhash remove engine photos/1.jpg photos/2.jpg

    modalhash remove engine < ids.txt
    """
    wanted = ids or [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    if not wanted:
        raise ValueError("no ids; name them, or pipe them in, one per line")
    with (
        open_engine(engine, trust=trust) as opened,
        audited("remove", engine, modality=modality, **ids_summary(wanted)) as noted,
    ):
        noted["removed"] = n = opened.remove(wanted, modality=modality, missing="ignore" if missing_ok else "error")
        total = len(opened)
    if as_json:
        typer.echo(json.dumps({"removed": n, "items": total}))
    else:
        say(f"{n:,} items removed; {engine} holds {total:,}")
