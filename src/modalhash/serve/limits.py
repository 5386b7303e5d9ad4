"""Settings and limits of the service."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from modalhash.serve.auth import TrustedProxies

MEGABYTE = 2**20
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
MIN_TOKEN_LENGTH = 8
MAX_HITS = 200
MAX_LABELS = 20
MAX_DUPLICATE_GROUPS, MAX_DUPLICATE_ITEMS = 200, 50
MAX_TEXT_LENGTH, MAX_ID_LENGTH, MAX_NAME_LENGTH = 2000, 1000, 200
"""Characters of a text, of an id, and of a label or modality. These limits are constants, not :class:`Limits`, because
they are part of the OpenAPI description."""


@dataclass(frozen=True)
class Limits:
    """Limits per client and for all clients together."""

    bytes: int = 10 * MEGABYTE
    """Size of an uploaded picture."""
    json_bytes: int = MEGABYTE // 4
    """Size of a JSON body."""
    all_bytes: int = 80 * MEGABYTE
    """Memory for all request bodies."""
    pixels: int = 40_000_000
    """Pixels of a picture, read from its header before it is decoded."""
    pictures: int = 2
    """Pictures decoded concurrently."""
    body_seconds: float = 15.0
    """Time for a request body to arrive."""
    header_seconds: float = 10.0
    """Time for the headers of a request to arrive."""
    request_seconds: float = 60.0
    """Time for a request, including sending the response."""
    requests: int = 256
    """Requests in flight; further ones get status 503."""
    connections: int = 1024
    """Open connections. For another one, the longest idle connection is closed; if none is idle, it is refused."""
    connections_per_address: int = 128
    """Open connections of one address, handled as for ``connections``."""
    requests_per_address: int = 128
    """Requests in flight of one address; further ones get status 429."""
    bodies_per_address: int = 32
    """Uploads in progress of one address. For another one, the slowest is dropped, or it gets status 429."""
    wrong_tokens: int = 20
    """Wrong tokens of one address within ``token_seconds``, after which its tokens are ignored for the rest of it."""
    token_seconds: float = 60.0
    """Length of the window in which wrong tokens are counted."""
    head_bytes: int = 16 * 1024
    """Size of the request line and headers."""
    batch: int = 256
    """Searches that share one scan of the index."""
    thumbnails: int = 64 * MEGABYTE
    """Memory for cached thumbnails."""


@dataclass(frozen=True)
class Settings:
    """Settings with which a service is started."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    """Token with the role admin. Without it and ``token_file``, requests need no token."""
    token_file: Path | None = None
    """File of tokens with roles (:func:`modalhash.serve.make_token`), reloaded when it changes."""
    cookie_seconds: float = 12 * 3600.0
    """Time after which the page asks for the token again."""
    writable: bool = False
    """Whether clients may add and remove items."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may use, in addition to those of this machine."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose ``X-Forwarded-For`` is trusted."""
    examples: tuple[str, ...] = ()
    """Searches that the page offers."""
    name: str = ""
    """Name shown on the page; by default the name of the engine's folder."""
    quiet: bool = False
    """Whether to turn off the access log."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
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
