"""Pictures to upload, requests on a connection of their own, and an engine that waits."""

from __future__ import annotations

import io
import json
import threading
from http.client import HTTPConnection


def picture(colour=(200, 30, 30), size=(60, 40), kind="PNG", **options):
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, kind, **options)
    return out.getvalue()


def ask(port, body=None, method="POST", path="/search", source="127.0.0.1", **headers):
    """Status, headers and JSON of the answer to one request, sent from an address of this machine."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20, source_address=(source, 0))
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), json.load(answer)


def status_of(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


def body_of(answer: bytes) -> dict:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


class Held:
    """Makes the searches of an engine wait until they are let go; ``calls`` has the size of each batch."""

    def __init__(self, engine):
        self.begun, self.go, self.calls = threading.Event(), threading.Event(), []
        answer = engine.answer

        def held(queries, options):
            self.calls.append(len(queries))
            self.begun.set()
            assert self.go.wait(20)
            return answer(queries, options)

        engine.answer = held
