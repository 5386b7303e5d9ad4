"""``modalhash backup``: an engine in one archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modalhash.cli._common import EngineFolder, say


def backup(
    engine: EngineFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Archive to write; compressed if it ends in .gz or .tgz.")
    ],
) -> None:
    """Write an engine as it is at this moment into one archive, also while it is in use.

    All that it consists of: model, encoders, items, and the pictures saved in
    it. Pictures that lie elsewhere are not in it. [b]modalhash restore[/b]
    makes an engine of it again.

    [bold]Examples[/bold]

    modalhash backup engine engine.tar

    modalhash backup engine backups/monday.tar.gz
    """
    from modalhash.engine import backup_engine

    backup_engine(engine, file)
    say(f"{engine} written to {file} ({file.stat().st_size / 1e6:,.1f} MB)")
