"""A Dask scheduler and workers of this machine, each a process of its own, over TCP.

The fixture ``dask_cluster`` starts one scheduler and two workers of one thread when a test first asks for it, once per
process of pytest. Tests that kill workers start a :class:`Cluster` of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import pytest

SETTINGS = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
START_SECONDS = 60


class Cluster:
    """A scheduler, as many workers as asked for, and the clients made here; a context that ends all of them."""

    def __init__(self, n_workers: int = 2, *, memory_limit: str = "2GB", host: str = "127.0.0.1") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="modalhash-dask-")
        self._memory_limit, self._clients = memory_limit, []
        self.workers: list[subprocess.Popen] = []
        file = self.folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler",
            "--host",
            host,
            "--port",
            "0",
            "--dashboard-address",
            "127.0.0.1:0",
            "--scheduler-file",
            str(file),
        )
        self._file = file
        try:
            for _ in range(n_workers):
                self.add_worker()
            self.address = self.client().scheduler.address
            if n_workers:
                self._clients[0].wait_for_workers(n_workers, timeout=START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def client(self, timeout: float = START_SECONDS):
        """Return a new client, which becomes the current one."""
        from distributed import Client

        begin = monotonic()
        while not self._file.exists():  # the first client waits for the scheduler to write its address
            if self.scheduler.poll() is not None or monotonic() - begin > START_SECONDS:
                raise RuntimeError(f"the scheduler did not start:\n{self.log('scheduler')}")
            try:
                self.scheduler.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        client = Client(scheduler_file=str(self._file), timeout=timeout)
        self._clients.append(client)
        return client

    def add_worker(self) -> subprocess.Popen:
        """Start one more worker of one thread, without a nanny: who kills it has killed it."""
        limit = ["--memory-limit", self._memory_limit, "--local-directory", str(self.folder)]
        where = ["--scheduler-file", str(self._file), "--nworkers", "1", "--nthreads", "1", "--no-dashboard"]
        worker = self._start("worker", *where, "--no-nanny", "--death-timeout", str(START_SECONDS), *limit)
        self.workers.append(worker)
        return worker

    def log(self, name: str) -> str:
        """Return what the scheduler, or the workers, have written so far."""
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.folder.glob(f"{name}*.log")))

    def _start(self, what: str, *arguments: str) -> subprocess.Popen:
        log = self.folder / f"{what}-{len(self.workers)}.log"
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments]
        with log.open("wb") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **SETTINGS})

    def close(self) -> None:
        for client in reversed(self._clients):  # each sets aside the one before it
            client.close(timeout=5)
        for process in [*self.workers, self.scheduler]:
            process.kill()
        for process in [*self.workers, self.scheduler]:
            process.wait()
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def need_dask() -> None:
    """Skip where the extra is not installed; in CI it has to be."""
    if find_spec("distributed") is None:
        if os.environ.get("CI"):
            pytest.fail("distributed is not installed: pip install '.[dask]'")
        pytest.skip("needs the extra 'dask': distributed is not installed")


@pytest.fixture(scope="session")
def dask_cluster():
    """A scheduler and two workers of one thread, for all tests of this process; its client is the current one."""
    need_dask()
    with Cluster() as cluster:
        yield cluster
