"""Clients, and tokens with roles: a file of digests that is reloaded when it changes, and cookies for the page.

A line of the file has a name, a role, the SHA-256 digest of the token and optionally the time it expires::

    # name  role  digest  [until]
    alice   write  sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  2027-01-31T00:00:00+00:00

A name may have several lines. Digests need not be secret, because tokens are long and random (:func:`make_token`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import product
from pathlib import Path
from typing import NamedTuple

from cachetools import LRUCache
from starlette.types import Scope

from modalhash.core.files import write_atomically
from modalhash.serve.monitoring import log_event

IPV6_PREFIX = 64
"""Bits of an IPv6 address that identify a client, because a customer gets at least a /64 network."""
MIN_SECRET_LENGTH = 32
"""Characters of a secret that signs cookies."""
MAX_COUNTED_ADDRESSES = 10_000
"""Maximum number of addresses whose wrong tokens are counted; the least recently used are dropped."""

_CLIENT = "modalhash.serve.client"


class Role(IntEnum):
    """Permissions of a client; each role includes the ones before it."""

    read = 1
    """Search, and read items and metrics."""
    write = 2
    """Add, relabel and remove items, if the service is writable."""
    admin = 3
    """Read the audit log."""


class Client(NamedTuple):
    """Sender of a request."""

    address: str
    """Key that limits are counted by (see :func:`client_key`)."""
    name: str | None = None
    """Name of its token; None without one."""
    role: Role = Role.read

    def audit_fields(self) -> dict[str, str]:
        return {"who": self.name or "anybody", "address": self.address, "by": "service"}


def set_client(scope: Scope, client: Client) -> None:
    scope[_CLIENT] = client


def client_of(scope: Scope) -> Client:
    client: Client = scope[_CLIENT]
    return client


class TrustedProxies:
    """Proxies whose ``X-Forwarded-For`` is trusted: addresses (``127.0.0.1``) or networks (``10.0.0.0/8``)."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        try:
            self.networks = [ip_network(text, strict=False) for text in networks]
        except ValueError as error:
            raise ValueError(f"trusted proxy: {error}; expected an address such as 127.0.0.1") from None

    def __contains__(self, address: str) -> bool:
        if not self.networks:
            return False
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)


@lru_cache(1024)
def client_key(address: str) -> str:
    """Return the key of limits: an IPv4 address, the network of an IPv6 address, or the text unchanged.

    Examples
    --------
    >>> client_key("192.0.2.7"), client_key("::ffff:192.0.2.7"), client_key("2001:db8:1:2:3::4")
    ('192.0.2.7', '192.0.2.7', '2001:db8:1:2::/64')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address) or parsed.is_loopback:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network(f"{address.partition('%')[0]}/{IPV6_PREFIX}", strict=False))


class WrongTokens:
    """Count wrong tokens by address, in windows of ``seconds`` that start with the first wrong token.

    After ``limit`` wrong tokens, an address is locked out for the rest of the window.
    """

    def __init__(self, limit: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._seconds, self._clock = limit, seconds, clock
        self._windows: LRUCache[str, tuple[int, float]] = LRUCache(MAX_COUNTED_ADDRESSES)

    def add(self, address: str) -> None:
        count, end = self._windows.get(address, (0, 0.0))
        now = self._clock()
        self._windows[address] = (count + 1, end) if now < end else (1, now + self._seconds)

    def locked_seconds(self, address: str) -> float:
        """Return for how many seconds tokens of an address are ignored; 0 if they are not."""
        count, end = self._windows.get(address, (0, 0.0))
        return max(0.0, end - self._clock()) if count >= self._limit else 0.0


HEADER = "# name  role  digest of the token  [valid until]; written by `modalhash tokens`, reloaded when it changes\n"
_NAME = re.compile(r"[\w.@+-]{1,64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Token:
    """Entry of a token file, which holds the digest of the token."""

    name: str
    role: Role
    digest: str
    """``sha256:`` and 64 hexadecimal digits."""
    until: datetime | None = None
    """Expiry time, if any."""

    def is_valid(self, now: datetime) -> bool:
        return self.until is None or now < self.until

    def line(self) -> str:
        parts = [self.name, self.role.name, self.digest]
        return "  ".join(parts if self.until is None else [*parts, self.until.isoformat(timespec="seconds")]) + "\n"


def digest_of(token: str | bytes) -> str:
    data = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_token(name: str, role: str, *, days: float | None = None) -> tuple[str, Token]:
    """Return a new random token and its entry for a token file.

    Parameters
    ----------
    name : str
        Name of its holder, as written to the audit log.
    role : {"read", "write", "admin"}
        What the holder may do.
    days : float, optional
        Days until it expires; by default it does not.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid token name {name!r}; expected at most 64 letters, digits and . _ @ + -")
    if role not in Role.__members__:
        raise ValueError(f"unknown role {role!r}; expected {', '.join(Role.__members__)}")
    until = None if days is None else (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0)
    secret = secrets.token_urlsafe(32)
    return secret, Token(name, Role[role], digest_of(secret), until)


def parse_tokens(text: str) -> tuple[list[Token], list[str]]:
    """Return the tokens of a file, and a message for each invalid line."""
    tokens, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.partition("#")[0].split()
        if not parts:
            continue
        try:
            tokens.append(_parse_line(parts))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    return tokens, problems


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a file; raise ValueError for an invalid line."""
    tokens, problems = parse_tokens(path.read_text(encoding="utf-8", errors="replace"))
    if problems:
        raise ValueError(f"{path}, {problems[0]}")
    return tokens


def write_tokens(path: Path, tokens: Iterable[Token]) -> None:
    """Write a token file; a running service reads it at its next request."""
    write_atomically(path, (HEADER + "".join(token.line() for token in tokens)).encode())


def rotate(tokens: Iterable[Token], name: str, *, overlap_days: float) -> tuple[str, list[Token]]:
    """Return a new token for `name`, and all tokens; earlier ones of the name expire after `overlap_days`."""
    now = datetime.now(UTC)
    tokens = list(tokens)
    own = [token for token in tokens if token.name == name and token.is_valid(now)]
    if not own:
        raise ValueError(f"there is no valid token of {name!r}; add one")
    end = (now + timedelta(days=overlap_days)).replace(microsecond=0)
    secret, fresh = make_token(name, max(token.role for token in own).name)
    ending = [replace(one, until=min(one.until or end, end)) if one in own else one for one in tokens]
    return secret, [*(one for one in ending if one.is_valid(now)), fresh]


def _parse_line(parts: list[str]) -> Token:
    if len(parts) not in (3, 4):
        raise ValueError(f"{len(parts)} words; expected a name, a role, a digest and optionally a time")
    name, role, digest = parts[:3]
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid name {name!r}; expected at most 64 letters, digits and . _ @ + -")
    if role not in Role.__members__:
        raise ValueError(f"unknown role {role!r}; expected {', '.join(Role.__members__)}")
    if not _DIGEST.fullmatch(digest):
        raise ValueError("invalid digest; expected sha256: and 64 hexadecimal digits, as written by `modalhash tokens`")
    until = datetime.fromisoformat(parts[3]) if len(parts) == 4 else None
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return Token(name, Role[role], digest, until)


class WatchedFile:
    """A text file, and whether it changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def is_changed(self) -> bool:
        """Return whether the file changed since the last call; true at the first."""
        try:
            status = self.path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            seen = (0, 0, 0)
        before, self._seen = self._seen, seen
        return seen != before

    def read(self) -> str:
        return self.path.read_text(encoding="utf-8", errors="replace")


class Tokens:
    """Valid tokens: the given one, and those of a file that is reloaded when it changes.

    A missing file or an invalid line grants no access.
    """

    def __init__(self, token: str | None, path: Path | None) -> None:
        self._given = [] if token is None else [Token("token", Role.admin, digest_of(token))]
        self._file = None if path is None else WatchedFile(path)
        self._tokens = list(self._given)
        if path is not None:
            read_tokens(path)  # an invalid line is an error at the start, and is only logged later
            self._refresh()

    @property
    def needed(self) -> bool:
        return bool(self._given) or self._file is not None

    def valid(self) -> list[Token]:
        self._refresh()
        now = datetime.now(UTC)
        return [token for token in self._tokens if token.is_valid(now)]

    def find(self, token: str | bytes) -> Token | None:
        """Return the entry of a token; None if it is not valid."""
        digest = digest_of(token)
        found = [one for one in self.valid() if hmac.compare_digest(one.digest, digest)]
        return max(found, key=lambda one: one.role, default=None)

    def _refresh(self) -> None:
        if self._file is None or not self._file.is_changed():
            return
        try:
            tokens, problems = parse_tokens(self._file.read())
        except OSError as error:
            tokens, problems = [], [f"cannot be read ({error.strerror}); its tokens are not valid"]
        for problem in problems:
            log_event(f"the token file: {problem}")
        self._tokens = [*self._given, *tokens]


class CookieKeys:
    """Keys of cookies, the first of which signs: random ones, or the lines of a file that machines share.

    The file is reloaded when it changes. If it disappears or becomes invalid, its last keys remain.
    """

    def __init__(self, random: bytes, path: Path | None) -> None:
        self._file = None if path is None else WatchedFile(path)
        self._keys = [random] if self._file is None else parse_secrets(self._file.read())

    def current(self) -> list[bytes]:
        if self._file is not None and self._file.is_changed():
            try:
                self._keys = parse_secrets(self._file.read())
            except (OSError, ValueError) as error:
                log_event(f"the file of cookie secrets: {error}; the earlier secrets remain")
        return self._keys


def parse_secrets(text: str) -> list[bytes]:
    """Return the secrets of a file, one per line; raise ValueError if it has no secrets or a short one."""
    found = [line.encode() for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    if not found or any(len(secret) < MIN_SECRET_LENGTH for secret in found):
        raise ValueError(
            f"expected secrets of at least {MIN_SECRET_LENGTH} characters, one per line; make one with "
            "python3 -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return found


class Cookies:
    """Make and check cookies of the page; each represents a token until the cookie or the token expires.

    They are signed with a key of this service, so that they cannot be forged from a token file or an old cookie.
    """

    def __init__(self, seconds: float, keys: CookieKeys) -> None:
        self.seconds, self._keys = int(seconds), keys

    def make(self, token: Token) -> str:
        expires = str(int(time.time()) + self.seconds)
        return f"{expires}.{_sign(self._keys.current()[0], expires, token)}"

    def find(self, value: bytes, tokens: Iterable[Token]) -> Token | None:
        """Return the token that a cookie represents; None if its signature is invalid or it has expired."""
        expires, _, signature = value.decode("latin-1").partition(".")
        for key, token in product(self._keys.current(), tokens):
            if hmac.compare_digest(_sign(key, expires, token).encode(), signature.encode()):
                return token if time.time() < int(expires) else None
        return None


def _sign(key: bytes, expires: str, token: Token) -> str:
    return hmac.new(key, f"{expires} {token.digest}".encode(), hashlib.sha256).hexdigest()
