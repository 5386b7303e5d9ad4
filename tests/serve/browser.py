"""A small engine, the service in a thread, and a Chromium that notices whatever goes wrong on a page."""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import threading
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from little_world import make_world

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
EVIL = "<script>window.owned = 1</script><img src=x onerror='window.owned = 2'> a violet ball"
STRANGE = 'folder/50% ?#&"<img src=x onerror=window.owned=3>.png'
TOKEN = "s3cret&more"


def missing(why: str) -> None:
    """Skip, except in CI, where these tests have to run."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def chromium():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the page is tested with playwright, which is not installed (extra test-all)")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing(f"the page is tested in Chromium, and none of {', '.join(NAMES)} is on the path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """60 pictures of shapes, 60 texts about such, and items whose texts, labels and ids are hostile."""
    from modalhash.engine import Engine

    folder = tmp_path_factory.mktemp("world")
    with make_world(folder / "items").open(encoding="utf-8", newline="") as file:
        rows = [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]
    for number, row in enumerate(rows):
        if "path" in row:
            row.update(id=row["path"], path=str(folder / "items" / row["path"]))
        else:
            row["id"] = f"text {number}"
    rows.append({"id": "evil", "text": EVIL, "labels": "red;circle;<b>violet</b>"})
    rows.append({"id": STRANGE, "path": str(folder / "items" / "photos" / "0.png"), "labels": "red;circle"})
    with Engine.train(rows, folder / "engine", n_bits=32) as engine:
        yield engine


class Service:
    """The real service, in a thread."""

    def __init__(self, engine, port: int = 0, **settings) -> None:
        import uvicorn

        from modalhash.serve import Settings, make_app

        app = make_app(engine, Settings(quiet=True, **settings))
        ready = threading.Event()

        class Server(uvicorn.Server):
            async def startup(self, sockets=None) -> None:
                await super().startup(sockets)
                ready.set()

        self.socket = socket.create_server(("127.0.0.1", port))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._server = Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.socket]})
        self._thread.start()
        assert ready.wait(30)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self.socket.close()


@contextmanager
def serving(engine, **settings):
    service = Service(engine, **settings)
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="module")
def url(engine):
    with serving(engine, examples=("red ball", "blue box")) as service:
        yield service.url


class Visitor:
    """A browser window; whatever goes wrong in it is a failure at the end, unless it was expected."""

    def __init__(self, browser, url: str, **options) -> None:
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        self.url = url
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(30_000)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.expected: tuple[str, ...] = ()
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self._look_at)
        self.page.expose_function("__violated", lambda what: self.wrong.append(f"policy: {what}"))
        self.page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => window.__violated(e.violatedDirective + e.blockedURI))"
        )

    def _look_at(self, request) -> None:
        if not request.url.startswith((self.url, "blob:", "data:")):
            self.wrong.append(f"left the host: {request.url}")

    def open(self, address: str = ""):
        self.page.goto(self.url + address)
        return self.page

    def search(self, text: str) -> None:
        self.page.get_by_role("searchbox").fill(text)
        self.page.get_by_role("searchbox").press("Enter")
        self.until_results()

    def until_results(self) -> None:
        """Wait for an answer to be shown: the number of cards that the summary states."""
        self.page.wait_for_function(
            """() => {
                const shown = document.querySelector("#summary").textContent.match(/^([0-9]+) nearest/);
                return shown && document.querySelectorAll("#results article.card").length === Number(shown[1]);
            }"""
        )

    def give(self, kind: str, name: str, content: bytes, type: str) -> None:
        """Drop or paste a file."""
        self.page.evaluate(
            """([kind, name, content, type]) => {
                const carried = new DataTransfer();
                carried.items.add(new File([new Uint8Array(content)], name, { type }));
                const options = { bubbles: true, cancelable: true };
                if (kind === "paste") document.dispatchEvent(new ClipboardEvent(kind, { ...options, clipboardData: carried }));
                else document.body.dispatchEvent(new DragEvent(kind, { ...options, dataTransfer: carried }));
            }""",
            [kind, name, list(content), type],
        )

    def close(self) -> None:
        self.context.close()
        unexpected = [text for text in self.wrong if not any(part in text for part in self.expected)]
        assert unexpected == []


@pytest.fixture
def visitor(chromium, url):
    with visiting(chromium, url) as one:
        yield one


@contextmanager
def visiting(chromium, url, **options):
    one = Visitor(chromium, url, **options)
    yield one
    one.close()


def picture(engine, word: str) -> bytes:
    """A picture of the engine with this label."""
    found = next(hit for hit in engine.items() if hit.modality == "image" and word in hit.labels)
    return (engine.path / found.uri).read_bytes()


SAID = [
    {"rank": 1, "confidence": 0.97, "shared_labels": ["red", "circle"], "found_by": ["code", "words"], "score": 0.9},
    {"rank": 1, "confidence": 0.80, "shared_labels": ["red"], "labels": [], "found_by": ["code", "features"]},
    {"rank": 3, "confidence": 0.55, "extra": {"name": "The red ball", "year": 2004}},
    {"rank": 4, "confidence": 0.30, "weak": True, "found_by": ["code"]},
    {"rank": 5, "confidence": 0.0, "weak": True, "shared_labels": []},
    {"rank": 6},
    {"rank": 7, "confidence": 0.20, "found_by": ["words"]},
]
"""What an answer may say of its first hits, whatever this engine would."""
STUBBED = ("min_confidence",)
"""Options of the stub that replaces this service, whose engine has no confidence."""


@contextmanager
def answering(page, **fields):
    """Answer searches by words with `SAID` and these fields in them; yields the bodies of the searches."""
    bodies = []

    def answer(route):
        bodies.append(json.loads(route.request.post_data))
        sent = {name: value for name, value in bodies[-1].items() if name not in STUBBED}
        response = route.fetch(post_data=json.dumps(sent))
        found = response.json()
        for hit, more in zip(found["hits"], SAID, strict=False):
            for name in ("confidence", "weak", "score", "shared_labels"):
                hit.pop(name, None)
            hit.update(more)
        route.fulfill(response=response, json={**found, **fields})

    page.route("**/search", answer)
    yield bodies
    page.unroute("**/search")


def announce(page, *, options=(), **facts):
    """Make the engine's facts say these, and that a search takes these options."""

    def answer(route):
        response = route.fetch()
        engine = response.json()
        route.fulfill(response=response, json={**engine, **facts, "options": [*engine["options"], *options]})

    page.route("**/engine", answer)


def groups_of(engine) -> dict:
    """An answer of duplicates: two groups, of two and three pictures."""
    found = [hit.to_dict() for hit in engine.search(text="red ball", want="image", k=5)]
    for hit in found:
        hit["media"] = f"/media/{quote(hit['id'], safe='')}?modality=image"
    return {"groups": [found[:2], found[2:]], "exact": [True, False], "sizes": [2, 60], "more": False, "message": None}
