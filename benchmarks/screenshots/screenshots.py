"""Screenshots of the page of a running service: every state, at four widths, in both themes.

    modalhash demo &                                                     # or: modalhash serve ENGINE
    python benchmarks/screenshots/screenshots.py http://127.0.0.1:8000/ --out shots

Needs Playwright and Chromium. What a page looks like is judged by looking at it; the tests of the page
are in tests/serve.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

SIZES = {"phone": (360, 740), "tablet": (768, 1024), "laptop": (1280, 800), "wide": (1920, 1080)}
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


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


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="of a running service, with a slash at its end")
    parser.add_argument("--text", default="medal", help="what to search for")
    parser.add_argument("--picture", type=Path, help="what to search by; the nearest to --picture-of if left out")
    parser.add_argument("--picture-of", default="red car", help="words for the picture to search by")
    parser.add_argument("--out", type=Path, required=True, help="folder for all states, widths and themes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        photographer = Photographer(browser, args.url, args.text, args.picture or picture_of(args.url, args.picture_of))
        for width in SIZES:
            for theme in ("light", "dark"):
                for state in photographer.states:
                    name = f"{width}-{theme}-{state.replace(', ', '-').replace(' ', '-')}.png"
                    (args.out / name).write_bytes(photographer.take(width, theme, state))
        browser.close()


if __name__ == "__main__":
    main()
