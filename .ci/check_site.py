r"""Check the built documentation: `make docs` runs it on `site/` and fails if it finds something.

- No page shows the source of a formula, or reStructuredText, outside of code (such as ``:class:`` or ``\frac``).
- Every link within the site leads to a page, and to a heading on it.
- Nothing is loaded from another server, and what draws formulas is there with its licence.

Links that leave the site are listed, and not followed: whether they work is for a person to see.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

RAW = re.compile(r":(?:math|class|func|meth|attr|data|mod|exc|obj|ref):|\\[A-Za-z]{2,}|``|\.\. \w+::|\$\$")
UNREAD = ("code", "pre", "script", "style", "svg")
VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "video": "src", "audio": "src"}
KATEX = ("katex.min.js", "katex.min.css", "LICENSE")


class Page(HTMLParser):
    """Texts, resources and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.raw: list[str] = []
        self.formulas = 0
        self._open: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found and tag != "meta"}
        formula = "arithmatex" in found.get("class", "").split()
        self.formulas += formula
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADED and LOADED[tag] in found:
            self.loads.append(found[LOADED[tag]])
        if tag == "link" and {"stylesheet", "preload", "icon"} & set(found.get("rel", "").split()):
            self.loads.append(found.get("href", ""))
        if tag not in VOID:
            self._open.append((tag, formula or tag in UNREAD))

    def handle_endtag(self, tag: str) -> None:
        while any(name == tag for name, _ in self._open) and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not any(unread for _, unread in self._open):
            self.raw += [data[max(0, at.start() - 20) : at.end() + 20].strip() for at in RAW.finditer(data)]


def is_elsewhere(link: str) -> bool:
    """Return whether a link leaves the site."""
    return bool(re.match(r"(?:[a-z][a-z0-9+.-]*:)?//|mailto:", link))


def check(site: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Return the problems of a site, and its external links with the pages that have them."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    problems: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        problems += [f"{name}: shows the source of a formula or of markup: {text!r}" for text in page.raw]
        problems += [
            f"{name}: loads {link}, which is not part of the site" for link in page.loads if is_elsewhere(link)
        ]
        for link in page.links:
            if is_elsewhere(link):
                elsewhere.setdefault(link, []).append(name)
            elif not link.startswith(("javascript:", "data:")) and (wrong := broken(site, path, link, pages)):
                problems.append(f"{name}: {wrong}")
    if any(page.formulas for page in pages.values()):
        problems += [
            f"assets/katex/{file} is missing; `make docs` fetches it"
            for file in KATEX
            if not (site / "assets" / "katex" / file).is_file()
        ]
    return problems, elsewhere


def broken(site: Path, path: Path, link: str, pages: dict[Path, Page]) -> str | None:
    """Return the problem of a link within the site, if any."""
    address, anchor = urldefrag(link)
    if path.name == "404.html" and address.startswith("/"):
        target = site / address.lstrip("/")
    else:
        target = (path.parent / unquote(address)).resolve() if address else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return f"the link {link} leads nowhere"
    known = next((page for other, page in pages.items() if other.resolve() == target.resolve()), None)
    if anchor and known is not None and unquote(anchor) not in known.ids:
        return f"the link {link} leads to no heading"
    return None


def main() -> int:
    """Check a site, print its external links, and return the exit code."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    problems, elsewhere = check(site)
    print(f"{len(elsewhere)} links leave the documentation; they were not followed:")
    for link, names in sorted(elsewhere.items()):
        print(f"  {link}  ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
