"""The page in a browser: what an answer says of its hits, and groups of duplicates."""

# ruff: noqa: F401, F811  (fixtures are imported, and then are names of parameters)
from __future__ import annotations

import pytest
from browser import announce, answering, chromium, engine, groups_of, url, visitor

CARDS = "#results article.card"


def test_a_card_says_why_it_matched(visitor):
    with answering(visitor.page):
        page = visitor.open("?q=red+ball&k=6")
        visitor.until_results()
        first, second, third, fourth, fifth, last = page.locator(CARDS).all()
        assert [card.locator(".rank").inner_text() for card in (first, second, third)] == [
            "Tied 1st",
            "Tied 1st",
            "3rd",
        ]
        assert first.locator(".rank").get_attribute("title") == "2 of these are equally near"
        assert first.locator(".shared .label").all_inner_texts() == ["red", "circle"]
        assert first.get_by_text("Contains your words").count() == 1
        assert second.get_by_text("Contains your words").count() == 0
        assert second.get_by_text("Similar in content").count() == 1
        said = [" ".join(card.locator(".confidence").inner_text().split()) for card in (first, third, fourth, fifth)]
        assert said == ["Almost certain 97 %", "Fairly likely 55 %", "Doubtful 30 %", "Unlikely 0 %"]
        assert float(first.locator(".bar rect").get_attribute("width")) == pytest.approx(97)
        assert [card.get_by_text("weak match").count() for card in (first, third, fourth, fifth)] == [0, 0, 1, 1]
        assert third.locator(".title").inner_text() == "The red ball"
        third.get_by_text("Details").click()
        facts = third.locator(".facts").inner_text().split()
        assert "2004" in facts
        assert fifth.locator(".shared").count() == last.locator(".confidence").count() == 0
        order = "card => [...card.querySelectorAll('.tile, .shared, .agreement, .confidence, .details')].map(one => one.className)"
        assert first.evaluate(order) == ["tile", "shared", "agreement", "confidence", "details"]


def test_equally_near_is_a_tie_where_the_service_gives_no_ranks(visitor):
    page = visitor.open()
    page.get_by_role("searchbox").wait_for()
    distances = "hits => import('/static/cards.js').then(({ ranksOf }) => ranksOf(hits).map(({ rank, equal }) => [rank, equal]))"
    hits = [{"distance": 3}, {"distance": 3}, {"distance": 5}, {"distance": 6}, {"distance": 6}]
    assert page.evaluate(distances, hits) == [[1, 2], [1, 2], [3, 1], [4, 2], [4, 2]]


def test_the_labels_in_common_are_named(visitor):
    with answering(visitor.page, known=0.5):
        page = visitor.open("?q=red+ball&k=6")
        visitor.until_results()
        page.get_by_text("Why do these match?").click()
        said = page.locator("#why").inner_text()
        assert "labels in common: red (2 of 6) and circle (1 of 6)." in said
        assert "knows 50\u00a0% of your words" in said


def test_what_the_engine_does_not_know_comes_first(visitor):
    message = "None of these words is known: what is found says little."
    with answering(visitor.page, message=message, warnings=[message, "Another thing"]):
        page = visitor.open("?q=red+ball&k=6")
        visitor.until_results()
        shown = page.get_by_role("list", name="Warnings").get_by_role("listitem")
        assert shown.all_inner_texts() == [message, "Another thing"]
        assert shown.first.bounding_box()["y"] < page.locator("#summary").bounding_box()["y"]


def test_filters_that_the_service_announces(visitor):
    announce(visitor.page, options=["where", "min_confidence"])
    with answering(visitor.page) as bodies:
        page = visitor.open("?q=red+ball&k=6")
        visitor.until_results()
        page.get_by_role("button", name="Filters").click()
        page.get_by_label("Where").fill("label = red and not year < 2005")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Remove the filter label = red").wait_for()
        page.get_by_label("Confidence").select_option("0.5")
        page.get_by_role("button", name="Remove the filter confidence at least").wait_for()
        visitor.until_results()
        asked = {"text": "red ball", "k": 6, "want": ["image"]}
        where = {"where": "label = red and not year < 2005"}
        assert bodies == [asked, asked | where, asked | where | {"min_confidence": 0.5}]
        page.reload()
        visitor.until_results()
        assert page.get_by_label("Where", exact=True).input_value() == where["where"]
        assert bodies[-1] == bodies[-2]


def test_duplicates(visitor, engine):
    page = visitor.page
    announce(page, duplicates=True)
    page.route("**/duplicates", lambda route: route.fulfill(json=groups_of(engine)))
    visitor.open()
    page.get_by_role("link", name="Duplicates").click()
    page.get_by_role("heading", name="Group 2: 3 items").wait_for()
    assert page.url.endswith("?view=duplicates")
    assert page.get_by_role("status").inner_text() == "2 groups of near-duplicates, 5 items"
    assert page.locator("article.card").count() == 5
    assert page.locator(".agreement").count() == 3  # each but the first of its group
    assert page.locator("article.card img").first.evaluate("image => image.decode().then(() => image.naturalWidth)")
    page.locator(".tile").nth(1).click()
    page.get_by_role("dialog").get_by_role("link", name="More like this").click()
    visitor.until_results()
    page.go_back()
    page.get_by_role("heading", name="Group 1: 2 items").wait_for()
    page.route("**/duplicates", lambda route: route.fulfill(json={"groups": []}))
    page.reload()
    page.get_by_role("alert").get_by_text("No duplicates").wait_for()


def test_no_duplicates_without_a_route_for_them(visitor):
    announce(visitor.page, duplicates=False)
    page = visitor.open()
    page.locator("#taste a").last.wait_for()
    assert page.get_by_role("link", name="Duplicates").count() == 0
