"""Calls that run beside the rest of a fit: what one thread has to do alone leaves no core idle.

A fit gives its blocks of rows to the workers of :func:`modalhash._parallel.worker_threads`. Some of its steps cannot be
cut into blocks, a factorisation or an iteration over a few rows, and would have the other cores wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from modalhash._parallel import worker_pool, worker_threads

T = TypeVar("T")


class Begin(Protocol):
    """Begins a call and returns a function that waits for its value."""

    def __call__(self, function: Callable[..., T], *args: Any) -> Callable[[], T]: ...


@contextmanager
def background() -> Iterator[Begin]:
    """Give the threads of BLAS to workers for a while, and yield a function that begins calls among them.

    The workers take calls and blocks of rows in the order in which they come: a call has a core for itself, and no core
    has two things to do at a time, which costs each of them its place in the cache. Values may be asked for in any
    order, but not by another call. An error in a call is raised where its value is asked for. Where BLAS has one
    thread, a call is made at once in the calling thread. Calls that have not begun when the block ends are dropped.
    """
    with worker_threads():
        pool = worker_pool()
        if pool is None:
            yield _at_once
            return
        begun: set[Future[Any]] = set()

        def begin(function: Callable[..., T], *args: Any) -> Callable[[], T]:
            future = pool.submit(function, *args)
            begun.add(future)
            future.add_done_callback(begun.discard)  # whose value is kept by whoever wants it
            return future.result

        try:
            yield begin
        finally:
            left = list(begun)
            for future in left:
                future.cancel()
            wait(left)


def _at_once(function: Callable[..., T], *args: Any) -> Callable[[], T]:
    value = function(*args)
    return lambda: value
