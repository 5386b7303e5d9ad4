"""Accessibility of the page: the rules of WCAG 2.1 A and AA that axe-core checks, in every state and theme."""

# ruff: noqa: F401, F811  (fixtures are imported, and then are names of parameters)
from __future__ import annotations

from pathlib import Path

import pytest
from browser import announce, answering, chromium, engine, groups_of, url, visiting

pytestmark = pytest.mark.slow

CACHE = Path(__file__).parents[2] / ".cache"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
VIOLATED = """tags => axe.run({ runOnly: tags, resultTypes: ['violations'] }).then(({ violations, passes }) => ({
    passed: passes.map(rule => rule.id),
    violated: violations.flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.html} ${node.failureSummary}`)),
}))"""


@pytest.fixture(scope="module")
def axe() -> str:
    found = sorted(CACHE.glob("axe-core-*/axe.min.js"))
    if not found:
        pytest.skip("axe-core is not here; 'make axe' fetches it from npm")
    return found[-1].read_text(encoding="utf-8")


def start(visitor, engine):
    visitor.open().locator(".gallery .tile").first.wait_for()


def wordless(visitor, engine):
    announce(visitor.page, modalities={"image": {"items": 61, "query": True, "reads": "image"}})
    visitor.open().get_by_text("Words cannot be searched here").wait_for()


def removal(visitor, engine):
    announce(visitor.page, writable=True)
    page = visitor.open()
    for place in (2, 1):
        page.locator(".gallery .card").nth(place).hover()
        page.locator(".gallery .menu summary").nth(place).click()
        if place == 2:
            page.get_by_role("button", name="Remove from the engine").click()
    page.get_by_role("button", name="Undo").wait_for()


def results(visitor, engine):
    page = visitor.open("?q=red+ball&label=red&want=image&want=text&k=61")
    visitor.until_results()
    page.get_by_role("button", name="Filters").click()
    page.get_by_text("Why do these match?").click()
    page.locator(".details summary").first.click()
    page.locator(".facts").first.wait_for()


def dialog(visitor, engine):
    page = visitor.open("?q=red+ball")
    visitor.until_results()
    page.locator(".tile").nth(2).click()
    page.get_by_role("dialog").wait_for()


def nothing(visitor, engine):
    visitor.open("?q=red+ball&where=id+%3D+nosuch").get_by_role("alert").get_by_text("Nothing found").wait_for()


def wrong_filter(visitor, engine):
    visitor.expected = ("422",)
    visitor.page.unroute("**/search")
    visitor.open("?q=red+ball&where=label+like+red").get_by_role("alert").get_by_text("At character 7").wait_for()


def error(visitor, engine):
    visitor.expected = ("404",)
    visitor.open("?id=nosuch").get_by_role("alert").get_by_text("That did not work").wait_for()


def duplicates(visitor, engine):
    visitor.page.route("**/duplicates", lambda route: route.fulfill(json=groups_of(engine)))
    visitor.open("?view=duplicates").get_by_role("heading", name="Group 2").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "state",
    [start, wordless, removal, results, dialog, nothing, wrong_filter, error, duplicates],
    ids=lambda state: state.__name__,
)
def test_no_violation(chromium, url, engine, axe, state, theme):
    with visiting(chromium, url, color_scheme=theme) as visitor:
        page = visitor.page
        announce(page, duplicates=True, options=["where", "min_confidence", "unique"])
        with answering(page, message="Some of these words are not known.", known=0.5):
            state(visitor, engine)
            page.wait_for_load_state("networkidle")
            for width in (1280, 360):
                page.set_viewport_size({"width": width, "height": 800})
                page.evaluate(axe)
                found = page.evaluate(VIOLATED, TAGS)
                assert found["violated"] == []
                assert "color-contrast" in found["passed"]


def test_violations_are_found(chromium, url, axe):
    """So that the test above cannot pass because nothing was checked."""
    with visiting(chromium, url) as visitor:
        page = visitor.open("?q=red+ball")
        visitor.until_results()
        page.evaluate("() => { for (const node of document.querySelectorAll('.rank')) node.style.color = '#ddd' }")
        page.evaluate("() => document.querySelector('label[for=label]').remove()")
        page.get_by_role("button", name="Filters").click()
        page.evaluate(axe)
        found = {problem.split(":")[0] for problem in page.evaluate(VIOLATED, TAGS)["violated"]}
        assert found == {"color-contrast", "label"}
