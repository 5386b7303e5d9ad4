"""The page in a browser when something is wrong, hostile or small; and its accessibility."""

# ruff: noqa: F401, F811  (fixtures are imported, and then are names of parameters)
from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pytest
from browser import EVIL, TOKEN, Service, chromium, engine, picture, serving, url, visiting, visitor

import modalhash
from modalhash.data import Dataset
from modalhash.engine import Engine

pytestmark = pytest.mark.slow

CARDS = "#results article.card"
CONTRAST = """(selector) => {
    const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
    const light = (rgb) => {
        const [r, g, b] = rgb.slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        const [r, g, b, a = 1] = parse(getComputedStyle(node).backgroundColor);
        return a ? [r, g, b] : behind(node.parentElement);
    };
    return [...document.querySelectorAll(selector)].filter((node) => node.offsetParent).map((node) => {
        const [one, two] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
        return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    });
}"""
READ = (".about", ".summary", ".agreement", ".rank", ".label", ".asked-how", ".asked-text", ".title")
READ += (".go", ".pick", ".direction span", ".direction legend", ".chip", ".why summary", ".words", ".onward a")
READ += (".filters-button", ".field label", ".field select", ".details summary", ".facts dt", ".facts dd")


def test_what_the_server_says_is_shown(visitor):
    visitor.expected = ("415", "422", "404")
    page = visitor.open()
    page.get_by_role("searchbox").wait_for()
    visitor.give("drop", "notes.txt", b"no picture", "text/plain")
    page.get_by_role("alert").get_by_text("not a picture").wait_for()
    assert page.get_by_role("button", name="Try again").count() == 0
    page.goto(visitor.url + "?q=...")
    page.get_by_role("alert").get_by_text("no word").wait_for()
    page.goto(visitor.url + "?id=nosuch&modality=text")
    page.get_by_role("alert").get_by_text("nosuch").wait_for()
    assert page.get_by_role("button", name="Try again").count() == 0
    assert page.title() == "That did not work – modalhash"
    visitor.search("red ball")  # and on it goes
    assert page.get_by_role("alert").count() == 0


def test_a_bad_file_is_never_sent_again(visitor):
    visitor.expected = ("415",)
    page = visitor.open()
    page.locator(".gallery .tile").first.wait_for()
    sent = []
    upload = "multipart/form-data"
    page.on("request", lambda one: sent.append(one.url) if upload in one.headers.get("content-type", "") else None)
    visitor.give("drop", "notes.png", b"no picture", "image/png")
    refused = page.get_by_role("alert").get_by_text("not a picture")
    refused.wait_for()
    assert len(sent) == 1
    page.get_by_role("radio", name="texts").check()  # the same file with another choice
    page.wait_for_function("() => location.search.includes('want')")
    refused.wait_for()
    page.go_back()
    page.wait_for_function("() => !location.search.includes('want')")
    refused.wait_for()
    assert len(sent) == 1
    with page.expect_file_chooser():
        page.get_by_role("button", name="Choose another picture").click()
    page.reload()
    page.locator(".gallery .tile").first.wait_for()
    assert len(sent) == 1
    assert page.get_by_role("alert").count() == 0


@pytest.mark.parametrize(
    ("status", "again"), [(400, False), (413, False), (422, False), (429, True), (500, True), (503, True)]
)
def test_what_may_be_tried_again(visitor, status, again):
    visitor.expected = (str(status),)
    page = visitor.open()
    page.get_by_role("searchbox").wait_for()
    page.route("**/search", lambda route: route.fulfill(status=status, json={"error": "not so", "status": status}))
    page.get_by_role("searchbox").fill("red ball")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("not so").wait_for()
    assert page.get_by_role("button", name="Try again").count() == again
    page.unroute("**/search")
    if again:
        page.get_by_role("button", name="Try again").click()
    else:
        page.keyboard.press("Enter")
    visitor.until_results()


def test_a_file_that_cannot_be_read(visitor):
    page = visitor.open()
    page.get_by_role("searchbox").wait_for()
    page.evaluate(
        "() => { File.prototype.arrayBuffer = () => Promise.reject(new DOMException('moved', 'NotFoundError')) }"
    )
    visitor.give("drop", "moved.png", b"moved", "image/png")
    page.get_by_role("alert").get_by_text("The picture cannot be read").wait_for()
    assert page.get_by_role("button", name="Try again").count() == 0


def test_a_picture_that_is_too_large_is_not_even_sent(visitor, url):
    with urlopen(f"{url}engine", timeout=10) as answer:
        limit = json.load(answer)["limits"]["bytes"]
    page = visitor.open()
    page.get_by_role("searchbox").wait_for()
    page.wait_for_load_state("networkidle")  # what the start asks for is in
    sent = []
    page.on("request", lambda request: sent.append(request.url))
    page.evaluate(
        """(size) => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(size)], "huge.png", { type: "image/png" }));
            document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: carried }));
        }""",
        limit + 1,
    )
    page.get_by_role("alert").get_by_text("this server takes up to 10.0 MB").wait_for()
    assert not sent


def test_the_server_is_gone_and_comes_back(chromium, engine):
    service = Service(engine)
    with visiting(chromium, service.url) as visitor:
        visitor.expected = ("net::ERR_",)
        page = visitor.open("?q=red+ball")
        visitor.until_results()
        service.stop()
        page.get_by_role("searchbox").fill("green ball")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("The server cannot be reached").wait_for()
        again = Service(engine, port=service.port)
        page.get_by_role("button", name="Try again").click()
        visitor.until_results()
        assert "green ball" in page.locator("#asked").inner_text()
        again.stop()


def test_the_first_request_fails(visitor):
    visitor.expected = ("net::ERR_FAILED",)
    page = visitor.page
    page.route("**/engine", lambda route: route.abort())
    visitor.open("?q=red+ball")
    page.get_by_role("alert").get_by_text("The server cannot be reached").wait_for()
    page.unroute("**/engine")
    page.get_by_role("button", name="Try again").click()
    visitor.until_results()
    assert page.get_by_role("radio").count() == 3


def test_nothing_found(visitor):
    page = visitor.open()

    def empty(route):
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "hits": []})

    page.get_by_role("searchbox").wait_for()
    page.route("**/search", empty)
    page.get_by_role("searchbox").fill("red ball")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Nothing found").wait_for()
    assert page.locator("#summary").inner_text().startswith("Nothing among 61 pictures")
    assert "“red ball”" in page.locator("#asked").inner_text()


def test_waiting_is_shown_and_the_last_question_wins(visitor):
    page = visitor.open()
    page.get_by_role("searchbox").wait_for()
    page.locator(".gallery .tile").first.wait_for()
    held = []
    page.route("**/search", lambda route: held.append(route))
    page.get_by_role("searchbox").fill("red ball")
    page.keyboard.press("Enter")
    page.locator(".blank").first.wait_for()
    assert page.locator("#results").get_attribute("aria-busy") == "true"
    assert page.locator("#summary").inner_text() == "Searching …"
    page.unroute("**/search")
    visitor.search("blue box")
    assert page.locator("#results").get_attribute("aria-busy") is None
    assert "“blue box”" in page.locator("#asked").inner_text()
    assert "blue" in page.locator(CARDS).first.inner_text()
    assert len(held) == 1


def test_warnings_are_shown(visitor):
    page = visitor.open("?q=qqqq")
    visitor.until_results()
    assert page.get_by_role("list", name="Warnings").inner_text().startswith("None of these words is known")  # and once
    visitor.search("red ball")
    assert page.locator("#warnings").is_hidden()


def test_a_caption_with_a_script_stays_text(visitor):
    page = visitor.open("?q=a+violet+ball&want=text&k=61")
    visitor.until_results()
    card = page.locator(CARDS).filter(has_text="<script>")
    assert card.locator(".words").inner_text() == EVIL
    assert "<b>violet</b>" in card.locator(".label").all_inner_texts()
    assert page.locator("#results script, #results b, #results img").count() == 0
    card.get_by_role("link", name="Pictures").click()
    page.wait_for_function("() => location.search.includes('id=evil')")
    visitor.until_results()
    assert page.locator(".asked-text").inner_text() == EVIL
    assert EVIL in page.title()
    assert page.locator("#asked script, #asked img").count() == 0
    page.get_by_role("button", name="Search without this").click()
    page.locator(".gallery .tile").first.wait_for()
    visitor.search("<img src=x onerror='window.owned = 4'> red")
    assert page.evaluate("window.owned") is None


def test_a_token_is_asked_for(chromium, engine):
    with serving(engine, token=TOKEN) as service, visiting(chromium, service.url) as visitor:
        visitor.expected = ("401",)
        page = visitor.open(f"?q=red+ball&token={quote(TOKEN)}")
        visitor.until_results()
        assert "token" not in page.url
        visitor.context.clear_cookies()  # as after a restart of the service with another token
        page.get_by_role("searchbox").fill("green ball")
        page.keyboard.press("Enter")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Open").click()
        page.wait_for_function("() => document.querySelector('#token-value')?.value === ''")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        visitor.until_results()
        assert "green ball" in page.locator("#asked").inner_text()
        assert TOKEN not in page.url


def test_the_first_visit_asks_for_the_token(chromium, engine):
    with serving(engine, token=TOKEN) as service, visiting(chromium, service.url) as visitor:
        visitor.expected = ("401",)
        page = visitor.open("?q=red+ball")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        visitor.until_results()
        assert TOKEN not in page.url


def test_modalities_of_any_name_that_cannot_be_typed(chromium, tmp_path):
    draw = np.random.default_rng(0)
    labels = np.eye(4)[draw.integers(4, size=40)]
    features = {name: labels @ draw.normal(size=(4, 6)) + 0.1 for name in ("sketch", "sound", "smell")}
    data = Dataset(features, dict.fromkeys(features, labels), class_names=list("abcd"), name="made up")
    with (
        Engine.train(data, tmp_path / "engine", n_bits=8) as engine,
        serving(engine) as service,
        visiting(chromium, service.url) as visitor,
    ):
        page = visitor.open()
        page.get_by_text("Words cannot be searched here").wait_for()
        assert page.get_by_role("searchbox").count() == 0
        page.locator(".gallery .words").first.wait_for()
        assert page.get_by_role("radio").count() == 4
        assert page.get_by_role("button", name="Search by a picture").count() == 0
        page.goto(visitor.url + "?id=7&modality=sound")
        visitor.until_results()
        assert page.locator("#summary").inner_text().startswith("24 nearest of 120 items")
        assert {one.split()[0] for one in page.locator(".words").all_inner_texts()} <= set(map(str, range(40)))


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_no_sideways_scrolling(chromium, url, width):
    with visiting(chromium, url, viewport={"width": width, "height": 800}) as visitor:
        for address in ("", "?q=red+ball", "?q=red+ball&want=text", f"?q={'endless' * 60}", "?id=evil&modality=text"):
            page = visitor.open(address)
            visitor.until_results() if address else page.locator(".gallery .tile").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
            box = page.get_by_role("searchbox").bounding_box()
            assert box["width"] >= 120
            page.get_by_role("button", name="Filters").click()
            for details in page.locator(".details summary").all()[:3]:
                details.click()
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address


def test_on_a_phone_results_begin_in_the_first_half(chromium, url, engine):
    with visiting(chromium, url, viewport={"width": 360, "height": 640}) as visitor:
        page = visitor.open("?q=red+ball&label=red")
        for kind in ("words", "unknown words and filters", "picture"):
            if kind == "unknown words and filters":
                page = visitor.open("?q=qqqq&label=red&where=label+%3D+red+and+not+kind+%3D+hashed")
            elif kind == "picture":
                visitor.give("drop", "mine.png", picture(engine, "blue"), "image/png")
                page.get_by_alt_text("Your picture").last.wait_for()
            visitor.until_results()
            assert page.locator("#warnings li").count() == (kind == "unknown words and filters"), kind
            assert page.locator(CARDS).first.bounding_box()["y"] < 320, kind


def test_on_a_phone_the_direction_that_is_chosen_is_in_sight(chromium, url):
    with visiting(chromium, url, viewport={"width": 360, "height": 640}) as visitor:
        page = visitor.open("?q=red+ball&want=image&want=text")
        visitor.until_results()
        box = page.locator("#direction label", has_text="everything").bounding_box()
        assert 0 <= box["x"] <= 360 - box["width"]


def test_labels_are_whole(chromium, url):
    with visiting(chromium, url, viewport={"width": 360, "height": 640}) as visitor:
        page = visitor.open("?q=red+ball&want=image&want=text&k=61")
        visitor.until_results()
        whole = """all => all.every((one) => {
            const [own, card] = [one.getBoundingClientRect(), one.closest('.card').getBoundingClientRect()];
            const list = one.parentElement;
            return own.right <= card.right && list.scrollHeight <= list.clientHeight + 1 && one.scrollWidth <= one.clientWidth + 1;
        })"""
        assert page.locator(".label").count() > 100
        assert page.eval_on_selector_all(".label", whole)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(chromium, url, theme):
    with visiting(chromium, url, color_scheme=theme) as visitor:
        page = visitor.open("?q=red+ball&want=image&want=text&k=61")
        visitor.until_results()
        page.get_by_role("button", name="Filters").click()
        page.get_by_text("Why do these match?").click()
        page.locator(".details summary").first.click()
        page.locator(".facts").wait_for()
        dark = page.evaluate("parseInt(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]) < 60")
        assert dark == (theme == "dark")
        for selector in READ:
            found = page.evaluate(CONTRAST, selector)
            assert found, selector
            assert min(found) >= 4.5, selector


def test_names_roles_and_alternatives(visitor):
    page = visitor.open()
    page.locator(".gallery .tile").first.wait_for()
    for address in ("", "?q=red+ball&want=image&want=text&k=61"):
        page.goto(visitor.url + address)
        visitor.until_results() if address else page.locator(".gallery .tile").first.wait_for()
        named = "all => all.every(image => image.alt.trim() || image.closest('button')?.ariaLabel)"
        assert page.eval_on_selector_all("img", named)
        assert page.eval_on_selector_all("svg", "all => all.every(one => one.ariaHidden || one.ariaLabel)")
        named = "all => all.every(one => one.labels?.length || one.ariaLabel || one.textContent.trim())"
        assert page.eval_on_selector_all("input, select, button, a", named)
        assert page.eval_on_selector_all("[id]", "all => new Set(all.map(one => one.id)).size === all.length")
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("h1").count() == page.get_by_role("main").count() == page.get_by_role("search").count() == 1
    assert page.get_by_role("status").count() == 1
    assert page.get_by_role("list", name="Results").get_by_role("article").count() == 61
    assert page.get_by_role("link", name="Skip to the results").count() == 1
    page.get_by_text("Why do these match?").click()
    assert "never paired" in page.locator("#why").inner_text()


def test_nothing_moves_for_those_who_ask(chromium, url):
    with visiting(chromium, url, reduced_motion="reduce") as visitor:
        page = visitor.open("?q=red+ball")
        visitor.until_results()
        page.route("**/search", lambda route: None)
        page.get_by_role("searchbox").fill("blue box")
        page.keyboard.press("Enter")
        page.locator(".blank").first.wait_for()
        still = "all => all.every(one => getComputedStyle(one).animationName === 'none')"
        assert page.eval_on_selector_all(".blank", still)


def test_without_javascript(chromium, url):
    with visiting(chromium, url, java_script_enabled=False) as visitor:
        message = visitor.open().locator("noscript p")
        assert message.is_visible()
        assert "needs JavaScript" in message.inner_text()


def test_the_page_is_small_and_whole(url):
    folder = Path(modalhash.__file__).parent / "serve" / "static"
    for name in [path.name for path in folder.iterdir()]:
        text = (folder / name).read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert " style=" not in page
    assert "<style" not in page
    assert page.count("<script") == page.count("</script>") == 1
    with urlopen(url, timeout=10) as answer:
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
