"""Fits on a Dask cluster: rows and features stay on workers; only sums and codes are transferred."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
