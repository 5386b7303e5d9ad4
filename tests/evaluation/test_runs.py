"""Runs and qrels of others: read strictly, measured as trec_eval does, compared query by query."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from modalhash.cli import app
from modalhash.evaluation import (
    RunMeasure,
    TrecRun,
    compare_runs,
    measure_run,
    randomisation_test,
    read_qrels,
    read_run,
)

MEASURES = {
    "AP": "map", "AP@5": "map_cut_5", "P@5": "P_5", "P@100": "P_100", "R@10": "recall_10",
    "nDCG": "ndcg", "nDCG@10": "ndcg_cut_10", "RR": "recip_rank",
}  # fmt: skip


def write_run_file(path, *, seed, n_queries=15, good=0.0, depth=40):
    """Scores with ties; queries q1, q2 … of which the run of an odd seed lacks the first."""
    rng = np.random.default_rng(seed)
    lines = []
    for query in range(seed % 2, n_queries):
        for rank, item in enumerate(rng.permutation(60)[:depth]):
            score = np.round(rng.random() + good * (item % 4 == query % 4), 1)
            lines.append(f"q{query} Q0 d{item} {rank} {score} run{seed}\n")
    path.write_text("".join(lines))
    return path


def write_qrels_file(path, n_queries=15):
    rng = np.random.default_rng(9)
    lines = [
        f"q{query} 0 d{item} {rng.integers(-1, 4) if item % 4 == query % 4 else 0}\n"
        for query in range(n_queries)
        for item in range(60)
    ]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def files(tmp_path):
    return [
        write_run_file(tmp_path / "a.run", seed=2),
        write_run_file(tmp_path / "b.run", seed=3, good=0.8),
        write_qrels_file(tmp_path / "qrels"),
    ]


@pytest.mark.parametrize("name", MEASURES)
def test_agrees_with_trec_eval(files, name):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    for path in files[:2]:
        with path.open() as run, files[2].open() as qrels:
            evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels), set(MEASURES.values()))
            expected = evaluator.evaluate(pytrec_eval.parse_run(run))
        found = measure_run(read_run(path), read_qrels(files[2]), name)
        assert found == pytest.approx({query: expected.get(query, {}).get(MEASURES[name], 0) for query in found})
        assert len(found) == 15, "a query that the run lacks counts 0"


def test_measures_print_as_they_are_parsed():
    for text in (*MEASURES, "RR@3"):
        assert str(RunMeasure.parse(text)) == text
    assert str(RunMeasure.parse("ndcg@7")) == "nDCG@7"
    for text in ("P", "R", "AP@0", "F@3", "AP@", "@3", ""):
        with pytest.raises(ValueError, match="measure"):
            RunMeasure.parse(text)


def test_equal_scores_are_ordered_as_trec_eval_does(tmp_path):
    (tmp_path / "run").write_text("q Q0 a 1 1 t\nq Q0 c 2 1 t\nq Q0 b 3 2 t\n\n")
    assert read_run(tmp_path / "run") == TrecRun("t", {"q": ["b", "c", "a"]})


def test_gzip_is_read_too(files, tmp_path):
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(files[0].read_bytes()))
    assert read_run(packed) == read_run(files[0])
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"a\.gz: truncated or damaged after line \d+"):
        read_run(packed)


GOOD_RUN = "q Q0 a 1 3 t\nq Q0 b 2 2 t\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 c 3 1", "line 3: 5 words; expected 6: query Q0 item rank score tag"),
        ("q Q0 c 3 1 t t", "line 3: 7 words"),
        ("q Q0 a 3 1 t", "line 3: the item 'a' was given for the query 'q' before"),
        ("q Q0 c 3 one t", "line 3: the score is 'one'"),
        ("q Q0 c 3 nan t", "line 3: the score is 'nan'"),
        ("q Q0 c 3 1 other", "line 3: the tag is 'other', before it was 't'"),
    ],
)
def test_a_bad_line_of_a_run_is_named(tmp_path, line, message):
    (tmp_path / "run").write_text(GOOD_RUN + line + "\n")
    with pytest.raises(ValueError, match=message) as caught:
        read_run(tmp_path / "run")
    assert str(caught.value).startswith(str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"q 0 a 1\nq 0 a 0\n", "line 2: the item 'a' was judged for the query 'q' before"),
        (b"q 0 a 1\nq 0 b yes\n", "line 2: the relevance is 'yes'; expected a whole number"),
        (b"q 0 a 1.5\n", "line 1: the relevance is '1.5'"),
        (b"q 0 \xe9 1\n", "line 1: not in UTF-8"),
        (b"q a 1\n", "line 1: 3 words; expected 4"),
        (b"", "the file is empty"),
    ],
)
def test_a_bad_line_of_qrels_is_named(tmp_path, content, message):
    (tmp_path / "qrels").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_qrels(tmp_path / "qrels")


def test_the_table_compares_with_the_first(files):
    runs, qrels = {path.name: read_run(path) for path in files[:2]}, read_qrels(files[2])
    table = compare_runs(runs, qrels, ["AP", "P@5"])
    rows = {(row[0], row[1]): row for row in table.rows}
    first, second = (np.array(list(measure_run(runs[name], qrels, "AP").values())) for name in ("a.run", "b.run"))
    assert rows["AP", "a.run"][4:] == [None] * 4
    assert rows["AP", "b.run"][2] == pytest.approx(second.mean())
    assert rows["AP", "b.run"][4] == pytest.approx((second - first).mean())
    assert rows["AP", "b.run"][6] == pytest.approx(randomisation_test(second, first), abs=0.01)
    assert rows["AP", "b.run"][7] >= rows["AP", "b.run"][6]
    assert sum(map(int, rows["AP", "b.run"][5].split(" / "))) == 15
    assert "b.run: 1 queries of the qrels are not in it and count 0." in table.notes


def test_files_that_do_not_belong_together(files):
    with pytest.raises(ValueError, match="do the files belong together"):
        compare_runs({"a": read_run(files[0])}, {"other": {"d1": 1}})
    with pytest.raises(ValueError, match="the reference 'x' is not among the runs a"):
        compare_runs({"a": read_run(files[0])}, read_qrels(files[2]), reference="x")


def test_the_command(files, tmp_path):
    paths = list(map(str, files))
    options = ["compare", *paths[:2], "--qrels", paths[2]]
    shown = CliRunner().invoke(app, options, env={"COLUMNS": "150"})
    assert shown.exit_code == 0, shown.output
    assert "nDCG@10" in shown.stdout
    found = json.loads(CliRunner().invoke(app, [*options, "--measures", "AP", "--json"]).stdout)
    assert [row["run"] for row in found["rows"]] == ["a.run", "b.run"]
    assert found["rows"][1]["p (Holm)"] < 0.05 < found["rows"][1]["difference"]
    done = CliRunner().invoke(app, [*options, "--latex", "--output", str(tmp_path / "t.tex")])
    assert done.exit_code == 0
    assert (tmp_path / "t.tex").read_text().startswith(r"\begin{table}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b, q: [a, "--qrels", q], "expected at least two"),
        (lambda a, b, q: [a, a, "--qrels", q], "is given twice"),
        (lambda a, b, q: [a, b, "--qrels", q, "--measures", "AP,F@2"], "measure 'F@2'"),
        (lambda a, b, q: [a, b, "--qrels", q, "--json", "--latex"], "use only one of"),
        (lambda a, b, q: [a, q, "--qrels", q], "4 words; expected 6"),
        (lambda a, b, q: [a, b, "--qrels", q + ".not"], "No such file"),
    ],
)
def test_mistakes_are_one_line(files, change, message):
    result = CliRunner().invoke(app, ["compare", *change(*map(str, files))])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
