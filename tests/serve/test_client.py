"""Search a service from Python: its answers, and errors that say whether to try again."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from modalhash.serve.client import ServiceClient, ServiceError


@contextmanager
def answering(reply):
    """A fake service: ``reply(handler)`` writes the answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            reply(self)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def replying(status, content):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()

    def reply(handler):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answering(reply)


def cut(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"hits": [')


def test_a_search_by_text_and_by_picture(engine, serve):
    with serve() as server:
        client = ServiceClient(f"http://127.0.0.1:{server.port}/")
        answer = client.search(text="a red ball", want=["image"], k=3)
        photo = engine.path_of(engine.get(answer["hits"][0]["id"]))
        same = client.search(image=photo.read_bytes(), want=["image"], labels=["red"], k=1, refine=False)
    hits = engine.search(text="a red ball", want="image", k=3)
    assert [(hit["id"], hit["distance"]) for hit in answer["hits"]] == [(hit.id, hit.distance) for hit in hits]
    assert all(hit["media"].startswith(f"{client.url}/media/") for hit in answer["hits"])
    assert same["hits"][0]["distance"] == 0


@pytest.mark.parametrize(
    ("service", "error", "message"),
    [
        (lambda: replying(200, b"<html>"), ServiceError, "is not a modalhash service"),
        (lambda: replying(200, {"items": []}), ServiceError, "an answer without hits"),
        (lambda: replying(401, {"error": "a token is needed"}), ServiceError, "status 401: a token is needed"),
        (lambda: replying(422, {"error": "k is 0"}), ValueError, "k is 0"),
        (lambda: replying(503, {"error": "busy"}), ConnectionError, "status 503: busy"),
        (lambda: replying(429, {"error": "too much"}), ConnectionError, "status 429"),
        (lambda: answering(cut), ConnectionError, "the answer ended after 10 of 5000 bytes"),
        (lambda: answering(lambda handler: handler.connection.close()), ConnectionError, "the connection ended"),
    ],
)
def test_errors_say_whether_to_try_again(service, error, message):
    with service() as url, pytest.raises(error, match=message):
        ServiceClient(url).search(text="a red ball")


def test_an_answer_that_does_not_come_ends_in_time():
    ended = threading.Event()
    with answering(lambda handler: ended.wait(20)) as url:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
            ServiceClient(url, timeout=0.2).search(text="a red ball")
        ended.set()


def test_what_is_given_wrongly():
    with pytest.raises(ValueError, match=r"expected e\.g\. http"):
        ServiceClient("localhost:8000")
    with pytest.raises(ValueError, match="timeout"):
        ServiceClient("http://a", timeout=0)
    with pytest.raises(TypeError, match="expected either text or image"):
        ServiceClient("http://a").search()
