"""Threads for products on blocks, and for short calls that come often.

:func:`parallel_map` takes over the threads of BLAS and gives each worker a BLAS with one thread; it suits large pieces
of numpy work. :func:`submit` runs a single call concurrently with them. :func:`pool_map` uses threads that stay alive
between calls; it suits kernels that release the GIL and take less time than starting a thread.
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
    """Return the number of threads that BLAS may use, by OPENBLAS_NUM_THREADS etc. or a surrounding limit.

    With several BLAS libraries loaded this is the smallest of their limits, because the limit of one that uses OpenMP
    does not apply to other threads.
    """
    return min((library["num_threads"] for library in _controller().select(user_api="blas").info()), default=1)


class _Team(threading.local):
    """The pool that the current thread may submit work to."""

    pool: ThreadPoolExecutor | None = None
    size: int = 1


_team = _Team()


def parallel_threads() -> int:
    """Return the number of tasks that :func:`parallel_map` runs at a time when called here."""
    return max(blas_threads(), _team.size)


@contextmanager
def worker_threads() -> Iterator[None]:
    """Give the threads of BLAS to :func:`parallel_map` inside the block; BLAS itself then has one.

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
            pool.shutdown(cancel_futures=True)  # calls that were submitted and never awaited


def submit(function: Callable[..., T], *args: Any) -> Callable[[], T]:
    """Start a call in one of the :func:`worker_threads`, and return a function that waits for its value.

    Workers process calls and blocks of rows in order of submission, so a call that cannot be split into blocks, such as
    a factorisation, leaves no core idle. Without workers the call is made immediately.
    """
    if _team.pool is None:
        value = function(*args)
        return lambda: value
    return _team.pool.submit(function, *args).result


def parallel_map(function: Callable[..., T], *iterables: Iterable[Any]) -> Iterator[T]:
    """Yield the function's values in order, like ``map``, with several calls in progress at a time.

    There are as many workers as BLAS threads, each with a single-threaded BLAS. Only a few values are computed ahead of
    the caller. A call from within a worker runs there, one task at a time.
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
            if len(waiting) > 2 * _team.size:  # pending values take memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_pools: dict[int, ThreadPoolExecutor] = {}
if hasattr(os, "register_at_fork"):  # a child process does not inherit threads
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
    import numba

    return int(numba.get_num_threads())
