"""Settings and limits of the service.

The command line imports this module, so it imports nothing that takes long or needs the extra ``serve``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

from modalhash.core.option import Option, Options

MEGABYTE = 2**20
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
MIN_TOKEN_LENGTH = 8
MAX_HITS = 200
MAX_LABELS = 20
MAX_DUPLICATE_GROUPS, MAX_DUPLICATE_ITEMS = 200, 50
MAX_ANSWER_BYTES = 16 * MEGABYTE
"""Bytes of an answer that lists items."""
MAX_SHOWN_LABELS, MAX_EXTRA_BYTES = 100, 16 * 1024
"""Labels and bytes of other fields of an item in a list."""
MAX_TEXT_LENGTH, MAX_ID_LENGTH, MAX_NAME_LENGTH = 2000, 1000, 200
"""Characters of a text, of an id, and of a label or modality. These limits are constants, not :class:`Limits`, because
they are part of the OpenAPI description."""


Fixed = partial(Option, flag="")
"""An option that the command line does not have."""


@dataclass(frozen=True)
class Limits(Options):
    """Limits per client and for all clients together."""

    bytes: Annotated[int, Option("Bytes of an uploaded picture.", flag="max-bytes", at_least=1)] = 10 * MEGABYTE
    json_bytes: Annotated[int, Fixed("Bytes of a JSON body.")] = MEGABYTE // 4
    all_bytes: Annotated[int, Fixed("Memory for all request bodies.")] = 80 * MEGABYTE
    pixels: Annotated[int, Option("Pixels of a picture, read before it is decoded.", flag="max-pixels", at_least=1)] = (
        40_000_000
    )
    pictures: Annotated[int, Fixed("Pictures decoded concurrently; one address has all but one of these threads.")] = 3
    scans: Annotated[
        int,
        Fixed(
            "Searches with a filter or a radius, and lists of items, made concurrently; one address has all but one of "
            "these threads."
        ),
    ] = 2
    filter_cost: Annotated[
        int,
        Fixed(
            "Cost of a filter: 1 for a comparison of an id, modality, kind, text or uri, 2 for a label, 8 for another "
            "field, 16 if it has dots."
        ),
    ] = 200
    body_seconds: Annotated[float, Fixed("Time for a request body to arrive.")] = 15.0
    header_seconds: Annotated[float, Fixed("Time for the headers of a request to arrive.")] = 10.0
    request_seconds: Annotated[float, Fixed("Time for a request, including sending the response.")] = 60.0
    requests: Annotated[int, Fixed("Requests in flight; further ones get status 503.")] = 256
    connections: Annotated[
        int,
        Fixed(
            "Open connections. For another one, the longest idle connection is closed; if none is idle, it is refused."
        ),
    ] = 1024
    connections_per_address: Annotated[
        int, Option("Open connections per address, handled as all are.", flag="max-connections", at_least=1)
    ] = 128
    requests_per_address: Annotated[int, Fixed("Requests in flight per address; further ones get status 429.")] = 128
    bodies_per_address: Annotated[
        int,
        Option(
            "Uploads in progress per address. For another one, the slowest is dropped, or it gets status 429.",
            flag="max-bodies",
            at_least=1,
        ),
    ] = 32
    unread_bytes: Annotated[
        int, Fixed("Bytes of answers that an address has not read; further large ones get status 429.")
    ] = 64 * MEGABYTE
    wrong_tokens: Annotated[
        int,
        Option(
            "Wrong tokens per minute and address, after which its tokens are ignored for the rest of it.",
            flag="max-wrong-tokens",
            at_least=1,
        ),
    ] = 20
    token_seconds: Annotated[float, Fixed("Length of the window in which wrong tokens are counted.")] = 60.0
    head_bytes: Annotated[int, Fixed("Bytes of the request line and headers.")] = 16 * 1024
    batch: Annotated[int, Fixed("Searches that share one scan of the index.")] = 256
    thumbnails: Annotated[int, Fixed("Memory for cached thumbnails.")] = 64 * MEGABYTE


@dataclass(frozen=True)
class Settings(Options):
    """Settings with which a service is started."""

    host: Annotated[str, Option("Address to listen on; by default only this machine can connect.")] = "127.0.0.1"
    port: Annotated[int, Option("Port to listen on; 0 for any free port.", at_least=0, at_most=65535)] = 8000
    token: Annotated[
        str | None,
        Option(
            "Token with the role admin. Prefer the variable, because other users can see command lines.",
            by_default="requests need no token, unless there is a file of tokens",
            envvar="MODALHASH_TOKEN",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Option(
            "File of tokens with roles, made by ``modalhash tokens``; reloaded when it changes.",
            flag="tokens",
            envvar="MODALHASH_TOKENS",
        ),
    ] = None
    cookie_seconds: Annotated[
        float,
        Option(
            "Time until the page asks for the token again.",
            flag="cookie-hours",
            metavar="HOURS",
            at_least=36.0,
            unit=3600,
        ),
    ] = 12 * 3600.0
    cookie_secret_file: Annotated[
        Path | None,
        Option(
            "File of secrets, one per line, that sign the page's cookies on every machine that has the same file; the "
            "first signs, all are valid. Reloaded when it changes.",
            by_default="a random secret of this service",
            flag="cookie-secrets",
            envvar="MODALHASH_COOKIE_SECRETS",
        ),
    ] = None
    writable: Annotated[bool, Option("Let clients add, relabel and remove items.")] = False
    hosts: Annotated[
        tuple[str, ...], Option("Host name under which a proxy reaches the service.", flag="allow-host")
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        Option("Address or network of a proxy whose ``X-Forwarded-For`` is trusted.", flag="trust-proxy"),
    ] = ()
    examples: Annotated[
        tuple[str, ...], Option("Search that the page offers.", by_default="frequent labels", flag="example")
    ] = ()
    name: Annotated[str, Option("Name on the page.", by_default="that of the engine's folder")] = ""
    quiet: Annotated[bool, Option("Turn off the access log.")] = False
    limits: Annotated[Limits, Fixed("Limits of clients.")] = field(default_factory=Limits)

    def __post_init__(self) -> None:
        from modalhash.serve.auth import TrustedProxies

        super().__post_init__()
        TrustedProxies(self.trusted_proxies)  # raises for invalid addresses
        token = self.token
        if token is not None and (len(token) < MIN_TOKEN_LENGTH or not all("!" <= sign <= "~" for sign in token)):
            raise ValueError(
                f"the token has {len(token)} characters; expected at least {MIN_TOKEN_LENGTH} printable ASCII "
                "characters without spaces, e.g. from python3 -c 'import secrets; print(secrets.token_urlsafe())'"
            )

    @property
    def needs_token(self) -> bool:
        return self.token is not None or self.token_file is not None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK_HOSTS or self.host.startswith("127.")
