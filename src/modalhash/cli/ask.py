"""``modalhash ask``: a search in several services at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from modalhash.cli._common import EXIT_INCOMPLETE, AsJson, printable, say


def ask(
    query: Annotated[str | None, typer.Argument(help="Words to search for.")] = None,
    at: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A service, e.g. http://10.0.0.1:8000; repeated for each.")
    ] = None,
    image: Annotated[Path | None, typer.Option(help="Search by a picture.")] = None,
    want: Annotated[
        list[str] | None, typer.Option(help="Modality to look in, e.g. image; repeated, or all by default.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=200, help="How many hits.")] = 20,
    radius: Annotated[int | None, typer.Option(min=0, help="All hits within this distance instead.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only items with this label; may be repeated.")] = None,
    where: Annotated[str | None, typer.Option(help="Only items that pass a filter.")] = None,
    refine: Annotated[
        bool, typer.Option("--refine/--no-refine", help="Order hits by their vectors, or by the codes alone.")
    ] = True,
    partial: Annotated[
        bool, typer.Option("--partial", help="Answer also if a service is down, and say which; exit code 1 then.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds within which a service has to answer.")] = 10.0,
    token: Annotated[
        str | None,
        typer.Option(envvar="MODALHASH_TOKEN", help="The token of the services; better set the variable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search several services as one: each holds a share of the items (see [b]modalhash split[/b]).

    Lines with tabs are printed: distance, modality, id, text or URL of the
    picture, labels, service. A service that does not answer is an error,
    unless [b]--partial[/b] allows an answer without it.

    Exit code: 0; 1 if services are missing in the answer; 2 for an error.

    [bold]Examples[/bold]

    modalhash ask "red boat" --at http://10.0.0.1:8000 --at http://10.0.0.2:8000

    modalhash ask --image photo.jpg --want text -k 5 --at http://10.0.0.1:8000 --partial
    """
    from modalhash.client import ShardedClient

    if (query is None) == (image is None):
        raise ValueError("expected words, or --image; one of them")
    if not at:
        raise ValueError("expected services: --at URL, once for each")
    with ShardedClient(at, token=token, timeout=timeout, missing="partial" if partial else "error") as client:
        answer = client.search(
            text=query,
            image=None if image is None else image.read_bytes(),
            k=k,
            radius=radius,
            want=want or None,
            labels=label or (),
            where=where,
            refine=refine,
        )
    if answer.message is not None:
        say(answer.message, colour="yellow")
    if as_json:
        found = {"hits": answer.hits, "searched": answer.searched, "missing": list(answer.missing)}
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        for hit in answer.hits:
            labels = ", ".join(map(str, hit["labels"]))
            content = hit.get("text") or hit.get("media") or ""
            cells = (str(hit["distance"]), hit["modality"], hit["id"], content, labels, hit["shard"])
            typer.echo("\t".join(map(printable, cells)))
    if answer.partial:
        say(f"without {', '.join(answer.missing)}, which did not answer: nearer items may be missing", colour="yellow")
        raise typer.Exit(EXIT_INCOMPLETE)
