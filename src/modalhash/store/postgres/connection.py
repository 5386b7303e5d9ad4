"""Connections to PostgreSQL, shared by the threads of a process and replaced when lost.

A read whose connection is lost is retried once. A change is not: if the connection was lost before the commit, nothing
happened, and the error says so. If it was lost during the commit, the server is asked for the status of the
transaction. Only if it does not answer, or has crashed meanwhile, the outcome is reported as unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, Full, LifoQueue
from typing import Any, NoReturn, TypeVar
from zlib import crc32

from modalhash.core.imports import require
from modalhash.core.progress import StoppedError, check_not_stopped, should_stop
from modalhash.store.records import (
    StoreAccessError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreUnavailableError,
    StoreUncertainError,
)

Value = TypeVar("Value")
IN_USE = 0x6D6F6468
"""Class of the shared advisory lock that every connection holds on its schema."""
BEING_MADE = IN_USE + 1
"""Class of the advisory lock held while a schema is created."""
FOLLOWER = IN_USE + 2
"""Class of the advisory lock of the process that copies codes to another index."""
REPLACED = "replaced_by_another_engine"
"""Key of the row of ``meta`` by which a replaced schema refuses every change."""
CONNECTION_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "modalhash",
}
"""Defaults for libpq, which a URL may override; an unresponsive server is given up after half a minute."""
MAX_IDLE = 4
"""Maximum number of idle connections."""
LOCK_MILLISECONDS = 1500
"""Time that a read waits for a lock, which only a change of the tables themselves holds."""
ASK_SECONDS = 3.0
"""Seconds to ask a server for the status of a transaction after a lost commit."""
_RUN = "concat(pg_postmaster_start_time(), ' ', (SELECT stats_reset FROM pg_stat_bgwriter))"
"""A text that changes when the server is restarted or has crashed, because statistics are reset after a crash. It may
then give the number of a transaction that was not written to disk to another one, whose status says nothing of it."""
WATCH_SECONDS = 0.05
"""Time between looks for statements to cancel."""
_SETUP = """
SET search_path TO {schema}, pg_catalog;
SET default_transaction_read_only TO {read_only};
SET lock_timeout TO {lock_timeout};
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
SELECT pg_advisory_lock_shared({in_use}, {key});
SELECT set_config(name, '{longest}', false) FROM pg_settings
    WHERE name = 'statement_timeout' AND {longest} > 0 AND setting::bigint NOT BETWEEN 1 AND {longest}
"""


class Connections:
    """Connections to one schema of one database.

    Parameters
    ----------
    url : str
        As libpq takes it, ``postgresql://user:password@host/database?sslmode=verify-full``.
    schema : str
    read_only : bool
        Whether all transactions are read-only.
    """

    def __init__(self, url: str, schema: str, *, read_only: bool) -> None:
        self._psycopg = require("psycopg", extra="postgres", why="a store in PostgreSQL")
        self.schema, self.name = schema, f"{shown_url(url)} (schema {schema})"
        self._secrets = _secrets(url)
        self._read_only = read_only
        self._statement_seconds = 0.0
        self._watcher = StatementWatcher()
        self._idle: LifoQueue[Any] = LifoQueue(MAX_IDLE)
        self._closed = False
        with self.translated():
            given = self._psycopg.conninfo.conninfo_to_dict(url)
        self._conninfo = {**CONNECTION_DEFAULTS, **given}
        self._secrets += [str(given["password"])] if given.get("password") else []

    def close(self) -> None:
        """Close all idle connections; others are closed when they are returned."""
        self._closed = True
        self._close_idle()
        self._watcher.close()

    def limit_statements(self, seconds: float) -> None:
        """Let the server cancel statements of later connections after ``seconds``."""
        self._statement_seconds = seconds
        self._close_idle()

    def read(self, work: Callable[[Any], Value]) -> Value:
        """Return the result of ``work``, which is called again on a new connection if the first is lost.

        If the request that needs it ends meanwhile, its statement is cancelled and StoppedError is raised.
        """
        check_not_stopped()
        connection = self._take()
        with self.translated():
            try:
                return self._run(self._watched(work), connection)
            except self._psycopg.Error:
                if not connection.closed:
                    raise
            self._close_idle()  # they are probably lost too
            return self._run(self._watched(work), self._take())

    def change(self, work: Callable[[Any], Value]) -> Value:
        """Return the result of ``work``, which runs in one atomic transaction."""

        def change(connection: Any) -> Value:
            result = work(connection)
            self.commit(connection)
            return result

        with self.translated():
            return self._run(change, self._begin())

    def commit(self, connection: Any) -> None:
        """Commit a transaction; if the connection is lost meanwhile, ask the server for the outcome."""
        transaction, run = connection.execute(f"SELECT pg_current_xact_id_if_assigned()::text, {_RUN}").fetchone()
        try:
            connection.execute("COMMIT")
        except self._psycopg.Error as error:
            if not self._is_lost(connection, error):
                raise
            connection.close()
            committed = transaction is None or self._was_committed(transaction, run)
            if committed is None:
                raise StoreUncertainError(
                    f"{self.name}: the connection was lost while a change was committed. Whether it happened is "
                    "unknown; check before you repeat it"
                ) from None
            if not committed:
                raise

    def connect(self, *, schema: bool = True) -> Any:
        """Return a new connection, which the caller closes; without ``schema``, the schema need not exist."""
        with self.translated():
            connection = self._psycopg.connect(**self._conninfo, autocommit=True)
            try:
                if connection.info.parameter_status("server_encoding") != "UTF8":
                    encoding = connection.info.parameter_status("server_encoding")
                    raise StoreError(f"{self.name}: the database has the encoding {encoding}; make one with UTF8")
                if schema:
                    read_only = "on" if self._read_only else "off"
                    values = {"schema": f'"{self.schema}"', "read_only": read_only, "lock_timeout": LOCK_MILLISECONDS}
                    values |= {"longest": round(1000 * self._statement_seconds)}
                    connection.execute(_SETUP.format(**values, in_use=IN_USE, key=self.key))
                return connection
            except BaseException:
                connection.close()
                raise

    @property
    def key(self) -> int:
        return lock_key(self.schema)

    # -- private

    def _take(self) -> Any:
        if self._closed:
            raise StoreError(f"{self.name}: the store is closed")
        try:
            return self._idle.get_nowait()
        except Empty:
            return self.connect()

    def _watched(self, work: Callable[[Any], Value]) -> Callable[[Any], Value]:
        """Return ``work`` with statements that are cancelled when their request ends."""
        stop = should_stop.get()
        if stop is bool:
            return work

        def watched(connection: Any) -> Value:
            with self._watcher.watch(connection, stop):
                return work(connection)

        return watched

    def _run(self, work: Callable[[Any], Value], connection: Any) -> Value:
        """Return the result of ``work``; afterwards the connection is idle again, or closed if it is lost."""
        try:
            return work(connection)
        except self._psycopg.Error as error:
            if self._is_lost(connection, error):
                connection.close()
            raise
        finally:
            self.roll_back(connection)
            self._give_back(connection)

    def _give_back(self, connection: Any) -> None:
        if connection.closed:
            return
        try:
            self._idle.put_nowait(connection)
        except Full:
            connection.close()
        if self._closed:
            self._close_idle()

    def _close_idle(self) -> None:
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    def _begin(self) -> Any:
        """Return a connection in a transaction; an idle connection that was lost is replaced."""
        connection = self._take()
        try:
            connection.execute("BEGIN")
        except self._psycopg.Error:
            connection.close()
            self._close_idle()
            connection = self.connect()
            connection.execute("BEGIN")
        return connection

    def _was_committed(self, transaction: str, run: str) -> bool | None:
        """Return whether a transaction was committed, or None if the server does not answer or cannot know."""
        ask = f"SELECT pg_xact_status(%s::text::xid8), {_RUN}"
        stop = time.monotonic() + ASK_SECONDS
        while time.monotonic() < stop:
            try:
                with self.connect() as other:
                    status, run_now = other.execute(ask, [transaction]).fetchone()
            except self._psycopg.errors.InvalidParameterValue:  # above all numbers that were given: a crash lost it
                return False
            except (StoreUnavailableError, self._psycopg.Error):
                time.sleep(0.1)
                continue
            if status == "aborted":
                return False
            if status != "in progress":
                return True if status == "committed" and run_now == run else None
            time.sleep(0.05)
        return None

    def _is_lost(self, connection: Any, error: Any) -> bool:
        return bool(connection.closed) or (error.sqlstate or "").startswith("57P")

    def roll_back(self, connection: Any) -> None:
        """Roll back an open transaction before the connection is returned."""
        if connection.closed or connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE:
            return
        try:
            connection.execute("ROLLBACK")
        except self._psycopg.Error:
            connection.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of PostgreSQL as those of the store."""
        try:
            yield
        except self._psycopg.Error as error:
            self._raise(error)

    def _raise(self, error: Any) -> NoReturn:
        """Raise an error of PostgreSQL as a StoreError with advice and without passwords."""
        state, reason = error.sqlstate or "", " ".join(str(error).split())
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        if state in ("42P01", "3F000"):
            raise StoreMissingError(
                f"{self.name} is missing: it was dropped, or this is another database ({reason}). Restore it"
            ) from None
        if state in ("55P03", "40001", "40P01"):
            raise StoreBusyError(
                f"{self.name}: another process is writing and did not finish in time; try again"
            ) from None
        if state == "53100":
            raise StoreFullError(
                f"{self.name}: the disk of the server is full. This change did not happen, nothing else was lost; make "
                "room and repeat it"
            ) from None
        if state in ("42501", "25006"):
            raise StoreAccessError(f"{self.name}: the role may not do this ({reason}); see docs/postgres.md") from None
        if state.startswith(("28", "3D")):
            raise StoreAccessError(f"{self.name}: {reason}. Check the URL") from None
        if isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError):
            raise StoreUnavailableError(
                f"{self.name} cannot be reached, or the connection was lost ({reason}). Nothing was changed; try again"
            ) from None
        raise StoreError(f"{self.name}: {reason}") from None


class StatementWatcher:
    """Cancel the statements of requests that are over, in a thread that starts with the first statement."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[Any, Callable[[], bool]] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def watch(self, connection: Any, stop: Callable[[], bool]) -> Iterator[None]:
        """Cancel what the block runs on the connection once ``stop()`` is true, and close the connection then."""
        with self._changed:
            self._running[connection] = stop
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch_all, name="statements", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._running[connection]
            if stop():
                connection.close()  # a cancellation may still arrive, which must not hit the next statement
                raise StoppedError("a read of the store took too long")

    def _watch_all(self) -> None:
        while not self._closing.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._running or self._closing.is_set())
                over = [connection for connection, stop in self._running.items() if stop()]
            for connection in over:
                with suppress(Exception):  # the connection is closed or lost, or the server does not answer
                    connection.cancel_safe(timeout=ASK_SECONDS)
            self._closing.wait(WATCH_SECONDS)


def lock_key(schema: str) -> int:
    """Return the signed 32-bit key of a schema for advisory locks."""
    return crc32(schema.encode()) - 2**31


def shown_url(url: str) -> str:
    """Return a URL without user, password and options, for messages and logs.

    Examples
    --------
    >>> shown_url("postgresql://me:secret@db.example.org:5433/items?sslmode=require")
    'postgresql://db.example.org:5433/items'
    """
    rest = url.partition("://")[2].partition("?")[0].partition("#")[0]
    return f"postgresql://{rest.rpartition('@')[2]}" if "://" in url else "postgresql://"


def _secrets(url: str) -> list[str]:
    """Return the parts of a URL that must not be shown, quoted and unquoted, longest first."""
    from urllib.parse import parse_qsl, unquote

    rest = url.partition("://")[2]
    password = rest.rpartition("@")[0].partition(":")[2]
    given = [value for name, value in parse_qsl(rest.partition("?")[2]) if "password" in name]
    found = {url, password, unquote(password), *given}
    return sorted((one for one in found if one), key=len, reverse=True)
