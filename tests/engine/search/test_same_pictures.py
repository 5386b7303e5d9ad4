"""Photos that show the same though one is mirrored, turned or cropped."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.engine.search import picture_prints as same_pictures
from modalhash.engine.search.picture_prints import PRINT, SIDE, find_same, print_of

N = 40


def scene(seed, size=120):
    """Pixels with structure of all sizes and colours of their own, as photos have."""
    rng = np.random.default_rng(seed)
    picture = rng.uniform(60, 200, 3) + np.zeros((size, size, 3))
    for cells in (3, 6, 12, 24):
        grid = np.repeat(np.repeat(rng.normal(0, 25, (cells, cells, 3)), size // cells, 0), size // cells, 1)
        picture += grid * np.array([1, 0.6, 0.6])
    return picture.clip(0, 255)


def made_print(pixels):
    """A print, made by averaging rather than by reading a file."""
    height, width = pixels.shape[:2]
    rows, columns = (np.linspace(0, side, SIDE + 1).astype(int)[:-1] for side in (height, width))
    sums = np.add.reduceat(np.add.reduceat(pixels, rows, axis=0), columns, axis=1)
    counts = np.outer(np.diff([*rows, height]), np.diff([*columns, width]))[:, :, None]
    colours, grey = print_of(np.rint(sums / counts).astype(np.uint8))
    one = np.zeros((), PRINT)
    one["colours"], one["grey"] = colours, grey
    return one


@pytest.fixture(scope="module")
def photos():
    return [scene(seed) for seed in range(N)]


TURNS = {
    "mirrored": lambda p: p[:, ::-1],
    "upside down": lambda p: p[::-1, ::-1],
    "a quarter": lambda p: np.rot90(p),
    "three quarters": lambda p: np.rot90(p, 3),
    "a quarter, mirrored": lambda p: np.rot90(p)[::-1],
    "cropped in the middle": lambda p: p[9:-9, 9:-9],
    "cropped on the right and below": lambda p: p[:-12, :-12],
    "cropped on the left": lambda p: p[:, 16:],
    "cropped and turned": lambda p: np.rot90(p[12:, :-12]),
    "lighter": lambda p: (1.1 * p).clip(0, 255),
}


@pytest.mark.parametrize("change", TURNS.values(), ids=TURNS)
def test_copies_are_found_and_nothing_else(photos, change):
    prints = np.stack([made_print(photo) for photo in [*photos, *map(change, photos[:10])]])
    found = find_same(prints, 0.9)
    assert list(zip(found.left.tolist(), found.right.tolist(), strict=True)) == [(row, N + row) for row in range(10)]
    assert (found.scores <= 1).all()


def test_the_larger_may_come_second(photos):
    prints = np.stack([made_print(photos[0][12:, :-12]), made_print(photos[1]), made_print(photos[0])])
    found = find_same(prints, 0.9)
    assert (found.left.tolist(), found.right.tolist()) == ([0], [2])


def test_blocks_do_not_change_what_is_found(photos, monkeypatch):
    prints = np.stack([made_print(photo) for photo in [*photos, *(np.rot90(photo) for photo in photos)]])
    whole = find_same(prints, 0.5)
    monkeypatch.setattr(same_pictures, "PAIRS_AT_ONCE", 3)
    monkeypatch.setattr(same_pictures, "QUERIES_AT_ONCE", 7)
    parts = find_same(prints, 0.5)
    assert len(whole.left) >= N
    assert whole.left.tolist() == parts.left.tolist()
    assert whole.right.tolist() == parts.right.tolist()
    np.testing.assert_allclose(whole.scores, parts.scores, atol=1e-5)


def test_drawings_are_left_out(photos):
    drawing = photos[0].copy()
    drawing[:60] = 255
    prints = np.stack([made_print(drawing), made_print(drawing[:, ::-1]), *map(made_print, photos[1:5])])
    assert len(find_same(prints, 0.5).left) == 0


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_pictures(photos, n):
    prints = np.stack([made_print(photos[0])] * 2)[:n]
    assert len(find_same(prints, 0.9).left) == (n == 2)


def test_pictures_without_any_difference_are_nothing():
    assert len(find_same(np.zeros(5, PRINT), 0.1).left) == 0
