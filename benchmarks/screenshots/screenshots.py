"""Screenshots of the page of a running service: every state, at four widths, in both themes.

    modalhash demo &                                                     # or: modalhash serve ENGINE
    python benchmarks/screenshots/screenshots.py http://127.0.0.1:8000/ --out shots
    python benchmarks/screenshots/screenshots.py --demo demo --readme docs/images     # make screenshots

The last runs `modalhash demo` in the folder `demo` and makes every picture of what it shows: `demo.svg`, what it prints
(terminal.py), the three of its page that the README shows, and `first-hits.json`, which says what is found first on
each. tests/cli/test_demo_words.py compares text and hits with those of a fresh demonstration.

Needs Playwright and Chromium. What a page looks like is judged by looking at it; the tests of the page
are in tests/serve.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

SIZES = {"phone": (360, 740), "tablet": (768, 1024), "laptop": (1280, 800), "wide": (1920, 1080), "tall": (1280, 1072)}
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
COLOURS = 200
"""Of a kept screenshot: few enough for a small file, enough for drawings."""
SCALE = 1.75
"""Pixels of a kept screenshot per pixel of the page: sharp on most screens."""
README = {
    "page-words": ("tall", "light", "words, with details", "music"),
    "page-picture": ("laptop", "dark", "a picture", ""),
    "page-phone": ("phone", "light", "words, scrolled", "fruit"),
}

FIRST_HITS = "first-hits.json"
"""What the pictures for the README show first, beside them."""
PICTURE = "1F697"
"""The emoji whose picture is searched by: a car."""


class Photographer:
    """Brings a page into a state and takes its picture."""

    def __init__(self, browser: Any, url: str, text: str, picture: Path | dict[str, Any]) -> None:
        self.browser, self.url, self.text, self.picture = browser, url, text, picture
        self.states: dict[str, Callable[[Any], None]] = {
            "start": self.start,
            "words": self.words,
            "a picture": self.a_picture,
            "everything": self.everything,
            "error": self.error,
            "nothing": self.nothing,
            "words, with details": self.detailed,
            "words, one large": self.large,
            "words, scrolled": self.scrolled,
        }

    def take(self, width: str, theme: str, state: str, *, scale: float = 1) -> bytes:
        """A PNG of the page in one state."""
        size = dict(zip(("width", "height"), SIZES[width], strict=True))
        context = self.browser.new_context(viewport=size, color_scheme=theme, device_scale_factor=scale)
        try:
            page = context.new_page()
            self.states[state](page)
            page.wait_for_load_state("networkidle")
            page.wait_for_function("() => document.getAnimations().every(one => one.playState === 'finished')")
            return bytes(page.screenshot())
        finally:
            context.close()

    def start(self, page: Any) -> None:
        page.goto(self.url)
        page.wait_for_selector("#results .tile")

    def words(self, page: Any) -> None:
        self.start(page)
        page.fill("#query", self.text)
        page.press("#query", "Enter")
        page.wait_for_selector("body[data-state=results] article.card")
        page.evaluate("document.activeElement.blur()")

    def a_picture(self, page: Any) -> None:
        self.start(page)
        page.set_input_files("#file", self.picture)
        page.wait_for_selector("body[data-state=results] article.card")
        page.get_by_label("texts").check()
        page.wait_for_function("() => document.querySelector('#summary').textContent.includes(' texts')")
        page.evaluate("document.activeElement.blur()")

    def everything(self, page: Any) -> None:
        self.words(page)
        page.get_by_label("everything").check()
        page.wait_for_function("() => document.querySelector('#summary').textContent.includes(' items')")
        page.evaluate("document.activeElement.blur()")

    def error(self, page: Any) -> None:
        page.goto(f"{self.url}?id=no+such+item")
        page.wait_for_selector("#message h2")

    def nothing(self, page: Any) -> None:
        """No engine finds nothing unless it is empty, so the answer is emptied on its way."""
        self.start(page)

        def empty(route: Any) -> None:
            answer = route.fetch()
            route.fulfill(response=answer, json={**answer.json(), "hits": []})

        page.route("**/search", empty)
        page.fill("#query", self.text)
        page.press("#query", "Enter")
        page.wait_for_selector("#message h2")

    def detailed(self, page: Any) -> None:
        self.words(page)
        page.locator("#results .details summary").first.click()
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")

    def large(self, page: Any) -> None:
        self.words(page)
        page.locator("#results .tile").first.click()
        page.wait_for_selector("#viewer img")

    def scrolled(self, page: Any) -> None:
        self.words(page)
        page.evaluate("scrollTo(0, document.querySelector('.report').offsetTop)")


def ask(url: str, **fields: Any) -> dict[str, Any]:
    request = Request(f"{url}search", json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def picture_of(url: str, text: str) -> dict[str, Any]:
    """The nearest picture to a text, to be given as if it were somebody's own."""
    media = next(hit["media"] for hit in ask(url, text=text, k=1, want=["image"])["hits"])
    with urlopen(f"{url.rstrip('/')}{media}", timeout=60) as answer:
        return {"name": f"{text}.png", "mimeType": "image/png", "buffer": answer.read()}


@contextmanager
def demo_page(folder: Path) -> Iterator[str]:
    """Run `modalhash demo` in a folder and give the address of its page, with a slash at its end."""
    command = [sys.executable, "-m", "modalhash", "demo", "--folder", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                print(line, end="", flush=True)
                if found := re.search(r"Open (http://\S+)", line):
                    yield f"{found[1].rstrip('/')}/"
                    return
            raise RuntimeError(f"the demonstration ended before its page: {' '.join(command)}")
        finally:
            running.terminate()


def first_hits(folder: Path) -> dict[str, dict[str, str]]:
    """The first hits that the README's pictures show, as ids: words find pictures, a picture finds words.

    `folder` is that of a demonstration; the page asks its engine the same.
    """
    from modalhash import Engine

    words = [text for *_, text in README.values() if text]
    with Engine.open(folder / "engine") as engine:
        by_words = {word: engine.search(text=word, want="image", k=1)[0].id for word in words}
        by_picture = engine.search(image=folder / "pictures" / f"{PICTURE}.png", want="text", k=1)[0].id
    return {"words": by_words, "pictures": {PICTURE: by_picture}}


def small(png: bytes) -> bytes:
    """The same picture in few colours."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True)
    return out.getvalue()


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", help="of a running service, with a slash at its end; or --demo")
    parser.add_argument("--demo", type=Path, help="folder of a demonstration to run, instead of an address")
    parser.add_argument("--text", default="medal", help="what to search for")
    parser.add_argument("--picture", type=Path, help="what to search by; the nearest to --picture-of if left out")
    parser.add_argument("--picture-of", default="red car", help="words for the picture to search by")
    parser.add_argument("--out", type=Path, help="folder for all states, widths and themes")
    parser.add_argument("--readme", type=Path, help="folder for the three that the README shows")
    args = parser.parse_args()
    if (args.url is None) == (args.demo is None):
        parser.error("give the address of a running service, or --demo and a folder")
    if args.demo is None:
        photograph(args, args.url, sync_playwright)
        return
    if args.readme:
        from terminal import PICTURE as PRINTED, record_demo, save_picture

        print("The demonstration is trained, which takes a minute or more.", flush=True)
        save_picture(record_demo(args.demo), args.readme / PRINTED)
    with demo_page(args.demo) as url:
        args.picture = args.picture or args.demo / "pictures" / f"{PICTURE}.png"
        photograph(args, url, sync_playwright)
    if args.readme:
        content = json.dumps(first_hits(args.demo), ensure_ascii=False, indent=1)
        (args.readme / FIRST_HITS).write_text(f"{content}\n", encoding="utf-8")


def photograph(args: argparse.Namespace, url: str, sync_playwright: Callable[[], Any]) -> None:
    """Take the pictures that were asked for."""
    picture = args.picture or picture_of(url, args.picture_of)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        photographer = Photographer(browser, url, args.text, picture)
        for folder in filter(None, (args.out, args.readme)):
            folder.mkdir(parents=True, exist_ok=True)
        if args.out:
            for width in ("phone", "tablet", "laptop", "wide"):
                for theme in ("light", "dark"):
                    for state in photographer.states:
                        name = f"{width}-{theme}-{state.replace(', ', '-').replace(' ', '-')}.png"
                        (args.out / name).write_bytes(photographer.take(width, theme, state))
        if args.readme:
            for name, (width, theme, state, text) in README.items():
                photographer.text = text
                content = small(photographer.take(width, theme, state, scale=SCALE))
                (args.readme / f"{name}.png").write_bytes(content)
                print(f"{name}.png: {len(content) / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
