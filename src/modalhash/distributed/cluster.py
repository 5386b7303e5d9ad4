"""The Dask cluster of a fit: its workers, shared values, and waiting for results without hanging.

Dask recomputes the results of a lost worker from the tasks that made them. Values that all workers need are therefore
submitted as tasks (:meth:`Cluster.share`), never scattered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from modalhash.core.imports import require

T = TypeVar("T")

ASK_EVERY = 2.0
"""Seconds between checks for workers while a result is pending."""
PATIENCE = 30.0
"""Seconds without workers after which a fit fails. A nanny restarts a worker in a few seconds."""


class ClusterError(RuntimeError):
    """A fit cannot continue without a client, workers or a scheduler. The message says what to do."""


@dataclass(frozen=True)
class Worker:
    """A worker process; ``memory_limit`` is in bytes, 0 for none."""

    address: str
    threads: int
    memory_limit: int


class Cluster:
    """The cluster of the current Dask client."""

    def __init__(self) -> None:
        distributed = require("distributed", extra="dask", why="a fit on dask arrays")
        try:
            self.client: Any = distributed.default_client()
        except ValueError:
            raise ClusterError(
                "dask arrays need a Dask client. Make one before the fit: "
                "client = distributed.Client('tcp://scheduler:8786'), or distributed.Client() for workers on this "
                "machine. To fit in this process instead, pass arrays: X['image'].compute()"
            ) from None
        if self.client.asynchronous:
            raise ClusterError(
                "the current Dask client is asynchronous; a fit needs a synchronous distributed.Client(...)"
            )

    def workers(self) -> list[Worker]:
        """Return the current workers by address; wait up to :data:`PATIENCE` seconds for the first one."""
        begin = monotonic()
        while True:
            if found := self._ask(self.client.scheduler_info, n_workers=-1)["workers"]:
                return [Worker(name, found[name]["nthreads"], found[name]["memory_limit"]) for name in sorted(found)]
            try:
                self.client.wait_for_workers(1, timeout=ASK_EVERY)
            except TimeoutError:
                if monotonic() - begin > PATIENCE:
                    raise self._no_workers() from None
            except (OSError, CancelledError) as error:
                raise self._lost() from error

    def share(self, value: Any) -> Any:
        """Return a future of a value for tasks on any worker; it survives the loss of a worker."""
        return self.submit(identity, value)

    def submit(self, function: Callable[..., Any], *arguments: Any, worker: str | None = None) -> Any:
        """Return a future of the function's value. ``worker`` is the preferred address."""
        where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        return self.client.submit(function, *arguments, pure=False, **where)

    def result(self, future: Any) -> Any:
        """Return a future's value; raise :class:`ClusterError` if no worker is left to compute it."""
        begin, timeout = None, ASK_EVERY
        while True:
            try:
                return future.result(timeout=timeout)
            except TimeoutError:
                if future.status == "finished":
                    timeout *= 2  # computed, and being transferred
            except CancelledError as error:
                raise self._lost() from error
            if self._ask(self.client.nthreads):
                begin = None
            else:
                begin = begin or monotonic()
                if monotonic() - begin > PATIENCE:
                    raise self._no_workers()

    def results(self, futures: Iterable[Any]) -> list[Any]:
        return [self.result(future) for future in futures]

    def _ask(self, question: Callable[..., Any], **options: Any) -> Any:
        try:
            return question(**options)
        except (OSError, CancelledError) as error:  # a TimeoutError is an OSError
            raise self._lost() from error

    def _lost(self) -> ClusterError:
        return ClusterError(
            "the connection to the Dask scheduler was lost during the fit. Start a scheduler and workers, make a new "
            "client, and fit again"
        )

    def _no_workers(self) -> ClusterError:
        return ClusterError(
            f"the Dask scheduler {self.client.scheduler.address} has had no workers for {PATIENCE:.0f} s: all of them "
            "died or were stopped. Look into their logs (too little memory?), start workers, and fit again"
        )


def identity(value: T) -> T:
    """Return the value; as a task, its result can be recomputed by Dask."""
    return value
