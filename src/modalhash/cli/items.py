"""The commands add, remove, relabel, export, encode and duplicates."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli.common import (
    EXIT_INCOMPLETE,
    AsJson,
    EngineFolder,
    Quiet,
    ReadMemory,
    Strict,
    audited,
    console,
    open_engine,
    print_json,
    printable,
    problems_as_json,
    progress_bars,
    rate_and_time_left,
    say,
    show_problems,
)
from modalhash.cli.options import OpeningOptions, ReadingOptions, ReportOptions, TableOptions, with_option_groups
from modalhash.engine.settings import AddOptions, EncodeOptions, FieldNames, ReadOnly, Trust, Workers

if TYPE_CHECKING:
    from modalhash.engine import DuplicateGroup, Relabelled


@with_option_groups
def add(
    *,
    engine: EngineFolder,
    manifest: Annotated[list[str], typer.Argument(help="As for [b]modalhash train[/b]; labels are optional.")],
    options: AddOptions,
    reading: ReadingOptions,
    trust: Trust = False,
    report: ReportOptions,
) -> None:
    """Add items to an engine, without training.

    Items are stored in batches. If the command is stopped, run it again to add
    the rest. Parquet files written by [b]modalhash encode[/b] are added without
    encoding again.

    Exit code: 0; 1 if items were skipped, each with its line and the reason;
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
        audited("add", engine, sources=manifest, replace=options.replace) as noted,
    ):
        done = opened.add(
            manifest,
            callback=callback,
            on_problem=lambda problem: None,  # shown at the end, below the bars
            **vars(options) | {"table": reading.table},
        )
        noted |= {"added": done.added, "replaced": done.replaced}
        total = len(opened)
    for line in done.notes:
        say(printable(line))
    show_problems(done.problems, manifest)
    if report.as_json:
        counts = {"added": done.added, "replaced": done.replaced, "items": total, "notes": list(done.notes)}
        print_json({**counts, "problems": problems_as_json(done.problems)})
    else:
        replaced = f" ({done.replaced:,} replaced)" if done.replaced else ""
        say(f"{done.added:,} items added{replaced}; {engine} holds {total:,}")
    if done.problems:
        raise typer.Exit(EXIT_INCOMPLETE)


@with_option_groups
def remove(
    engine: EngineFolder,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of items; by default read from stdin, one per line.")
    ] = None,
    modality: Annotated[str | None, typer.Option(help="Only items of this modality; all by default.")] = None,
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="Ignore ids that do not exist.")] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Remove items from an engine. If an id does not exist, nothing is removed.

    [bold]Examples[/bold]

    modalhash remove engine photos/1.jpg photos/2.jpg

    modalhash remove engine < ids.txt
    """
    from modalhash.engine import ids_summary

    wanted = ids or [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    if not wanted:
        raise ValueError("no ids; give them as arguments, or pipe them in, one per line")
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


MAX_LABELS = 10
"""Number of unknown labels printed; --json lists all."""


@with_option_groups
def relabel(
    engine: EngineFolder,
    file: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Manifests (.jsonl, .csv, .tsv) with the fields id and labels.")
    ],
    field: FieldNames = None,
    strict: Strict = False,
    workers: Workers = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Change the labels of items, and with them their learned codes.

    Each line has the [b]id[/b] of an item and all its new [b]labels[/b]; an empty
    field removes them. An id means the items of all modalities with that id,
    unless the line has a [b]modality[/b]. Other columns are ignored, so you can edit
    an exported manifest.

    Items immediately get the code of their new labels, without training. Labels
    that the engine has not learned are stored and can be used in filters; they
    change codes only after [b]modalhash retrain[/b]. The engine may be in use; the
    next search sees the change. If the command is stopped, run it again.

    Exit code: 0; 1 if lines were skipped, each with the reason; 2 for an error.

    [bold]Examples[/bold]

    modalhash relabel engine corrected.csv

    modalhash relabel engine tags.csv --field id=photo --field labels=keywords

    modalhash export engine -o items.jsonl  [dim]# edit the labels, then[/dim]

    modalhash relabel engine items.jsonl
    """
    with (
        open_engine(engine, trust=trust) as opened,
        progress_bars() as callback,
        audited("relabel", engine, sources=file) as noted,
    ):
        done = opened.relabel(
            file,
            fields=field,
            strict=strict,
            workers=workers,
            callback=callback,
            on_problem=lambda problem: None,  # shown at the end, below the bars
        )
        noted |= {"changed": done.changed, "unchanged": done.unchanged}
    show_problems(done.problems, file)
    if as_json:
        print_json({**asdict(done), "problems": problems_as_json(done.problems)})
    else:
        for line in describe_relabelled(done):
            say(line)
    if done.problems:
        raise typer.Exit(EXIT_INCOMPLETE)


def describe_relabelled(done: Relabelled) -> list[str]:
    lines = [f"{done.changed:,} item{'' if done.changed == 1 else 's'} relabelled, {done.unchanged:,} unchanged"]
    if done.changed:
        lines[0] += f"; {done.learned:,} have codes from labels, {done.hashed:,} from features"
    if done.without_code:
        lines.append(
            f"{done.without_code:,} of these have a new combination of labels, for which this method has no code until "
            "modalhash retrain"
        )
    if unknown := done.unknown_labels:
        shown: list[Any] = [f"{printable(name)} ({n:,})" for name, n in list(unknown.items())[:MAX_LABELS]]
        more = f" and {len(unknown) - MAX_LABELS:,} more" if len(unknown) > MAX_LABELS else ""
        lines.append(f"stored but not learned; used for codes only after modalhash retrain: {', '.join(shown)}{more}")
    return lines


@with_option_groups
def export(
    engine: EngineFolder,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; stdout by default.")] = None,
    trust: Trust = False,
    read_only: ReadOnly = False,
) -> None:
    """Write all items as JSON lines, a manifest for train and add, with the kind and code of each item.

    Codes are hexadecimal. Refinement vectors are base64 of signed bytes.

    [bold]Examples[/bold]

    modalhash export engine -o items.jsonl

    modalhash export engine | grep '"kind": "hashed"' | wc -l
    """
    from modalhash.core.files import sweep, temporary_files, write_atomically

    with open_engine(engine, trust=trust, read_only=read_only) as opened:
        lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in opened.export())
        if output is None:
            for line in lines:
                sys.stdout.write(line)
        else:
            sweep(temporary_files(output.absolute().parent))
            write_atomically(output, lambda file: file.writelines(line.encode() for line in lines))
            say(f"{len(opened):,} items written to {output}")


@with_option_groups
def encode(
    *,
    engine: EngineFolder,
    source: Annotated[
        list[str],
        typer.Argument(
            help="Folders of pictures and texts, zips and tars of pictures, manifests (.jsonl, .csv, .tsv, .xlsx, "
            ".feather), Parquet lists, WebDataset .tar files; as paths, fsspec URLs such as "
            "[b]s3://bucket/photos[/b], or patterns with *."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="URL", help="Folder for the files of codes, a path or an fsspec URL.")],
    options: EncodeOptions,
    written: TableOptions,
    read_memory: ReadMemory = None,
    trust: Trust = False,
    report: ReportOptions,
) -> None:
    """Encode pictures and texts into Parquet files, without adding them.

    Each input is a row with its code or with the reason why it has none. Existing
    files are skipped, so a stopped command continues when it is run again. Add
    the files with [b]modalhash add[/b].

    Exit code: 0; 1 if inputs could not be encoded; 2 for an error.

    [bold]Examples[/bold]

    modalhash encode engine photos/ captions.csv --out codes

    modalhash encode engine 's3://bucket/shards/*.tar' --out s3://bucket/codes --scheduler tcp://10.0.0.1:8786

    modalhash add engine codes/*.parquet
    """
    with open_engine(engine, trust=trust, read_only=True) as opened, progress_bars(note=rate_and_time_left) as callback:
        done = opened.encode_to(source, out, callback=callback, **vars(options) | {"table": written.table})
    if done.n_problems:
        say(f"{done.n_problems:,} inputs could not be encoded (see the column 'problem'). The first:", colour="yellow")
        for problem in done.problems:
            say(f"  {printable(str(problem))}")
    if report.as_json:
        counts = {"files": done.parts, "present": done.present, "inputs": done.inputs, "problems": done.n_problems}
        print_json({**counts, "first_problems": problems_as_json(done.problems)})
    else:
        present = f"; {done.present:,} files existed already" if done.present else ""
        encoded = f"{done.inputs - done.n_problems:,} of {done.inputs:,}" if done.n_problems else f"{done.inputs:,}"
        say(f"{encoded} inputs encoded into {done.parts:,} files in {out}{present}")
    if done.n_problems:
        raise typer.Exit(EXIT_INCOMPLETE)


@dataclass(frozen=True)
class DuplicateOptions:
    """What is a duplicate, among which items."""

    modality: Annotated[list[str] | None, typer.Option(help="Only this modality, e.g. image; may be repeated.")] = None
    radius: Annotated[
        int | None,
        typer.Option(min=0, max=64, help="Maximum distance of the sketches of near-duplicates in bits; 8 by default."),
    ] = None
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Minimum cosine similarity of near-duplicates; 0.97 by default.")
    ] = None
    pixels: Annotated[
        bool, typer.Option("--pixels/--no-pixels", help="Read photos to find mirrored, rotated and cropped copies too.")
    ] = True
    where: Annotated[
        str | None, typer.Option(help="Only items that match a filter, e.g. [b]label = boat and year >= 2005[/b].")
    ] = None


@with_option_groups
def duplicates(
    *,
    engine: EngineFolder,
    options: DuplicateOptions,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of groups.")] = 100,
    opening: OpeningOptions,
    as_json: AsJson = False,
) -> None:
    """Find duplicates and near-duplicates: copies, resized or cropped photos, texts with a word changed.

    Exact groups come first; their texts or files are identical. Near-duplicates
    follow, most similar first: items with similar features, and photos that are
    mirrored, rotated by quarters or cropped by up to 15 %. The first run reads all
    photos and stores small copies in the engine's folder; [b]--no-pixels[/b] compares
    only features. The item of a group that was added first is the reference for
    the others.

    Piped output has tab-separated lines: group number, exact or near,
    similarity, modality, id, text or path. With [b]--json[/b], one JSON object per
    group.

    [bold]Examples[/bold]

    modalhash duplicates engine --modality image

    modalhash duplicates engine --where 'label = boat and year >= 2005'

    modalhash duplicates engine --threshold 0.99 --json

    modalhash duplicates engine --modality image --limit 10000 > groups.tsv
    """
    given: dict[str, Any] = {name: value for name, value in vars(options).items() if value is not None}
    with open_engine(engine, **vars(opening)) as opened:
        groups = opened.duplicates(**given, limit=limit + 1)
    if as_json:
        for group in groups[:limit]:
            typer.echo(json.dumps(group.to_dict(), ensure_ascii=False))
    elif sys.stdout.isatty():
        _table(groups[:limit])
    else:
        for number, group in enumerate(groups[:limit], 1):
            for cells in _rows(number, group):
                typer.echo("\t".join(map(printable, cells)))
    if len(groups) > limit:
        say(f"there are more than {limit:,} groups; show more with --limit")
    elif not groups:
        say("no duplicates found")


def _rows(number: int, group: DuplicateGroup) -> list[list[str]]:
    kind = "exact" if group.exact else "near"
    return [
        [
            str(number),
            kind,
            "" if item.score is None else f"{item.score:.3f}",
            item.modality,
            item.id,
            item.text if item.text is not None else item.uri or "",
        ]
        for item in group.items
    ]


def _table(groups: list[DuplicateGroup]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("group", "", "similarity"):
        table.add_column(name, justify="right")
    for name in ("modality", "id", "text or path"):
        table.add_column(name, overflow="fold")
    for number, group in enumerate(groups, 1):
        for place, cells in enumerate(_rows(number, group)):
            shown = cells if place == 0 else ["", "", *cells[2:]]
            table.add_row(*(Text(printable(cell)) for cell in shown), end_section=place == len(group.items) - 1)
    if groups:
        console().print(table)
