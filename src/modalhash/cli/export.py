"""``modalhash export``: the items of an engine as a manifest."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from modalhash.cli._common import EngineFolder, ReadOnly, Trust, open_engine, say


def export(
    engine: EngineFolder,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; the output by default.")] = None,
    trust: Trust = False,
    read_only: ReadOnly = False,
) -> None:
    """Write all items as JSON lines: a manifest that train and add take, with kind and code of each item.

    Codes are hexadecimal; the refinement vector, where there is one, is base64
    of its signed bytes.

    [bold]Examples[/bold]

    modalhash export engine -o items.jsonl

    modalhash export engine | grep '"kind": "hashed"' | wc -l
    """
    from modalhash._files import sweep, temporary_files, write_atomically

    with open_engine(engine, trust=trust, read_only=read_only) as opened:
        lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in opened.export())
        if output is None:
            for line in lines:
                sys.stdout.write(line)
        else:
            sweep(temporary_files(output.absolute().parent))
            write_atomically(output, lambda file: file.writelines(line.encode() for line in lines))
            say(f"{len(opened):,} items written to {output}")
