"""The page in a browser: searching by words, pictures and items, and finding the way back."""

# ruff: noqa: F401, F811  (fixtures are imported, and then are names of parameters)
from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest
from browser import STRANGE, chromium, engine, picture, url, visitor

CARDS = "#results a.card"


def fields(page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def asked(url: str, **body) -> dict:
    request = Request(f"{url}search", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=10) as answer:
        return json.load(answer)


def bits(code: str, n: int) -> str:
    return bin(int(code, 16))[2:].zfill(4 * len(code))[:n]


def shares(page, *labels: str) -> float:
    """Share of the first cards that have all these labels."""
    of_each = "cards => cards.slice(0, 6).map(card => [...card.querySelectorAll('.label')].map(one => one.textContent))"
    found = page.eval_on_selector_all(CARDS, of_each)
    return sum(set(labels) <= set(some) for some in found) / len(found)


def test_words_find_pictures(visitor):
    page = visitor.open()
    page.locator(".chip").last.wait_for()
    assert page.locator(".chip").all_inner_texts() == ["red ball", "blue box"]
    assert "61 pictures" in page.locator("#about").inner_text()
    assert "32 bits" in page.locator("#about").inner_text()
    visitor.search("a red ball")
    assert shares(page, "red", "circle") > 0.5
    assert page.locator(CARDS).count() == page.locator(f"{CARDS} img").count() == 24
    assert re.match(r"24 nearest of 61 pictures · 32 bits · [\d.]+ ms", page.locator("#summary").inner_text())
    assert "“a red ball”" in page.locator("#asked").inner_text()
    assert page.title() == "“a red ball” – modalhash"
    assert fields(page) == {"q": ["a red ball"]}
    loaded = "() => [...document.querySelectorAll('#results img')].slice(0, 6).every(i => i.naturalWidth)"
    page.wait_for_function(loaded)


def test_codes_are_drawn_as_they_are(visitor, url):
    page = visitor.open("?q=green+box&k=5&want=image")
    visitor.until_results()
    answer = asked(url, text="green box", k=5, want=["image"])
    query = bits(answer["query"]["code"], 32)
    assert page.locator("#asked-strip svg").get_attribute("aria-label") == f"Code of 32 bits: {query}"
    for card, hit in zip(page.locator(CARDS).all(), answer["hits"], strict=True):
        code = bits(hit["code"], 32)
        differ = [i + 1 for i in range(32) if code[i] != query[i]]
        assert len(differ) == hit["distance"]
        label = card.locator(".bits svg").get_attribute("aria-label")
        assert [int(number) for number in re.findall(r"\d+", label)] == differ
        drawn = {
            name: card.locator(f".bits .{name}").get_attribute("d").count("M") for name in ("one", "zero", "differs")
        }
        same = [bit for bit, other in zip(code, query, strict=True) if bit == other]
        assert drawn == {"one": same.count("1"), "zero": same.count("0"), "differs": len(differ)}
        words = f"{len(differ)} of 32 bits differ" if differ else "All 32 bits agree"
        assert card.locator(".distance").inner_text() == words
        assert card.locator(".kind").inner_text() == hit["kind"]


def test_pointing_at_a_card_marks_the_query(visitor):
    page = visitor.open("?q=red+box")
    visitor.until_results()
    last = page.locator(CARDS).last
    last.focus()
    label = last.locator(".bits svg").get_attribute("aria-label")
    assert page.locator("#asked-strip svg").get_attribute("aria-label") == label
    assert page.locator("#asked-strip .differs").get_attribute("d") != ""
    page.get_by_role("searchbox").focus()
    assert page.locator("#asked-strip .differs").get_attribute("d") == ""


def test_a_card_searches_by_its_item(visitor):
    page = visitor.open("?q=blue+ball")
    visitor.until_results()
    card = page.locator(CARDS).first
    link, id = card.get_attribute("href"), card.locator(".id").inner_text()
    labels = card.locator(".label").all_inner_texts()
    card.click()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('texts')")
    assert fields(page) == {"id": [id], "modality": ["image"]} == parse_qs(urlsplit(link).query)
    assert page.evaluate("document.activeElement.id") == "summary"
    assert shares(page, *labels) > 0.5
    assert page.locator("#asked img").get_attribute("alt") == f"Picture {id}"
    page.locator(CARDS).first.click()  # a text this time, which finds pictures
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('pictures')")
    assert fields(page)["modality"] == ["text"]


def test_a_strange_id_is_a_link_like_any_other(visitor):
    page = visitor.open("?q=red+ball&k=61")
    visitor.until_results()
    page.locator(CARDS).filter(has_text=STRANGE).click()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('texts')")
    assert fields(page)["id"] == [STRANGE]
    page.reload()
    visitor.until_results()
    page.wait_for_function("() => document.querySelector('#asked img').naturalWidth")
    assert page.evaluate("window.owned") is None


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_picture_finds_texts_and_the_way_back(visitor, engine, kind):
    page = visitor.open()
    visitor.search("green box")
    visitor.give(kind, "mine.png", picture(engine, "blue"), "image/png")
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('texts')")
    assert page.locator(".words").count() == 24
    assert shares(page, "blue") > 0.5
    assert page.get_by_alt_text("Your picture").evaluate("image => image.decode().then(() => image.naturalWidth)") == 40
    assert "mine.png" in page.locator("#asked").inner_text()
    assert fields(page) == {}
    before = page.locator("#results").inner_text()

    page.locator(CARDS).first.click()
    page.wait_for_function("() => location.search.includes('id=')")
    page.go_back()
    page.wait_for_function("before => document.querySelector('#results').innerText === before", arg=before)
    page.go_back()
    page.wait_for_function("() => document.querySelector('#asked').innerText.includes('green box')")
    assert page.get_by_role("searchbox").input_value() == "green box"
    page.go_back()
    page.wait_for_function("() => document.body.dataset.state === 'start'")
    assert page.title() == "modalhash"
    page.go_forward()
    page.go_forward()
    page.wait_for_function("before => document.querySelector('#results').innerText === before", arg=before)
    page.reload()  # the address cannot hold a picture
    page.get_by_role("alert").get_by_text("The picture is gone").wait_for()


def test_the_button_takes_a_picture(visitor, engine):
    page = visitor.open()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Search by a picture").click()
    chooser.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": picture(engine, "square")})
    visitor.until_results()
    assert "texts" in page.locator("#summary").inner_text()


def test_dragging_shows_where_to_drop(visitor):
    page = visitor.open()
    page.get_by_role("searchbox").wait_for()
    visitor.give("dragover", "a.png", b"", "image/png")
    assert page.get_by_text("Drop the picture to search by it").is_visible()
    visitor.give("dragleave", "a.png", b"", "image/png")
    assert page.get_by_text("Drop the picture to search by it").is_hidden()


def test_direction_and_count(visitor):
    page = visitor.open("?q=red+ball")
    visitor.until_results()
    choices = page.get_by_role("group", name="Look in")
    assert choices.get_by_role("radio").count() == 4
    assert choices.get_by_label("the other kind").is_checked()
    choices.get_by_label("texts").check()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('of 61 texts')")
    assert fields(page) == {"q": ["red ball"], "want": ["text"]}
    choices.get_by_label("everything").check()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('of 122 items')")
    assert set(fields(page)["want"]) == {"image", "text"}
    page.get_by_label("Show").select_option("48")
    page.wait_for_function("() => document.querySelectorAll('#results a.card').length === 48")
    assert fields(page)["k"] == ["48"]
    assert page.locator("#results img").count() > 0 < page.locator("#results .words").count()
    page.go_back()
    page.go_back()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('of 61 texts')")
    assert choices.get_by_label("texts").is_checked()


@pytest.mark.parametrize(
    ("address", "summary", "checked"),
    [
        ("?q=red+ball&want=image&k=7", "7 nearest of 61 pictures", "pictures"),
        ("?q=red+ball&want=text&want=image&k=3", "3 nearest of 122 items", "everything"),
        ("?id=evil&want=text&k=2", "2 nearest of 61 texts", "texts"),
        ("?id=evil&k=2", "2 nearest of 61 pictures", "the other kind"),
        ("?q=red+ball&want=nosuch&k=nonsense", "24 nearest of 61 pictures", "the other kind"),
        ("?q=red+ball&k=100000", "61 nearest of 61 pictures", "the other kind"),
    ],
)
def test_an_address_opened_directly(visitor, address, summary, checked):
    page = visitor.open(address)
    visitor.until_results()
    assert page.locator("#summary").inner_text().startswith(summary)
    assert page.get_by_role("radio", name=checked, exact=True).is_checked()


def test_by_keyboard_alone(visitor):
    page = visitor.open()
    page.get_by_text("red ball", exact=True).first.wait_for()
    focused = "() => document.activeElement.closest('li, form')"
    page.keyboard.press("/")
    page.keyboard.type("green/ball")  # within the box, a slash is a slash
    assert page.get_by_role("searchbox").input_value() == "green/ball"
    page.keyboard.press("Escape")
    assert page.get_by_role("searchbox").input_value() == ""
    page.keyboard.type("green ball")
    page.keyboard.press("Enter")
    visitor.until_results()
    index = "() => [...document.querySelectorAll('#results a.card')].indexOf(document.activeElement)"
    steps = {"ArrowDown": 0, "ArrowRight": 1, "ArrowLeft": 0, "Tab": 1, "Shift+Tab": 0}
    for key, position in steps.items():
        page.keyboard.press(key)
        assert page.evaluate(index) == position, key
    page.keyboard.press("ArrowDown")
    columns = page.evaluate(index)
    assert columns > 1
    page.keyboard.press("ArrowUp")
    assert page.evaluate(index) == 0
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    assert page.evaluate(focused) is not None
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.search.includes('id=')")
    visitor.until_results()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "query"


def test_the_start_shows_what_it_is_for(visitor):
    page = visitor.open()
    row = page.locator("#taste a")
    row.first.wait_for()
    assert row.count() == 2
    assert row.first.inner_text().startswith(("“red ball”", "“blue box”"))
    assert row.first.locator("img").count() == 6
    row.last.click()
    visitor.until_results()
    assert fields(page)["modality"] == ["image"]


def test_scrolling_is_remembered(visitor):
    page = visitor.open("?q=red+ball&k=61")
    visitor.until_results()
    page.evaluate("scrollTo(0, 900)")
    page.locator(CARDS).nth(20).evaluate("card => card.click()")
    page.wait_for_function("() => location.search.includes('id=') && scrollY === 0")
    page.go_back()
    page.wait_for_function("() => location.search.includes('q=') && scrollY === 900")
    assert page.evaluate("scrollY") == 900  # and it stays there


def test_who_is_quicker_than_the_server(visitor):
    held = []
    page = visitor.page
    page.route("**/engine", lambda route: held.append(route))
    with page.expect_request("**/engine"):
        visitor.open()
    page.get_by_role("searchbox").fill("red ball")
    page.keyboard.press("Enter")
    held[0].continue_()
    visitor.until_results()
    assert "“red ball”" in page.locator("#asked").inner_text()
    assert page.get_by_role("radio").count() == 4
