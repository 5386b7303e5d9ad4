"""modalhash: short binary codes for items of different modalities, and search across them.

Names are loaded when first used, so that ``import modalhash`` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from modalhash.engine import Engine as Engine
    from modalhash.evaluation import Protocol as Protocol
    from modalhash.evaluation import evaluate as evaluate
    from modalhash.features import AnchorKernel as AnchorKernel
    from modalhash.index import HammingIndex as HammingIndex
    from modalhash.items import TrainingItems as TrainingItems
    from modalhash.methods.amsh import AMSH as AMSH
    from modalhash.methods.rlh import RLH as RLH
    from modalhash.persistence import load as load
    from modalhash.registry import method as method

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "engine": ["Engine"],
        "evaluation": ["Protocol", "evaluate"],
        "features": ["AnchorKernel"],
        "index": ["HammingIndex"],
        "items": ["TrainingItems"],
        "methods.amsh": ["AMSH"],
        "methods.rlh": ["RLH"],
        "persistence": ["load"],
        "registry": ["method"],
    },
)
