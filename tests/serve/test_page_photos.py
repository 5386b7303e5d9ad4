"""The page in a browser with a folder of photos: looking, filtering, removing, picture and words."""

# ruff: noqa: F401, F811  (fixtures are imported, and then are names of parameters)
from __future__ import annotations

import re
import shutil
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import announce, answering, chromium, engine, picture, serving, url, visiting, visitor
from serve_tools import picture as drawn

from modalhash.engine import Engine

pytestmark = pytest.mark.slow

CARDS = "#results article.card"
LONG = "2021/IMG_20210704_a-very-long-name-that-no-card-has-room-for-in-one-line.jpeg"
PHOTOS = [
    {"id": LONG, "taken": "2021-07-04T10:00:00", "camera": "X100", "latitude": 48.1, "longitude": 11.5},
    {"id": "b.png", "taken": "2020-01-31T23:59:00", "camera": 'The "D" 70', "latitude": 48.2, "longitude": 11.6},
    {"id": "c.png", "taken": "2019-06-14T12:30:00", "camera": "X100", "latitude": -33.0, "longitude": 18.0},
    {"id": "d.png", "taken": "2018-03-01T08:00:00"},
]


@pytest.fixture
def photos(engine, tmp_path):
    """A copy that the test may change, with four photos that say when, with what and where they were taken."""
    shutil.copytree(engine.path, tmp_path / "engine")
    with Engine.open(tmp_path / "engine") as opened:
        file = opened.path_of(next(item for item in opened.items() if item.modality == "image"))
        shutil.copy(file, tmp_path / "photo.png")
        opened.add([{**photo, "path": str(tmp_path / "photo.png"), "labels": ["red"]} for photo in PHOTOS])
        yield opened


@pytest.fixture
def writer(chromium, photos):
    """A window of a service that may be changed."""
    with serving(photos, writable=True) as service, visiting(chromium, service.url) as one:
        yield one


def shown(page) -> list[str]:
    """The names of the cards in sight, in order."""
    names = "all => all.filter(one => one.checkVisibility()).map(one => one.ariaLabel.replace('Picture ', ''))"
    return page.eval_on_selector_all(f"{CARDS} .tile", names)


def remove(page, name: str) -> None:
    card = page.locator(CARDS).filter(has=page.get_by_role("button", name=f"Picture {name}", exact=True))
    card.hover()
    card.locator(".menu summary").click()
    card.get_by_role("button", name="Remove from the engine").click()


def test_it_opens_with_photos_newest_first(writer):
    page = writer.open()
    page.locator(".gallery .tile").first.wait_for()
    assert shown(page)[:4] == [photo["id"].split("/")[-1] for photo in PHOTOS]
    assert page.locator("#summary").inner_text() == "65 pictures, newest first"
    assert page.get_by_role("list", name="Newest items").get_by_role("article").count() >= 60
    assert page.locator(".gallery img").first.evaluate("image => image.decode().then(() => image.naturalWidth)")
    page.locator(".gallery .tile").first.click()
    dialog = page.get_by_role("dialog", name=f"Picture {LONG.split('/')[-1]}")
    assert dialog.locator(".taken").inner_text() == "4 July 2021 at 10:00 · X100 · 48.100, 11.500"
    dialog.get_by_role("link", name="More like this").click()
    writer.until_results()
    page.go_back()
    page.locator(".gallery .tile").first.wait_for()


def test_scrolling_loads_more(visitor):
    page = visitor.page
    offsets = []

    def few(route):
        offsets.append(int(parse_qs(urlsplit(route.request.url).query)["offset"][0]))
        route.continue_(url=route.request.url.replace("limit=60", "limit=20"))

    page.route("**/items?**", few)
    page.set_viewport_size({"width": 360, "height": 400})
    visitor.open()
    tiles = page.locator(".gallery .tile")
    tiles.first.wait_for()
    for n in (40, 60, 61):
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        tiles.nth(n - 1).wait_for(state="attached")
    assert offsets == [0, 20, 40, 60]
    assert len(set(shown(page))) == 61
    page.get_by_role("button", name="More").wait_for(state="hidden")
    page.evaluate("scrollTo(0, 900)")
    page.locator(".gallery .menu").nth(20).evaluate("menu => { menu.open = true }")
    page.locator(".gallery .menu .like").evaluate("link => link.click()")  # a click of the mouse might scroll
    visitor.until_results()
    page.go_back()
    tiles.nth(60).wait_for(state="attached")  # what was loaded is still there, where it was
    assert page.evaluate("scrollY") == 900
    assert len(offsets) == 4


def test_more_that_does_not_come(visitor):
    visitor.expected = ("503",)
    page = visitor.page
    page.route("**/items?**offset=60**", lambda route: route.fulfill(status=503, json={"error": "busy", "status": 503}))
    visitor.open().locator(".gallery .tile").first.wait_for()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.get_by_role("alert").get_by_text("busy").wait_for()
    page.unroute("**/items?**offset=60**")
    page.get_by_role("button", name="Try again").click()
    page.locator(".gallery .tile").first.wait_for()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.locator(".gallery .tile").nth(60).wait_for(state="attached")


def test_filters_for_photos(writer):
    page = writer.open()
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Camera").select_option("X100")
    page.get_by_text("2 pictures, newest first").wait_for()
    assert shown(page) == [LONG.split("/")[-1], "c.png"]
    page.get_by_label("Taken from").fill("2019-01-01")
    page.get_by_label("until").fill("2019-06-14")
    page.get_by_text("1 picture, newest first").wait_for()
    assert parse_qs(urlsplit(page.url).query) == {"camera": ["X100"], "from": ["2019-01-01"], "to": ["2019-06-14"]}
    page.reload()
    page.get_by_text("1 picture, newest first").wait_for()
    assert shown(page) == ["c.png"]
    page.get_by_role("searchbox").fill("red ball")
    page.get_by_role("searchbox").press("Enter")
    writer.until_results()
    assert shown(page) == ["c.png"]
    for name in ("from 2019-01-01", "until 2019-06-14", "X100"):
        page.get_by_role("button", name=f"Remove the filter {name}").click()
    page.goto(writer.url + '?camera=The+"D"+70')
    page.get_by_text("1 picture, newest first").wait_for()
    assert shown(page) == ["b.png"]


def test_filters_by_place(writer):
    page = writer.open()
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("Place").select_option("known")
    page.get_by_text("3 pictures, newest first").wait_for()
    page.get_by_role("button", name="Remove the filter with a place").click()
    page.get_by_text("65 pictures, newest first").wait_for()
    page.get_by_label("Place").select_option("box")
    for corner, value in {"South": -40, "West": 10, "North": 0, "East": 20}.items():
        page.get_by_label(corner, exact=True).fill(str(value))
    page.keyboard.press("Enter")
    page.get_by_text("1 picture, newest first").wait_for()
    assert shown(page) == ["c.png"]
    page.get_by_role("button", name="Clear").wait_for(state="hidden")
    page.get_by_role("button", name="Remove the filter between").click()
    page.get_by_text("65 pictures, newest first").wait_for()
    page.locator(".gallery .tile").first.click()
    page.get_by_role("dialog").get_by_role("link", name="Taken near here").click()
    page.get_by_text("2 pictures, newest first").wait_for()
    assert shown(page) == [LONG.split("/")[-1], "b.png"]


def test_no_filters_for_what_no_item_has(visitor):
    page = visitor.open()
    with page.expect_response("**/values?field=latitude**"):
        page.get_by_role("button", name="Filters").click()
    page.get_by_label("Show").wait_for()
    for name in ("Taken from", "Camera", "Place"):
        assert page.get_by_label(name).is_hidden(), name


def test_a_wrong_filter_before_any_search(visitor):
    visitor.expected = ("422",)
    page = visitor.open("?label=reed")
    page.get_by_role("alert").get_by_text("did you mean 'red'").wait_for()
    assert page.get_by_label("Label", exact=True).get_attribute("aria-invalid") == "true"


def test_a_long_file_name_keeps_its_ending(writer):
    page = writer.open("?q=red+ball&camera=X100")
    writer.until_results()
    title = page.locator(f".title[title='{LONG}']")
    assert title.text_content() == LONG.split("/")[-1]
    ending, stem = title.locator(".ending"), title.locator(".stem")
    assert ending.text_content() == "-line.jpeg"
    assert stem.evaluate("one => one.scrollWidth > one.clientWidth")  # cut
    inside = "one => one.getBoundingClientRect().right <= one.closest('.card').getBoundingClientRect().right"
    assert ending.evaluate(inside)
    assert title.bounding_box()["height"] < 30  # one line


def test_what_is_removed_can_be_undone(writer, photos):
    page = writer.open()
    page.locator(".gallery .tile").first.wait_for()
    sent = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "DELETE" else None)
    remove(page, "b.png")
    toast = page.get_by_role("alert")
    assert toast.inner_text().startswith("Removed from the engine; the file is untouched.")
    assert "b.png" not in shown(page)
    assert page.locator("#summary").inner_text() == "64 pictures, newest first"
    assert page.evaluate("document.activeElement.ariaLabel") == "Picture c.png"  # the next one has the focus
    page.get_by_role("button", name="Undo").click()
    assert "b.png" in shown(page)
    assert page.locator("#summary").inner_text() == "65 pictures, newest first"
    remove(page, "b.png")
    page.keyboard.press("Control+z")
    assert "b.png" in shown(page)
    assert not sent
    assert "b.png" in {item.id for item in photos.items()}


@pytest.mark.parametrize("way", ["wait", "close", "leave", "another"])
def test_a_removal_is_sent(writer, photos, tmp_path, way, until):
    page = writer.page
    page.clock.install()
    writer.open()
    page.locator(".gallery .tile").first.wait_for()
    remove(page, "b.png")
    if way == "wait":
        page.clock.fast_forward(9000)
    elif way == "close":
        page.get_by_role("alert").get_by_role("button", name="Close").click()
    elif way == "leave":
        page.goto("about:blank")
    else:
        remove(page, "c.png")
        assert page.get_by_role("alert").count() == 1
    until(lambda: "b.png" not in {item.id for item in photos.items()})
    assert "c.png" in {item.id for item in photos.items()}
    assert (tmp_path / "photo.png").exists()


def test_a_removal_that_fails(writer):
    writer.expected = ("500",)
    page = writer.page
    writer.open()
    page.route("**/items/b.png**", lambda route: route.fulfill(status=500, json={"error": "no luck", "status": 500}))
    page.locator(".gallery .tile").first.wait_for()
    remove(page, "b.png")
    page.get_by_role("alert").get_by_role("button", name="Close").click()
    page.get_by_role("alert").get_by_text("Not removed: no luck").wait_for()
    assert page.get_by_role("button", name="Undo").count() == 0
    assert "b.png" in shown(page)


def test_removed_from_the_dialog_and_gone_from_older_answers(writer, photos, until):
    page = writer.open("?q=red+ball&camera=X100")
    writer.until_results()
    assert sorted(shown(page)) == sorted([LONG.split("/")[-1], "c.png"])
    page.get_by_role("link", name="More like this").first.click()
    page.locator(".asked-picture").wait_for()
    page.get_by_role("button", name="Picture c.png").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove from the engine").click()
    page.get_by_role("dialog").wait_for(state="hidden")
    page.go_back()
    page.wait_for_function("() => location.search.includes('q=')")
    assert shown(page) == [LONG.split("/")[-1]]
    page.get_by_role("alert").get_by_role("button", name="Close").click()
    until(lambda: "c.png" not in {item.id for item in photos.items()})


def test_one_of_a_group_is_kept(writer, photos, until):
    page = writer.open("?view=duplicates")
    group = page.locator(".group").filter(has_text="d.png")
    group.wait_for()
    n = group.get_by_role("article").count()
    groups = page.get_by_role("heading", name="Group ").count()
    card = group.get_by_role("article").filter(has_text="d.png")
    card.get_by_role("button", name="Keep only this").click()
    assert (
        page.get_by_role("alert").inner_text().startswith(f"{n - 1} items removed from the engine; the files are untou")
    )
    assert page.get_by_role("heading", name="Group ").count() == groups - 1
    page.get_by_role("button", name="Undo").click()
    assert group.get_by_role("article").count() == n
    card.get_by_role("button", name="Keep only this").click()
    page.get_by_role("alert").get_by_role("button", name="Close").click()
    until(lambda: not {"b.png", "c.png", LONG} & {item.id for item in photos.items()})
    assert "d.png" in {item.id for item in photos.items()}


def test_a_copy_that_the_engine_stores_is_said_to_go(writer, photos):
    photos.add([{"id": "own.png", "data": drawn(), "modality": "image"}], keep=True)
    page = writer.open("?where=id+%3D+own.png")
    page.locator(".gallery .tile").first.wait_for()
    remove(page, "own.png")
    assert page.get_by_role("alert").inner_text().startswith("Removed from the engine, with the copy that it stores.")
    page.get_by_role("button", name="Undo").click()


def test_who_may_not_write_is_offered_no_removal(visitor):
    page = visitor.open()
    page.locator(".gallery .tile").first.wait_for()
    page.locator(".gallery .card").first.hover()
    page.locator(".menu summary").first.click()
    assert page.locator(".menu[open]").get_by_role("link").all_inner_texts() == [
        "More like this",
        "Texts",
        "Open the file",
    ]
    page.keyboard.press("Escape")
    assert page.locator(".menu[open]").count() == 0
    page.locator(".gallery .card").nth(1).hover()
    page.locator(".menu summary").nth(1).click()
    page.locator("#summary").click()  # a click elsewhere closes it
    assert page.locator(".menu[open]").count() == 0
    page.goto(visitor.url + "?view=duplicates")
    page.get_by_role("heading", name="Group 1:").wait_for()
    assert page.get_by_role("button", name=re.compile("Keep|Remove")).count() == 0


def without_texts(page, **facts):
    announce(page, modalities={"image": {"items": 61, "query": True, "reads": "image"}, **facts})


def test_words_where_there_are_no_texts(visitor):
    page = visitor.page
    without_texts(page, text={"items": 0, "query": True, "reads": "text"})
    with answering(page, read_as={"perro": "dog"}) as bodies:
        visitor.open()
        page.locator(".gallery .tile").first.wait_for()
        assert page.get_by_role("radio").count() == 0
        assert page.locator("#about").inner_text() == "61 pictures. Search by words or by a picture."
        visitor.search("perro")
        assert bodies == [{"text": "perro", "k": 24, "want": ["image"]}]
        assert page.get_by_text("perro: read as dog").is_visible()
        assert page.get_by_role("link", name="Texts").count() == 0
    visitor.search("red ball")
    assert page.locator("#read-as").is_hidden()


def test_where_words_cannot_be_read_it_is_said_why(visitor):
    page = visitor.page
    without_texts(page)
    announce_labels(page)
    visitor.open()
    sentence = page.get_by_text("Words cannot be searched here, because this engine was trained without texts;")
    sentence.wait_for()
    assert page.get_by_role("searchbox").count() == page.get_by_role("button", name="Search", exact=True).count() == 0
    assert page.get_by_role("button", name="Search by a picture").is_visible()
    assert page.locator(".chip").all_inner_texts() == ["red"]  # a label shows what has it; "blue box" is not a label
    page.locator(".chip").click()
    page.wait_for_function("() => /^[1-5][0-9] pictures/.test(document.querySelector('#summary').textContent)")
    assert parse_qs(urlsplit(page.url).query) == {"label": ["red"]}
    assert 0 < len(shown(page)) < 61


def announce_labels(page):
    def answer(route):
        response = route.fetch()
        facts = {
            "modalities": {"image": {"items": 61, "query": True, "reads": "image"}},
            "suggestions": ["red", "blue box"],
        }
        route.fulfill(response=response, json={**response.json(), **facts})

    page.route("**/engine", answer)


def test_suggestions_of_the_service_come_before_examples(visitor):
    announce(visitor.page, suggestions=["green ball"])
    page = visitor.open()
    page.locator(".chip").wait_for()
    assert page.locator(".chip").all_inner_texts() == ["green ball"]
    announce(page, suggestions=[])
    page.reload()
    page.locator(".gallery .tile").first.wait_for()
    assert page.get_by_text("Try", exact=True).is_hidden()


def test_hide_duplicates(visitor):
    page = visitor.open("?q=red+ball")
    visitor.until_results()
    announce(page, options=["unique"])
    bodies = []

    def answer(route):
        body = route.request.post_data_json
        bodies.append(body)
        route.continue_(post_data={name: value for name, value in body.items() if name != "unique"})

    page.route("**/search", answer)
    page.reload()
    visitor.until_results()
    with page.expect_response("**/search"):
        page.get_by_role("switch", name="Hide duplicates").check()
    visitor.until_results()
    assert [body.get("unique") for body in bodies] == [None, True]
    assert parse_qs(urlsplit(page.url).query) == {"q": ["red ball"], "unique": ["true"]}


def test_an_item_and_words_are_one_search(visitor):
    page = visitor.open("?q=red+ball")
    visitor.until_results()
    page.get_by_role("link", name="More like this").first.click()
    page.locator("#subject img").wait_for()
    bodies = []

    def answer(route):
        bodies.append(route.request.post_data_json)
        route.continue_(post_data={name: value for name, value in bodies[-1].items() if name != "text"})

    page.route("**/search", answer)
    page.get_by_role("searchbox", name="Words to add to the picture").fill("at night")
    with page.expect_response("**/search"):
        page.keyboard.press("Enter")
    visitor.until_results()
    asked = parse_qs(urlsplit(page.url).query)
    assert bodies == [{"id": asked["id"][0], "modality": "image", "text": "at night", "k": 24, "want": ["image"]}]
    assert asked["q"] == ["at night"]
    assert page.locator(".asked-how").inner_text() == "A picture and words"
    page.reload()
    visitor.until_results()
    assert bodies[1] == bodies[0]
    page.unroute("**/search")
    page.get_by_role("button", name="Search without this").click()
    page.wait_for_function("() => location.search === '?q=at+night'")
    visitor.until_results()
    assert page.locator("#subject").is_hidden()


def test_a_picture_and_words_are_one_search(visitor, engine):
    page = visitor.open()
    visitor.give("drop", "mine.png", picture(engine, "blue"), "image/png")
    visitor.until_results()
    forms = []

    def answer(route):
        forms.append(route.request.post_data_buffer)
        found = {**fetched, "read_as": {}}
        route.fulfill(json=found)

    with page.expect_response("**/search") as response:
        page.get_by_role("radio", name="texts").check()
    fetched = response.value.json()
    page.route("**/search", answer)
    page.get_by_role("searchbox").fill("at night")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.search.includes('q=at+night')")
    visitor.until_results()
    assert b'name="image"; filename="mine.png"' in forms[0]
    assert b'name="text"\r\n\r\nat night\r\n' in forms[0]
    page.reload()  # the words are in the address, and the browser has the picture
    visitor.until_results()
    assert len(forms) == 2
    assert b"at night" in forms[1]
    assert page.get_by_alt_text("Your picture").first.is_visible()


def test_what_is_refused_is_not_searched_by_again(visitor):
    visitor.expected = ("422",)
    page = visitor.open("?q=red+ball")
    visitor.until_results()
    page.get_by_role("link", name="More like this").first.click()
    page.locator("#subject img").wait_for()
    refusal = {"error": "not both", "status": 422}
    page.route("**/search", lambda route: route.fulfill(status=422, json=refusal))
    page.get_by_role("searchbox").fill("at night")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("not both").wait_for()
    page.unroute("**/search")
    visitor.search("blue box")
    assert parse_qs(urlsplit(page.url).query) == {"q": ["blue box"]}
