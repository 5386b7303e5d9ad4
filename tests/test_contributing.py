"""Check what CONTRIBUTING.md says against the repository."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from example_method import ClassMeans
from modalhash.methods.registry import read_rows

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_row_shown_is_that_of_the_example():
    (block,) = re.findall(r"^ *```toml\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    (row,) = read_rows(textwrap.dedent(block)).values()
    assert row.path == f"modalhash.methods.class_means:{ClassMeans.__name__}"
    assert (row.supervised, row.pairing == "needed") == (ClassMeans.supervised, ClassMeans.needs_pairs)
    assert row.reimplementation == ("re-implementation" in ClassMeans.__doc__)


def test_what_it_names_is_there():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGE)
    paths = re.findall(r"`((?:src|tests|docs|reproduction|benchmarks|notebooks|\.ci|\.github)/[^`<*]*)`", PAGE)
    commands = re.findall(r"\btests/[\w/]+\.py", PAGE)
    assert len(paths) > 20
    for target in {*links, *paths, *commands}:
        assert (ROOT / target).exists(), f"CONTRIBUTING.md names {target}"
