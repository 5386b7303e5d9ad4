"""A process that opens a store of an earlier format and kills itself while it is brought to the present format.

python killed_migration.py STORE statement N      before the N-th statement of the migration, from 0
python killed_migration.py STORE instructions N   after N thousand instructions of SQLite's virtual machine
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

from modalhash.store import SqliteStore


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killed(sqlite3.Connection):
    """A connection that ends its process somewhere in its first transaction."""

    unit, left = sys.argv[2], int(sys.argv[3])

    def execute(self, sql, *arguments):
        if sql == "BEGIN IMMEDIATE" and self.unit == "instructions":
            self.set_progress_handler(self.step, 1000)
        elif self.in_transaction and self.unit == "statement":
            self.step()
        return super().execute(sql, *arguments)

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            die()


connect = sqlite3.connect
sqlite3.connect = lambda *args, **kwargs: connect(*args, factory=Killed, **kwargs)
SqliteStore(sys.argv[1]).close()
print("migrated")
