"""``modalhash add``, ``remove``, ``export`` and ``info``: the items of an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from modalhash.cli.engine_tools import (
    PARTLY,
    AsJson,
    EngineFolder,
    Field,
    Strict,
    Trust,
    Workers,
    key_values,
    plain_errors,
    plain_problems,
    progress_bars,
    say,
    show_problems,
)


def add(
    engine: EngineFolder,
    manifest: Annotated[list[str], typer.Argument(help="As for [b]modalhash train[/b]; labels are not needed.")],
    field: Field = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Items with a known id take the place of the old.")
    ] = False,
    strict: Strict = False,
    workers: Workers = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Add items to an engine, without training.

    They are stored in portions: if the command is stopped, what it had stored
    is there, and running it again adds the rest.

    Exit code: 0; 1 if items were left out, each with its line and the reason;
    2 for an error.

    [bold]Examples[/bold]

    modalhash add engine new.csv more-photos/

    modalhash add engine new.jsonl --replace
    """
    with plain_errors():
        from modalhash.engine import Engine

        with Engine.open(engine, trust=trust) as opened, progress_bars() as callback:
            done = opened.add(
                manifest,
                fields=key_values(field, "--field"),
                replace=replace,
                strict=strict,
                workers=workers,
                callback=callback,
                on_problem=lambda problem: None,  # shown at the end, below the bars
            )
            total = len(opened)
    show_problems(done.problems, ", ".join(manifest))
    if as_json:
        facts = {"added": done.added, "replaced": done.replaced, "items": total}
        typer.echo(json.dumps({**facts, "problems": plain_problems(done.problems)}, ensure_ascii=False, indent=1))
    else:
        replaced = f" ({done.replaced:,} in place of others)" if done.replaced else ""
        say(f"{done.added:,} items added{replaced}; {engine} holds {total:,}")
    if done.problems:
        raise typer.Exit(PARTLY)


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
    with plain_errors():
        from modalhash.engine import Engine

        wanted = ids or [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
        if not wanted:
            raise ValueError("no ids; name them, or pipe them in, one per line")
        with Engine.open(engine, trust=trust) as opened:
            n = opened.remove(wanted, modality=modality, missing="ignore" if missing_ok else "error")
            total = len(opened)
    if as_json:
        typer.echo(json.dumps({"removed": n, "items": total}))
    else:
        say(f"{n:,} items removed; {engine} holds {total:,}")


def export(
    engine: EngineFolder,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; the output by default.")] = None,
    trust: Trust = False,
) -> None:
    """Write all items as JSON lines: a manifest that train and add take, with kind and code of each item.

    [bold]Examples[/bold]

    modalhash export engine -o items.jsonl

    modalhash export engine | grep '"kind": "hashed"' | wc -l
    """
    with plain_errors():
        from modalhash._files import write_atomically
        from modalhash.engine import Engine

        with Engine.open(engine, trust=trust) as opened:
            lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in opened.export())
            if output is None:
                for line in lines:
                    sys.stdout.write(line)
            else:
                write_atomically(output, lambda file: file.writelines(line.encode() for line in lines))
                say(f"{len(opened):,} items written to {output}")


def info(engine: EngineFolder, trust: Trust = False, as_json: AsJson = False) -> None:
    """What an engine is made of, and how many items are in it.

    [bold]Example[/bold]

    modalhash info engine --json
    """
    with plain_errors():
        from modalhash.engine import Engine

        with Engine.open(engine, trust=trust) as opened:
            facts = opened.info()
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=1))
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("modality", "items", "learned", "hashed", "trained on", "encoder", "features", title_justify="left")
    table.title = f"{facts['items']:,} items, {facts['n_bits']} bits, {facts['method']}, {facts['classes']} labels"
    for name, one in facts["modalities"].items():
        kinds, encoder = one["items"], one["encoder"]
        numbers = [sum(kinds.values()), kinds["learned"], kinds["hashed"], one["trained_on"] or 0]
        made_by = f"{encoder['name']} {encoder['version']} ({encoder['digest'][:8]})"
        table.add_row(name, *(f"{number:,}" for number in numbers), made_by, f"{encoder['dim']:,}")
    console.print(table)
    megabytes = facts["bytes"] / 1e6
    console.print(
        f"made {facts['created']} by modalhash {facts['modalhash']}, format {facts['format']}; {megabytes:.1f} MB"
    )
