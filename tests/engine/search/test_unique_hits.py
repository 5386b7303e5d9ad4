"""Searches that leave out near-duplicates of better hits."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from modalhash.engine import Hit, Query, SearchOptions
from modalhash.engine.search.near_duplicates import SameHits, find_unique

CAPTION = "a purple elephant sleeps in the red corner"


def ids(hits):
    return [hit.id for hit in hits]


def asked(**options):
    return Query(np.zeros(2, np.uint8)), SearchOptions(**options)


def test_the_best_of_each_group_stays_and_ranks_are_those_of_what_is_left():
    hits = [Hit(name, 0, "image", rank=rank) for name, rank in (("a", 1), ("b", 2), ("c", 2), ("d", 4), ("e", 5))]
    same = SameHits(None, {("image", "a"): 0, ("image", "d"): 0, ("text", "e"): 0})
    assert [(hit.id, hit.rank) for hit in same.first_of_each(hits)] == [("a", 1), ("b", 2), ("c", 2), ("e", 4)]


def test_more_hits_are_asked_for_until_there_are_enough():
    calls = []
    groups = {("image", str(number)): number // 5 for number in range(100)}  # five of each

    def find(asked):
        calls.append([options.k for _, options in asked])
        assert not any(options.unique for _, options in asked)
        return [[Hit(str(number), 0, "image") for number in range(min(100, options.k))] for _, options in asked]

    found = find_unique([asked(k=4, unique=True), asked(k=3)], find, SameHits(None, groups))
    assert [ids(hits) for hits in found] == [["0", "5", "10", "15"], ["0", "1", "2"]]
    assert calls == [[8, 3], [32]]
    found = find_unique([asked(k=50, unique=True)], find, SameHits(None, groups))
    assert len(found[0]) == 20  # there are no more
    assert calls[2:] == [[100], [400]]


def test_a_limit_within_a_radius_is_kept():
    def find(asked):
        return [[Hit(str(number), 0, "image") for number in range(options.limit)] for _, options in asked]

    same = SameHits(None, {("image", "0"): 0, ("image", "1"): 0})
    (hits,) = find_unique([asked(radius=3, limit=3, unique=True)], find, same)
    assert ids(hits) == ["0", "2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"refine": False}, {"hybrid": False}, {"radius": 16}, {"where": "year > 1"}])
def test_copies_of_a_text_are_found_once(engine, options):
    engine.add([{"id": f"copy {number}", "text": CAPTION, "year": 5} for number in range(30)])
    engine.add([{"id": "another", "text": "something quite different", "year": 5}])
    plain = engine.search(text=CAPTION, want="text", k=5, **options)
    assert sum(hit.id.startswith("copy") for hit in plain) > 1
    hits = engine.search(text=CAPTION, want="text", k=5, unique=True, **options)
    assert sum(hit.id.startswith("copy") for hit in hits) == 1
    assert len(hits) == 5 or "where" in options or "radius" in options
    assert len({hit.id for hit in hits}) == len(hits)


def test_texts_that_only_look_alike_stay(engine):
    engine.add([{"id": "one", "text": "red xyzzy plugh"}, {"id": "two", "text": "red grault garply"}])
    assert {"one", "two"} <= {*ids(engine.search(text="red", want="text", k=200, unique=True))}


def test_what_only_pixels_tell_is_known_after_a_call_of_duplicates(engine, world, tmp_path):
    pytest.importorskip("PIL.Image")
    shutil.copy(world / "photos" / "0.png", tmp_path / "copy.png")
    engine.add([{"id": "copy", "path": str(tmp_path / "copy.png")}])
    records = engine.records(["photos/0.png", "copy"])
    engine.store.add([replace(record, refinement=None) for record in records], replace=True)  # only groups tell
    options = {"want": "image", "k": 200, "unique": True}
    assert {"photos/0.png", "copy"} <= {*ids(engine.search(text="red", **options))}
    engine._duplicates.find(["image"], radius=8, threshold=0.97)
    hits = ids(engine.search(text="red", **options))
    assert len({"photos/0.png", "copy"} & {*hits}) == 1
    engine.add([{"id": "new", "text": "something new"}])  # what was found no longer holds
    assert {"photos/0.png", "copy"} <= {*ids(engine.search(text="red", **options))}


def test_nothing_changes_without_the_option(engine):
    assert engine.search(text="red", k=7) == engine.search(text="red", k=7, unique=False)
    assert len(engine.search(text="red", k=7)) == 7
