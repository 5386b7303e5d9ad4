"""The command search: one query, or many from a pipe."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from modalhash.cli.common import EXIT_INCOMPLETE, AsJson, EngineFolder, console, open_engine, printable, say
from modalhash.cli.options import OpeningOptions, with_option_groups
from modalhash.engine.settings import SearchOptions

if TYPE_CHECKING:
    from modalhash.engine import Engine, Hit, Query

BATCH = 256
"""Number of piped queries searched together."""


@with_option_groups
def search(
    *,
    engine: EngineFolder,
    query: Annotated[str | None, typer.Argument(help="Words to search for; by default read from stdin.")] = None,
    image: Annotated[Path | None, typer.Option(help="Search by a picture.")] = None,
    id: Annotated[str | None, typer.Option(help="Search by an item of the engine.")] = None,
    options: SearchOptions,
    modality: Annotated[
        str | None, typer.Option(help="Modality of the query or of --id; text by default for piped lines.")
    ] = None,
    opening: OpeningOptions,
    as_json: AsJson = False,
) -> None:
    """Find items of any modality by words, by a picture, or by another item.

    Codes find the items and refinement vectors order them, nearest first;
    [b]--no-refine[/b] orders by the distance of codes alone. Piped output has
    tab-separated lines: distance, modality, id, text or path, labels, preceded
    by the query if there are several. With [b]--json[/b], one JSON object per query.

    Filters compare fields with [b]= != < <= > >= in[/b], combined with [b]and or not[/b]
    and parentheses. Fields are label, modality, kind, id, text, uri, and all other
    fields that items were added with.

    Exit code: 0; 1 if some of several queries failed; 2 for an error.

    [bold]Examples[/bold]

    modalhash search engine "red boat" --want image

    modalhash search engine --image photo.jpg --want text -k 5

    modalhash search engine --image photo.jpg "at night"

    modalhash search engine "boat" --want image --label red --kind hashed

    modalhash search engine "boat" --where 'year >= 2005 and taken < 2024-06'

    modalhash search engine "boat" --where 'label in (sea, "hot air") and not kind = learned'

    modalhash search engine "boat" --min-confidence 0.8

    modalhash search engine "boat" --want image --unique

    modalhash search engine --want image --json < queries.txt

    ls *.jpg | modalhash search engine --modality image --want text
    """
    given = [name for name, value in (("words", query), ("--image", image), ("--id", id)) if value is not None]
    if given[-2:] == ["--image", "--id"]:
        raise ValueError("--image and --id exclude each other; use one of them, optionally with words")
    failed = 0
    with open_engine(engine, **vars(opening), compiled=None if given else True) as opened:
        opened.check_options(options)
        words = None if query is None else [query]
        if image is not None:
            queries = opened.prepare(text=words, image=[image], asymmetric=options.asymmetric)
        elif id is not None:
            queries = opened.prepare(text=words, id=[id], modality=modality, asymmetric=options.asymmetric)
        elif query is not None:
            queries = opened.prepare([query], modality=modality or "text", asymmetric=options.asymmetric)
        if given:
            name = str(next(value for value in (query, image, id) if value is not None))
            (hits,) = opened.answer(queries, options)
            _show(_Answer(name, opened.with_paths(hits), queries[0]), as_json)
        else:
            failed = _search_input(opened, modality or "text", options, as_json)
    if failed:
        raise typer.Exit(EXIT_INCOMPLETE)


def _search_input(engine: Engine, modality: str, options: SearchOptions, as_json: bool) -> int:
    """Search by each line of stdin; return the number of failed queries."""
    if sys.stdin.isatty():
        raise ValueError("no query; give words, --image or --id, or pipe queries in, one per line")
    if modality not in engine.reads:
        engine.check_modalities(modality)
    lines = (line.strip() for line in sys.stdin)
    queries = (line for line in lines if line)
    n = failed = 0
    while batch := list(islice(queries, BATCH)):
        n += len(batch)
        for answer in _answers(engine, batch, modality, options):
            if isinstance(answer, _Failure):
                failed += 1
                say(f"{printable(answer.name)}: {answer.reason}", colour="yellow")
            else:
                _show(answer, as_json, many=True)
        sys.stdout.flush()
    if not n:
        raise ValueError("the input is empty; expected one query per line")
    return failed


class _Answer(NamedTuple):
    """One query with its hits."""

    name: str
    hits: list[Hit]
    query: Query


class _Failure(NamedTuple):
    """A failed query, and why."""

    name: str
    reason: str


def _answers(engine: Engine, batch: list[str], modality: str, options: SearchOptions) -> Iterator[_Answer | _Failure]:
    try:
        queries = engine.prepare(batch, modality=modality, asymmetric=options.asymmetric)
        found = engine.answer(queries, options)
    except ValueError as error:
        if len(batch) == 1:
            yield _Failure(batch[0], str(error))
            return
        for line in batch:  # find the invalid one
            yield from _answers(engine, [line], modality, options)
        return
    for name, hits, query in zip(batch, found, queries, strict=True):
        yield _Answer(name, engine.with_paths(hits), query)


def _show(answer: _Answer, as_json: bool, *, many: bool = False) -> None:
    name, hits, query = answer
    if as_json:
        told: dict[str, Any] = {} if query.message is None else {"message": query.message}
        told |= {"read_as": query.read_as} if query.read_as else {}
        known = {} if query.known is None else {"known": round(query.known, 4)}
        line = {"query": name, **known, **told, "hits": [hit.to_dict() for hit in hits]}
        typer.echo(json.dumps(line, ensure_ascii=False))
        return
    for word, other in query.read_as.items():
        say(f"{printable(word)}: read as {printable(other)}")
    if query.message is not None:
        say(f"{printable(name)}: {query.message}", colour="yellow")
    if not sys.stdout.isatty():
        for hit in hits:
            cells = [name] * many + [
                str(hit.distance),
                hit.modality,
                hit.id,
                _what(hit),
                "; ".join(map(str, hit.labels)),
            ]
            typer.echo("\t".join(map(printable, cells)))
    else:
        _table(name, hits)


def _table(query: str, hits: list[Hit]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(query)), title_justify="left")
    table.add_column("rank")
    table.add_column("distance", justify="right")
    if sure := any(hit.confidence is not None for hit in hits):
        table.add_column("confidence")
    for name in ("modality", "id", "text or path", "labels"):
        table.add_column(name, overflow="fold")
    times = Counter(hit.rank for hit in hits)
    for hit in hits:
        rank = f"{hit.rank}{'=' if times[hit.rank] > 1 else ''}"  # 1= 1= 3, as in sports
        cells = [rank, str(hit.distance), *([_how_sure(hit)] if sure else [])]
        cells += [hit.modality, hit.id, _what(hit), ", ".join(map(str, hit.labels))]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console().print(table if hits else Text(f"{printable(query)}: nothing found"))


def _how_sure(hit: Hit) -> str:
    if hit.confidence is None:
        return ""
    return f"{hit.confidence:.0%}{' weak match' if hit.weak else ''}"


def _what(hit: Hit) -> str:
    return hit.text if hit.text is not None else hit.uri or ""
