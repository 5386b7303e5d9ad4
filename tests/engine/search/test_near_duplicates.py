"""Groups of items that are the same, or nearly."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from modalhash.engine.search import near_duplicates
from modalhash.engine.search.near_duplicates import group_texts, group_vectors, share_of_words, words_in
from modalhash.store import Filter, Record


def groups_one_by_one(vectors, radius, threshold):
    """The rule as it is told: in order, whoever is free takes all later ones that are free and near to it."""
    values = vectors.astype(np.float64)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    free, groups = set(range(len(vectors))), []
    for row in range(len(vectors)):
        if row not in free:
            continue
        bits = ((vectors > 0) != (vectors[row] > 0)).sum(axis=1)
        cosines = values @ values[row]
        near = [
            other
            for other in free
            if other > row and ((bits[other] <= radius and cosines[other] >= threshold) or cosines[other] > 1 - 1e-12)
        ]
        free -= {row, *near}
        if near:
            groups.append({row, *near})
    return groups


def clustered(n, rng, n_values=64, spread=0.15):
    """Vectors around some centres, at all distances from them, and copies of some."""
    centres = rng.standard_normal((n // 10, n_values))
    noise = rng.uniform(0, 2 * spread, (n, 1)) * rng.standard_normal((n, n_values))
    values = centres[rng.integers(len(centres), size=n)] + noise
    values[rng.integers(n, size=n // 10)] = values[rng.integers(n, size=n // 10)]
    return np.rint(40 * values).clip(-127, 127).astype(np.int8)


@pytest.mark.parametrize(("radius", "threshold"), [(8, 0.97), (3, 0.9), (0, 0.99)])
def test_groups_are_those_of_comparing_one_by_one(monkeypatch, radius, threshold):
    monkeypatch.setattr(near_duplicates, "BATCH", 64)  # several batches
    vectors = clustered(600, np.random.default_rng(0))
    found = group_vectors(vectors, radius=radius, threshold=threshold)
    assert [set(rows.tolist()) for rows, _ in found] == groups_one_by_one(vectors, radius, threshold)
    assert len(found) > 10


@pytest.mark.parametrize("candidates", [1, 2**18])
def test_few_lookups_at_a_time_give_the_same(monkeypatch, candidates):
    monkeypatch.setattr(near_duplicates, "WANTED_CANDIDATES", candidates)
    vectors = clustered(400, np.random.default_rng(1))
    found = group_vectors(vectors, radius=8, threshold=0.95)
    assert [set(rows.tolist()) for rows, _ in found] == groups_one_by_one(vectors, 8, 0.95)


def test_tables_find_what_a_scan_finds():
    rng = np.random.default_rng(2)
    vectors = rng.integers(-100, 100, (30_000, 64), dtype=np.int8)  # many enough for tables at this radius
    vectors[20_000:20_050] = vectors[:50]
    vectors[20_000:20_050, 0] ^= 1
    found = group_vectors(vectors, radius=2, threshold=0.99)
    assert sorted(tuple(rows.tolist()) for rows, _ in found) == [(row, 20_000 + row) for row in range(50)]


def test_a_chain_of_small_steps_is_not_one_group():
    angles = np.arange(0, np.pi, 0.1)  # each is near to the next
    vectors = np.rint(100 * np.stack([np.cos(angles), np.sin(angles)], axis=1)).astype(np.int8)
    vectors = np.pad(vectors, ((0, 0), (0, 62)), constant_values=1)
    for rows, cosines in group_vectors(vectors, radius=64, threshold=0.97):
        assert cosines.min() >= 0.97
        assert len(rows) <= 4


def test_the_first_comes_first_and_the_others_by_nearness():
    first = np.arange(1, 65, dtype=np.int8)
    far, near = first.copy(), first.copy()
    far[:8] += 20
    near[0] += 1
    ((rows, cosines),) = group_vectors(np.stack([first, far, near, first]), radius=8, threshold=0.9)
    assert rows.tolist() == [0, 3, 2, 1]
    assert cosines[:2].tolist() == [1, 1]
    assert 0.9 <= cosines[3] < cosines[2] < 1


def test_many_alike_take_no_square_of_memory_or_time():
    vectors = np.tile(np.arange(1, 65, dtype=np.int8), (50_000, 1))
    vectors[:, 0] = np.arange(50_000) % 100
    ((rows, _),) = group_vectors(vectors, radius=8, threshold=0.9)
    assert len(rows) == 50_000


def test_nothing_and_little():
    assert group_vectors(np.empty((0, 64), np.int8), radius=8, threshold=0.9) == []
    assert group_vectors(np.ones((1, 64), np.int8), radius=8, threshold=0.9) == []
    ((rows, _),) = group_vectors(np.ones((2, 3), np.int8), radius=8, threshold=0.9)
    assert rows.tolist() == [0, 1]


def test_texts_share_most_of_their_words(monkeypatch):
    texts = ["flag: France", "flag: Chad", "Flag, France!", "flag: Chad"]
    vectors = np.ones((10, 4), np.int8)
    for _ in range(2):
        found = group_texts(texts, np.array([2, 4, 6, 8]), vectors, 0.97)
        assert [rows.tolist() for rows, _ in found] == [[2, 6], [4, 8]]
        monkeypatch.setattr(near_duplicates, "MAX_COMPARED_TEXTS", 0)  # the same words are found all the same
    assert share_of_words(words_in("a red boat"), words_in("A red ship")) == pytest.approx(2 / 3)


# -- in an engine


def keys(group):
    return [item.id for item in group.items]


@pytest.mark.slow
def test_a_copied_file_is_exact_and_a_smaller_one_near(engine, world, tmp_path):
    image = pytest.importorskip("PIL.Image")
    shutil.copy(world / "photos" / "0.png", tmp_path / "copy.png")
    image.open(world / "photos" / "1.png").resize((36, 36)).save(tmp_path / "small.png")
    engine.add([{"id": name, "path": str(tmp_path / f"{name}.png")} for name in ("copy", "small")])
    found = engine.duplicates(modality="image", threshold=0.9)
    exact = [group for group in found if group.exact]
    assert [keys(group) for group in exact] == [["photos/0.png", "copy"]]
    assert found[0].exact  # before all others
    assert exact[0].items[1].score == 1
    (near,) = [group for group in found if "small" in keys(group)]
    assert not near.exact
    assert "photos/1.png" in keys(near)
    assert near.items[0].score == 1 > near.items[-1].score >= 0.9


def test_mirrored_turned_and_cropped_photos(engine, tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    grids = (np.kron(rng.integers(0, 60, (n, n, 3)), np.ones((120 // n, 120 // n, 1))) for n in (4, 8, 24, 40))
    pixels = sum(grids)
    photo = image.fromarray(pixels.astype(np.uint8))
    changed = {
        "original": photo,
        "mirrored": photo.transpose(image.Transpose.FLIP_LEFT_RIGHT),
        "turned": photo.transpose(image.Transpose.ROTATE_90),
        "cropped": photo.crop((0, 12, 108, 120)),
    }
    for name, picture in changed.items():
        picture.save(tmp_path / f"{name}.png")
    engine.add([{"id": name, "path": str(tmp_path / f"{name}.png")} for name in changed])
    finder = finder_without_vectors(engine)  # by their features the four look alike

    def found(**options):
        groups = finder.find(["image"], radius=8, **{"threshold": 0.97, **options})
        return [group for group in groups if "original" in keys(group)]

    (group,) = found()
    assert sorted(keys(group)) == sorted(changed)
    assert not group.exact
    assert [item.found_by for item in group.items] == [("features",), *[("pixels",)] * 3]
    assert [item.score for item in group.items] == sorted((item.score for item in group.items), reverse=True)
    assert all(0.9 < item.score <= 1 for item in group.items)
    assert found(pixels=False) == []
    assert found(threshold=1.0) == []
    assert keys(found(where=Filter.parse("id in (original, turned)"))[0]) == ["original", "turned"]


def test_groups_of_the_same_photo_are_joined(engine, tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(1)
    photo = image.fromarray(np.kron(rng.integers(0, 255, (24, 24, 3)), np.ones((5, 5, 1))).astype(np.uint8))
    turned = photo.transpose(image.Transpose.ROTATE_180)
    for name, picture in {"a": photo, "b": turned, "c": photo, "d": turned}.items():
        picture.save(tmp_path / f"{name}.png")
    engine.add([{"id": name, "path": str(tmp_path / f"{name}.png")} for name in "abcd"])
    (group,) = [group for group in engine.duplicates(modality="image") if "a" in keys(group)]
    assert keys(group) == ["a", "c", "b", "d"]
    (tmp_path / "b.png").unlink()  # b stands for d as well: without its file, only features tell
    fresh = near_duplicates.DuplicateFinder(engine.store, engine.refinement, engine._files)
    found = fresh.find(["image"], radius=8, threshold=0.97)
    assert {("a", "c"), ("b", "d")} <= {tuple(keys(group)) for group in found}


def test_a_file_with_the_same_pixels_is_not_exact(engine, world, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.open(world / "photos" / "0.png").save(tmp_path / "same.bmp")
    engine.add([{"id": "same", "path": str(tmp_path / "same.bmp")}])
    (group,) = [group for group in engine.duplicates(modality="image") if "same" in keys(group)]
    assert not group.exact
    assert group.items[0].id == "photos/0.png"


def test_texts(engine):
    engine.add([
        {"id": "one", "text": "a purple elephant sleeps in the corner at noon"},
        {"id": "two", "text": "a purple elephant sleeps in the corner at noon"},
        {"id": "three", "text": "A purple elephant sleeps in the corner, at noon!"},
        {"id": "nothing", "text": "xyzzy"},
        {"id": "nothing else", "text": "plugh"},
        {"id": "nothing again", "text": "xyzzy"},
    ])  # fmt: skip
    found = engine.duplicates(modality="text")
    assert ["one", "two", "three"] in [keys(group) for group in found if not group.exact]
    assert ["nothing", "nothing again"] in [keys(group) for group in found if group.exact]
    assert not any("nothing else" in keys(group) for group in found)  # unknown words alone are nothing in common


def test_groups_stay_within_a_modality(engine):
    for group in engine.duplicates(threshold=0.5, radius=32):
        assert len({item.modality for item in group.items}) == 1
        assert len(group.items) > 1


def test_pages_of_groups(engine):
    everything = engine.duplicates()
    assert len(everything) > 3
    assert engine.duplicates(limit=2) == everything[:2]
    assert engine.duplicates(limit=2, offset=1) == everything[1:3]
    assert engine.duplicates(offset=len(everything)) == []


def test_only_among_items_that_pass_a_filter(engine):
    engine.add([
        {"id": name, "text": "a purple elephant sleeps in the corner", "year": year}
        for name, year in (("one", 2001), ("two", 2005), ("three", 2006))
    ])  # fmt: skip
    elephants = ["one", "two", "three"]
    for where, expected in [
        (None, elephants),
        ("year >= 2005", ["two", "three"]),
        ({"year": {"<": 2006}}, ["one", "two"]),
        ("year > 2000 and not id = two", ["one", "three"]),
        (None, elephants),  # what was found with a filter is not taken for what there is without
    ]:
        found = engine.duplicates(modality="text", where=where)
        assert expected in map(keys, found)
        assert len(found) == 1 or where is None
    assert engine.duplicates(where="year = 2005") == []
    with pytest.raises(ValueError, match="did you mean 'red'"):
        engine.duplicates(where="label = reed")
    xyzzies = [{"id": name, "text": "xyzzy", "year": 1} for name in ("a", "b")]  # no word with a vector
    engine.add([*xyzzies, {"id": "c", "text": "xyzzy", "year": 2}])
    assert [keys(group) for group in engine.duplicates(where="year < 3")] == [["a", "b", "c"]]
    assert [keys(group) for group in engine.duplicates(where="year < 2")] == [["a", "b"]]


def test_what_was_found_is_kept_until_something_changes(engine, monkeypatch):
    calls = []
    original = near_duplicates.group_vectors
    monkeypatch.setattr(near_duplicates, "group_vectors", lambda *a, **k: calls.append(1) or original(*a, **k))
    before = engine.duplicates(modality="text")
    assert engine.duplicates(modality="text") == before
    assert len(calls) == 1
    engine.remove([before[0].items[0].id], modality="text")
    assert keys(before[0]) not in map(keys, engine.duplicates(modality="text"))
    assert len(calls) == 2


def finder_without_vectors(engine):
    records = engine.store.records(engine.store.matching())
    engine.store.update({number: replace(record, refinement=None) for number, record in records.items()})
    return near_duplicates.DuplicateFinder(engine.store, engine.refinement, engine._files)


def test_of_items_without_vectors_the_identical_are_found(engine, world, tmp_path):
    shutil.copy(world / "photos" / "0.png", tmp_path / "copy.png")
    engine.add([{"id": "copy", "path": str(tmp_path / "copy.png")}])
    finder = finder_without_vectors(engine)
    (group,) = finder.find(["image"], radius=8, threshold=0.97)
    assert keys(group) == ["photos/0.png", "copy"]
    assert group.exact
    assert group.items[1].score is None
    texts = finder.find(["text"], radius=8, threshold=0.97)
    assert texts
    for group in texts:
        assert group.exact
        assert len({item.text for item in group.items}) == 1


def test_features_alone_are_exact_if_they_are_the_same(engine):
    record = engine.records(["photos/0.png"])[0]
    twins = [Record(f"twin {i}", "image", record.code, refinement=record.refinement) for i in range(2)]
    engine.store.add(twins)
    engine.remove(["photos/0.png"])
    assert ["twin 0", "twin 1"] in [keys(group) for group in engine.duplicates(modality="image") if group.exact]


@pytest.mark.parametrize(
    "wrong",
    [{"modality": "sound"}, {"radius": -1}, {"threshold": 0}, {"threshold": 1.5}, {"limit": 0}, {"offset": -1}],
)
def test_wrong_values(engine, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        engine.duplicates(**wrong)


def test_as_plain_values(engine):
    group = engine.duplicates(modality="text")[0]
    values = group.to_dict()
    assert values["exact"] is group.exact
    assert [item["id"] for item in values["items"]] == keys(group)
