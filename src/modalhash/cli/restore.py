"""``modalhash restore``: an engine out of an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modalhash.cli._common import EngineFolder, Store, StoreVariable, audited, say


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive that modalhash backup wrote.")],
    engine: EngineFolder,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an engine that is there.")] = False,
    store: Store = None,
    store_variable: StoreVariable = None,
) -> None:
    """Make an engine of a backup. It appears when it is whole, and every file is as it was.

    A service that serves an engine which this one replaces follows to it.

    [bold]Examples[/bold]

    modalhash restore engine.tar engine

    modalhash restore backups/monday.tar.gz engine --overwrite

    modalhash restore engine.tar engine --store postgresql
    """
    from modalhash.engine import restore_engine

    with audited("restore", engine, sources=[str(file)]):
        restore_engine(file, engine, overwrite=overwrite, store=store, store_variable=store_variable)
    say(f"{engine} restored from {file}")
