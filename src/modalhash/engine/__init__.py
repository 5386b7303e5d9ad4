"""A search engine in a folder: encoders, a model, a store of items and an index of their codes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
