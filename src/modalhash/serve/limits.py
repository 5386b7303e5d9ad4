"""How a service is started, and how much one request or all of them together may take."""

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
"""Characters of a text, of an id, and of a label or modality. Like the bounds above they are constants, not
:class:`Limits`, because they are part of the OpenAPI description."""


@dataclass(frozen=True)
class Limits:
    """Bounds on what one client, or all of them together, may use."""

    bytes: int = 10 * MEGABYTE
    """The largest uploaded picture."""
    json_bytes: int = MEGABYTE // 4
    """The largest JSON body."""
    all_bytes: int = 80 * MEGABYTE
    """The most that all bodies may take in memory at the same time."""
    pixels: int = 40_000_000
    """The most pixels of a picture, read from its header before any is decoded."""
    pictures: int = 2
    """The number of pictures that are decoded at the same time."""
    body_seconds: float = 15.0
    """The time in which a body has to arrive."""
    header_seconds: float = 10.0
    """The time in which the head of a request has to arrive."""
    request_seconds: float = 60.0
    """The time in which a request has to be finished, including the sending of its response."""
    requests: int = 256
    """The number of requests in progress; further ones get a 503."""
    connections: int = 1024
    """The number of open connections; for a further one, one that waits for its client is closed, or itself."""
    connections_per_address: int = 128
    """The open connections of one address; for a further one, likewise one of the same address."""
    requests_per_address: int = 128
    """The requests of one address in progress; further ones get a 429."""
    bodies_per_address: int = 32
    """The bodies of one address that are arriving; for a further one the slowest is dropped, or it gets a 429."""
    wrong_tokens: int = 20
    """The wrong tokens of one address within ``token_seconds``; after them its tokens are not looked at until then."""
    token_seconds: float = 60.0
    """The time for which wrong tokens are counted."""
    head_bytes: int = 16 * 1024
    """The largest head of a request."""
    batch: int = 256
    """The number of searches that share one scan of the index."""
    thumbnails: int = 64 * MEGABYTE
    """The most that cached thumbnails may take in memory."""


@dataclass(frozen=True)
class Settings:
    """How a service is started."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    """A token that requests need, which may do everything; without it and ``token_file`` everybody is served."""
    token_file: Path | None = None
    """A file of tokens with roles, read anew when it changes: :func:`modalhash.serve.make_token`."""
    cookie_seconds: float = 12 * 3600.0
    """How long the page goes on without asking for the token again."""
    writable: bool = False
    """Whether clients may add and remove items."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may use, besides those of this machine."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose ``X-Forwarded-For`` says which client a request comes from."""
    examples: tuple[str, ...] = ()
    """Searches that the page offers."""
    name: str = ""
    """The name that the page shows; if empty, the name of the engine's folder."""
    quiet: bool = False
    """Whether to leave out the access log."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        TrustedProxies(self.trusted_proxies)  # raises for what is no address
        if self.token is not None and (len(self.token) < MIN_TOKEN_LENGTH or not _is_printable_ascii(self.token)):
            raise ValueError(
                f"the token has {len(self.token)} characters; expected at least {MIN_TOKEN_LENGTH}, letters, digits "
                "and signs without spaces. A good one: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
            )

    @property
    def needs_token(self) -> bool:
        """Whether requests need a token."""
        return self.token is not None or self.token_file is not None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK_HOSTS or self.host.startswith("127.")


def _is_printable_ascii(token: str) -> bool:
    """Return whether a token can stand in a header and in a URL."""
    return all("!" <= character <= "~" for character in token)
