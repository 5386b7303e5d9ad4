"""The commands serve and tokens."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from select import select
from socket import socket
from threading import Timer
from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli.common import EngineFolder, is_quiet, open_engine, say
from modalhash.cli.options import with_option_groups
from modalhash.engine.settings import OpenOptions
from modalhash.serve.limits import Limits, Settings

if TYPE_CHECKING:
    from modalhash.engine import Engine


PATIENCE = 3.0
"""Seconds of starting after which the command says why it takes long."""
tokens = typer.Typer(no_args_is_help=True, help="Create, rotate, list and remove the tokens of a service.")
TokenFile = Annotated[Path, typer.Argument(metavar="FILE", help="Token file, for `modalhash serve --tokens FILE`.")]
Name = Annotated[str, typer.Argument(help="Name of the holder, as written to the audit log.")]


class RoleName(StrEnum):
    """Permissions of a token."""

    read = "read"
    write = "write"
    admin = "admin"


@tokens.command()
def add(
    file: TokenFile,
    name: Name,
    role: Annotated[
        RoleName, typer.Option(help="read: search; write: also change items; admin: also read the audit log.")
    ] = RoleName.read,
    days: Annotated[
        float | None, typer.Option(min=0.001, help="Days until it expires; by default it does not.")
    ] = None,
) -> None:
    """Create a token and print it. The file stores only its digest, so it cannot be shown again.

    [bold]Examples[/bold]

    modalhash tokens add tokens.txt alice --role write --days 365
    """
    from modalhash.serve import make_token, read_tokens, write_tokens

    tokens = read_tokens(file) if file.exists() else []
    if any(token.name == name for token in tokens):
        raise ValueError(f"{name!r} already has a token; rotate it, or remove it first")
    secret, token = make_token(name, role.value, days=days)
    write_tokens(file, [*tokens, token])
    typer.echo(secret)


@tokens.command()
def rotate(
    file: TokenFile,
    name: Name,
    overlap_days: Annotated[
        float, typer.Option(min=0, help="Days for which the old token stays valid; 0 revokes it immediately.")
    ] = 1.0,
) -> None:
    """Create a new token for a name and print it; the old one stays valid for --overlap-days."""
    from modalhash.serve import read_tokens, rotate as rotated, write_tokens

    secret, tokens = rotated(read_tokens(file), name, overlap_days=overlap_days)
    write_tokens(file, tokens)
    typer.echo(secret)


@tokens.command()
def remove(file: TokenFile, name: Name) -> None:
    """Revoke all tokens of a name, and their cookies, immediately."""
    from modalhash.serve import read_tokens, write_tokens

    tokens = read_tokens(file)
    left = [token for token in tokens if token.name != name]
    if len(left) == len(tokens):
        raise ValueError(f"{file} has no token of {name!r}")
    write_tokens(file, left)
    say(f"{len(tokens) - len(left)} removed; {len(left)} left")


@tokens.command("list")
def list_tokens(file: TokenFile) -> None:
    """List names, roles and expiry times, separated by tabs."""
    from modalhash.serve import read_tokens

    for token in read_tokens(file):
        until = "" if token.until is None else token.until.isoformat(timespec="seconds")
        typer.echo(f"{token.name}\t{token.role.name}\t{until}")


@with_option_groups
def serve(
    *,
    engine: EngineFolder,
    settings: Settings,
    limits: Limits,
    without_token: Annotated[
        bool,
        typer.Option("--without-token", help="Serve other machines without a token: everyone can use it."),
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Number of processes, to use several cores for searches.")
    ] = 1,
    opening: OpenOptions,
) -> None:
    """Serve an engine over HTTP, with a search page.

    Prints the address of the page when it is ready. Ctrl-C stops it after
    requests in flight are answered. Changes by other commands are visible
    immediately. The access log (a JSON object per request) goes to stdout,
    internal errors with a traceback go to stderr. The API is described at
    [b]/docs[/b].

    By default only this machine can reach the service. With another
    [b]--host[/b] a token is required: set the variable MODALHASH_TOKEN, which
    other users cannot see, or [b]--token[/b]. Open the page once as
    [b]/?token=…[/b]; programs send [b]Authorization: Bearer …[/b]. For several
    tokens with roles, use [b]--tokens[/b].

    With [b]--workers[/b], several processes share the port and see each other's
    changes; each has its share of the limits. A worker that ends is restarted, and
    SIGHUP replaces all workers without a failed request.

    Exit code: 0 when stopped; 2 for an error, such as a port in use.

    [bold]Examples[/bold]

    modalhash serve engine

    modalhash serve engine --port 0 --example "red boat" --example "snow"

    MODALHASH_TOKEN=… modalhash serve engine --host 0.0.0.0 --writable --workers 4
    """
    from modalhash.serve import check_exposure

    limits = replace(
        limits,
        all_bytes=max(limits.all_bytes, 2 * limits.bytes),
        requests_per_address=limits.connections_per_address,
    )
    settings = replace(settings, limits=limits)
    if settings.writable and opening.read_only:
        raise ValueError("--writable and --read-only exclude each other; use one of them")
    check_exposure(settings, without_token=without_token)
    opener = partial(open_engine, engine, **vars(opening))
    if workers > 1:
        if not hasattr(signal, "SIGHUP"):
            raise ValueError("--workers is not available on Windows")
        from modalhash.serve import page_url, run_workers

        opener = partial(opener, n_threads=max(1, (os.cpu_count() or 1) // workers))
        with listen(settings) as sock, _waiting() as ready:
            run_workers(workers, opener, settings, sock, on_ready=lambda: ready(page_url(sock)))
    else:
        with listen(settings) as sock, _waiting() as ready, opener() as opened:
            serve_until_stopped(opened, settings, sock, on_ready=ready)
    _say_if_read("stopped")


@contextmanager
def _waiting() -> Iterator[Callable[[str], None]]:
    """Provide a function that prints the address of the page; until then, say why it takes long."""
    text = "Still starting. The first start compiles search code, which takes half a minute; later ones need not."
    timer = Timer(PATIENCE, _say_if_read, [text])
    timer.daemon = True
    if not is_quiet():
        timer.start()

    def ready(address: str) -> None:
        timer.cancel()
        with suppress(OSError):  # the output may be closed
            typer.echo(address)

    try:
        yield ready
    finally:
        timer.cancel()


def _say_if_read(text: str) -> None:
    """Print to stderr; ignore a closed or blocked pipe."""
    with suppress(OSError, ValueError, TypeError):  # not a file, closed or missing, so it cannot block
        if not select([], [sys.stderr], [], 0)[1]:
            return
    with suppress(OSError, ValueError):
        say(text)


def listen(settings: Settings, *, any_port: bool = False) -> socket:
    """Return a socket at the host and port of the settings; with ``any_port``, at a free port if it is in use."""
    from modalhash.serve import bind

    try:
        return bind(settings.host, settings.port)
    except ValueError:
        if not any_port:
            raise
        return bind(settings.host, 0)


def serve_until_stopped(engine: Engine, settings: Settings, sock: socket, *, on_ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; call ``on_ready`` with the address of the page."""
    from modalhash.serve import page_url, run

    run(engine, settings, sock, on_ready=lambda: on_ready(page_url(sock)))
