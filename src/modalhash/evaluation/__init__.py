"""Measures of retrieval, with the protocol that defines them.

Importing this package loads neither numba nor matplotlib.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
