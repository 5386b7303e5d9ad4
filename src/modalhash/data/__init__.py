"""Data sets: read files, load named ones, draw synthetic twins, and degrade training data on purpose."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
