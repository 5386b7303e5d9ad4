"""The compiled loops that :mod:`modalhash.index.kernels.numpy_search` has in numpy.

Importing this module loads numba.
"""

from modalhash.index.kernels.dots import dots as dots, dots_and_cosines as dots_and_cosines
from modalhash.index.kernels.hit_lists import (
    distances_by_id as distances_by_id,
    items_within as items_within,
    merge_ordered as merge_ordered,
    nearest_items as nearest_items,
)
from modalhash.index.kernels.scans import nearest as nearest, within as within
