"""A hostile client against the service: nothing may be a 500, take long, take memory or end it.

    python benchmarks/robustness/serve_hostile.py # 10,000 requests by schemathesis, then attacks one by one
    python benchmarks/robustness/serve_hostile.py --requests 500

schemathesis draws requests from the service's own OpenAPI description, half of them as described and half with
something wrong, and checks every answer against it. Then come a picture of 400 megapixels in a few kilobytes, uploads
of 1 GB, a body and a head that trickle in, as many bodies or connections of one address as the service has places for
while a client at another address searches, trailers and line breaks without end, filters of many fields, a picture that
takes long to decode, answers that are not read, paths that lead elsewhere, and tokens that are missing, wrong or in a
trailer. Memory is the most that the process had resident during each attack.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from modalhash import Engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from record import write

TOKEN = "a-token-for-this-run"
GIGABYTE = 2**30


# -- the service


def make_engine(folder: Path) -> Path:
    """50 pictures and 51 texts with labels, and one of the texts with 8 MB of notes."""
    from PIL import Image

    draw, items = random.Random(0), []
    colours = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (30, 40, 200)}
    for number in range(50):
        name = draw.choice(list(colours))
        path = folder / f"{number}.png"
        noise = Image.effect_noise((48, 48), 40).convert("RGB")
        Image.blend(noise, Image.new("RGB", noise.size, colours[name]), 0.7).save(path)
        items.append({"id": f"picture/{number}", "path": str(path), "labels": [name]})
        items.append({"id": f"text {number}", "text": f"something {name} number {number}", "labels": [name]})
    items.append({"id": "long", "text": "something long", "notes": "x" * 8_000_000, "labels": ["red"]})
    Engine.train(items, folder / "engine", n_bits=32).close()
    return folder / "engine"


class Service:
    """`modalhash serve` as a process."""

    def __init__(self, engine: Path, log: Path, *options: str, token: str | None = None) -> None:
        command = [sys.executable, "-c", "from modalhash.cli import main; main()", "serve", str(engine), "--port", "0"]
        env = {**os.environ, **({"MODALHASH_TOKEN": token} if token else {})}
        self.log = log.open("wb")
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=self.log, text=True, env=env
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def megabytes(self, what: str) -> float:
        """``VmRSS``, now, or ``VmHWM``, the most since :meth:`forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{what}:")[2].split()[0]) / 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(60)
        self.log.close()
        return code


@contextmanager
def serving(engine: Path, log: Path, *options: str, token: str | None = None) -> Iterator[Service]:
    service = Service(engine, log, *options, token=token)
    try:
        yield service
    finally:
        assert service.stop() == 0, "the service did not stop well"


# -- attacks: each returns the status of the answer, 0 where the connection was closed without one


def talk(port: int, head: str, body: Iterator[bytes] | tuple[bytes, ...] = (), pause: float = 0.0) -> int:
    """Send as long as the service listens; the status of its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=90) as connection:
        answer = b""
        try:
            connection.sendall(head.replace("\n", "\r\n").encode())
            for part in body:
                if select.select([connection], [], [], pause)[0]:
                    break
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            while b"\r\n" not in answer and (more := connection.recv(65536)):
                answer += more
        except ConnectionResetError:
            pass
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def get(port: int, path: str, *headers: str) -> int:
    lines = "".join(f"{line}\n" for line in headers)
    return talk(port, f"GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n{lines}\n")


def token_in_trailer(port: int) -> int:
    lines = "Host: 127.0.0.1\nTransfer-Encoding: chunked\nConnection: close"
    return talk(port, f"GET /engine HTTP/1.1\n{lines}\n\n0\nAuthorization: Bearer {TOKEN}\n\n")


def upload_head(length: str) -> str:
    kind = "Content-Type: multipart/form-data; boundary=x"
    return f"POST /search HTTP/1.1\nHost: 127.0.0.1\n{kind}\n{length}\n\n"


FILE = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'


def bomb(port: int) -> int:
    """A whole picture of 20,000 × 20,000 pixels."""
    form = FILE + huge_png() + b"\r\n--x--\r\n"
    return talk(port, upload_head(f"Content-Length: {len(form)}"), (form,))


def huge_png(side: int = 20_000) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compressobj(9)
    row = b"\0" + b"\xff" * -(-side // 8)
    pixels = b"".join(rows.compress(row) for _ in range(side)) + rows.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def slow_jpeg(side: int = 4_000, n_bytes: int = 9_000_000) -> bytes:
    """A progressive JPEG with as many passes as an upload may have."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (side, side), (90, 90, 90)).save(out, "JPEG", progressive=True)
    content = out.getvalue()
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + scan * (n_bytes // len(scan)) + content[-2:]


def slow_picture(port: int) -> int:
    form = FILE + slow_jpeg() + b"\r\n--x--\r\n"
    return talk(port, upload_head(f"Content-Length: {len(form)}"), (form,))


def filtered(port: int, n_fields: int) -> int:
    """A search with a filter of many fields with dots."""
    where = " or ".join(f"a.b{n} = {n}" for n in range(n_fields))
    body = json.dumps({"text": "something red", "where": where}).encode()
    head = "POST /search HTTP/1.1\nHost: 127.0.0.1\nContent-Type: application/json\nConnection: close\n"
    return talk(port, f"{head}Content-Length: {len(body)}\n\n", (body,))


def unread(port: int, n: int) -> dict[str, Any]:
    """Ask for an item of 8 MB on each of ``n`` connections, and read only the statuses; then as ``crowd``."""
    statuses: Counter[str] = Counter()
    with ExitStack() as opened:
        for _ in range(n):
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(90)
            connection.connect(("127.0.0.1", port))
            connection.sendall(b"GET /items/long HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            statuses[connection.recv(12).decode()[9:]] += 1
        return {"status": crowd(port, 0, b""), "answers": dict(statuses)}


def zeros(total: int, *, chunked: bool) -> Iterator[bytes]:
    part = bytes(2**20)
    yield f"{len(FILE):x}\r\n".encode() + FILE + b"\r\n" if chunked else FILE
    for _ in range(total // len(part)):
        yield f"{len(part):x}\r\n".encode() + part + b"\r\n" if chunked else part


def slowly(part: bytes, seconds: float) -> Iterator[bytes]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield part


def crowd(port: int, n: int, part: bytes) -> int:
    """Open connections from one address, send a part of a request on each; what another address gets for a search."""
    body = b'{"text": "something red"}'
    head = "POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with ExitStack() as opened:
        for _ in range(n):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=90))
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(part)
        with socket.create_connection(("127.0.0.1", port), timeout=90, source_address=("127.0.0.2", 0)) as other:
            try:
                other.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = other.recv(65536)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
    return int(answer.split()[1]) if answer else 0


def attacks(port: int) -> dict[str, Callable[[], int | dict[str, Any]]]:
    """By name."""
    length = f"Content-Length: {GIGABYTE}"
    json_head = "POST /search HTTP/1.1\nHost: 127.0.0.1\nContent-Type: application/json\nContent-Length: 100000\n\n"
    chunked_head = json_head.replace("Content-Length: 100000", "Transfer-Encoding: chunked")
    found: dict[str, Callable[[], int | dict[str, Any]]] = {
        "a picture of 400 megapixels": lambda: bomb(port),
        "1 GB, length told": lambda: talk(port, upload_head(length), zeros(GIGABYTE, chunked=False)),
        "1 GB, in chunks": lambda: talk(port, upload_head("Transfer-Encoding: chunked"), zeros(GIGABYTE, chunked=True)),
        "1 GB of JSON": lambda: talk(port, json_head.replace("100000", str(GIGABYTE)), zeros(GIGABYTE, chunked=False)),
        "a body that trickles in": lambda: talk(port, json_head, slowly(b" ", 80), pause=0.2),
        "a head that trickles in": lambda: talk(port, "GET /engine HTTP/1.1\nX: ", slowly(b"x", 80), pause=0.2),
        "200 MB of trailers": lambda: talk(port, f"{chunked_head}0\n", (b"a:b\r\n" * 20_000 for _ in range(2_000))),
        "a trailer of 200 MB": lambda: talk(port, f"{chunked_head}0\na: ", (b"b" * 100_000 for _ in range(2_000))),
        "an extension of a chunk of 200 MB": lambda: talk(
            port, f"{chunked_head}1;", (b"b" * 100_000 for _ in range(2_000))
        ),
        "line breaks that trickle in": lambda: talk(port, "\n", slowly(b"\r\n", 80), pause=0.2),
        "256 slow bodies of one address": lambda: crowd(port, 256, json_head.replace("\n", "\r\n").encode() + b"{"),
        "1,024 silent connections of one address": lambda: crowd(port, 1024, b""),
        "100 unread answers of one address": lambda: unread(port, 100),
        "a filter of 12 dotted fields": lambda: filtered(port, 12),
        "a filter of 200 dotted fields": lambda: filtered(port, 200),
        "a picture of endless passes": lambda: slow_picture(port),
        "a head of 1 MB": lambda: get(port, "/engine", *(f"X-{n}: {'x' * 1000}" for n in range(1000))),
        "JSON 100,000 levels deep": lambda: talk(
            port, json_head.replace("100000", "200000"), (b"[" * 100_000 + b"]" * 100_000,)
        ),
        "no HTTP": lambda: talk(port, "\x16\x03\x01 what is this\n\n"),
        "another host's name": lambda: talk(port, "GET / HTTP/1.1\nHost: evil.example\n\n"),
        "from another site": lambda: talk(
            port, "POST /search HTTP/1.1\nHost: 127.0.0.1\nOrigin: http://evil.example\nContent-Length: 0\n\n"
        ),
    }
    for path in (
        "/media/../../../../etc/passwd",
        "/media/..%2f..%2f..%2fetc%2fpasswd",
        "/media/%2e%2e/%2e%2e/etc/passwd",
        "/media/%252e%252e%252fetc%252fpasswd",
        "/media/%2fetc%2fpasswd",
        "/media/etc/passwd%00.png",
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e%5capp.py",
        "/docs/..%2fapp.py",
        "/items/..%2f..%2fconfig.json",
    ):
        found[path] = lambda path=path: get(port, path)
    return found


# -- requests that schemathesis draws


def fuzz(service: Service, n: int) -> dict[str, Any]:
    """``n`` requests, each answer checked against the description; what was wrong, by kind."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    base = f"http://127.0.0.1:{service.port}"
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    statuses, failures = Counter(), Counter()

    def run(operation: Any, mode: GenerationMode, examples: int, **fixed: Any) -> None:
        @settings(
            max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck), derandomize=True,
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode, **fixed))
        def one(case: Any) -> None:
            answer = case.call(base_url=base, timeout=60)
            statuses[answer.status_code] += 1
            try:
                case.validate_response(answer, checks=checks)
            except Exception as error:
                failures[f"{operation.label}: {str(error)[:400]}"] += 1

        one()

    start, rounds = time.perf_counter(), 0
    while sum(statuses.values()) < n:
        before = sum(statuses.values())
        tasks = [
            (operation, mode, fixed)
            for operation in operations
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
            for fixed in ({}, {"path_parameters": {"id": "picture/7"}})
            if not fixed or (operation.method == "get" and "{id}" in operation.path)  # an item that is there
        ]
        for operation, mode, fixed in tasks:
            try:
                run(operation, mode, max(1, (n - before) // len(tasks) + 1), **fixed)
            except Exception as error:  # some operations have nothing that could be wrong
                if "nsatisfiable" not in type(error).__name__:
                    raise
        rounds += 1
        if sum(statuses.values()) == before or rounds > 50:
            break
    return {
        "requests": sum(statuses.values()),
        "seconds": round(time.perf_counter() - start, 1),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "server_errors": sum(count for status, count in statuses.items() if status in (500, 502, 504)),
        "failures": dict(failures.most_common(10)),
    }


# -- all of it


def one_attack(service: Service, name: str, attack: Callable[[], int | dict[str, Any]]) -> dict[str, Any]:
    service.forget_peak()
    before, start = service.megabytes("VmRSS"), time.perf_counter()
    found = attack()
    seconds = time.perf_counter() - start
    alive = service.process.poll() is None and get(service.port, "/livez") == 200
    row = {
        "attack": name,
        **(found if isinstance(found, dict) else {"status": found}),
        "seconds": round(seconds, 2),
        "alive": alive,
    }
    row |= {"MB_before": round(before, 1), "MB_most": round(service.megabytes("VmHWM"), 1)}
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--output", default="serve_hostile")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        engine, log = make_engine(Path(scratch)), Path(scratch) / "log.jsonl"
        with serving(engine, log, "--writable") as service:
            before = service.megabytes("VmRSS")
            drawn = {"attack": "schemathesis", **fuzz(service, args.requests)}
            drawn |= {"MB_before": round(before, 1), "MB_most": round(service.megabytes("VmHWM"), 1)}
            rows.append({**drawn, "alive": get(service.port, "/livez") == 200})
            print(json.dumps(rows[-1], indent=1), flush=True)
            rows += [one_attack(service, name, attack) for name, attack in attacks(service.port).items()]
        mistakes = [line for line in log.read_text().splitlines() if '"where"' in line]
        with serving(engine, Path(scratch) / "log-2.jsonl", token=TOKEN) as service:
            for name, status, headers in (
                ("no token", 401, ()),
                ("a wrong token", 401, ("Authorization: Bearer wrong-token",)),
                ("the token as a cookie", 401, (f"Cookie: modalhash={TOKEN}",)),
                ("the right token", 200, (f"Authorization: Bearer {TOKEN}",)),
            ):
                rows.append(one_attack(service, name, lambda headers=headers: get(service.port, "/engine", *headers)))
                rows[-1]["expected"] = status
            rows.append(one_attack(service, "the token in a trailer", lambda: token_in_trailer(service.port)))
            rows[-1]["expected"] = 401
    wrong = [row for row in rows if not row["alive"] or row.get("status", 400) >= 500 or row.get("failures")]
    wrong += [
        row for row in rows if row.get("server_errors") or row.get("expected", row.get("status")) != row.get("status")
    ]
    wrong += [row for row in rows if row["attack"].endswith("of one address") and row["status"] != 200]
    wrong += [row for row in rows if row["attack"].startswith("/") and row["status"] not in (400, 404, 422)]
    write(args.output, rows)
    for problem in (*wrong, *mistakes):
        print("WRONG:", problem)
    print(f"{rows[0]['requests']:,} drawn requests and {len(rows) - 1} attacks: {len(wrong) + len(mistakes)} wrong")
    sys.exit(bool(wrong or mistakes))


if __name__ == "__main__":
    main()
