"""Codes in memory, searched exactly by Hamming distance; vectors by item.

Importing this package does not load numba.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
