"""Experiments: any grid of methods, data sets, code lengths, seeds and scenarios in a TOML file, measured.

``config`` reads a grid, ``inputs`` finds its data, ``cells`` lists what has to be measured, ``provenance`` knows when
it has to be measured again, ``measure`` measures one cell, ``run`` many of them in processes, ``timing`` estimates how
long that takes, ``results`` stores them and reads them back, ``grid_report`` makes tables and figures of them. Without
a file: ``comparison`` measures several methods on one data set and tests which differences are significant, ``tuning``
searches for the parameters of one method, ``parameters`` keeps them in a file.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
