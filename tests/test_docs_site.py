"""What builds the documentation: docstrings become Markdown, and the check of the site finds what is wrong with it."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import modalhash

ROOT = Path(__file__).parents[1]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def docstrings():
    pytest.importorskip("griffe")
    return load(ROOT / "docs" / "hooks" / "docstrings.py")


@pytest.fixture(scope="module")
def site_check():
    return load(ROOT / ".ci" / "check_site.py")


def test_roles_become_links(docstrings):
    assert docstrings.as_markdown("See :class:`~modalhash.data.Dataset`.") == (
        'See <autoref identifier="modalhash.data.Dataset" optional><code>Dataset</code></autoref>.'
    )


def test_formulas_become_those_of_markdown(docstrings):
    assert docstrings.as_markdown("with :math:`a\n    + b` of") == "with $a + b$ of"
    assert docstrings.as_markdown("Of\n\n.. math:: a = b\n\nit") == "Of\n\n\n$$\na = b\n$$\n\n\nit"
    several = docstrings.as_markdown(".. math::\n    a &= b \\\\\n    c &= d\n\nit")
    assert r"\begin{aligned} a &= b \\ c &= d \end{aligned}" in several


def test_a_description_after_a_name_is_no_type(docstrings):
    text = "Do.\n\nParameters\n----------\nk : how many, at\n    most 200\nids : list of int\n    Of items.\n\nNotes\n-----\na : b\n"
    assert docstrings.as_markdown(text) == (
        "Do.\n\nParameters\n----------\nk\n    how many, at\n    most 200\nids : list of int\n    Of items.\n\n"
        "Notes\n-----\na : b\n"
    )


def test_names_that_share_a_description_have_it_each(docstrings):
    text = "Do.\n\nAttributes\n----------\na_, b_ : what is\n    learned\nc_ : more\n\nExamples\n--------\n>>> 1\n"
    assert docstrings.as_markdown(text) == (
        "Do.\n\nAttributes\n----------\na_\n    what is\n    learned\nb_\n    what is\n    learned\nc_\n    more\n\n"
        "Examples\n--------\n>>> 1\n"
    )


def test_no_docstring_keeps_its_markup(docstrings, site_check):
    """Every docstring of the package, not only those that the reference shows."""
    left = []
    for found in pkgutil.walk_packages(modalhash.__path__, "modalhash."):
        module = import_module(found.name)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__ or not inspect.getdoc(value):
                continue
            text = docstrings.as_markdown(inspect.getdoc(value))
            left += [
                f"{found.name}.{name}: {role}" for role in (":math:", ":class:", ":func:", ".. math::") if role in text
            ]
    assert not left


def test_drawings_are_those_of_their_script():
    script = load(ROOT / "docs" / "images" / "make_methods.py")
    for name, draw in (
        ("two-steps", script.two_steps),
        ("patterns", script.patterns),
        ("map-reduce", script.map_reduce),
    ):
        drawn = (ROOT / "docs" / "images" / f"amsh-{name}.svg").read_bytes()
        assert drawn == draw(), "run docs/images/make_methods.py"


def site_of(folder, body, **others):
    (folder / "index.html").write_text(f"<html><body>{body}</body></html>", encoding="utf-8")
    for name, text in others.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "body",
    [
        r"<p>minimises \frac{a}{b}</p>",
        "<p>see :class:`Dataset`</p>",
        "<p>the ``text`` of it</p>",
        "<td>.. math:: a</td>",
        "<p>$$ a</p>",
        '<p><a href="nosuch.html">x</a></p>',
        '<p><a href="other.html#nosuch">x</a></p>',
        '<script src="https://example.org/a.js"></script>',
        '<img src="//example.org/a.png">',
        '<link rel="stylesheet" href="https://example.org/a.css">',
        '<span class="arithmatex">\\(a\\)</span>',  # and no KaTeX to draw it
    ],
)
def test_the_check_finds_what_is_wrong(site_check, tmp_path, body):
    problems, _ = site_check.check(site_of(tmp_path, body, other="<h2 id='there'>x</h2>"))
    assert problems


def test_the_check_lets_a_good_site_pass(site_check, tmp_path):
    katex = tmp_path / "assets" / "katex"
    katex.mkdir(parents=True)
    for name in site_check.KATEX:
        (katex / name).touch()
    body = (
        r'<p>as <code>\frac</code> and <span class="arithmatex">\(\frac{a}{b}\)</span>, <a href="other.html#there">x</a>, '
        '<a href="https://example.org/">away</a></p>'
    )
    problems, elsewhere = site_check.check(site_of(tmp_path, body, other="<h2 id='there'>x</h2>"))
    assert problems == []
    assert elsewhere == {"https://example.org/": ["index.html"]}


@pytest.mark.slow
def test_declared_options_are_shown_with_their_types(docstrings):
    import griffe

    from modalhash.engine import TrainSettings

    extensions = griffe.load_extensions(docstrings.Docstrings)
    package = griffe.load("modalhash", search_paths=[ROOT / "src"], extensions=extensions)
    settings = package["engine.settings.TrainSettings"]
    (shown,) = [part.value for part in settings.docstring.parse("numpy") if part.kind.value == "parameters"]
    types = {parameter.name: str(parameter.annotation) for parameter in shown}
    assert types["n_bits"] == "int | str"
    assert types["quality"] == "str | None"
    assert all(parameter.description for parameter in shown)
    assert list(types) == list(TrainSettings.options)
