"""Names of :mod:`modalhash.engine.sources` for :mod:`modalhash.engine.manifest_items`."""

from __future__ import annotations

from modalhash.engine.sources import LINE_FIELDS as OWN
from modalhash.engine.sources import Item as Item
from modalhash.engine.sources import Problem as Problem
from modalhash.engine.sources import Report as Report
from modalhash.engine.sources import parse_items as items_of

__all__ = ["OWN", "Item", "Problem", "Report", "items_of"]
