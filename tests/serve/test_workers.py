"""Several workers as real processes: all see the changes of one, and clients do not notice a replacement.

Starting two processes takes some seconds, so most tests share a service; each leaves it as it found it, serving.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException

import pytest

from modalhash.serve.worker_state import REQUESTS_PER_WORKER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs signals and /proc"),
]
DEADLINE = 90


class Service:
    """A service as typed, with what it writes to its two outputs."""

    def __init__(self, engine, *options, **env):
        code = "from modalhash.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", str(engine), "--port", "0", "--workers", "2", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        self.address = self.process.stdout.readline().strip()
        self.lines = {"out": [], "err": []}
        self.changed = threading.Condition()
        self.readers = [
            threading.Thread(target=self._read, args=(name, pipe), daemon=True)
            for name, pipe in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, name, pipe):
        for line in pipe:
            with self.changed:
                self.lines[name].append(json.loads(line) if line.startswith("{") else line)
                self.changed.notify_all()

    def wait_for(self, condition):
        """Wait for lines that make a condition true."""
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.lines), DEADLINE), self.lines["err"]

    def events(self, name):
        return [line for line in self.lines["err"] if isinstance(line, dict) and line["event"] == name]

    def connect(self):
        return HTTPConnection("127.0.0.1", int(self.address.rstrip("/").rpartition(":")[2]), timeout=DEADLINE)

    def ask(self, path, body=None, connection=None, method=None, **headers):
        """Status and body of the answer to a request; on a connection of its own if none is given."""
        own = connection or self.connect()
        headers = {"Content-Type": "application/json", **headers}
        own.request(method or ("GET" if body is None else "POST"), path, json.dumps(body) if body else None, headers)
        answer = own.getresponse()
        content = answer.read()
        if connection is None:
            own.close()
        return answer.status, json.loads(content) if content.startswith(b"{") else content.decode()

    def one_connection_to_each(self):
        """A connection to each of two workers, found by the numbers of their requests."""
        found = {}
        end = time.monotonic() + DEADLINE
        while len(found) < 2:
            assert time.monotonic() < end, "one worker takes all connections"
            connection = self.connect()
            before = len(self.lines["out"])
            assert self.ask("/healthz", connection=connection)[0] == 200
            self.wait_for(lambda lines, before=before: len(lines["out"]) > before)
            # the newest of each: an idle one is closed while a new worker takes its time to start
            found[self.lines["out"][before]["request"] // REQUESTS_PER_WORKER] = connection
        return list(found.values())

    def workers(self):
        """The processes that serve."""
        _, text = self.ask("/metrics")
        assert "process_open_fds" in text
        children = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                try:
                    with open(f"/proc/{entry}/stat") as file:
                        parent = int(file.read().rpartition(")")[2].split()[1])
                    with open(f"/proc/{entry}/cmdline") as file:
                        is_worker = "spawn_main" in file.read()
                except (OSError, ProcessLookupError):
                    continue
                if parent == self.process.pid and is_worker:
                    children.append(int(entry))
        return children

    def searches(self):
        """The number of searches that all workers have counted."""
        _, text = self.ask("/metrics")
        found = [line for line in text.splitlines() if line.startswith('modalhash_searches_total{by="text"}')]
        return float(found[0].split()[1]) if found else 0.0

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(DEADLINE)
        for reader in self.readers:
            reader.join(DEADLINE)
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()
        return code


@pytest.fixture(scope="module")
def folder(little_engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers") / "engine"
    shutil.copytree(little_engine, folder)
    return folder


@pytest.fixture(scope="module")
def service(folder):
    service = Service(folder, "--writable")
    yield service
    assert service.stop() == 0
    assert service.lines["err"][-1] == "stopped\n"


def test_what_one_worker_adds_and_removes_all_see(service):
    connections = service.one_connection_to_each()
    for number, writer in enumerate(connections):
        id = f"added-{number}"
        status, _ = service.ask("/items", {"text": "a red ball in the rain", "id": id}, writer)
        assert status == 201
        for reader in connections:
            body = {"text": "a red ball in the rain", "k": 5, "want": "text"}
            assert id in [hit["id"] for hit in service.ask("/search", body, reader)[1]["hits"]]
        assert service.ask(f"/items/{id}", None, writer, "DELETE")[0] == 200
        for reader in connections:
            assert service.ask(f"/items/{id}", None, reader)[0] == 404


def test_metrics_are_added_over_workers(service):
    before = service.searches()
    for connection in service.one_connection_to_each():
        for _ in range(3):
            assert service.ask("/search", {"text": "a red ball", "k": 1}, connection)[0] == 200
    assert service.searches() == before + 6
    text = service.ask("/metrics")[1]
    assert text.count("\nprocess_resident_memory_bytes ") == 1, "the sum"
    assert "pid=" not in text


def test_a_restart_of_all_workers_fails_no_request(service):
    """Clients that keep their connections, and others that open one for each request, search all the while."""
    workers, before, counted = set(service.workers()), len(service.events("worker_replaced")), service.searches()
    stop, results, problems = threading.Event(), [], []

    def search(keep):
        connection = service.connect()
        try:
            while not stop.is_set():
                results.append(service.ask("/search", {"text": "a red ball", "k": 1}, connection if keep else None)[0])
        except (OSError, HTTPException) as error:
            problems.append(repr(error))

    clients = [threading.Thread(target=search, args=(keep,)) for keep in (True, True, False)]
    for client in clients:
        client.start()
    service.process.send_signal(signal.SIGHUP)
    try:
        service.wait_for(lambda lines: len(service.events("worker_replaced")) == before + 2)
    finally:
        stop.set()
        for client in clients:
            client.join(DEADLINE)
    assert problems == []
    assert set(results) == {200}
    assert len(results) > 10
    assert workers.isdisjoint(service.workers())
    assert len(service.workers()) == 2
    assert service.searches() == counted + len(results), "what the old ones counted stays"


def test_a_worker_that_is_killed_is_replaced(service, until):
    workers, before = service.workers(), len(service.events("worker_ended"))
    os.kill(workers[0], signal.SIGKILL)
    service.wait_for(lambda lines: len(service.events("worker_ended")) == before + 1)
    assert service.events("worker_ended")[-1]["exit_code"] == -signal.SIGKILL
    assert service.ask("/search", {"text": "a red ball", "k": 1})[0] == 200, "the other one still answers"
    until(lambda: len(service.workers()) == 2, DEADLINE)
    assert workers[0] not in service.workers()
    for connection in service.one_connection_to_each():
        assert service.ask("/search", {"text": "a red ball", "k": 1}, connection)[0] == 200


def test_workers_that_are_all_killed_during_a_replacement_start_again(service, until):
    before = set(service.workers())
    service.process.send_signal(signal.SIGHUP)
    until(lambda: len(service.workers()) == 3, DEADLINE)
    killed = service.workers()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: _answers(service) and len(service.workers()) == 2, DEADLINE)
    assert before.isdisjoint(service.workers())
    assert set(killed).isdisjoint(service.workers())
    for connection in service.one_connection_to_each():
        assert service.ask("/search", {"text": "a red ball", "k": 1}, connection)[0] == 200


def _answers(service):
    try:
        return service.ask("/healthz")[0] == 200
    except (OSError, HTTPException):
        return False


def test_a_change_in_a_new_engine_is_seen_by_workers_that_still_have_the_old_one(service, folder):
    from modalhash import Engine

    connections = service.one_connection_to_each()
    with Engine.open(folder) as engine:
        engine.retrain()
    for number, writer in enumerate(connections):
        id = f"new-{number}"
        assert service.ask("/items", {"text": "a red ball on the new engine", "id": id}, writer)[0] == 201
        for reader in connections:
            body = {"text": "a red ball on the new engine", "k": 5, "want": "text"}
            assert id in [hit["id"] for hit in service.ask("/search", body, reader)[1]["hits"]]


def test_each_worker_has_its_share_of_limits_cookies_are_those_of_the_service_and_workers_do_not_outlive_it(
    folder, until
):
    service = Service(folder, "--max-wrong-tokens", "4", MODALHASH_TOKEN="correct-horse")
    wrong = {"Authorization": "Bearer wrong-horse"}
    first, second = service.one_connection_to_each()
    first.request("GET", "/?token=correct-horse")
    answer = first.getresponse()
    answer.read()
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    assert [service.ask("/engine", None, one, **cookie)[0] for one in (first, second)] == [200, 200]
    for connection in (first, second, first, second):
        assert service.ask("/engine", None, connection, **wrong)[0] == 401
    for connection in (first, second):
        status, body = service.ask("/engine", None, connection, **wrong)
        assert status == 429
        assert "wrong tokens" in body["error"]
    service.process.kill()
    service.process.wait(DEADLINE)

    def refused():
        try:
            service.ask("/healthz")
        except OSError:
            return True
        return False

    until(refused, DEADLINE)
    service.stop()


def test_an_engine_that_cannot_be_opened_is_one_line_and_exit_code_2(tmp_path):
    service = Service(tmp_path / "nosuch")
    assert service.address == ""
    assert service.stop() == 2
    assert len(service.lines["err"]) == 1
    assert "does not exist; expected an engine" in service.lines["err"][0]
