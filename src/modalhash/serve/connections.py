"""Open connections by address: a new one gets a place even where one client has opened as many as it could."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from modalhash.serve.seats import EVERYBODY, AddressCounter, LocalCounter
from modalhash.serve.settings import Limits


class Connection(Protocol):
    """What the table has to know of a connection."""

    @property
    def idle_since(self) -> float | None:
        """The time since when the client owes a request; None while one is answered."""

    def drop(self) -> None:
        """Close the connection at once."""


class ConnectionTable:
    """Decides which connections stay open.

    A connection on which no request is under way costs its client nothing, so where the place is needed, the one that
    is silent for longest is closed first: of the same address if that has too many, else of the address that has most.
    ``tally`` counts the connections of all workers; a worker can close its own alone.
    """

    def __init__(self, limits: Limits, tally: AddressCounter | None = None) -> None:
        self._limits = limits
        self._tally = LocalCounter() if tally is None else tally
        self._by_address: dict[str, set[Connection]] = {}
        self._addresses: dict[Connection, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: Connection, address: str, *, limited: bool = True) -> bool:
        """Take in a new connection and return True; or return False if there is no place for it.

        Parameters
        ----------
        connection : Connection
            Told to close if another one needs its place later.
        address : str
            Where it comes from.
        limited : bool
            False for a proxy, whose connections are those of many clients.
        """
        own = self._by_address.get(address, set())
        n_own = self._tally.total(address)
        if limited and n_own >= self._limits.connections_per_address and not self._drop_idlest(own):
            return False
        if self._tally.total(EVERYBODY) >= self._limits.connections:
            most_first = sorted(self._by_address.values(), key=len, reverse=True)
            if not any(self._drop_idlest(connections) for connections in most_first):
                return False
        self._addresses[connection] = address
        self._by_address.setdefault(address, set()).add(connection)
        self._count(address, 1)
        return True

    def release(self, connection: Connection) -> None:
        """Forget a connection that is closed, if it had a place."""
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._count(address, -1)
            self._by_address[address].remove(connection)
            if not self._by_address[address]:
                del self._by_address[address]

    def _count(self, address: str, n: int) -> None:
        self._tally.add(address, n)
        self._tally.add(EVERYBODY, n)

    def _drop_idlest(self, connections: Iterable[Connection]) -> bool:
        """Close the connection that is silent for longest; return whether there was one."""
        silent = [(since, one) for one in connections if (since := one.idle_since) is not None]
        if not silent:
            return False
        victim = min(silent, key=lambda pair: pair[0])[1]
        self.release(victim)
        victim.drop()
        return True
