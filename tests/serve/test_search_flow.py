"""A search passes through few modules and few types of values, in the event loop and in the search thread."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from serve_tools import ask

OTHERS = {
    "Client",  # of every request: its address and role, which the query does not pass through
    "Revision",  # of the store and the index, two numbers
    "PackedRows",  # the codes of the index, all of them, from the index to its loops
    "FoundRows",  # the vectors of some items, from the table of vectors to the ranker that asked for them
    "HitFinder",  # the search itself, with its index and store
}
"""Types of values that every search creates and that say nothing of its query or hits.

Plain tuples are not types and not counted: a job of the batcher has the arguments of ``Searcher.search``, and an answer
the query, its hits and the number of items that were searched.
"""


class Calls:
    """What the functions that each thread calls, while ``on``, belong to.

    ``modules`` are those of modalhash. ``carriers`` are its types of which values are created (dataclasses, named
    tuples and models of pydantic) but for ``OTHERS``: those by which the query, its options and its hits are passed on.
    """

    def __init__(self):
        self.on, self.modules, self.carriers = False, {}, set()

    def __call__(self, frame, event, argument):
        if not self.on or event != "call":
            return
        name = frame.f_globals.get("__name__", "")
        if name.startswith("modalhash."):
            thread = threading.current_thread().name.partition("_")[0]
            self.modules.setdefault(thread, set()).add(name.removeprefix("modalhash."))
        made = created(frame)
        if made is not None and made.__module__.startswith("modalhash.") and made.__name__ not in OTHERS:
            self.carriers.add(made.__name__)


def created(frame):
    """Return the type of values whose instance a call creates, if it is such a call."""
    known = frame.f_locals
    if frame.f_code.co_name == "__init__" and dataclasses.is_dataclass(known.get("self")):
        return type(known["self"])
    if frame.f_code.co_name.startswith("model_validate"):
        return known["cls"]
    return known.get("_cls", known["cls"] if frame.f_code.co_name == "_make" else None)  # of a named tuple


@pytest.fixture
def calls():
    """Counts the calls of all threads that start during a test."""
    calls = Calls()
    threading.setprofile(calls)
    yield calls
    threading.setprofile(None)


def test_a_search_by_text_passes_through_few_modules_and_types(calls, serve):
    with serve() as server:
        assert ask(server.port, {"text": "a red ball"})[0] == 200
        server.config.app.state.service.searcher._expected_seconds = None  # so that it is searched in the thread
        calls.on = True
        assert ask(server.port, {"text": "a blue box"})[2]["hits"]
        calls.on = False
    search = calls.modules.pop("search")
    (loop,) = calls.modules.values()
    assert len(loop) <= 12, sorted(loop)
    assert len(search) <= 20, sorted(search)
    assert calls.carriers == {"SearchBody", "SearchOptions", "Query", "Hits", "Record", "Hit"}
