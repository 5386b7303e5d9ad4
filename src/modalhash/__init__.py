"""modalhash: short binary codes for items of different modalities, and search across them.

Names are loaded when first used, so that ``import modalhash`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from modalhash.evaluation import Protocol as Protocol
    from modalhash.evaluation import evaluate as evaluate
    from modalhash.features import AnchorKernel as AnchorKernel
    from modalhash.items import Items as Items
    from modalhash.methods.amsh import AMSH as AMSH
    from modalhash.persistence import load as load
    from modalhash.search.engine import Engine as Engine
    from modalhash.search.index import HammingIndex as HammingIndex

_WHERE = {
    "Items": "modalhash.items",
    "Protocol": "modalhash.evaluation",
    "evaluate": "modalhash.evaluation",
    "AMSH": "modalhash.methods.amsh",
    "AnchorKernel": "modalhash.features",
    "load": "modalhash.persistence",
    "Engine": "modalhash.search.engine",
    "HammingIndex": "modalhash.search.index",
}
__all__ = ["AMSH", "AnchorKernel", "Engine", "HammingIndex", "Items", "Protocol", "evaluate", "load"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'modalhash' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
