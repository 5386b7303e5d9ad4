"""Items on disk: the authoritative copy from which every index is built."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
