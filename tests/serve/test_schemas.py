"""Fields of a search become the engine's options."""

from __future__ import annotations

from modalhash.engine import SearchOptions
from modalhash.serve.schemas import SearchBody


def test_options_are_those_of_the_engine():
    assert SearchBody(text="red").options() == SearchOptions()
    body = SearchBody(id="a", k=5, want=["text", "image", "text"], labels=["x", "x"], kind="hashed", asymmetric=True)
    assert body.options() == SearchOptions(k=5, want=("text", "image"), labels=("x",), kind="hashed", asymmetric=True)
    assert SearchBody(text="red", want=[]).options().want is None
