"""``modalhash add``: items into an engine, without training."""

from __future__ import annotations

from typing import Annotated

import typer

from modalhash.cli._common import (
    EXIT_INCOMPLETE,
    AsJson,
    Encoding,
    EngineFolder,
    Exif,
    Field,
    Quiet,
    ReadMemory,
    ReadSeconds,
    ReadText,
    Separator,
    Sheet,
    Strict,
    Trust,
    Workers,
    audited,
    key_values,
    open_engine,
    print_json,
    printable,
    problems_as_json,
    progress_bars,
    say,
    show_problems,
    table_format,
)


def add(
    engine: EngineFolder,
    manifest: Annotated[list[str], typer.Argument(help="As for [b]modalhash train[/b]; labels are not needed.")],
    field: Field = None,
    encoding: Encoding = None,
    separator: Separator = None,
    sheet: Sheet = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace items whose id is known.")] = False,
    read_text: ReadText = False,
    exif: Exif = True,
    strict: Strict = False,
    workers: Workers = None,
    read_memory: ReadMemory = None,
    read_seconds: ReadSeconds = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Add items to an engine, without training.

    They are stored in portions: if the command is stopped, what it had stored
    is there, and running it again adds the rest. Parquet files that
    [b]modalhash encode[/b] wrote are taken in as they are, without encoding.

    Exit code: 0; 1 if items were left out, each with its line and the reason;
    2 for an error.

    [bold]Examples[/bold]

    modalhash add engine new.csv more-photos/

    modalhash add engine new.jsonl --replace

    modalhash add engine scans/ --read-text

    modalhash add engine codes/*.parquet
    """
    with (
        open_engine(engine, trust=trust) as opened,
        progress_bars() as callback,
        audited("add", engine, sources=manifest, replace=replace) as noted,
    ):
        done = opened.add(
            manifest,
            fields=key_values(field, "--field"),
            table=table_format(encoding, separator, sheet),
            replace=replace,
            read_text=read_text,
            exif=exif,
            strict=strict,
            workers=workers,
            callback=callback,
            on_problem=lambda problem: None,  # shown at the end, below the bars
        )
        noted |= {"added": done.added, "replaced": done.replaced}
        total = len(opened)
    for line in done.notes:
        say(printable(line))
    show_problems(done.problems, manifest)
    if as_json:
        counts = {"added": done.added, "replaced": done.replaced, "items": total, "notes": list(done.notes)}
        print_json({**counts, "problems": problems_as_json(done.problems)})
    else:
        replaced = f" ({done.replaced:,} in place of others)" if done.replaced else ""
        say(f"{done.added:,} items added{replaced}; {engine} holds {total:,}")
    if done.problems:
        raise typer.Exit(EXIT_INCOMPLETE)
