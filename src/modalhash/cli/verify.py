"""``modalhash verify``: whether an engine is sound."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer

from modalhash.cli._common import (
    EXIT_INCOMPLETE,
    MAX_PROBLEMS,
    AsJson,
    EngineFolder,
    Trust,
    audited,
    import_from_here,
    print_json,
    printable,
    say,
)


def verify(
    engine: EngineFolder,
    repair: Annotated[bool, typer.Option("--repair", help="Remove what killed processes left behind.")] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Read all of an engine and say what is wrong with it.

    Digests of all parts, the pages of the store, a checksum for every item,
    saved pictures that are missing or that no item has, and what killed
    processes left in the folder or beside it. The engine may be in use.
    Damage cannot be undone: restore a backup.

    Exit code: 0 if nothing is wrong any more; 1 if something is; 2 for an
    error.

    [bold]Examples[/bold]

    modalhash verify engine

    modalhash verify engine --repair
    """
    from modalhash.engine import verify_engine

    if trust:
        import_from_here()
    if not engine.parent.is_dir():
        raise FileNotFoundError(f"{engine}: there is no such folder")
    noting: AbstractContextManager[dict[str, Any]] = audited("repair", engine) if repair else nullcontext({})
    with noting as noted:
        found = verify_engine(engine, repair=repair, trust=trust)
        noted["repaired"] = sum(finding.repaired for finding in found)
    left = [finding for finding in found if not finding.repaired]
    if as_json:
        print_json({"sound": not left, "findings": [asdict(finding) for finding in found]})
    else:
        for finding in found[:MAX_PROBLEMS]:
            say(f"{finding.kind}{' (repaired)' if finding.repaired else ''}: {printable(str(finding))}")
        if len(found) > MAX_PROBLEMS:
            say(f"… and {len(found) - MAX_PROBLEMS:,} more; --json lists them all")
        say(f"{engine} is sound" if not left else _advice(len(left), any(one.kind == "damage" for one in left)))
    if left:
        raise typer.Exit(EXIT_INCOMPLETE)


def _advice(n: int, damaged: bool) -> str:
    remedy = "restore a backup (modalhash restore)" if damaged else "--repair removes what is left over"
    return f"{'one finding' if n == 1 else f'{n:,} findings'}; {remedy}"
