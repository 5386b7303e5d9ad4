"""What all addresses share: the engine, its threads, limits, and what is kept ready."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from modalhash.codes import n_bytes
from modalhash.engine import Engine, SearchOptions, SearchRequest
from modalhash.serve.log import Log
from modalhash.serve.media import Thumbnails
from modalhash.serve.monitoring import Metrics
from modalhash.serve.searcher import Searcher
from modalhash.serve.settings import LONGEST_TEXT, MOST_HITS, Settings
from modalhash.serve.uploads import Intake

Value = TypeVar("Value")
EXAMPLES = 6
DOT = base64.b64decode("R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs=")
"""A picture of one pixel (GIF)."""


class Service:
    """An engine and all that is needed to serve it."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings, self.limits = engine, settings, settings.limits
        self.metrics, self.log = Metrics(), Log(quiet=settings.quiet)
        self.intake = Intake(self.limits)
        self.searcher = Searcher(engine, self.limits, self.metrics.batch)
        self.thumbnails = Thumbnails(most_bytes=self.limits.thumbnails, pixels=self.limits.pixels)
        self.class_names = frequent_labels(engine)

    def close(self) -> None:
        """End the threads."""
        self.searcher.close()

    def warm_up(self) -> None:
        """Load and compile what the first searches would have to wait for."""
        engine = self.engine
        code = np.zeros(n_bytes(engine.n_bits), np.uint8)
        engine.answer(
            [SearchRequest(code), *(SearchRequest(code, SearchOptions(want=(name,))) for name in engine.modalities)]
        )
        for name, reads in engine.reads.items():
            with contextlib.suppress(ValueError):  # an encoder of somebody else's may want something else
                if reads == "text":
                    engine.prepare(text=["a"], modality=name)
                elif reads == "image":
                    engine.prepare(image=[DOT], modality=name)

    async def in_thread(self, pool: str, work: Callable[..., Value], *arguments: Any) -> Value:
        """The result of ``work``, done off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.searcher.pools[pool], work, *arguments)

    def about(self) -> dict[str, Any]:
        """What the engine is."""
        engine, limits = self.engine, self.limits
        engine.refresh()
        sizes, reads = engine.sizes(), engine.reads
        return {
            "name": self.settings.name or engine.path.resolve().name,
            "n_bits": engine.n_bits,
            "items": sum(sizes.values()),
            "method": engine.config["method"],
            "codes": engine.config["codes"],
            "paired": bool(type(engine.model).needs_pairs),
            "modalities": {
                name: {"items": n, "query": reads[name] != "array", "reads": reads[name]} for name, n in sizes.items()
            },
            "labels": self.class_names[:200],
            "examples": self.examples(),
            "writable": self.settings.writable,
            "limits": {"k": MOST_HITS, "text": LONGEST_TEXT, "bytes": limits.bytes, "pixels": limits.pixels},
        }

    def examples(self) -> list[str]:
        """Searches to offer: those given, those of the engine, or frequent labels."""
        own = self.engine.config.get("examples")
        if self.settings.examples:
            return list(self.settings.examples)
        if isinstance(own, list) and own:
            return [str(one) for one in own]
        return self.class_names[:EXAMPLES]


def frequent_labels(engine: Engine, sample: int = 5000) -> list[str]:
    """Labels of the first items, the most frequent first."""
    counts: Counter[str] = Counter()
    for number, record in enumerate(engine.items()):
        if number == sample:
            break
        counts.update(map(str, record.labels))
    return [label for label, _ in counts.most_common()]
