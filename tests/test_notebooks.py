"""The notebooks run, from the first cell to the last, and print what was committed with them.

Numbers with a decimal point may differ a little, because machines add in different orders. Of a cell tagged ``varies``
(what it prints depends on the clock, or on the order of equals) only the kinds of output are compared, and of a picture
only that there is one. ``make notebooks`` writes the notebooks with what they print now.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

for package in ("nbclient", "nbformat", "ipykernel"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra test-all)")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'plot')")
pytest.importorskip("starlette", reason="starlette is not installed (extra 'serve')")

import nbformat  # noqa: E402

from notebooks.execute import docs_figure, execute, figure_path, notebooks  # noqa: E402

pytestmark = pytest.mark.slow

TOLERANCE = 0.03
NUMBER = re.compile(r"\d+\.\d+")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|Users|root|tmp|var|work|private|usr|opt)/|[A-Z]:\\\\")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
MAX_PICTURE, MAX_NOTEBOOK = 60_000, 120_000
each_notebook = pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)


def shown(cell) -> list[tuple[str, str]]:
    """The outputs of a cell as kind and text; of a picture, no text."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append((output.name, output.text))
        elif output.output_type != "error":
            found += [(kind, "" if kind.startswith("image/") else text) for kind, text in sorted(output.data.items())]
        else:
            found.append(("error", output.evalue))
    return found


def alike(first: str, second: str) -> bool:
    """Whether two texts say the same, but for the last digits of their numbers."""
    if NUMBER.sub("N", first) != NUMBER.sub("N", second):
        return False
    pairs = zip(NUMBER.findall(first), NUMBER.findall(second), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE for a, b in pairs)


def differences(committed, executed) -> list[str]:
    """What a notebook prints otherwise than it is committed, by cell."""
    found = []
    for before, after in zip(committed.cells, executed.cells, strict=True):
        if before.cell_type != "code":
            continue
        old, new = shown(before), shown(after)
        if [kind for kind, _ in old] != [kind for kind, _ in new]:
            found.append(f"{before.id}: committed {old}, now {new}")
        elif "varies" not in before.metadata.get("tags", []):
            found += [
                f"{before.id}: committed\n{a}\nnow\n{b}"
                for (_, a), (_, b) in zip(old, new, strict=True)
                if not alike(a, b)
            ]
    return found


def test_there_are_a_notebook_for_researchers_and_one_for_builders():
    assert [path.stem for path in notebooks()] == ["builder", "research"]


@each_notebook
def test_it_runs_and_prints_what_was_committed(path, tmp_path):
    found = differences(nbformat.read(path, as_version=4), execute(path, tmp_path))
    assert not found, "\n\n".join([*found, "If that is meant to be: make notebooks"])


@each_notebook
def test_it_is_committed_as_it_ran(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run from top to bottom, once"
    kinds = {kind for cell in cells for kind, _ in shown(cell)}
    assert "image/png" in kinds
    assert not kinds & {"error", "stderr"}, "a reader's first run has neither errors nor warnings"
    assert path.stat().st_size < MAX_NOTEBOOK
    for cell in cells:
        for output in cell.outputs:
            assert len(base64.b64decode(output.get("data", {}).get("image/png", ""))) < MAX_PICTURE
        assert not MACHINE_PATH.search(json.dumps([cell.source, [text for _, text in shown(cell)]])), cell.id


@each_notebook
def test_it_begins_with_what_it_shows_and_needs(path):
    first = nbformat.read(path, as_version=4).cells[0]
    assert first.cell_type == "markdown"
    assert re.match(r"# \w.*\n", first.source)
    assert "This notebook" in first.source
    assert "It needs `modalhash[" in first.source


@each_notebook
def test_its_links_lead_somewhere(path):
    for cell in nbformat.read(path, as_version=4).cells:
        for target in LINK.findall(cell.source if cell.cell_type == "markdown" else ""):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@each_notebook
def test_the_documentation_shows_the_picture_of_the_notebook(path):
    page = Path(__file__).parents[1] / "docs" / "notebooks.md"
    assert f"(images/{figure_path(path).name})" in page.read_text(encoding="utf-8")
    assert figure_path(path).read_bytes() == docs_figure(nbformat.read(path, as_version=4))


def test_what_prints_otherwise_is_noticed():
    def printing(text, *tags):
        cell = nbformat.v4.new_code_cell(
            id="one", metadata={"tags": tags}, outputs=[nbformat.v4.new_output("stream", text=text)]
        )
        return nbformat.v4.new_notebook(cells=[cell])

    assert not differences(printing("mAP 0.71"), printing("mAP 0.72"))
    assert differences(printing("mAP 0.71"), printing("mAP 0.81"))
    assert differences(printing("8 hits"), printing("9 hits"))
    assert not differences(printing("8 s", "varies"), printing("9 s", "varies"))
    empty = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(id="one")])
    assert differences(printing("8 s", "varies"), empty)
