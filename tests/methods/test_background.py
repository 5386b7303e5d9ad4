"""Calls beside the rest of a fit: values, errors, one thread, and nothing left running."""

from __future__ import annotations

import threading

import pytest
from threadpoolctl import threadpool_limits

from modalhash._parallel import blas_threads, parallel_map, worker_threads
from modalhash.methods._background import background


@pytest.mark.parametrize("threads", [1, 2])
def test_values_come_when_they_are_asked_for_in_any_order(threads):
    with threadpool_limits(threads, user_api="blas"), background() as begin:
        waits = [begin(pow, number, 2) for number in range(5)]
        assert list(parallel_map(abs, [-1, -2, -3])) == [1, 2, 3]  # blocks go on beside
        assert [wait() for wait in reversed(waits)] == [16, 9, 4, 1, 0]
        assert waits[3]() == 9  # as often as one likes


def test_calls_run_in_other_threads_with_a_blas_of_one_thread():
    with threadpool_limits(2, user_api="blas"):
        with background() as begin:
            ident, threads = begin(lambda: (threading.get_ident(), blas_threads()))()
        assert (ident != threading.get_ident(), threads, blas_threads()) == (True, 1, 2)
    with threadpool_limits(1, user_api="blas"), background() as begin:
        assert begin(threading.get_ident)() == threading.get_ident()  # one thread asked for, one used


def test_calls_and_blocks_share_the_workers():
    """As many threads as BLAS had, else each would wait for a core in the middle of its work; and no fewer."""
    two_at_work, threads = threading.Barrier(2, timeout=60), set()

    def work(_):
        threads.add(threading.get_ident())
        two_at_work.wait()

    with threadpool_limits(2, user_api="blas"), background() as begin:
        waits = [begin(work, number) for number in range(3)]
        list(parallel_map(work, range(5)))
        for wait in waits:
            wait()
    assert len(threads) == 2


def test_a_block_within_workers_leaves_them_running_and_drops_its_own_calls():
    with threadpool_limits(2, user_api="blas"), worker_threads():
        with background() as begin:
            wait = begin(pow, 2, 5)
        assert wait.__self__.done()  # done, or dropped
        assert list(parallel_map(abs, [-1, -2])) == [1, 2]


def test_an_error_is_raised_where_the_value_is_asked_for():
    with threadpool_limits(2, user_api="blas"), background() as begin:
        wait = begin(divmod, 1, 0)
        assert begin(divmod, 7, 2)() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            wait()


def test_calls_that_have_not_begun_are_dropped_at_the_end():
    go, done = threading.Event(), []

    def fail_with_a_call_waiting():
        with background() as begin:
            for _ in range(2):  # both threads are busy
                begin(go.wait, 10)
            future = begin(done.append, "never").__self__
            future.add_done_callback(lambda _: go.set())  # dropping it frees the others
            raise KeyError("the fit failed")

    with threadpool_limits(2, user_api="blas"), pytest.raises(KeyError):
        fail_with_a_call_waiting()
    assert go.is_set()
    assert done == []
