"""``modalhash encode``: pictures and texts to files of codes, on as many machines as there are."""

from __future__ import annotations

from typing import Annotated

import typer

from modalhash.cli._common import (
    EXIT_INCOMPLETE,
    AsJson,
    Encoding,
    EngineFolder,
    Field,
    Quiet,
    ReadMemory,
    Separator,
    Sheet,
    Trust,
    key_values,
    open_engine,
    print_json,
    printable,
    problems_as_json,
    progress_bars,
    rate_and_time_left,
    say,
    table_format,
)


def encode(
    engine: EngineFolder,
    source: Annotated[
        list[str],
        typer.Argument(
            help="Folders of pictures and texts, zips and tars of pictures, manifests (.jsonl, .csv, .tsv, .xlsx, "
            ".feather), Parquet lists, WebDataset .tar files; paths, fsspec URLs such as [b]s3://bucket/photos[/b], or "
            "patterns with *."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="URL", help="Folder for the files of codes, a path or an fsspec URL.")],
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Dask scheduler, e.g. [b]tcp://10.0.0.1:8786[/b]; its workers encode."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Without a scheduler: processes of this machine, one per core by default."),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Folder that paths in manifests and lists are relative to, and must lie in; by default their own.",
        ),
    ] = None,
    field: Field = None,
    encoding: Encoding = None,
    separator: Separator = None,
    sheet: Sheet = None,
    part_size: Annotated[int, typer.Option(min=1, help="Inputs of one file; a tar is one file.")] = 2048,
    read_memory: ReadMemory = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Encode pictures and texts into Parquet files, without adding them.

    One row per input, with its code or with what is wrong with it. Files that
    are there are passed over: a command that was stopped goes on when it is run
    again. [b]modalhash add[/b] takes the files in.

    Exit code: 0; 1 if inputs could not be encoded; 2 for an error.

    [bold]Examples[/bold]

    modalhash encode engine photos/ captions.csv --out codes

    modalhash encode engine 's3://bucket/shards/*.tar' --out s3://bucket/codes --scheduler tcp://10.0.0.1:8786

    modalhash add engine codes/*.parquet
    """
    with (
        open_engine(engine, trust=trust, read_only=True) as opened,
        progress_bars(note=rate_and_time_left) as callback,
    ):
        done = opened.encode_to(
            source,
            out,
            fields=key_values(field, "--field"),
            table=table_format(encoding, separator, sheet),
            root=root,
            scheduler=scheduler,
            workers=workers,
            part_size=part_size,
            callback=callback,
        )
    if done.n_problems:
        say(
            f"{done.n_problems:,} inputs could not be encoded; the column 'problem' says why. The first:",
            colour="yellow",
        )
        for problem in done.problems:
            say(f"  {printable(str(problem))}")
    if as_json:
        counts = {"files": done.parts, "present": done.present, "inputs": done.inputs, "problems": done.n_problems}
        print_json({**counts, "first_problems": problems_as_json(done.problems)})
    else:
        present = f"; {done.present:,} files were there already" if done.present else ""
        encoded = f"{done.inputs - done.n_problems:,} of {done.inputs:,}" if done.n_problems else f"{done.inputs:,}"
        say(f"{encoded} inputs encoded into {done.parts:,} files in {out}{present}")
    if done.n_problems:
        raise typer.Exit(EXIT_INCOMPLETE)
