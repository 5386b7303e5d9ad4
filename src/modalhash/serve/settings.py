"""What a service may do and how much it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

MEGABYTE = 2**20
SHORTEST = 8
"""Characters of a token."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MOST_HITS = 200
"""Of one search."""
MOST_LABELS = 20
"""Of a filter or of a new item."""
LONGEST_TEXT, LONGEST_ID, LONGEST_NAME = 2000, 1000, 200
"""Characters of a text, of an id, of a label or modality. All these are part of the description."""


@dataclass(frozen=True)
class Limits:
    """Bounds of what one client, or all of them together, may ask for."""

    bytes: int = 10 * MEGABYTE
    """Of one request's body."""
    json_bytes: int = MEGABYTE // 4
    """Of a body that is JSON."""
    all_bytes: int = 80 * MEGABYTE
    """Of all bodies that are in memory at the same time."""
    pixels: int = 40_000_000
    """Of a picture, known from its header before any is decoded."""
    pictures: int = 2
    """That are decoded at the same time."""
    body_seconds: float = 15.0
    """In which a body has to arrive."""
    header_seconds: float = 10.0
    """In which the head of a request has to arrive."""
    request_seconds: float = 60.0
    """In which a request has to be done, its answer taken in included."""
    requests: int = 256
    """That are under way at the same time; more are told to come again."""
    connections: int = 1024
    """That are open at the same time."""
    head_bytes: int = 16 * 1024
    """Of the head of a request."""
    batch: int = 256
    """Searches that walk over the index together."""
    thumbnails: int = 64 * MEGABYTE
    """Bytes of small pictures that are kept ready."""


@dataclass(frozen=True)
class Settings:
    """How a service is started."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    """Who has it may come in; None: everybody who reaches the service."""
    writable: bool = False
    """Whether items may be added and removed."""
    hosts: tuple[str, ...] = ()
    """Names under which the service may be called, besides those of this machine."""
    examples: tuple[str, ...] = ()
    """Searches that the page offers."""
    name: str = ""
    """That the page shows; that of the engine's folder if empty."""
    quiet: bool = False
    """Whether to leave out the access log."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < SHORTEST or not _plain(self.token)):
            raise ValueError(
                f"the token has {len(self.token)} characters; expected at least {SHORTEST}, letters, digits and signs "
                "without spaces. A good one: python3 -c 'import secrets; print(secrets.token_urlsafe())'"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        return self.host in LOOPBACK or self.host.startswith("127.")


def _plain(token: str) -> bool:
    """Whether a text can stand in a header and in an address."""
    return all("!" <= sign <= "~" for sign in token)
