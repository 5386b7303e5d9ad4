"""Threads for products and for short calls: order, memory, failures, and one BLAS thread each."""

from __future__ import annotations

import os
import threading
from itertools import repeat

import pytest
from threadpoolctl import threadpool_limits

from modalhash.core.parallel import (
    blas_threads,
    numba_threads,
    parallel_map,
    parallel_threads,
    pool_map,
    submit,
    worker_threads,
)


def test_parallel_map_keeps_the_order_and_bounds_what_waits():
    with threadpool_limits(2, user_api="blas"):
        started = []
        values = parallel_map(lambda i: started.append(i) or i * i, list(range(100)))
        assert next(values) == 0
        assert len(started) <= 6  # two at work, four waiting
        assert list(values) == [i * i for i in range(1, 100)]
        assert blas_threads() == 2


def test_a_failure_comes_back_and_leaves_no_trace():
    def fail(i):
        raise KeyError(i)

    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(KeyError):
            list(parallel_map(fail, [1, 2, 3]))
        assert blas_threads() == 2
        assert list(parallel_map(abs, [-1, -2])) == [1, 2]


def test_workers_have_a_blas_of_one_thread_and_no_workers_of_their_own():
    def inner(_):
        return blas_threads(), {threading.get_ident() for _ in parallel_map(lambda x: x, [1, 2, 3])}

    with threadpool_limits(2, user_api="blas"), worker_threads():
        assert blas_threads() == 1
        for threads, used in parallel_map(inner, [1, 2, 3, 4]):
            assert threads == 1
            assert len(used) == 1
    with threadpool_limits(1, user_api="blas"):
        here = list(parallel_map(lambda _: threading.get_ident(), [1, 2, 3]))
        assert set(here) == {threading.get_ident()}  # one BLAS thread: nothing is started


def test_several_arguments_are_taken_as_map_takes_them():
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            assert list(parallel_map(pow, [1, 2, 3], repeat(2))) == [1, 4, 9]
            assert list(parallel_map(pow, [], repeat(2))) == []
    assert pool_map(pow, [1, 2, 3], repeat(2), n_threads=2) == [1, 4, 9]
    assert pool_map(pow, [], repeat(2), n_threads=2) == []


def test_parallel_threads_are_those_of_blas_inside_and_outside():
    with threadpool_limits(2, user_api="blas"):
        assert parallel_threads() == 2
        with worker_threads():
            assert (blas_threads(), parallel_threads()) == (1, 2)


def test_the_pool_stays():
    def thread(_):
        barrier.wait(10)
        return threading.get_ident()

    barrier = threading.Barrier(2)
    first, second = (set(pool_map(thread, range(2), n_threads=2)) for _ in range(2))
    assert first == second
    assert threading.get_ident() not in first
    assert pool_map(lambda _: threading.get_ident(), range(2), n_threads=1) == [threading.get_ident()] * 2
    assert numba_threads() >= 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own():
    assert pool_map(abs, [-1, -2], n_threads=2) == [1, 2]
    child = os.fork()
    if not child:
        os._exit(0 if pool_map(abs, [-1, -2], n_threads=2) == [1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_submitted_values_can_be_asked_for_in_any_order(threads):
    with threadpool_limits(threads, user_api="blas"), worker_threads():
        waits = [submit(pow, number, 2) for number in range(5)]
        assert list(parallel_map(abs, [-1, -2, -3])) == [1, 2, 3]
        assert [wait() for wait in reversed(waits)] == [16, 9, 4, 1, 0]
        assert waits[3]() == 9


def test_submitted_calls_run_in_workers_or_here_where_there_are_none():
    with threadpool_limits(2, user_api="blas"):
        with worker_threads():
            ident, threads = submit(lambda: (threading.get_ident(), blas_threads()))()
        assert (ident != threading.get_ident(), threads, blas_threads()) == (True, 1, 2)
        assert submit(threading.get_ident)() == threading.get_ident()


def test_calls_and_blocks_share_the_workers():
    two_at_work, threads = threading.Barrier(2, timeout=60), set()

    def work(_):
        threads.add(threading.get_ident())
        two_at_work.wait()

    with threadpool_limits(2, user_api="blas"), worker_threads():
        waits = [submit(work, number) for number in range(3)]
        list(parallel_map(work, range(5)))
        for wait in waits:
            wait()
    assert len(threads) == 2


def test_an_error_is_raised_where_the_submitted_value_is_asked_for():
    with threadpool_limits(2, user_api="blas"), worker_threads():
        wait = submit(divmod, 1, 0)
        assert submit(divmod, 7, 2)() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            wait()


def test_calls_that_nothing_waited_for_are_dropped_at_the_end():
    begun, go_on = threading.Event(), threading.Event()

    def first():
        begun.set()
        go_on.wait(60)

    done = []
    with threadpool_limits(2, user_api="blas"):
        with worker_threads():
            for _ in range(2):
                submit(first)
            submit(done.append, 1)
            begun.wait(60)
            threading.Timer(0.05, go_on.set).start()
        assert done == []
        assert blas_threads() == 2
