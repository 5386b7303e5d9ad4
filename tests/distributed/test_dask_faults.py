"""Workers that die during a fit change nothing of its result; without any worker it ends with an error."""

from __future__ import annotations

import numpy as np
import pytest

from dask_cluster import Cluster, need_dask
from modalhash import AMSH
from modalhash.data import generate
from modalhash.distributed import ClusterError, arrays

pytestmark = pytest.mark.slow

MODEL = AMSH(16, solver="samples", n_anchors=500, function_iter=3, code_iter=2, memory_limit="16MB", random_state=0)
MOMENTS = {  # the last that is heard of a fit before a worker is killed
    "features": ("codes (samples)", 2),
    "Gram matrix": ("features", 1),
    "step 2": ("functions: image", 1),
}


@pytest.fixture(scope="module")
def data():
    return generate(n_items=2500, seed=5)


@pytest.fixture(scope="module")
def undisturbed(data):
    model = AMSH(**MODEL.get_params()).fit(data.X, data.Y)
    return model.codes_, model.functions_


@pytest.fixture(scope="module")
def workers():
    need_dask()
    with Cluster(3) as three:
        yield three


def as_dask(data):
    import dask.array as da

    return {name: da.from_array(values, chunks=(600, -1)) for name, values in data.X.items()}, data.Y


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_worker_changes_nothing(data, undisturbed, workers, moment):
    busy = [worker for worker in workers.workers if worker.poll() is None]
    if len(busy) < 2:
        busy.append(workers.add_worker())
        workers.client().wait_for_workers(2)
    heard = []

    def kill(progress):
        heard.append((progress.stage, progress.step))
        if heard.count(MOMENTS[moment]) == 1 and heard[-1] == MOMENTS[moment]:
            busy[0].kill()
            busy[0].wait()

    model = AMSH(**MODEL.get_params()).fit(*as_dask(data), callback=kill)
    assert busy[0].poll() is not None
    codes, functions = undisturbed
    for name in codes:
        np.testing.assert_array_equal(model.codes_[name].compute(), codes[name])
        np.testing.assert_array_equal(model.functions_[name], functions[name])


def test_when_all_workers_are_dead_it_says_so(data, monkeypatch):
    need_dask()
    monkeypatch.setattr(arrays, "PATIENCE", 0.5)
    monkeypatch.setattr(arrays, "ASK_EVERY", 0.2)
    with Cluster(1) as alone:

        def kill(progress):
            for worker in alone.workers:
                worker.kill()

        with pytest.raises(ClusterError, match="has had no workers for"):
            AMSH(**MODEL.get_params()).fit(*as_dask(data), callback=kill)


def test_without_a_scheduler_it_says_so(data, monkeypatch):
    need_dask()
    monkeypatch.setattr(arrays, "ASK_EVERY", 0.2)
    with Cluster(1) as alone:
        alone.client(timeout=1)

        def kill(progress):
            alone.scheduler.kill()

        with pytest.raises(ClusterError, match="scheduler"):
            AMSH(**MODEL.get_params()).fit(*as_dask(data), callback=kill)
