"""``modalhash duplicates``: items that are in an engine twice, or nearly."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli._common import AsJson, EngineFolder, ReadOnly, Trust, console, open_engine, printable, say

if TYPE_CHECKING:
    from modalhash.engine import DuplicateGroup


def duplicates(
    engine: EngineFolder,
    modality: Annotated[
        list[str] | None, typer.Option(help="Look in this modality only, e.g. image; may be repeated.")
    ] = None,
    radius: Annotated[
        int | None, typer.Option(min=0, max=64, help="Bits in which sketches of near items may differ; 8 by default.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Least likeness of near items, a cosine; 0.97 by default, 1: equal features."),
    ] = None,
    pixels: Annotated[
        bool, typer.Option("--pixels/--no-pixels", help="Read photos to find the mirrored, turned and cropped as well.")
    ] = True,
    where: Annotated[
        str | None, typer.Option(help="Only among items that pass a filter, e.g. [b]label = boat and year >= 2005[/b].")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many groups at most.")] = 100,
    trust: Trust = False,
    read_only: ReadOnly = False,
    as_json: AsJson = False,
) -> None:
    """Group items that are the same, or nearly: copies, saved again, resized, turned, cropped, a word changed.

    Exact groups come first: their texts or files are identical. Then near ones,
    the surest first: their features are alike, whatever their labels are, or
    photos show the same, mirrored, turned by quarters or cropped by up to 15 %.
    The first run reads all photos, and keeps small copies of them in the
    engine's folder; [b]--no-pixels[/b] compares features alone. The first item of
    a group is the one that was added first; the others are compared with it.

    Into a pipe or a file go lines with tabs: number of the group, exact or
    near, likeness, modality, id, text or path. With [b]--json[/b], one JSON object
    per group.

    [bold]Examples[/bold]

    modalhash duplicates engine --modality image

    modalhash duplicates engine --where 'label = boat and year >= 2005'

    modalhash duplicates engine --threshold 0.99 --json

    modalhash duplicates engine --modality image --limit 10000 > groups.tsv
    """
    from modalhash.engine import DUPLICATE_RADIUS, DUPLICATE_THRESHOLD

    with open_engine(engine, trust=trust, read_only=read_only) as opened:
        groups = opened.duplicates(
            modality=modality or None,
            radius=DUPLICATE_RADIUS if radius is None else radius,
            threshold=DUPLICATE_THRESHOLD if threshold is None else threshold,
            pixels=pixels,
            where=where,
            limit=limit + 1,
        )
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
        say(f"there are more than {limit:,} groups; see them with --limit")
    elif not groups:
        say("no two items are the same, or nearly")


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
    for name in ("group", "", "likeness"):
        table.add_column(name, justify="right")
    for name in ("modality", "id", "text or path"):
        table.add_column(name, overflow="fold")
    for number, group in enumerate(groups, 1):
        for place, cells in enumerate(_rows(number, group)):
            shown = cells if place == 0 else ["", "", *cells[2:]]
            table.add_row(*(Text(printable(cell)) for cell in shown), end_section=place == len(group.items) - 1)
    if groups:
        console().print(table)
