"""The documentation runs: every ```python block of a page, in order, as a reader would type it.

A block that needs a file nobody has here is marked ```py and only shown.
"""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

import modalhash
from modalhash.cli import app
from modalhash.methods.registry import METHODS

ROOT = Path(__file__).parents[1]
REPORTS = (
    ROOT / "docs" / "measurements" / "reproduction"
)  # written by `make reproduce`; `make docs` adds what they link to
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if REPORTS not in page.parents]
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")), *WRITTEN]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.slow
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


SHELL = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def modalhash_commands(page):
    """Return the words after ``modalhash`` of every command in the page's shell blocks."""
    found = []
    for block in SHELL.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if "modalhash " not in line:
                continue
            words = shlex.split(re.sub(r"[;|<>&]|\$\(.*?\)", " ; ", line.removeprefix("$ ")), comments=True)
            for at, word in enumerate(words):
                if word == "modalhash" and (at == 0 or words[at - 1] in (";", "sudo") or "=" in words[at - 1]):
                    rest = words[at + 1 :]
                    found.append(rest[: rest.index(";")] if ";" in rest else rest)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page):
    for words in modalhash_commands(page):
        command, rest = get_command(app), words
        while rest and (found := getattr(command, "commands", {}).get(rest[0])) is not None:
            command, rest = found, rest[1:]
        if hasattr(command, "commands"):  # the bare command, or one of its own options
            assert not rest or rest[0].startswith("-"), f"{page.name}: there is no command {' '.join(words)}"
            continue
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [
            word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in {*options, "--help"}
        ]
        assert not unknown, f"{page.name}: `modalhash {' '.join(words)}` has no {', '.join(unknown)}"


def test_commands_are_found_in_pages():
    assert sum(len(modalhash_commands(page)) for page in PAGES) > 70


REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
PACKAGES = (
    "core",
    "data",
    "distributed",
    "encoders",
    "engine",
    "evaluation",
    "experiments",
    "index",
    "methods",
    "serve",
    "store",
)


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
