"""A search passes through few modules, in the event loop and in the search thread."""

from __future__ import annotations

import threading

import pytest
from serve_tools import ask


class Calls:
    """The modules of modalhash whose functions each thread calls, while ``on``."""

    def __init__(self):
        self.on, self.modules = False, {}

    def __call__(self, frame, event, argument):
        name = frame.f_globals.get("__name__", "")
        if self.on and event == "call" and name.startswith("modalhash."):
            thread = threading.current_thread().name.partition("_")[0]
            self.modules.setdefault(thread, set()).add(name.removeprefix("modalhash."))


@pytest.fixture
def calls():
    """Counts the calls of all threads that start during a test."""
    calls = Calls()
    threading.setprofile(calls)
    yield calls
    threading.setprofile(None)


def test_a_search_by_text_passes_through_few_modules(calls, serve):
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
