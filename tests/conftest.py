from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import settings

from dask_cluster import dask_cluster  # noqa: F401  (a fixture for all)
from modalhash.encoders import lookup as quality
from modalhash.index import prefer_kernels

os.environ["MODALHASH_QUIET"] = "1"  # lines of progress come by the clock; for processes that tests start, too
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fixed")
quality.PACKAGES = (*quality.PACKAGES, "none_of_this_name")  # so that encoders which need no network are the default
prefer_kernels()  # small as the tests' searches are, numpy would do them; those of numpy are in index/test_numpy_search.py


@pytest.fixture
def rng():
    return np.random.default_rng(20230)
