"""The page in a browser: what an answer says of its hits, and groups of duplicates."""

# ruff: noqa: F401, F811  (fixtures are imported, and then are names of parameters)
from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from browser import announce, answering, chromium, engine, groups_of, url, visitor

from modalhash.store import Filter

pytestmark = pytest.mark.slow

CARDS = "#results article.card"
GROUPS = re.compile(r"/duplicates($|\?)")


def test_a_card_says_why_it_matched(visitor):
    with answering(visitor.page):
        page = visitor.open("?q=red+ball&k=7")
        visitor.until_results()
        first, second, third, fourth, fifth, last, by_words = page.locator(CARDS).all()
        assert by_words.locator(".likely").inner_text() == "By meaning: perhaps"
        assert [card.locator(".rank").inner_text() for card in (first, second, third)] == [
            "Tied 1st",
            "Tied 1st",
            "3rd",
        ]
        assert first.locator(".rank").get_attribute("title") == "2 of these are equally near"
        assert first.locator(".shared .label").all_inner_texts() == ["red", "circle"]
        assert first.locator(".looks").count() == third.locator(".shared").count() == 0
        assert second.locator(".shared").count() == 0
        assert second.locator(".looks").inner_text() == "Looks like: red"
        assert first.get_by_text("Contains your words").count() == 1
        assert second.get_by_text("Contains your words").count() == 0
        assert second.get_by_text("Similar in content").count() == 1
        said = [" ".join(card.locator(".confidence").inner_text().split()) for card in (first, third, fourth, fifth)]
        assert said == [
            "Almost certain 97 %",
            "Perhaps 55 %",
            "Perhaps 30 %",
            "Unlikely under 1 %",
        ]
        assert second.locator(".likely").inner_text() == "Likely"
        assert float(first.locator(".bar rect").get_attribute("width")) == pytest.approx(97)
        assert third.locator(".title").inner_text() == "The red ball"
        third.get_by_text("Details").click()
        facts = third.locator(".facts").inner_text().split()
        assert "2004" in facts
        assert fifth.locator(".shared").count() == last.locator(".confidence").count() == 0
        order = "card => [...card.querySelectorAll('.tile, .shared, .confidence, .details')].map(one => one.className)"
        assert first.evaluate(order) == ["tile", "shared", "confidence", "details"]
        third.get_by_text("Details").click()
        seen = page.locator("main").inner_text()
        assert not re.search(r"\bbits\b|\blearned\b|\bhashed\b|other kind", seen)


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
        assert "labels in common, or seem to: red (2 of 6) and circle (1 of 6)." in said
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
        page.get_by_label("Certainty").select_option("0.5")
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
    page.route("**/duplicates", lambda route: route.fulfill(json=groups_of(engine)))
    visitor.open()
    page.get_by_role("link", name="Find duplicates").click()
    page.get_by_role("heading", name="Group 2: 60 items, nearly the same (3 shown)").wait_for()
    assert page.url.endswith("?view=duplicates")
    said = "2 groups: 1 of exact copies, 1 of items nearly the same · 62 items"
    assert page.get_by_role("status").inner_text() == said
    assert page.get_by_role("button", name="More groups").count() == 0
    assert page.locator("article.card").count() == 5
    alike = page.locator(".alike").all_inner_texts()
    assert alike[:3] == ["Added first", "Exact copy", "Added first"]  # each other is compared with its group's first
    assert page.locator(".agreement, .by").count() == 0
    page.locator(".details summary").nth(1).click()
    assert "the first" in page.locator(".bits svg").get_attribute("aria-label")
    assert page.locator("article.card img").first.evaluate("image => image.decode().then(() => image.naturalWidth)")
    page.locator(".tile").nth(1).click()
    page.get_by_role("dialog").get_by_role("link", name="More like this").click()
    visitor.until_results()
    page.go_back()
    page.get_by_role("heading", name="Group 1: 2 exact copies").wait_for()
    nothing = {"groups": [], "exact": [], "sizes": [], "more": False, "message": "Only identical files are listed."}
    page.route("**/duplicates", lambda route: route.fulfill(json=nothing))
    page.reload()
    page.get_by_role("alert").get_by_text("No duplicates").wait_for()
    assert page.get_by_role("list", name="Warnings").inner_text() == "Only identical files are listed."


def test_more_groups_of_duplicates(visitor, engine):
    """As the service answers them, two at a time."""
    n = len(engine.duplicates())
    assert n > 3
    page = visitor.page
    asked = []

    def a_few(route):
        asked.append(route.request.url)
        route.continue_(url=f"{route.request.url}{'&' if '?' in route.request.url else '?'}limit=2")

    page.route(GROUPS, a_few)
    visitor.open("?view=duplicates")
    groups = page.get_by_role("heading", name="Group ")
    groups.nth(1).wait_for()
    assert page.get_by_role("status").inner_text().startswith("The first 2 groups: ")
    assert page.get_by_role("status").inner_text().endswith(" · there are more")
    page.get_by_role("button", name="More groups").click()
    page.get_by_role("heading", name="Group 3: ").wait_for()
    assert groups.count() == min(4, n)
    assert page.evaluate("document.activeElement.closest('.group').querySelector('h2').textContent").startswith(
        "Group 3"
    )
    page.locator(".like").first.click()
    visitor.until_results()
    page.go_back()
    groups.nth(3).wait_for()  # what was loaded is still there
    assert len(asked) == 2
    page.unroute(GROUPS)
    page.get_by_role("button", name="More groups").click()
    page.get_by_role("button", name="More groups").wait_for(state="hidden")
    assert groups.count() == n


def test_more_groups_that_do_not_come(visitor, engine):
    visitor.expected = ("503",)
    page = visitor.page
    page.route("**/duplicates", lambda route: route.fulfill(json={**groups_of(engine), "more": True}))
    failure = {"error": "busy", "status": 503}
    page.route("**/duplicates?offset=2", lambda route: route.fulfill(status=503, json=failure))
    visitor.open("?view=duplicates")
    page.get_by_role("button", name="More groups").click()
    page.get_by_role("alert").get_by_text("busy").wait_for()
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("button", name="More groups").wait_for()
    assert page.locator(".group").count() == 2


def test_labels_in_common_are_those_that_the_hit_has(visitor):
    page = visitor.open()
    page.locator(".gallery .tile").first.wait_for()
    said = """hit => import('/static/cards.js').then(({ inCommon, looksLike }) =>
        [inCommon, looksLike].map(one => one({ labels: ['red', 7], ...hit })))"""
    assert page.evaluate(said, {"shared_labels": ["red", "7"]}) == [["red", "7"], []]
    assert page.evaluate(said, {"shared_labels": ["red", "boat"]}) == [["red"], []]
    assert page.evaluate(said, {"shared_labels": ["boat"], "labels": []}) == [[], ["boat"]]
    assert page.evaluate(said, {"shared_labels": ["red"], "weak": True}) == [[], []]
    assert page.evaluate(said, {}) == [[], []]


@pytest.mark.parametrize(
    ("confidence", "said"),
    [
        (1, "Almost certain over 99 %"),
        (0.97, "Almost certain 97 %"),
        (0.96, "Very likely 96 %"),
        (0.9, "Very likely 90 %"),
        (0.6, "Likely 60 %"),
        (0.1, "Perhaps 10 %"),
        (0.09, "Unlikely 9 %"),
    ],
)
def test_certainty_in_words(visitor, confidence, said):
    page = visitor.page

    def answer(route):
        response = route.fetch()
        found = response.json()
        for hit in found["hits"]:
            hit.update(confidence=confidence, found_by=["code"])
        route.fulfill(response=response, json=found)

    page.route("**/search", answer)
    visitor.open("?q=red+ball&k=1")
    visitor.until_results()
    assert " ".join(page.locator(".confidence").inner_text().split()) == said


def test_the_example_of_a_filter_is_one(visitor):
    page = visitor.open()
    page.get_by_role("button", name="Filters").click()
    example = page.get_by_label("Where", exact=True).get_attribute("placeholder")
    assert str(Filter.parse(example)) == example


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("label like red", "At character 7: expected one of"),
        ("label = reed", "No item has the label 'reed'; did you mean"),
    ],
)
def test_what_is_wrong_with_a_filter_stands_at_its_box(visitor, where, said):
    visitor.expected = ("422",)
    page = visitor.open("?q=red+ball")
    visitor.until_results()
    page.get_by_role("button", name="Filters").click()
    box = page.get_by_label("Where", exact=True)
    box.fill(where)
    page.keyboard.press("Enter")
    message = page.get_by_role("alert")
    message.get_by_text(said[1:]).wait_for()
    below = message.bounding_box()["y"] - box.bounding_box()["y"] - box.bounding_box()["height"]
    assert 0 <= below < 60
    assert box.get_attribute("aria-invalid") == "true"
    assert "needs a change" in page.get_by_role("status").inner_text()
    box.fill("label = red")
    page.keyboard.press("Enter")
    visitor.until_results()
    assert message.count() == 0
    assert box.get_attribute("aria-invalid") is None


def test_the_name_of_a_picture_that_was_searched_by(visitor, engine):
    found = next(item for item in engine.items() if item.modality == "image" and item.id.endswith(".png"))
    page = visitor.open(f"?id={quote(found.id)}&modality=image")
    visitor.until_results()
    assert page.locator(".asked-text").text_content() == found.id.split("/")[-1]  # it has no other name
    assert page.locator(".asked-text").get_attribute("title") == found.id

    def named(route):
        answer = route.fetch()
        body = answer.json()
        body["query"]["extra"] = {"name": "The red ball"}
        route.fulfill(response=answer, json=body)

    page.route("**/search", named)
    page.reload()
    visitor.until_results()
    assert page.locator(".asked-text").inner_text() == "The red ball"


def test_no_duplicates_without_a_route_for_them(visitor):
    announce(visitor.page, duplicates=False)
    page = visitor.open()
    page.locator(".gallery .tile").first.wait_for()
    assert page.get_by_role("link", name="Find duplicates").count() == 0
