from __future__ import annotations

import io
import json

import numpy as np
import pytest
import slow_ranking as slow

from modalhash.evaluation import (
    RECALL_STEP,
    Spread,
    Table,
    draw_curves,
    evaluate,
    method_colours,
    plot_convergence,
    plot_precision_at,
    plot_precision_recall,
)
from modalhash.experiments import RECALL


@pytest.fixture(scope="module")
def result():
    case = slow.random_case(np.random.default_rng(0), 8, 50, 16, single=True)
    return evaluate(None, ({"a_b": case[0]}, {"a_b": case[1]}), ({"c": case[2]}, {"c": case[3]}), protocol="sephlike")


TABLE = Table(
    "50 % & more",
    ["method_x", "mAP"],
    [["a|b", Spread.of([0.1, 0.3])], ["c", None], ["d", 0.123456]],
    ["Protocol: mAP@all"],
)


def test_markdown():
    assert TABLE.to_markdown().splitlines() == [
        "**50 % & more**",
        "",
        "| method_x | mAP |",
        "| --- | ---: |",
        "| a\\|b | 0.2000 ± 0.1414 |",
        "| c | – |",
        "| d | 0.1235 |",
        "",
        "Protocol: mAP@all",
    ]


def test_latex():
    lines = TABLE.to_latex().splitlines()
    assert r"\caption{50 \% \& more. Protocol: mAP@all.}" in lines
    assert r"method\_x & mAP \\" in lines
    assert r"a|b & 0.2000 $\pm$ 0.1414 \\" in lines
    assert lines[0] == r"\begin{table}"
    assert lines[-1] == r"\end{table}"


def test_json_keeps_digits():
    content = json.loads(TABLE.to_json())
    assert content["rows"][2]["mAP"] == 0.123456
    assert content["rows"][0]["mAP"]["n"] == 2
    assert content["notes"] == ["Protocol: mAP@all"]


def test_rich():
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=120).print(TABLE.to_rich())
    assert "0.2000 ± 0.1414" in out.getvalue()
    assert "Protocol: mAP@all" in out.getvalue()


def test_a_table_says_what_was_measured(result):
    with pytest.raises(ValueError, match="put the protocol there"):
        Table("t", ["a"], [["x"]], [])
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table("t", ["a"], [["x", "y"]], ["note"])
    for text in (str(result), result.table().to_latex().replace(r"\_", "_"), result.table().to_json()):
        assert str(result.protocol) in text


@pytest.mark.parametrize("by", ["rank", "radius"])
def test_precision_recall_figure(result, by):
    pytest.importorskip("matplotlib")
    ax = plot_precision_recall({"one": result, "two": result}, ("a_b", "c"), by=by)
    assert [line.get_label() for line in ax.lines] == ["one", "two"]
    assert str(result.protocol) in ax.get_title()
    assert ax.lines[0].get_xdata()[-1] == pytest.approx(1)


def test_precision_at_figure_draws_into_given_axes(result):
    figure = pytest.importorskip("matplotlib.figure")
    ax = figure.Figure().subplots()
    assert plot_precision_at({"one": result}, ("a_b", "c"), up_to=20, ax=ax) is ax
    assert ax.lines[0].get_xdata()[-1] == 20
    figure_file = io.BytesIO()
    ax.figure.savefig(figure_file, format="svg")
    assert figure_file.tell() > 1000


def test_convergence_figure():
    pytest.importorskip("matplotlib")
    ax = plot_convergence({"codes": [4.0, 2.0, 1.0]})
    assert list(ax.lines[0].get_ydata()) == [1, 0.5, 0.25]
    assert list(plot_convergence({"codes": [4.0, 2.0]}, relative=False).lines[0].get_ydata()) == [4, 2]


def panels(n_directions, lengths):
    line = np.linspace(0.8, 0.1, 51)
    directions = [f"a→{number}" for number in range(n_directions)]
    return {
        (database, direction, bits): {"amsh": line, "Mine": line / 2}
        for database in ("learned", "unseen")
        for direction in directions
        for bits in lengths
    }


@pytest.mark.parametrize(
    ("n_directions", "lengths", "shape"), [(1, [8], (2, 1)), (2, [8, 16], (2, 4)), (2, [8, 16, 32], (4, 3))]
)
def test_small_multiples(n_directions, lengths, shape):
    module = pytest.importorskip("matplotlib.figure")
    figure = module.Figure(layout="constrained")
    curves = panels(n_directions, lengths)
    del curves["unseen", "a→0", 8]["Mine"]
    draw_curves(figure, curves, bold="Mine")
    grid = figure.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == shape
    lines = figure.axes[0].lines
    assert [line.get_color() for line in lines] == list(method_colours(["amsh", "Mine"]).values())
    assert lines[1].get_linewidth() > lines[0].get_linewidth()
    np.testing.assert_allclose(lines[0].get_xdata(), RECALL)
    assert RECALL[1] == RECALL_STEP
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["amsh", "Mine"]
    assert {ax.get_ylim()[0] for ax in figure.axes} == {0.0}
    assert sum(len(ax.lines) for ax in figure.axes) == 2 * len(curves) - 1


def test_a_method_has_one_colour_and_two_methods_have_two():
    for labels in (["AMSH", "BATCH"], ["batch", "Mine", "amsh"]):
        assert method_colours(labels)[labels[0]] == method_colours([labels[0]])[labels[0]]
    several = ["batch", "fmh", "scratch", "edmh", "dch", "gsph", "amsh", "rlh"]  # pairs of these share a colour
    assert len(set(method_colours(several).values())) == len(several)
    many = [f"row {number}" for number in range(25)]
    assert set(method_colours(many)) == set(many)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda r: draw_curves(None, {}), "curves is empty"),
        (lambda r: plot_precision_recall({}, ("a", "b")), "results is empty"),
        (lambda r: plot_precision_recall({"x": r}, ("a_b", "c"), by="colour"), "by is 'colour'"),
        (lambda r: plot_convergence({}), "objectives is empty"),
        (lambda r: plot_convergence({"x": []}), "one value per iteration"),
    ],
)
def test_bad_figures(result, call, match):
    with pytest.raises(ValueError, match=match):
        call(result)


def test_names_are_lazy():
    import subprocess
    import sys

    code = (
        "import sys, modalhash.evaluation as e; dir(e);"
        "print([m for m in ('numba', 'matplotlib', 'rich') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
    import modalhash.evaluation as evaluation

    assert all(hasattr(evaluation, name) for name in evaluation.__all__)
    with pytest.raises(AttributeError, match="attribute nonsense"):
        evaluation.nonsense  # noqa: B018
