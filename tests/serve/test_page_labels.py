"""The page in a browser: the labels of an item are changed where the service is writable, and only there."""

# ruff: noqa: F401, F811  (fixtures are imported, and then are names of parameters)
from __future__ import annotations

import shutil

import pytest
from browser import Visitor, chromium, engine, serving, url, visitor

pytestmark = pytest.mark.slow


@pytest.fixture
def own(engine, tmp_path):
    """A copy, which the test changes."""
    from modalhash.engine import Engine

    shutil.copytree(engine.path, tmp_path / "engine")
    with Engine.open(tmp_path / "engine") as opened:
        yield opened


def test_labels_are_changed_in_the_dialog(chromium, own):
    with serving(own, writable=True) as service:
        visitor = Visitor(chromium, service.url)
        page = visitor.open("?q=a+red+ball&want=image")
        visitor.until_results()
        first = page.locator("#results article.card").first
        id = first.locator(".title").get_attribute("title")
        first.locator(".tile").click()
        dialog = page.locator("#viewer")
        dialog.get_by_role("button", name="Change labels").click()
        for label in ("red", "circle"):
            dialog.get_by_role("button", name=f"Take off {label}").click()
        box = dialog.get_by_label("Add a label")
        for label in ("blue", "<b>new</b>"):
            box.fill(label)
            box.press("Enter")
        box.fill("square")  # typed, and not added: it is meant too
        dialog.get_by_role("button", name="Save").click()
        said = dialog.get_by_role("status")
        said.wait_for()
        assert "New to this engine: “<b>new</b>”" in said.inner_text()
        assert "Searches go by its labels now" in said.inner_text()
        assert dialog.locator(".label").all_inner_texts() == ["blue", "<b>new</b>", "square"]
        record = own.store.get(id, modality="image")
        assert (record.labels, record.kind) == (("blue", "<b>new</b>", "square"), "learned")
        with page.expect_response("**/search"):  # the page behind it is asked for again
            page.keyboard.press("Escape")
        visitor.until_results()
        page.locator("#results .tile").first.click()
        id = page.locator("#viewer-title").get_attribute("title")
        own.remove([id])
        dialog.get_by_role("button", name="Change labels").click()
        visitor.expected = ("404",)
        dialog.get_by_role("button", name="Save").click()
        error = dialog.get_by_role("alert")
        error.wait_for()
        assert f"o item has the id '{id}'" in error.inner_text()
        dialog.get_by_role("button", name="Cancel").click()
        assert dialog.locator("form").count() == 0
        visitor.close()


def test_where_nothing_can_be_written_nothing_is_offered(visitor):
    page = visitor.open("?q=a+red+ball")
    visitor.until_results()
    page.locator("#results .tile").first.click()
    assert page.locator("#viewer .label").count()
    assert page.locator("#viewer").get_by_role("button", name="Change labels").count() == 0


def test_the_dialog_has_the_whole_of_a_long_text_and_does_not_change_labels_that_were_cut(chromium, own):
    long = "a red ball " * 500
    own.add([{"id": "a/long one", "text": long, "labels": [f"label {n}" for n in range(101)]}])
    with serving(own, writable=True) as service:
        visitor = Visitor(chromium, service.url)
        page = visitor.open("?want=text&where=id+%3D+%22a/long+one%22")
        page.locator("#results .tile").first.click()
        page.wait_for_function(
            "length => document.querySelector('.viewer-text').textContent.length === length", arg=len(long)
        )
        assert page.locator("#viewer .viewer-text").text_content() == long
        assert page.locator("#viewer").get_by_role("button", name="Change labels").count() == 0
