"""The page of an engine: every section says something true, of any engine, and nothing of an item runs in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from modalhash import Engine
from modalhash.engine import report, report_page
from modalhash.engine.report import code_statistics, code_statistics_by_modality

VOID = {"meta", "img", "br", "rect", "line", "circle"}
HOSTILE = '<script>alert(1)</script> & "quoted"'


class Page(HTMLParser):
    """Checks that tags are balanced, and collects them with their attributes and all texts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_of(engine) -> Page:
    page = Page(report_page(engine))
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/")), "nothing comes from elsewhere"
    return page


@pytest.mark.slow
def test_a_page_of_an_engine_with_few_items_says_what_it_cannot_tell(engine):
    page = page_of(engine)
    titles = re.findall(r"Items|Labels|Quality on new items|Confidence|Codes|Searches", page.text)
    assert list(dict.fromkeys(titles)) == ["Items", "Labels", "Quality on new items", "Confidence", "Codes", "Searches"]
    assert "60 labelled image items are too few" in page.text
    assert "Hits have no confidence" in page.text
    assert "5 labels, on 120 items. 5 of them are in every modality" in page.text
    assert "These queries are items of the engine" in page.text
    assert "Good searches" in page.text
    pictures = [own["src"] for tag, own in page.tags if tag == "img"]
    assert any(source.startswith("data:image/jpeg") for source in pictures)


@pytest.mark.slow
def test_what_items_say_is_shown_and_does_not_run(engine):
    engine.add([{"id": HOSTILE, "text": f"a red ball {HOSTILE}", "labels": [HOSTILE]}])
    engine.config["expected"] = {"examples": [
        {"kind": "good", "query": ["text", HOSTILE], "hits": [["text", HOSTILE], ["image", "gone"]], "right": 0.5, "share_right": 0.1}
    ], "reason": HOSTILE}  # fmt: skip
    page = page_of(engine)
    assert f"a red ball {HOSTILE}" in page.text
    assert "5 of the first 10 hits share a label with it, 1.0 by chance" in page.text
    assert f"Only on text items: 1 ( {HOSTILE} 1 )".replace(" ", "") in page.text.replace(" ", "").replace("\xa0", "")


def test_an_engine_that_is_empty_and_read_only_has_a_page(engine):
    with Engine.open(engine.path) as opened:
        opened.remove([record.id for record in opened.items()])
    engine.close()
    before = sorted((path, path.stat().st_mtime_ns) for path in engine.path.rglob("*.json"))
    with Engine.open(engine.path, read_only=True) as opened:
        page = page_of(opened)
    assert sorted((path, path.stat().st_mtime_ns) for path in engine.path.rglob("*.json")) == before
    for words in ("No item has a label", "There are no items", "nothing to search with"):
        assert words in page.text


def test_pictures_that_are_gone_are_said_to_be_and_their_number_is_bounded(engine, monkeypatch):
    monkeypatch.setattr(report, "MAX_PICTURES", 5)
    page = page_of(engine)
    assert sum(tag == "img" and "matrix" not in (own.get("class") or "") for tag, own in page.tags) >= 5
    assert len({own["src"] for tag, own in page.tags if tag == "img" and "jpeg" in own["src"]}) <= 5
    assert "pictures are not shown: they would make the page too large" in page.text
    monkeypatch.setattr(report, "MAX_PICTURES", 100)
    engine.config["expected"] = {"reason": "", "examples": [
        {"kind": "bad", "query": ["text", "items.csv:3"], "hits": [["image", "photos/0.png"]], "right": 0.0, "share_right": 0.5}
    ]}  # fmt: skip
    monkeypatch.setattr(engine, "path_of", lambda item: None if item.uri is None else Path("/nowhere") / item.id)
    assert "pictures are not shown: no such file" in page_of(engine).text


def test_bits_that_say_nothing_or_the_same_are_seen(rng):
    bits = rng.integers(0, 2, (4000, 12), dtype=np.uint8)
    bits[:, 3], bits[:, 5], bits[:, 7] = 1, bits[:, 4], 1 - bits[:, 4]
    use = code_statistics(np.packbits(bits, axis=1), 12)
    assert use.n_constant == 1
    assert use.entropy[3] == pytest.approx(0, abs=1e-6)
    assert use.entropy[0] == pytest.approx(1, abs=0.01)
    assert use.correlation[4, 5] == pytest.approx(1, abs=1e-3)
    assert use.correlation[4, 7] == pytest.approx(-1, abs=1e-3)
    assert use.effective_bits == pytest.approx(11**2 / (8 + 9), rel=0.02), "three of eleven are one"
    same = code_statistics(np.zeros((3, 2), dtype=np.uint8), 12)
    assert (same.distinct, same.largest, same.effective_bits) == (1, 3, 0.0)


def test_codes_are_looked_at_by_modality_and_not_more_than_so_many(engine):
    assert {name: use.n for name, use in code_statistics_by_modality(engine.store).items()} == {"image": 60, "text": 60}
    some = code_statistics_by_modality(engine.store, max_codes=50)
    assert sum(use.n for use in some.values()) == 40
