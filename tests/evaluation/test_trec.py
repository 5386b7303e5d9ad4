from __future__ import annotations

import numpy as np
import pytest
import slow_ranking as slow

from modalhash.evaluation import Protocol, measure, rank, write_qrels, write_run

pytestmark = pytest.mark.filterwarnings("ignore:.*have no label")
AT = (1, 5, 10, 100)


@pytest.fixture(scope="module")
def case():
    return slow.random_case(np.random.default_rng(3), 12, 400, 10, n_classes=12, density=0.08)


@pytest.fixture
def files(case, tmp_path):
    ranking = rank(*case)
    ids = {"query_ids": [f"q{i}" for i in range(12)], "database_ids": np.arange(1000, 1400)}
    write_run(tmp_path / "run", ranking, **ids)
    write_qrels(tmp_path / "qrels", ranking, **ids)
    return ranking, tmp_path / "run", tmp_path / "qrels"


def test_agrees_with_pytrec_eval(files):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    ranking, run_file, qrels_file = files
    with open(run_file) as run, open(qrels_file) as qrels:
        judged = pytrec_eval.parse_qrel(qrels)
        names = {"map", "map_cut.10", *(f"P.{k}" for k in AT), *(f"recall.{k}" for k in AT)}
        per_query = pytrec_eval.RelevanceEvaluator(judged, names).evaluate(pytrec_eval.parse_run(run))

    def mean(name):
        return np.mean([values[name] for values in per_query.values()])

    protocol = Protocol(ties="stable", empty="skip")  # trec_eval leaves out queries without relevant items
    found = measure(ranking, protocol, at=AT)
    assert found.map == pytest.approx(mean("map"), abs=1e-9)
    cut = measure(ranking, Protocol(ties="stable", empty="skip", cutoff=10))
    assert cut.map == pytest.approx(mean("map_cut_10"), abs=1e-9)
    for k in AT:
        assert found.precision_at[k] == pytest.approx(mean(f"P_{k}"), abs=1e-9)
        assert found.recall_at[k] == pytest.approx(mean(f"recall_{k}"), abs=1e-9)
    each = np.array([per_query.get(f"q{i}", {"map": np.nan})["map"] for i in range(12)])
    np.testing.assert_allclose(found.average_precision, each, atol=1e-7)


def test_agrees_with_ir_measures(files):
    ir_measures = pytest.importorskip("ir_measures")
    ranking, run_file, qrels_file = files
    found = measure(ranking, Protocol(ties="stable", empty="skip"), at=AT)
    measures = [ir_measures.AP, ir_measures.P @ 10, ir_measures.R @ 100]
    got = ir_measures.calc_aggregate(
        measures, list(ir_measures.read_trec_qrels(str(qrels_file))), list(ir_measures.read_trec_run(str(run_file)))
    )
    assert found.map == pytest.approx(got[ir_measures.AP], abs=1e-9)
    assert found.precision_at[10] == pytest.approx(got[ir_measures.P @ 10], abs=1e-9)
    assert found.recall_at[100] == pytest.approx(got[ir_measures.R @ 100], abs=1e-9)


def test_run_is_cut_at_k(case, tmp_path):
    ranking = rank(*case)
    ids = {"query_ids": np.arange(12), "database_ids": np.arange(400)}
    write_run(tmp_path / "run", ranking, k=3, tag="mine", **ids)
    lines = (tmp_path / "run").read_text().splitlines()
    assert len(lines) == 36
    order = np.argsort(slow.distances(case[0], case[2])[0], kind="stable")[:3]
    assert lines[:3] == [f"0 Q0 {item} {i + 1} {3 - i} mine" for i, item in enumerate(order)]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"k": 401}, "k is 401; expected 1 to 400"),
        ({"query_ids": np.arange(11)}, r"query_ids have shape \(11,\)"),
        ({"database_ids": np.zeros(400)}, "database_ids: some occur twice"),
        ({"query_ids": [f"q {i}" for i in range(12)]}, "'q 0' is empty, or has a space"),
        ({"query_ids": ["\ud800", *map(str, range(11))]}, "a surrogate"),
        ({"tag": "two words"}, "tag is 'two words'"),
    ],
)
def test_bad_input_writes_nothing(case, tmp_path, change, match):
    given = {"query_ids": np.arange(12), "database_ids": np.arange(400), **change}
    with pytest.raises(ValueError, match=match):
        write_run(tmp_path / "run", rank(*case), **given)
    assert not (tmp_path / "run").exists()


def test_ids_are_written_as_they_are(case, tmp_path):
    ids = [f"q{i}\0" for i in range(12)]  # numpy's texts end before a NUL
    write_run(tmp_path / "run", rank(*case), k=1, query_ids=ids, database_ids=np.arange(400))
    assert [line.split()[0] for line in (tmp_path / "run").read_text().split("\n")[:-1]] == ids
