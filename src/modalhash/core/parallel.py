"""Threads: one helper for products on blocks, and one for short calls that come often.

:func:`parallel_map` takes the threads of BLAS for a while and gives each worker a BLAS of one thread. It suits large
pieces of numpy work; :func:`submit` runs a single call concurrently with them. :func:`pool_map` sends tasks to threads
that stay alive between calls. It suits kernels that release the interpreter's lock and take less time than starting a
thread does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import starmap
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def blas_threads() -> int:
    """Return how many threads BLAS may use: OPENBLAS_NUM_THREADS or the like, or what a surrounding limit leaves.

    Where several BLAS libraries are loaded it is the smallest of their limits, because the limit of one that runs on
    OpenMP does not reach other threads.
    """
    return min((library["num_threads"] for library in _controller().select(user_api="blas").info()), default=1)


class _Team(threading.local):
    """The threads that the current thread may give work to."""

    pool: ThreadPoolExecutor | None = None
    size: int = 1


_team = _Team()


def parallel_threads() -> int:
    """Return how many tasks :func:`parallel_map` runs at a time when it is called here."""
    return max(blas_threads(), _team.size)


@contextmanager
def worker_threads() -> Iterator[None]:
    """Give the threads of BLAS to :func:`parallel_map` for a while; BLAS itself has one then.

    Threads of BLAS spin for a while after every product and would take the cores from the workers.
    """
    threads = blas_threads()
    if threads == 1 or _team.pool is not None:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        _team.pool, _team.size = pool, threads
        try:
            yield
        finally:
            _team.pool, _team.size = None, 1
            pool.shutdown(cancel_futures=True)  # calls that were submitted and not waited for


def submit(function: Callable[..., T], *args: Any) -> Callable[[], T]:
    """Start a call in one of the :func:`worker_threads`, and return a function that waits for its value.

    The workers take calls and blocks of rows in the order in which they come, so that a call which cannot be cut into
    blocks, a factorisation for example, leaves no core idle. Without workers the call is made here and now.
    """
    if _team.pool is None:
        value = function(*args)
        return lambda: value
    return _team.pool.submit(function, *args).result


def parallel_map(function: Callable[..., T], *iterables: Iterable[Any]) -> Iterator[T]:
    """Yield the function's values in order, as ``map`` does, with several calls under way at a time.

    There are as many workers as BLAS has threads, and each computes with a BLAS of one thread. Only a few values are
    computed ahead of the one that the caller takes next. A call from within a worker runs there, one task at a time.
    """
    tasks = list(zip(*iterables, strict=False))
    if len(tasks) < 2:
        yield from starmap(function, tasks)
        return
    with worker_threads():
        if _team.pool is None:
            yield from starmap(function, tasks)
            return
        waiting: deque[Future[T]] = deque()
        for task in tasks:
            waiting.append(_team.pool.submit(function, *task))
            if len(waiting) > 2 * _team.size:  # values that nobody has taken yet take memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_pools.clear)


def pool_map(function: Callable[..., T], *iterables: Iterable[Any], n_threads: int | None = None) -> list[T]:
    """Return the function's values in order, computed in threads that stay alive for the next call.

    By default there are as many threads as numba uses. Tasks must not wait for each other.
    """
    tasks = list(zip(*iterables, strict=False))
    if len(tasks) < 2 or n_threads == 1:
        return list(starmap(function, tasks))
    return list(_pool(n_threads or numba_threads()).map(lambda task: function(*task), tasks))


def _pool(n_threads: int) -> ThreadPoolExecutor:
    if n_threads not in _pools:
        _pools.setdefault(n_threads, ThreadPoolExecutor(n_threads, thread_name_prefix="modalhash"))
    return _pools[n_threads]


def numba_threads() -> int:
    """Return how many threads numba uses."""
    import numba

    return int(numba.get_num_threads())
