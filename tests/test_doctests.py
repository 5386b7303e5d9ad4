"""The examples in the docstrings give what they say."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import modalhash

MODULES = ["modalhash", *(found.name for found in pkgutil.walk_packages(modalhash.__path__, "modalhash."))]


WITH_EXAMPLES = [name for name in MODULES if b"\n    >>> " in Path(find_spec(name).origin).read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings(name):
    examples = [case for case in doctest.DocTestFinder().find(import_module(name), name) if case.examples]
    assert examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for case in examples:
        runner.run(case)
    assert not runner.summarize(verbose=False).failed, "the examples that failed are printed above"


def test_there_are_examples():
    assert len(WITH_EXAMPLES) > 30
