"""Targets that are requests to the service: JSON bodies, forms, and heads with any method, path and headers."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from fuzzing import seeds
from fuzzing.target import BrokenPromise, Target

JSON_KIND, FORM_KIND = b"application/json", b"multipart/form-data; boundary=x"


class _Service(Target):
    room = "service"
    weight = 2
    seconds = 10.0

    def __init__(self, folder: Path, shared: Path) -> None:
        from modalhash import Engine
        from modalhash.serve import Limits, Settings, make_app

        super().__init__(folder, shared)
        shutil.rmtree(folder / "engine", ignore_errors=True)
        shutil.copytree(shared / "engine", folder / "engine")
        self.loop = asyncio.new_event_loop()
        self.engine = Engine.open(folder / "engine")
        limits = Limits(pixels=10**6, wrong_tokens=10**9, requests_per_address=10**6)
        self.app = make_app(self.engine, Settings(quiet=True, writable=True, limits=limits))
        self.lifespan = self.app.router.lifespan_context(self.app)
        self.loop.run_until_complete(self.lifespan.__aenter__())

    def ask(self, method: str, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> tuple[int, bytes]:
        """Send a request and return status and body of the answer; a status of 500 or more is a broken promise."""
        plain, _, query = path.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote_to_bytes(plain).decode("utf-8", "replace"),
            "raw_path": plain,
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), *headers],
            "client": ("127.0.0.1", 5000),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        half = len(body) // 2
        waiting: list[dict[str, Any]] = [
            {"type": "http.request", "body": body[:half], "more_body": True},
            {"type": "http.request", "body": body[half:], "more_body": False},
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        self.loop.run_until_complete(self.app(scope, receive, send))
        if not sent or sent[0]["type"] != "http.response.start":
            raise BrokenPromise("no answer")
        status = int(sent[0]["status"])
        if status >= 500:
            raise BrokenPromise(f"status {status}", method)
        return status, b"".join(message.get("body", b"") for message in sent[1:])

    def post(self, kind: bytes, body: bytes) -> str | None:
        """Search with a body, and add it as an item, which is removed again."""
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        searched, _ = self.ask("POST", b"/search", headers, body)
        added, answer = self.ask("POST", b"/items", headers, body)
        if added == 201:
            item = json.loads(answer)["added"]
            self.engine.remove([item["id"]], modality=item["modality"])
        return "taken" if 200 in (searched,) or added == 201 else "refused"

    def close(self) -> None:
        self.loop.run_until_complete(self.lifespan.__aexit__(None, None, None))
        self.engine.close()


class JsonBody(_Service):
    """A JSON body, sent to `/search` and to `/items`."""

    name = "service-json"
    is_json = True
    tokens = (
        b'"text"', b'"item"', b'"modality"', b'"want"', b'"k"', b'"where"', b'"labels"', b'"id"', b'"radius"',
        b'"order"', b'"words"', b'"match"', b'"kind"', b"null", b"true", b"1e999", b"-1", b"[" * 3000,
        b"\\ud800", b"\\u0000",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return [
            b'{"text": "something red", "k": 5, "want": ["image"], "where": {"label": "red"}}',
            b'{"text": "red", "where": "year > 1995 and label in (red, blue)"}',
            b'{"item": "text 3", "modality": "text", "k": 3}',
            b'{"text": "a new one", "id": "n", "labels": ["red"], "modality": "text"}',
        ]

    def run(self, data: bytes) -> str | None:
        return self.post(JSON_KIND, data)


class FormBody(_Service):
    """A form with fields and a picture, sent to `/search` and to `/items`."""

    name = "service-form"
    tokens = (
        b"--x\r\n", b"--x--\r\n", b"\r\n\r\n", b'Content-Disposition: form-data; name="image"; filename="a.png"',
        b'name="text"', b'name="k"', b'name="where"', b'name="labels"', b'name="id"', b"filename*=utf-8''%ff",
        b"Content-Type: image/png", b"Content-Transfer-Encoding: base64", b"charset=undefined",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        def field(name: bytes, value: bytes, more: bytes = b"") -> bytes:
            return b'--x\r\nContent-Disposition: form-data; name="' + name + b'"' + more + b"\r\n\r\n" + value + b"\r\n"

        file = b'; filename="a.png"\r\nContent-Type: image/png'
        found = [
            field(b"text", b"red") + field(b"k", b"3") + field(b"want", b"image") + field(b"where", b"label = red")
        ]
        found += [
            field(b"image", picture, file) + field(b"labels", b"red") + field(b"id", b"n")
            for picture in seeds.pictures()[:8:3]
        ]
        return [form + b"--x--\r\n" for form in found]

    def run(self, data: bytes) -> str | None:
        return self.post(FORM_KIND, data)


class RequestHead(_Service):
    """A head: method, path, query and headers, as a server passes them on."""

    name = "service-head"
    tokens = (
        b"GET ", b"POST ", b"DELETE ", b"HEAD ", b"OPTIONS ", b"/search", b"/items/", b"/media/", b"/engine",
        b"/duplicates", b"/metrics", b"/static/", b"/docs", b"/openapi.json", b"/health", b"?size=64",
        b"?modality=image", b"&where=", b"?token=", b"%00", b"%ff", b"%2e%2e%2f", b"../", b"\norigin: ",
        b"\nrange: bytes=", b"\ncookie: modalhash=", b"\nauthorization: Bearer ", b"\ncontent-type: ", b"\nhost: ",
        b"http://[", b"\ncontent-length: ", b"\nif-none-match: ", b"\nx-forwarded-for: ", b"\naccept-encoding: ",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return [
            b"GET /engine",
            b"GET /items/text%203?modality=text\naccept: application/json",
            b"GET /media/picture%2F3?size=64\nrange: bytes=0-9",
            b"GET /",
            b"GET /duplicates?where=label%20%3D%20red&modality=image",
            b"POST /search\ncontent-type: application/json\norigin: http://127.0.0.1",
            b"GET /metrics",
            b"GET /static/app.js",
            b"GET /health",
            b"DELETE /items/nosuch",
            b"OPTIONS /search\norigin: http://evil.example\naccess-control-request-method: POST",
            b"HEAD /docs\nif-none-match: x",
            b"GET /openapi.json",
            b"GET /docs",
        ]

    def run(self, data: bytes) -> str | None:
        first, *lines = data.split(b"\n")
        method, _, path = first.partition(b" ")
        headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        status, _ = self.ask(method.decode("latin-1"), path, headers, b'{"text": "red"}')
        return "taken" if status < 400 else "refused"


TARGETS = [JsonBody, FormBody, RequestHead]
