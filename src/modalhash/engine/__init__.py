"""A search engine in a folder: encoders, a model, a store of items and an index of their codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.engine.adding import Added as Added
    from modalhash.engine.answers import Hit as Hit
    from modalhash.engine.asking import SearchOptions as SearchOptions
    from modalhash.engine.asking import SearchRequest as SearchRequest
    from modalhash.engine.engine import Engine as Engine
    from modalhash.engine.folder import EngineError as EngineError
    from modalhash.engine.queries import QueryBatch as QueryBatch
    from modalhash.engine.raw_items import Item as Item
    from modalhash.engine.raw_items import Problem as Problem
    from modalhash.engine.raw_items import parse_labels as parse_labels
    from modalhash.engine.sync import refresh as refresh

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "adding": ["Added"],
        "answers": ["Hit"],
        "asking": ["SearchOptions", "SearchRequest"],
        "engine": ["Engine"],
        "folder": ["EngineError"],
        "queries": ["QueryBatch"],
        "raw_items": ["Item", "Problem", "parse_labels"],
        "sync": ["refresh"],
    },
)
