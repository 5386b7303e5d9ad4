"""The page in a browser: searching by words, pictures and items, and finding the way back."""

# ruff: noqa: F401, F811  (fixtures are imported, and then are names of parameters)
from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest
from browser import STRANGE, chromium, engine, picture, url, visitor

pytestmark = pytest.mark.slow

CARDS = "#results article.card"


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
    assert page.locator("#about").inner_text() == "61 pictures and 61 texts. Search by words or by a picture."
    visitor.search("a red ball")
    assert shares(page, "red", "circle") > 0.5
    assert page.locator(CARDS).count() == page.locator(f"{CARDS} img").count() == 24
    assert re.match(r"24 nearest of 61 pictures · [\d.]+ ms", page.locator("#summary").inner_text())
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
    for card, hit in zip(page.locator(CARDS).all(), answer["hits"], strict=True):
        code = bits(hit["code"], 32)
        assert card.locator("svg").count() == 0
        assert "bits" not in card.inner_text()
        card.get_by_text("Details").click()
        differ = [i + 1 for i in range(32) if code[i] != query[i]]
        assert len(differ) == hit["distance"]
        label = card.locator(".bits svg").get_attribute("aria-label")
        assert [int(number) for number in re.findall(r"\d+", label)] == differ
        drawn = {
            name: card.locator(f".bits .{name}").get_attribute("d").count("M") for name in ("one", "zero", "differs")
        }
        same = [bit for bit, other in zip(code, query, strict=True) if bit == other]
        assert drawn == {"one": same.count("1"), "zero": same.count("0"), "differs": len(differ)}
        assert card.locator(".query-bits svg").get_attribute("aria-label") == label
        words = f"{32 - len(differ)} of 32 agree" if differ else "all 32 agree"
        assert card.locator(".agreement").inner_text().startswith(words)
        assert card.locator(".kind").inner_text() == f"image, {hit['kind']}"
        assert card.locator(".id").inner_text() == hit["id"]


def test_a_card_searches_by_its_item(visitor):
    page = visitor.open("?q=blue+ball")
    visitor.until_results()
    card = page.locator(CARDS).first
    id = card.locator(".title").get_attribute("title")
    labels = card.locator(".label").all_inner_texts()
    link = card.get_by_role("link", name="Texts")
    expected = {"id": [id], "modality": ["image"], "want": ["text"]}
    assert parse_qs(urlsplit(link.get_attribute("href")).query) == expected
    link.click()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('texts')")
    assert fields(page) == expected
    assert page.evaluate("document.activeElement.id") == "summary"
    assert shares(page, *labels) > 0.5
    assert page.locator("#asked img").get_attribute("alt") == f"Picture {id.split('/')[-1]}"
    page.locator(CARDS).first.get_by_role("link", name="Pictures").click()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('pictures')")
    assert fields(page)["modality"] == ["text"]


def test_more_like_this_stays_with_its_kind(visitor):
    page = visitor.open("?q=blue+ball&label=blue")
    visitor.until_results()
    card = page.locator(CARDS).first
    id = card.locator(".title").get_attribute("title")
    card.get_by_role("link", name="More like this").click()
    page.wait_for_function("() => location.search.includes('id=')")
    visitor.until_results()
    assert fields(page) == {"id": [id], "modality": ["image"], "label": ["blue"]}
    assert page.get_by_role("radio", name="pictures").is_checked()
    assert shares(page, "blue") == 1


@pytest.mark.parametrize("way", ["Escape", "button", "outside"])
def test_a_picture_is_large_on_click(visitor, way):
    page = visitor.open("?q=blue+ball")
    visitor.until_results()
    tile = page.locator(CARDS).nth(2).locator(".tile")
    title = f"Picture {page.locator(CARDS).nth(2).locator('.title').text_content()}"
    tile.click()
    dialog = page.get_by_role("dialog", name=title)
    image = dialog.get_by_role("img", name=title)
    assert image.evaluate("image => image.decode().then(() => image.clientWidth)") > 300
    assert dialog.locator(".label").count() == 2
    if way == "Escape":
        page.keyboard.press("Escape")
    elif way == "button":
        dialog.get_by_role("button", name="Close").click()
    else:
        page.mouse.click(5, 5)
    dialog.wait_for(state="hidden")
    assert tile.evaluate("tile => tile === document.activeElement")
    assert page.locator(CARDS).count() == 24


def test_the_way_back_closes_the_dialog(visitor):
    page = visitor.open("?q=blue+ball")
    visitor.until_results()
    page.locator(CARDS).first.get_by_role("link", name="Texts").click()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('texts')")
    text = page.locator(CARDS).first.locator(".words").inner_text()
    page.locator(CARDS).first.locator(".tile").click()
    assert page.get_by_role("dialog").locator(".viewer-text").inner_text() == text
    page.go_back()
    page.get_by_role("dialog").wait_for(state="hidden")
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('pictures')")
    page.locator(CARDS).first.locator(".tile").click()
    page.get_by_role("dialog").get_by_role("link", name="Texts").click()  # and so does a link in it
    page.get_by_role("dialog").wait_for(state="hidden")
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('texts')")


def test_filters(visitor):
    page = visitor.open("?q=red+ball&k=61")
    visitor.until_results()
    page.get_by_role("button", name="Filters").click()
    known = page.locator("#known-labels option").evaluate_all("all => all.map(one => one.value)")
    assert {"red", "green", "blue", "circle", "square"} <= set(known)
    page.get_by_label("Label", exact=True).fill("BLUE")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Remove the filter blue").wait_for()
    visitor.until_results()
    assert shares(page, "blue") == 1
    page.get_by_label("Label", exact=True).fill("square")
    page.get_by_role("button", name="Add").click()
    page.get_by_role("button", name="Remove the filter square").wait_for()
    visitor.until_results()
    assert shares(page, "blue", "square") == 1
    assert fields(page) == {"q": ["red ball"], "k": ["61"], "label": ["blue", "square"]}
    page.reload()
    visitor.until_results()
    assert page.get_by_role("list", name="Filters in force").get_by_role("button").count() == 2
    page.get_by_role("button", name="Remove the filter blue").click()
    page.wait_for_function("() => !location.search.includes('blue')")
    visitor.until_results()
    assert shares(page, "square") == 1
    assert page.evaluate("document.activeElement.id") == "filters-button"


def test_nothing_passes_the_filters(visitor):
    page = visitor.open("?q=red+ball&where=id+%3D+nothing")
    page.get_by_role("alert").get_by_text("Nothing passes the filters").wait_for()
    page.get_by_role("button", name="Remove the filter id = nothing").click()
    visitor.until_results()


def test_a_label_that_no_item_has(visitor):
    visitor.expected = ("422",)
    page = visitor.open("?q=red+ball&label=reed")
    page.get_by_role("alert").get_by_text("did you mean 'red'").wait_for()
    page.get_by_role("button", name="Remove the filter reed").click()
    visitor.until_results()


@pytest.mark.parametrize("way", ["Enter", "button"])
def test_an_empty_query_clears(visitor, way):
    page = visitor.open("?q=red+ball&want=text&label=red&k=12")
    visitor.until_results()
    if way == "Enter":
        page.get_by_role("searchbox").fill("  ")
        page.get_by_role("searchbox").press("Enter")
    else:
        page.get_by_role("button", name="Clear").click()
    page.wait_for_function("() => document.body.dataset.state === 'start'")
    assert urlsplit(page.url).query == ""
    assert page.locator("#chosen li").count() == 0
    assert page.title() == "modalhash"
    assert page.get_by_role("searchbox").input_value() == ""
    assert page.evaluate("document.activeElement.id") == "query"
    assert page.get_by_role("button", name="Clear").count() == 0
    page.go_back()
    visitor.until_results()
    assert fields(page)["label"] == ["red"]


def test_a_strange_id_is_a_link_like_any_other(visitor):
    page = visitor.open("?q=red+ball&k=61")
    visitor.until_results()
    page.locator(f"{CARDS}:has([title={json.dumps(STRANGE)}])").get_by_role("link", name="Texts").click()
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
    page.get_by_alt_text("Your picture").first.wait_for()
    page.get_by_role("radio", name="texts").check()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('texts')")
    assert page.locator(".words").count() == 24
    assert shares(page, "blue") > 0.5
    decoded = "image => image.decode().then(() => image.naturalWidth)"
    assert page.get_by_alt_text("Your picture").last.evaluate(decoded) == 40
    assert page.locator(".asked-text").text_content() == "mine.png"
    assert fields(page) == {"want": ["text"]}
    before = page.locator("#results").inner_text()

    page.locator(CARDS).first.get_by_role("link", name="Pictures").click()
    page.wait_for_function("() => location.search.includes('id=')")
    page.go_back()
    page.wait_for_function("before => document.querySelector('#results').innerText === before", arg=before)
    page.go_back()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('pictures')")
    page.go_back()
    page.wait_for_function("() => document.querySelector('#asked').innerText.includes('green box')")
    assert page.get_by_role("searchbox").input_value() == "green box"
    page.go_back()
    page.wait_for_function("() => document.body.dataset.state === 'start'")
    assert page.title() == "modalhash"
    for _ in range(3):
        page.go_forward()
    page.wait_for_function("before => document.querySelector('#results').innerText === before", arg=before)
    page.get_by_role("radio", name="pictures").check()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('pictures')")
    page.go_back()
    page.reload()  # the address cannot hold a picture, the browser does
    page.wait_for_function("before => document.querySelector('#results').innerText === before", arg=before)
    assert page.get_by_alt_text("Your picture").last.evaluate(decoded) == 40
    assert page.locator(".asked-text").text_content() == "mine.png"
    page.go_forward()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('pictures')")


def test_a_browser_that_keeps_nothing_says_that_the_picture_is_gone(visitor, engine):
    page = visitor.open()
    visitor.give("drop", "mine.png", picture(engine, "blue"), "image/png")
    visitor.until_results()
    page.evaluate("() => new Promise(done => (indexedDB.deleteDatabase('modalhash').onsuccess = done))")
    page.reload()
    page.get_by_role("alert").get_by_text("The picture is gone").wait_for()


def test_only_the_last_pictures_are_kept(visitor):
    page = visitor.open()
    page.get_by_role("searchbox").wait_for()
    kept = page.evaluate(
        """async () => {
            const { keep, recall, forget } = await import("/static/pictures.js");
            const picture = (name) => new File([name], `${name}.png`, { type: "image/png" });
            const now = Date.now;
            for (let i = 0; i < 11; i++) {
                Date.now = () => now() + i;
                await keep(`id ${i}`, picture(String(i)));
            }
            await keep("huge", new File([new Uint8Array(65 << 20)], "huge.png"));
            await forget("id 9");
            const names = [];
            for (let i = 0; i < 11; i++) names.push((await recall(`id ${i}`))?.name ?? "");
            const huge = (await recall("huge"))?.name ?? "";
            Date.now = () => now() + 25 * 60 * 60 * 1000;
            return { names, huge, after: (await recall("id 10"))?.name ?? "" };
        }"""
    )
    assert kept["names"] == ["", "", "", "3.png", "4.png", "5.png", "6.png", "7.png", "8.png", "", "10.png"]
    assert kept["huge"] == kept["after"] == ""


def test_the_button_takes_a_picture(visitor, engine):
    page = visitor.open()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Search by a picture").click()
    chooser.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": picture(engine, "square")})
    visitor.until_results()
    assert page.locator(".asked-text").text_content() == "a.png"
    assert "pictures" in page.locator("#summary").inner_text()


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
    assert choices.get_by_role("radio").count() == 3
    assert choices.get_by_label("pictures").is_checked()
    choices.get_by_label("texts").check()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('of 61 texts')")
    assert fields(page) == {"q": ["red ball"], "want": ["text"]}
    choices.get_by_label("everything").check()
    page.wait_for_function("() => document.querySelector('#summary').textContent.includes('of 122 items')")
    assert set(fields(page)["want"]) == {"image", "text"}
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Show").select_option("48")
    page.wait_for_function("() => document.querySelectorAll('#results article.card').length === 48")
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
        ("?id=evil&k=2", "2 nearest of 61 pictures", "pictures"),
        ("?q=red+ball&want=nosuch&k=nonsense", "24 nearest of 61 pictures", "pictures"),
        ("?q=red+ball&k=100000", "61 nearest of 61 pictures", "pictures"),
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
    index = "() => [...document.querySelectorAll('#results .card')].indexOf(document.activeElement.closest('.card'))"
    steps = {"ArrowDown": 0, "ArrowRight": 1, "ArrowLeft": 0, "Tab": 0, "Shift+Tab": 0}
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
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert page.evaluate(index) == 0
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.search.includes('id=')")
    visitor.until_results()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "query"


def test_scrolling_is_remembered(visitor):
    page = visitor.open("?q=red+ball&k=61")
    visitor.until_results()
    page.evaluate("scrollTo(0, 900)")
    page.locator(CARDS).nth(20).locator(".across").evaluate("link => link.click()")
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
    assert page.get_by_role("radio").count() == 3
