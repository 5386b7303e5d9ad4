"""Foundations of all other packages: codes, linear algebra, feature maps, row blocks, validation, files, threads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
