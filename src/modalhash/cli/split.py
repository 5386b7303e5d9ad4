"""``modalhash split``: one engine made into shards."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from modalhash.cli._common import EngineFolder, Trust, audited, open_engine, say


def split(
    engine: EngineFolder,
    shards: Annotated[list[Path], typer.Argument(metavar="SHARD…", help="Folders to make, one for each shard.")],
    trust: Trust = False,
) -> None:
    """Make several engines of one, each with a share of its items, for several machines to serve.

    They have the same model, so that [b]modalhash ask[/b] can search them as
    one. The first has the items that were added first. The engine stays as it
    is.

    [bold]Examples[/bold]

    modalhash split engine shard-1 shard-2 shard-3 shard-4
    """
    from modalhash.engine import split_engine

    with open_engine(engine, trust=trust, read_only=True) as opened, ExitStack() as logs:
        notes = [logs.enter_context(audited("split", shard, sources=[str(engine)])) for shard in shards]
        sizes = split_engine(opened, shards)
        for note, size in zip(notes, sizes, strict=True):
            note["items"] = size
    for shard, size in zip(shards, sizes, strict=True):
        say(f"{shard}: {size:,} items")
