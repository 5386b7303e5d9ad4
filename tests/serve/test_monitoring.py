"""The log: JSON lines without secrets, and a service that keeps running if they cannot be written."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys

import pytest

from modalhash.serve import monitoring


@pytest.fixture
def loud(make_client, capsys):
    """A client of a service that logs, and a function that returns the lines of the access or the error log so far."""
    logged = {"out": [], "err": []}

    def make(**settings):
        client = make_client(**{"quiet": False, **settings})

        def lines(output="out"):
            monitoring.flush_logs()
            for name, text in capsys.readouterr()._asdict().items():
                logged[name].extend(map(json.loads, text.splitlines()))
            return logged[output]

        return client, lines

    return make


def test_the_log_has_a_line_per_request(loud):
    client, lines = loud()
    client.get("/engine?secret=1")
    client.post("/search", json={"text": "a secret wish"})
    client.get("/nosuch/" + "x" * 500)
    found = lines()
    assert [(line["request"], line["method"], line["status"]) for line in found] == [
        (1, "GET", 200), (2, "POST", 200), (3, "GET", 404),
    ]  # fmt: skip
    assert found[0]["path"] == "/engine"
    assert found[1]["bytes"] > 100
    assert found[1]["ms"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found[0]["time"])
    assert len(found[2]["path"]) < 210
    assert "secret" not in json.dumps(found)


def test_the_log_knows_no_token(loud):
    client, lines = loud(token="correct-horse")
    client.get("/?token=correct-horse")
    client.get("/engine", headers={"Authorization": "Bearer correct-horse"})
    client.get("/engine?token=wrong-horse")
    found = lines()
    assert [line["status"] for line in found] == [303, 200, 200]
    assert "horse" not in json.dumps(found)


def test_a_quiet_service_logs_nothing_but_its_own_errors(loud, monkeypatch):
    client, lines = loud(quiet=True)
    client.get("/engine")
    monkeypatch.setattr(client.app.state.service.searcher.batcher, "_work", None)
    assert client.post("/search", json={"text": "red"}).status_code == 500
    assert lines() == []
    assert [line["error"] for line in lines("err")] == ["TypeError"]


def test_an_internal_error_is_a_number_and_no_trace(loud, monkeypatch):
    client, lines = loud()

    def broken(requests):
        raise RuntimeError("the secret wish was /etc/passwd")

    monkeypatch.setattr(client.app.state.service.searcher.batcher, "_work", broken)
    answer = client.post("/search", json={"text": "a secret wish"})
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "internal error; see request 1 in the log of the service", "status": 500, "request": 1,
    }  # fmt: skip
    assert answer.headers["x-content-type-options"] == "nosniff"
    (found,) = lines("err")
    assert found["error"] == "RuntimeError"
    assert "in broken" in found["where"]
    assert "secret wish was" not in found["where"].replace('raise RuntimeError("the secret wish was /etc/passwd")', "")
    (access,) = lines()
    assert (access["request"], access["status"]) == (1, 500)
    assert "where" not in access, "the trace is in the error log alone"


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError("no reader")


@pytest.mark.parametrize("stream", ["closed", "broken", "missing"])
def test_the_service_goes_on_where_nothing_can_be_logged(make_client, monkeypatch, stream):
    streams = {"closed": io.StringIO(), "broken": Broken(), "missing": None}
    streams["closed"].close()
    client = make_client(quiet=False)
    monkeypatch.setattr(client.app.state.service.searcher.batcher, "_work", None)
    monkeypatch.setattr(sys, "stdout", streams[stream])
    monkeypatch.setattr(sys, "stderr", streams[stream])
    assert client.get("/engine").status_code == 200
    assert client.post("/search", json={"text": "red"}).status_code == 500
    assert client.get("/engine").status_code == 200


class Pipe:
    """An output whose reader stands still; ``lines`` reads it at last."""

    def __init__(self):
        self.reader, self.writer = os.pipe()

    def fileno(self):
        return self.writer

    def fill(self):
        os.set_blocking(self.writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.writer, b"x" * 4096)
        os.set_blocking(self.writer, True)

    def lines(self, end):
        text = b""
        while end not in text:
            text += os.read(self.reader, 65536)
        return text.lstrip(b"x").splitlines()


def record(number):
    return logging.makeLogRecord({"fields": {"request": number}})


def test_a_log_that_nobody_reads_holds_nobody_up(monkeypatch):
    pipe = Pipe()
    pipe.fill()
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(monitoring, "MAX_WAITING_LINES", 10)
    monkeypatch.setattr(monitoring, "FLUSH_SECONDS", 0.05)
    handler = monitoring.BackgroundHandler("stdout")
    handler.start()
    for number in range(100):
        handler.emit(record(number))
    handler.flush()
    pipe.lines(b'"request": 5')
    monkeypatch.setattr(monitoring, "FLUSH_SECONDS", 20)
    handler.flush()
    handler.emit(record(100))
    found = [json.loads(line) for line in pipe.lines(b'"request": 100') if line]
    dropped = next(line["event"] for line in found if "event" in line)
    assert re.fullmatch(r"(89|90) lines were dropped", dropped)


def test_a_program_may_handle_the_log_itself(make_client, monkeypatch, capsys):
    records = []

    class Handler(logging.Handler):
        def emit(self, record):
            records.append((record.name, record.getMessage(), record.fields["status"]))

    monkeypatch.setattr(monitoring.LOGGER, "handlers", [Handler()])
    monitoring.LOGGER.setLevel(logging.INFO)
    make_client(quiet=False).get("/items/a%0Ab")
    assert records == [("modalhash.serve.access", r"GET '/items/a\nb' 404", 404)]
    assert capsys.readouterr().err == ""


def test_other_libraries_are_logged_in_the_same_form():
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "Invalid %s\n", ("request",), None)
    assert json.loads(monitoring.JSONFormatter().format(record))["event"] == "uvicorn: Invalid request"
