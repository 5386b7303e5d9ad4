"""Which connections stay open if there are too many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from modalhash.serve.limits import Limits


class Connection(Protocol):
    """What the table needs to know of a connection."""

    @property
    def idle_since(self) -> float | None:
        """Time since when no request is in flight; None while one is."""

    def drop(self) -> None:
        """Close the connection."""


class ConnectionTable:
    """Decide which connections stay open.

    If a slot is needed, the connection that is idle for longest is closed: of the same address if it has too many,
    otherwise of the address with the most connections.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_address: dict[str, set[Connection]] = {}
        self._addresses: dict[Connection, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: Connection, address: str, *, limited: bool = True) -> bool:
        """Add a connection; return False if there is no free slot.

        ``limited=False`` is for proxies, whose connections serve many clients.
        """
        own = self._by_address.get(address, set())
        if limited and len(own) >= self._limits.connections_per_address and not self._drop_idlest(own):
            return False
        if len(self) >= self._limits.connections:
            most_first = sorted(self._by_address.values(), key=len, reverse=True)
            if not any(self._drop_idlest(connections) for connections in most_first):
                return False
        self._addresses[connection] = address
        self._by_address.setdefault(address, set()).add(connection)
        return True

    def release(self, connection: Connection) -> None:
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._by_address[address].remove(connection)
            if not self._by_address[address]:
                del self._by_address[address]

    def _drop_idlest(self, connections: Iterable[Connection]) -> bool:
        """Close the connection that is idle for longest; return whether there was one."""
        silent = [(since, one) for one in connections if (since := one.idle_since) is not None]
        if not silent:
            return False
        victim = min(silent, key=lambda pair: pair[0])[1]
        self.release(victim)
        victim.drop()
        return True
