"""The documentation runs: every ```python block of a page, in order, as a reader would type it.

A block that needs a file nobody has here is marked ```py and only shown.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import modalhash
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


REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
PACKAGES = ("data", "distributed", "encoders", "engine", "evaluation", "experiments", "index", "serve", "store")


def described_names():
    return [name for page in REFERENCE for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)]


def named(path):
    module, _, attribute = path.rpartition(".")
    return getattr(import_module(module), attribute)


def test_the_reference_has_every_public_name():
    """What a package exports is described, under its name there or under that of another package."""
    public = [f"modalhash.{name}" for name in modalhash.__all__]
    public += [method.path.replace(":", ".") for method in METHODS.values()]
    for package in PACKAGES:
        public += [f"modalhash.{package}.{name}" for name in import_module(f"modalhash.{package}").__all__]
    described = {id(named(name)) for name in described_names()}
    lacking = [name for name in public if id(named(name)) not in described]
    assert not lacking, f"docs/reference lacks {', '.join(sorted(lacking))}"


def test_every_package_that_exports_names_is_looked_at():
    exporting = {path.parent.name for path in Path(modalhash.__file__).parent.glob("*/__init__.py")}
    having = {name for name in exporting if hasattr(import_module(f"modalhash.{name}"), "__all__")}
    assert having == set(PACKAGES)


def test_the_reference_describes_nothing_twice():
    names = described_names()
    assert len(names) == len(set(names)) > 250


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    written = {page.relative_to(ROOT / "docs").as_posix() for page in WRITTEN}
    assert written <= listed, f"mkdocs.yml lacks {', '.join(sorted(written - listed))}"
