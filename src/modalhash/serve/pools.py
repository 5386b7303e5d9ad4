"""Threads that addresses take turns to use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

Value = TypeVar("Value")


class FairPool:
    """Threads of which one address uses all but one at most.

    Its further jobs wait before the queue of the threads, so other addresses wait for few of them.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(n_threads, thread_name_prefix=name)
        self._share = max(1, n_threads - 1)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, address: str, work: Callable[..., Value], *arguments: Any) -> Value:
        """Return the result of ``work``. Its turn ends with the work, even if no task waits for the result any more."""
        loop = asyncio.get_running_loop()
        turns = self._turns.setdefault(address, asyncio.Semaphore(self._share))
        await turns.acquire()

        def end_turn(future: Future[Value] | None = None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(turns.release)

        try:
            future = self._executor.submit(work, *arguments)
        except RuntimeError:  # the threads have ended
            end_turn()
            raise
        future.add_done_callback(end_turn)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
