"""``modalhash reproduce``: the paper's tables and figures, from the repository's folder ``reproduction``."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def reproduce(context: typer.Context) -> None:
    """Measure the paper's tables and figures on the data that are here, and write the report. From the repository only.

    The same as `python -m reproduction`, which has all options: `modalhash reproduce --help`.
    """
    root = repository()
    if root is None:
        raise FileNotFoundError(
            "the folder `reproduction` is not here: it is part of the repository, not of the installed package. Clone "
            "the repository and run this from there; grids of your own: `modalhash experiment --help`"
        )
    sys.path.insert(0, str(root))
    from reproduction.__main__ import app

    app(args=context.args, prog_name="modalhash reproduce", standalone_mode=False)


def repository() -> Path | None:
    """Return the folder that holds ``reproduction``: the working directory, or the repository of this file."""
    for folder in (Path.cwd(), Path(__file__).parents[3]):
        if (folder / "reproduction" / "__main__.py").is_file():
            return folder
    return None
