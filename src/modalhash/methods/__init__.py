"""Hashing methods: one module each, named after the method; ``registry`` lists them, ``base`` has their base class."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
