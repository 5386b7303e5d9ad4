"""Calls that run beside the rest of a fit: what one thread has to do alone leaves no core idle.

A fit gives its blocks of rows to the workers of :func:`modalhash._parallel.worker_threads`. Some of its steps cannot be
cut into blocks, a factorisation or an iteration over a few rows, and would have the other cores wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from modalhash._parallel import parallel_threads, worker_threads

T = TypeVar("T")


class Begin(Protocol):
    """Begins a call and returns a function that waits for its value."""

    def __call__(self, function: Callable[..., T], *args: Any) -> Callable[[], T]: ...


@contextmanager
def background() -> Iterator[Begin]:
    """Give the threads of BLAS to workers for a while, and yield a function that begins calls beside them.

    Calls begin in the order given, as many at a time as there are workers, and may be asked for in any order. An error
    in a call is raised where its value is asked for. Where BLAS has one thread, a call is made at once in the calling
    thread. Calls that have not begun when the block ends are dropped.
    """
    with worker_threads():
        if parallel_threads() == 1:
            yield _at_once
            return
        with ThreadPoolExecutor(parallel_threads()) as pool:
            try:
                yield lambda function, *args: pool.submit(function, *args).result
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _at_once(function: Callable[..., T], *args: Any) -> Callable[[], T]:
    value = function(*args)
    return lambda: value
