"""What is deprecated still works, and says what replaces it."""

from __future__ import annotations

import warnings

import pytest

import modalhash
from modalhash import methods
from modalhash.core.deprecation import deprecated


def test_a_deprecated_function_works_and_warns_where_it_is_called():
    @deprecated("1.2", instead="double")
    def twice(x, *, offset=0):
        """Return twice the value."""
        return 2 * x + offset

    with pytest.warns(FutureWarning, match="^twice is deprecated since version 1.2; use double$") as seen:
        assert twice(3, offset=1) == 7
    assert seen[0].filename == __file__
    assert twice.__name__ == "twice"
    assert twice.__doc__ == "Return twice the value.\n\nDeprecated since version 1.2; use ``double``."


def test_methods_get_is_method():
    with pytest.warns(FutureWarning, match="get is deprecated since version 1.0; use modalhash.method"):
        assert methods.get("batch") is modalhash.method("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modalhash.method("batch")
