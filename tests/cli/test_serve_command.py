"""``modalhash serve`` as typed: ready, in the way, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from urllib.request import Request, urlopen

import pytest

import modalhash
from command_line import run
from modalhash.core.imports import install_line

for package in ("starlette", "uvicorn", "python_multipart"):
    pytest.importorskip(package, reason=f"{package} is not installed (extra serve)")


@pytest.fixture(scope="module")
def engine(world):
    return world / "engine"


def start(engine, *options, **env):
    code = "from modalhash.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(engine), "--port", "0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env},
    )  # fmt: skip


def test_help_teaches():
    shown = run("serve", "--help")
    assert shown.exit_code == 0
    for word in ("modalhash serve engine", "MODALHASH_TOKEN", "--writable", "/docs", "Exit code", "Ctrl-C"):
        assert word in shown.output


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_stops_well(engine, sign):
    service = start(engine, "--example", "red ball")
    address = service.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    with urlopen(f"{address}engine") as answer:
        assert json.load(answer)["examples"] == ["red ball"]
    body = json.dumps({"text": "a red ball", "k": 2}).encode()
    with urlopen(Request(f"{address}search", body, {"Content-Type": "application/json"})) as answer:
        assert len(json.load(answer)["hits"]) == 2
    service.send_signal(sign)
    out, err = service.communicate(timeout=30)
    assert service.returncode == 0
    assert err == "stopped\n"
    assert [json.loads(line)["path"] for line in out.splitlines()] == ["/engine", "/search"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pipes of a chosen size")
@pytest.mark.parametrize("stalled", ["stdout", "stderr"])
@pytest.mark.slow
def test_a_log_that_stalls_and_one_that_is_closed_stop_nothing(engine, stalled):
    import fcntl

    service = start(engine)
    for output in (service.stdout, service.stderr):
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, 4096)
    port = int(service.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    (service.stdout if stalled == "stderr" else service.stderr).close()
    for _ in range(60):
        for request, status in (
            (b"GET /nosuch HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n", b" 404 "),
            (b"no HTTP\r\n\r\n", b" 400 "),
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(request)
                assert status in connection.recv(65536)
    service.terminate()
    assert service.wait(20) == 0
    getattr(service, stalled).close()


def test_a_port_that_is_in_use(engine):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", engine, "--port", taken.getsockname()[1])
    assert done.exit_code == 2
    assert "is in use; choose another one (--port), or 0" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("nosuch",), "nosuch does not exist; expected an engine"),
        (("ENGINE", "--host", "0.0.0.0"), "other machines can reach the service"),
        (("ENGINE", "--token", "short"), "expected at least 8"),
        (("ENGINE", "--trust-proxy", "proxy.example"), "expected an address such as 127.0.0.1"),
        (("ENGINE", "--host", "203.0.113.7", "--without-token"), "cannot listen at 203.0.113.7"),
        (("ENGINE", "--host", "no such host", "--without-token"), "cannot listen at no such host"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(engine, options, message):
    done = run("serve", "--port", 0, *(engine if option == "ENGINE" else option for option in options))
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_extra_is_named(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setattr(modalhash, "serve", import_module("modalhash.serve"))  # restored with the modules below
    for name in [name for name in sys.modules if name.startswith("modalhash.serve")]:
        monkeypatch.delitem(sys.modules, name)
    done = run("serve", engine)
    assert done.exit_code == 2
    assert install_line("serve") in done.stderr


@pytest.mark.slow
def test_a_token_from_the_environment(engine):
    service = start(engine, "--quiet", MODALHASH_TOKEN="correct-horse")
    address = service.stdout.readline().strip()
    with pytest.raises(OSError, match="401"):
        urlopen(f"{address}engine")
    with urlopen(Request(f"{address}engine", headers={"Authorization": "Bearer correct-horse"})) as answer:
        assert answer.status == 200
    service.terminate()
    assert service.communicate(timeout=30)[1] == "stopped\n"


def test_limits_and_their_defaults_are_those_of_the_service(engine, monkeypatch):
    from modalhash.cli import serve
    from modalhash.serve import Limits

    seen = []
    monkeypatch.setattr(serve, "serve_until_stopped", lambda engine, settings, sock, **_: seen.append(settings))
    options = ("--max-connections", 9, "--max-bodies", 8, "--max-wrong-tokens", 7, "--trust-proxy", "10.0.0.0/8")
    for more in ((), options):
        assert run("serve", engine, "--port", 0, *more).exit_code == 0
    assert seen[0].limits == Limits()
    limits = seen[1].limits
    assert (limits.connections_per_address, limits.bodies_per_address, limits.wrong_tokens) == (9, 8, 7)
    assert seen[1].trusted_proxies == ("10.0.0.0/8",)


@pytest.mark.parametrize("quiet", ["", "1"])
def test_a_start_that_takes_long_says_why(engine, monkeypatch, quiet):
    from modalhash.cli import serve

    waited = threading.Event()
    monkeypatch.setenv("MODALHASH_QUIET", quiet)
    monkeypatch.setattr(serve, "PATIENCE", 0.0)
    monkeypatch.setattr(serve, "_say_if_read", lambda text: (print(text), waited.set()))
    monkeypatch.setattr(
        serve, "serve_until_stopped", lambda *_, on_ready, **__: (quiet or waited.wait(20), on_ready("address"))
    )
    lines = run("serve", engine, "--port", 0).stdout.splitlines()
    assert lines[-2:] == ["address", "stopped"]
    assert ("Still starting" in lines[0]) == (not quiet)


@pytest.mark.parametrize(("options", "expected"), [((), False), (("--index", "clusters"), True)])
def test_clusters_are_made_where_they_are_asked_for(engine, monkeypatch, options, expected):
    from modalhash.cli import serve

    seen = []
    monkeypatch.setattr(
        serve, "serve_until_stopped", lambda engine, *_, **__: seen.append(engine.index._clusters.is_built)
    )
    assert run("serve", engine, "--port", 0, *options).exit_code == 0
    assert seen == [expected]


def test_filters_of_search(engine):
    red = [
        line.split("\t")
        for line in run("search", engine, "a blue box", "--label", "red", "--label", "circle").stdout.splitlines()
    ]
    assert red
    assert all({"red", "circle"} <= set(row[4].split("; ")) for row in red)
    assert run("search", engine, "a blue box", "--kind", "hashed").stdout == ""
    assert run("search", engine, "a blue box", "--kind", "other").exit_code == 2
