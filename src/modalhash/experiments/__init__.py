"""Measure a grid of methods, data sets, code lengths, seeds and scenarios that a TOML file describes.

``config`` reads a grid and lists its cells, ``provenance`` finds its data sets and tells when a cell has to be measured
again, ``measure`` measures one cell, ``run`` runs many in worker processes, ``timing`` estimates how
long they take, ``results`` stores them and makes tables and figures from them. Without a grid file, ``comparison``
compares methods on one data set and ``tuning`` searches for the parameters of one method. ``measured`` computes means,
curves and tests for both.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
