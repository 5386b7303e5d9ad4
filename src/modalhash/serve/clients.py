"""Who sends a request: the address that limits count by, also behind a proxy, and addresses that guess tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple

from cachetools import LRUCache
from starlette.types import Scope

FORWARDED_FOR = b"x-forwarded-for"
IPV6_PREFIX = 64
"""Bits of an IPv6 address that make a client: one customer has at least that network."""
MAX_COUNTED_ADDRESSES = 10_000
"""Addresses whose wrong tokens are remembered; the least recent go first, so that counting takes bounded memory."""

_CLIENT = "modalhash.client"


class Role(IntEnum):
    """What a client may do; each role includes those before it."""

    read = 1
    """Search, and see items and metrics."""
    write = 2
    """Add, relabel and remove items, where the service is writable."""
    admin = 3
    """See who changed what."""


class Client(NamedTuple):
    """Who sends a request."""

    address: str
    """What limits count by."""
    name: str | None = None
    """Whose token it has; None without one."""
    role: Role = Role.read

    def audit_fields(self) -> dict[str, str]:
        """Return who the client is, as the audit log has it."""
        return {"who": self.name or "anybody", "address": self.address, "by": "service"}


def set_client(scope: Scope, client: Client) -> None:
    """Note in the scope of a request who sends it."""
    scope[_CLIENT] = client


def client_of(scope: Scope) -> Client:
    """Return who sends a request."""
    client: Client = scope[_CLIENT]
    return client


class TrustedProxies:
    """The proxies that are believed about whom they speak for.

    Parameters
    ----------
    networks : iterable of str
        Addresses (``127.0.0.1``) or networks (``10.0.0.0/8``).
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        try:
            self._networks = [ip_network(text, strict=False) for text in networks]
        except ValueError as error:
            raise ValueError(f"a proxy to trust: {error}; expected an address such as 127.0.0.1") from None

    def __contains__(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)

    def address(self, scope: Scope) -> str:
        """Return the address that a request comes from: the last one that no trusted proxy has.

        ``X-Forwarded-For`` is read from the right, because each proxy appends whom it speaks for; what stands further
        left is the client's own word.
        """
        peer = str(scope["client"][0]) if scope.get("client") else ""
        if peer not in self:
            return client_key(peer)
        named = b",".join(value for name, value in scope["headers"] if name == FORWARDED_FOR).decode("latin-1")
        for address in reversed([part.strip() for part in named.split(",")]):
            if not _is_address(address):
                break  # nothing further left can be believed either
            if address not in self:
                return client_key(address)
        return client_key(peer)


@lru_cache(1024)
def client_key(address: str) -> str:
    """Return what limits count by: an IPv4 address, the network of an IPv6 one, or the text as it is.

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


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class WrongTokens:
    """Counts wrong tokens by address, in windows of some seconds that begin with the first.

    Parameters
    ----------
    limit : int
        The wrong tokens of a window after which an address is locked out for the rest of it.
    seconds : float
        The length of a window.
    clock : callable, optional
        Returns the time in seconds.
    """

    def __init__(self, limit: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._seconds, self._clock = limit, seconds, clock
        self._windows: LRUCache[str, tuple[int, float]] = LRUCache(MAX_COUNTED_ADDRESSES)

    def add(self, address: str) -> None:
        """Count a wrong token."""
        count, end = self._windows.get(address, (0, 0.0))
        now = self._clock()
        self._windows[address] = (count + 1, end) if now < end else (1, now + self._seconds)

    def locked_seconds(self, address: str) -> float:
        """Return for how long tokens of an address are not looked at; 0 if they are."""
        count, end = self._windows.get(address, (0, 0.0))
        return max(0.0, end - self._clock()) if count >= self._limit else 0.0
