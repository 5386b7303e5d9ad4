"""``modalhash serve``: an engine over HTTP, with a page."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import select
from socket import socket
from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli._common import EngineFolder, ReadOnly, Trust, open_engine, say

if TYPE_CHECKING:
    from modalhash.engine import Engine
    from modalhash.serve import Settings

MEGABYTES = 10
MEGAPIXELS = 40
CONNECTIONS, BODIES, WRONG_TOKENS = 128, 32, 20


def serve(
    engine: EngineFolder,
    host: Annotated[
        str, typer.Option(help="Address to listen at; only this machine reaches the default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    example: Annotated[
        list[str] | None, typer.Option(help="A search that the page offers; may be repeated. Else frequent labels.")
    ] = None,
    name: Annotated[str, typer.Option(help="What the page calls the engine; its folder's name by default.")] = "",
    writable: Annotated[bool, typer.Option("--writable", help="Let clients add, relabel and remove items.")] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="MODALHASH_TOKEN",
            help="Requests need the token. Better set the variable: other users of the machine can read command lines.",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            envvar="MODALHASH_TOKENS",
            help="A file of tokens with roles, made by [b]modalhash tokens[/b]; read anew when it changes.",
        ),
    ] = None,
    cookie_hours: Annotated[
        float, typer.Option(min=0.01, help="How long the page goes on without asking for the token again.")
    ] = 12.0,
    without_token: Annotated[
        bool,
        typer.Option("--without-token", help="Serve other machines without a token: anybody may use it."),
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name under which a proxy calls the service; may be repeated.")
    ] = None,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="Address or network of a proxy that is believed about whose requests it passes on (X-Forwarded-For); "
            "may be repeated."
        ),
    ] = None,
    max_connections: Annotated[int, typer.Option(min=1, help="Open at once, of one address.")] = CONNECTIONS,
    max_bodies: Annotated[int, typer.Option(min=1, help="Arriving at once, of one address.")] = BODIES,
    max_wrong_tokens: Annotated[int, typer.Option(min=1, help="In a minute, of one address.")] = WRONG_TOKENS,
    max_bytes: Annotated[int, typer.Option(min=1, help="Of an uploaded picture.")] = MEGABYTES * 2**20,
    max_pixels: Annotated[int, typer.Option(min=1, help="Of a picture, before it is decoded.")] = MEGAPIXELS * 10**6,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that serve; more than one use several cores for searches.")
    ] = 1,
    clusters: Annotated[
        bool,
        typer.Option(
            "--clusters",
            help="For millions of items: find without comparing all, as exactly, where their codes lie around centres. "
            "Takes half a second per million to start, and 12 bytes an item in each worker; twice that while it "
            "rebuilds after many changes.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No access log.")] = False,
    trust: Trust = False,
    read_only: ReadOnly = False,
) -> None:
    """Serve an engine: a page to search by, and the same over HTTP.

    Prints the address of the page when it is ready. Ctrl-C stops it, after the
    searches that are under way are answered. Items that other commands add or
    remove meanwhile are seen. The access log, a JSON object per request, goes
    to the output, internal errors with a trace to the error output. The
    interface is described at [b]/docs[/b].

    Only this machine can reach it unless [b]--host[/b] says otherwise, and then
    a token is needed: [b]--token[/b], or better the variable MODALHASH_TOKEN,
    which other users of the machine cannot see. The page is then opened once as
    [b]/?token=…[/b]; programs send [b]Authorization: Bearer …[/b]. Several
    tokens, some of which may only read, are in a file: [b]--tokens[/b].

    With [b]--workers[/b], several processes share the port and see each other's
    changes; limits hold for all together. SIGHUP replaces them one at a time,
    without a failed request, and one that ends is replaced.

    Exit code: 0 when stopped; 2 for an error, such as a port that is in use.

    [bold]Examples[/bold]

    modalhash serve engine

    modalhash serve engine --port 0 --example "red boat" --example "snow"

    MODALHASH_TOKEN=… modalhash serve engine --host 0.0.0.0 --writable --workers 4
    """
    from modalhash.serve import Limits, Settings, check_exposure

    settings = Settings(
        host=host,
        port=port,
        token=token or None,
        token_file=tokens,
        cookie_seconds=3600 * cookie_hours,
        writable=writable,
        hosts=tuple(allow_host or ()),
        examples=tuple(example or ()),
        name=name,
        quiet=quiet,
        trusted_proxies=tuple(trust_proxy or ()),
        limits=Limits(
            bytes=max_bytes,
            pixels=max_pixels,
            all_bytes=max(Limits().all_bytes, 2 * max_bytes),
            connections_per_address=max_connections,
            requests_per_address=max_connections,
            bodies_per_address=max_bodies,
            wrong_tokens=max_wrong_tokens,
        ),
    )
    if writable and read_only:
        raise ValueError("--writable and --read-only exclude each other; give one of them")
    check_exposure(settings, without_token=without_token)
    opener = partial(open_engine, engine, trust=trust, read_only=read_only, backend="clusters" if clusters else "exact")
    if workers > 1:
        opener = partial(opener, n_threads=max(1, (os.cpu_count() or 1) // workers))
        with listen(settings) as sock:
            _serve_from_workers(workers, opener, settings, sock)
    else:
        with listen(settings) as sock, opener() as opened:
            serve_until_stopped(opened, settings, sock, on_ready=_print_address)
    _say_if_read("stopped")


def _serve_from_workers(n_workers: int, opener: Callable[[], Engine], settings: Settings, sock: socket) -> None:
    """Serve from several processes until a signal to stop."""
    from modalhash.serve import page_url, run_workers

    if not hasattr(signal, "SIGHUP"):
        raise ValueError("--workers needs signals that Windows does not have; leave it out")
    run_workers(n_workers, opener, settings, sock, on_ready=lambda: _print_address(page_url(sock)))


def _print_address(address: str) -> None:
    """Print the address of the page; if the output is closed, the service goes on without."""
    with suppress(OSError):
        typer.echo(address)


def _say_if_read(text: str) -> None:
    """Say something, unless nobody reads the error output: that must not keep the process from ending."""
    with suppress(OSError, ValueError, TypeError):  # no file, closed, missing: then it does not block
        if not select([], [sys.stderr], [], 0)[1]:
            return
    with suppress(OSError, ValueError):
        say(text)


def listen(settings: Settings, *, any_port: bool = False) -> socket:
    """Return a socket at the host and port of the settings; with ``any_port``, at a free port if that one is taken."""
    from modalhash.serve import bind

    try:
        return bind(settings.host, settings.port)
    except ValueError:
        if not any_port:
            raise
        return bind(settings.host, 0)


def serve_until_stopped(engine: Engine, settings: Settings, sock: socket, *, on_ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; ``on_ready`` is called with the address of the page."""
    from modalhash.serve import page_url, run

    run(engine, settings, sock, on_ready=lambda: on_ready(page_url(sock)))
