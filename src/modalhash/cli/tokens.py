"""``modalhash tokens``: the file of tokens that a service lets in, each with a name and a role."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modalhash.cli._common import say

app = typer.Typer(no_args_is_help=True, help="Make, rotate, list and remove the tokens of a service.")
TokenFile = Annotated[Path, typer.Argument(metavar="FILE", help="Holds digests only; `modalhash serve --tokens FILE`.")]
Name = Annotated[str, typer.Argument(help="Whose token it is; the audit log names it.")]


class RoleName(StrEnum):
    """What the holder of a token may do."""

    read = "read"
    write = "write"
    admin = "admin"


@app.command()
def add(
    file: TokenFile,
    name: Name,
    role: Annotated[
        RoleName, typer.Option(help="Search; also add and remove; also see the audit log.")
    ] = RoleName.read,
    days: Annotated[float | None, typer.Option(min=0.001, help="How long it is valid; for ever by default.")] = None,
) -> None:
    """Make a token and print it: the file keeps only its digest, so it cannot be shown again.

    [bold]Examples[/bold]

    modalhash tokens add tokens.txt alice --role write --days 365
    """
    from modalhash.serve import make_token, read_tokens, write_tokens

    tokens = read_tokens(file) if file.exists() else []
    if any(token.name == name for token in tokens):
        raise ValueError(f"{name!r} has a token already; rotate it, or remove it first")
    secret, token = make_token(name, role.value, days=days)
    write_tokens(file, [*tokens, token])
    typer.echo(secret)


@app.command()
def rotate(
    file: TokenFile,
    name: Name,
    overlap_days: Annotated[
        float, typer.Option(min=0, help="How long the old token stays valid; 0 ends it at once.")
    ] = 1.0,
) -> None:
    """Make a new token for a name and print it; the old one ends after some time. A service that runs follows."""
    from modalhash.serve import read_tokens, write_tokens
    from modalhash.serve import rotate as rotated

    secret, tokens = rotated(read_tokens(file), name, overlap_days=overlap_days)
    write_tokens(file, tokens)
    typer.echo(secret)


@app.command()
def remove(file: TokenFile, name: Name) -> None:
    """End all tokens of a name, and the page's cookies that stand for them, at once."""
    from modalhash.serve import read_tokens, write_tokens

    tokens = read_tokens(file)
    left = [token for token in tokens if token.name != name]
    if len(left) == len(tokens):
        raise ValueError(f"{file} has no token of {name!r}")
    write_tokens(file, left)
    say(f"{len(tokens) - len(left)} removed; {len(left)} left")


@app.command("list")
def list_tokens(file: TokenFile) -> None:
    """List names, roles and until when tokens are valid, separated by tabs."""
    from modalhash.serve import read_tokens

    for token in read_tokens(file):
        until = "" if token.until is None else token.until.isoformat(timespec="seconds")
        typer.echo(f"{token.name}\t{token.role.name}\t{until}")
