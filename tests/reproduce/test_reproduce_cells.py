"""A cell is known by all it depends on, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modalhash.reproduce.cells import Cell, cells_of, unique
from modalhash.reproduce.config import load_all
from modalhash.reproduce.plan import choose, make_plan
from modalhash.reproduce.store import Store

EXPERIMENTS = load_all()


def table(name, dataset="wiki", **options) -> dict[tuple, Cell]:
    return cells_of(EXPERIMENTS[name], dataset, "d" * 64, version="1", **options)


@pytest.mark.parametrize(
    "change",
    [{"digest": "e" * 64}, {"scenario": "unpaired"}, {"parameters": "{}"}, {"bits": 8}, {"seed": 9}, {"version": "2"},
     {"protocol": "mAP@50"}],
    ids=str,
)  # fmt: skip
def test_the_key_changes_with_what_a_result_depends_on(change):
    cell = next(iter(table("table2").values()))
    assert replace(cell, **change).key != cell.key
    assert replace(cell, limit_seconds=1.0).key == cell.key


def test_tables_share_their_fits():
    ours = "", "AMSH", 64, 0
    keys = {table(name)[ours].key for name in ("table2", "table2-curves", "table5", "convergence", "table4")}
    assert len(keys) == 1
    assert table("table3")[ours].key not in keys  # another scenario
    both = [*table("table2").values(), *table("table2-curves").values()]
    assert len(unique(both)) == len(table("table2"))


def test_quick_is_a_part_of_the_full_run():
    for experiment in EXPERIMENTS.values():
        for dataset in experiment.datasets:
            quick = cells_of(experiment, dataset, "d", quick=True, version="1")
            full = cells_of(experiment, dataset, "d", version="1")
            assert {cell.key for cell in quick.values()} <= {cell.key for cell in full.values()}


def test_quoted_rows_are_not_run():
    assert {key[1] for key in table("table6", "mirflickr25k-cnn")} == {"AMSH_cnn"}


def test_choose_names_what_there_is():
    assert list(choose(EXPERIMENTS, ["table3", "table2"])) == ["table2", "table3"]
    with pytest.raises(ValueError, match=r"table9.*there are table1"):
        choose(EXPERIMENTS, ["table9"])


def test_a_plan_names_absent_and_unreadable_data(tmp_path):
    (tmp_path / "wiki").mkdir()
    (tmp_path / "wiki" / "wiki.npz").write_bytes(b"not a file of arrays")
    plan = make_plan(EXPERIMENTS, root=tmp_path, datasets=["wiki", "mirflickr25k"])
    assert not plan.cells
    assert "convert mirflickr25k" in plan.absent["mirflickr25k"]
    assert "wiki.npz" in plan.broken["wiki"]
    with pytest.raises(ValueError, match="no data set is called wikki"):
        make_plan(EXPERIMENTS, root=tmp_path, datasets=["wikki"])


def test_a_store_keeps_and_refuses(tmp_path):
    store, cell = Store(tmp_path), next(iter(table("table2").values()))
    assert store.read(cell) is None
    assert not store.done(cell)
    store.write(cell, {"error": "no"})
    assert store.done(cell)
    assert not store.done(cell, retry=True)
    store.write(cell, {"seconds": 1})
    assert store.done(cell, retry=True)
    assert store.read(cell)["configuration"]["parameters"]["balance"] == 0.5
    assert [path.name for path in (tmp_path / "cells" / "wiki").iterdir()] == [cell.path.partition("/")[2]]
    (tmp_path / "cells" / cell.path).write_text('{"format": 0}')
    with pytest.raises(ValueError, match="another --results folder"):
        store.read(cell)
