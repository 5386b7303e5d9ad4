"""``modalhash relabel``: other labels for items that are there."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli._common import (
    EXIT_INCOMPLETE,
    AsJson,
    EngineFolder,
    Quiet,
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
)

if TYPE_CHECKING:
    from modalhash.engine import Relabelled

MAX_LABELS = 10
"""Unknown labels that are named; --json has all of them."""


def relabel(
    engine: EngineFolder,
    file: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Manifests (.jsonl, .csv, .tsv) with the fields id and labels."),
    ],
    field: Annotated[
        list[str] | None,
        typer.Option(help="What the file calls things, e.g. [b]labels=keywords[/b] or [b]id=photo[/b]; repeatable."),
    ] = None,
    strict: Strict = False,
    workers: Workers = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Give items other labels; their learned codes follow.

    A line names an item by [b]id[/b] and gives its [b]labels[/b], all of them: those
    that it had are replaced, and an empty field takes them away. An id that is
    in several modalities means all of them, unless the line has a [b]modality[/b].
    Other columns are ignored, so a manifest that was exported, or trained from,
    will do.

    An item has the code of its labels at once, as if it had been trained with
    them, without training. Labels that the engine has not learned are stored
    and can be filtered by; for codes they count after [b]modalhash retrain[/b]. The
    engine may be in use: searches and services see the change with the next
    query. If the command is stopped, run it again.

    Exit code: 0; 1 if lines were left out, each with the reason; 2 for an error.

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
            fields=key_values(field, "--field"),
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
    """Say what became of the items, a line for each thing that a person has to know."""
    lines = [f"{done.changed:,} item{'' if done.changed == 1 else 's'} relabelled, {done.unchanged:,} were so already"]
    if done.changed:
        lines[0] += f": {done.learned:,} have the codes of their labels, {done.hashed:,} codes from their features"
    if done.without_code:
        lines.append(
            f"{done.without_code:,} of these have labels that no other item has together, for which this method has no "
            "code; modalhash retrain gives them one"
        )
    if unknown := done.unknown_labels:
        shown: list[Any] = [f"{printable(name)} ({n:,})" for name, n in list(unknown.items())[:MAX_LABELS]]
        more = f" and {len(unknown) - MAX_LABELS:,} more" if len(unknown) > MAX_LABELS else ""
        lines.append(
            f"not known to the engine, stored, and for codes only after modalhash retrain: {', '.join(shown)}{more}"
        )
    return lines
