"""The documentation runs: every ```python block of a page, in order, as a reader would type it.

A block that needs a file nobody has here is marked ```py and only shown.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from modalhash.registry import METHODS

ROOT = Path(__file__).parents[1]
REPORTS = (
    ROOT / "docs" / "measurements" / "reproduction"
)  # written by `make reproduce`; `make docs` adds what they link to
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if REPORTS not in page.parents]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    if not blocks:
        pytest.skip("no Python block on this page")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_reference_has_every_public_name():
    described = set(
        re.findall(r"^::: (\S+)", (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    public = {method.path.replace(":", ".") for method in METHODS.values()}
    for package in ("data", "encoders", "engine", "evaluation", "experiments", "index", "serve", "store"):
        public |= {f"modalhash.{package}.{name}" for name in import_module(f"modalhash.{package}").__all__}
    public -= {"modalhash.engine.parse_labels"}  # that of modalhash.data
    assert public <= described, f"docs/reference/index.md lacks {', '.join(sorted(public - described))}"
    for name in described:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), f"docs/reference/index.md names {name}, which is not there"
