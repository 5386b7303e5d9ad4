"""modalhash: short binary codes for items of different modalities, and search across them.

Names are loaded when first used, so that ``import modalhash`` stays quick.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
