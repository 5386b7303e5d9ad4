"""What all routes share: the engine, the threads that use it, the settings, and what is counted and cached."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import numpy as np

from modalhash.codes import n_bytes
from modalhash.engine import Engine, SearchOptions, SearchRequest
from modalhash.serve.media import Thumbnails
from modalhash.serve.monitoring import Metrics
from modalhash.serve.searcher import Searcher
from modalhash.serve.settings import Settings
from modalhash.serve.uploads import BodyBudget

Value = TypeVar("Value")
Pool = Literal["items", "pictures", "changes", "duplicates"]
ONE_PIXEL_GIF = base64.b64decode("R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs=")


class Service:
    """An engine and the state that is needed to serve it; the engine is the caller's to close."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings, self.limits = engine, settings, settings.limits
        self.metrics = Metrics()
        self.body_budget = BodyBudget(self.limits)
        self.searcher = Searcher(engine, self.limits, self.metrics.count_batch)
        self.thumbnails = Thumbnails(max_bytes=self.limits.thumbnails, max_pixels=self.limits.pixels)
        self._executors: dict[Pool, ThreadPoolExecutor] = {
            "items": ThreadPoolExecutor(2, thread_name_prefix="items"),
            "pictures": ThreadPoolExecutor(self.limits.pictures, thread_name_prefix="pictures"),
            "changes": ThreadPoolExecutor(1, thread_name_prefix="changes"),  # one change after the other
            "duplicates": ThreadPoolExecutor(1, thread_name_prefix="duplicates"),  # later ones find its result
        }

    async def in_thread(self, pool: Pool, work: Callable[..., Value], *arguments: Any) -> Value:
        """Return the result of ``work``, which runs off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._executors[pool], work, *arguments)

    def warm_up(self) -> None:
        """Load and compile what the first searches would have to wait for."""
        engine = self.engine
        code = np.zeros(n_bytes(engine.n_bits), np.uint8)
        refinement = engine.refinement
        vectors = (
            {}
            if refinement is None
            else {name: np.ones(refinement.width(name), np.int8) for name in refinement.components}
        )
        engine.answer(
            [
                SearchRequest(code),
                *(SearchRequest(code, SearchOptions(want=(name,))) for name in engine.modalities),
                SearchRequest(code, SearchOptions(radius=0, limit=1)),
                *(SearchRequest(code, vector=vector, modality=name) for name, vector in vectors.items()),
            ]
        )
        for name, reads in engine.reads.items():
            with contextlib.suppress(ValueError):  # an encoder from outside the package may refuse these
                if reads == "text":
                    engine.prepare(text=["a"], modality=name)
                elif reads == "image":
                    engine.prepare(image=[ONE_PIXEL_GIF], modality=name)

    def close(self) -> None:
        """End the threads when their work is done."""
        self.searcher.close()
        for executor in self._executors.values():
            executor.shutdown(wait=True, cancel_futures=True)
