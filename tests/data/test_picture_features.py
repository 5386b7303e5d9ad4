"""Picture features against direct calculation."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.data.picture_features import colour_moments, edge_histogram, gist, gradient_histogram, picture_features
from shared_data import shared_data


@pytest.mark.parametrize("shape", [(72, 72), (31, 47)])
def test_colour_moments_directly(shape):
    pixels = np.random.default_rng(0).random((*shape, 3))
    moments = colour_moments(pixels).reshape(5, 5, 3, 3)
    rows, columns = ([i * size // 5 for i in range(6)] for size in shape)
    field = pixels[rows[1] : rows[2], columns[4] : columns[5]].reshape(-1, 3)
    third = ((field - field.mean(axis=0)) ** 3).mean(axis=0)
    np.testing.assert_allclose(moments[1, 4], [field.mean(axis=0), field.std(axis=0), np.cbrt(third)], rtol=1e-6)


def test_gradient_histogram_knows_directions():
    ramp = np.repeat(np.linspace(0, 1, 64)[None, :, None], 64, axis=0).repeat(3, axis=2)
    across = gradient_histogram(ramp).reshape(64, 8)
    assert (across.argmax(axis=1) == 0).all()
    down = gradient_histogram(ramp.transpose(1, 0, 2)).reshape(64, 8)
    assert (down.argmax(axis=1) == 4).all()


def test_flat_picture_is_finite():
    features = picture_features(np.full((72, 72, 3), 255, dtype=np.uint8))
    assert features.shape == (512 + 225,)
    assert np.isfinite(features).all()


def test_tiny_picture_is_refused():
    with pytest.raises(ValueError, match="at least 5×5"):
        colour_moments(np.zeros((4, 9, 3)))


@pytest.mark.parametrize(("angle", "edge"), [(0, 0), (90, 1), (45, 2), (135, 3)])
def test_edge_histogram_knows_directions(angle, edge):
    y, x = np.mgrid[:132, :132]
    ramp = 8 * (np.cos(np.deg2rad(angle)) * x + np.sin(np.deg2rad(angle)) * y)
    np.testing.assert_array_equal(edge_histogram(ramp).reshape(-1, 5), np.tile(np.eye(5)[edge], (30, 1)))


def test_edge_histogram_by_its_definition():
    """One block after another, as the standard describes it."""
    grey = np.random.default_rng(0).integers(0, 256, (97, 150)) // 3 + 80
    filters = {
        "vertical": [1, -1, 1, -1],
        "horizontal": [1, 1, -1, -1],
        "45": [2**0.5, 0, 0, -(2**0.5)],
        "135": [0, 2**0.5, -(2**0.5), 0],
        "none": [2, -2, -2, 2],
    }
    local = np.zeros((4, 4, 5))
    for i in range(4):
        for j in range(4):
            image = grey[24 * i : 24 * i + 24, 37 * j : 37 * j + 37]  # 97 // 4 and 150 // 4
            blocks = [image[r : r + 2, c : c + 2].ravel() for r in range(0, 24, 2) for c in range(0, 36, 2)]
            for block in blocks:  # sqrt(97 · 150 / 1100) = 3.6, so blocks have 2 × 2 pixels
                strength = [abs(block @ np.array(values)) for values in filters.values()]
                if max(strength) >= 11:
                    local[i, j, int(np.argmax(strength))] += 1 / len(blocks)
    found = edge_histogram(grey)
    np.testing.assert_allclose(found[:80], local.ravel(), atol=1e-6)
    np.testing.assert_allclose(found[80:85], local.mean(axis=(0, 1)), atol=1e-6)
    groups = [[(i, j) for i in range(4)] for j in range(4)] + [[(i, j) for j in range(4)] for i in range(4)]
    groups += [[(i + a, j + b) for a in (0, 1) for b in (0, 1)] for i, j in ((0, 0), (0, 2), (2, 0), (2, 2), (1, 1))]
    means = [np.mean([local[place] for place in group], axis=0) for group in groups]
    np.testing.assert_allclose(found[85:], np.concatenate(means), atol=1e-6)


def test_edge_histogram_of_flat_thin_and_tiny_pictures():
    assert not edge_histogram(np.full((60, 60), 200)).any()
    assert np.isfinite(edge_histogram(np.random.default_rng(0).integers(0, 256, (8, 20_000)))).all()
    with pytest.raises(ValueError, match="7×60 pixels; expected at least 8×8"):
        edge_histogram(np.zeros((7, 60)))


def test_semi_global_values_of_the_prepared_files_have_this_order():
    with np.load(shared_data("mirflickr") / "features.npz") as file:
        stored = file["ehd"][:500].astype(np.float64)
    local = stored[:, :80].reshape(-1, 4, 4, 5)
    corners = [local[:, i : i + 2, j : j + 2].mean(axis=(1, 2)) for i, j in ((0, 0), (0, 2), (2, 0), (2, 2), (1, 1))]
    rest = [local.mean(axis=(1, 2)), *local.mean(axis=1).transpose(1, 0, 2), *local.mean(axis=2).transpose(1, 0, 2)]
    np.testing.assert_allclose(stored[:, 80:], np.concatenate([*rest, *corners], axis=1), atol=4e-4)


@pytest.mark.parametrize("scale", range(4))
@pytest.mark.parametrize("direction", [0, 2, 4])
def test_gist_knows_size_and_direction(scale, direction):
    y, x = np.mgrid[:128, :128]
    turn = -np.pi * direction / 8
    waves = 128 + 100 * np.cos(2 * np.pi * 0.3 / 1.85**scale * (np.cos(turn) * x + np.sin(turn) * y))
    strength = gist(waves).reshape(4, 8, 16).mean(axis=2)
    assert np.unravel_index(strength.argmax(), strength.shape) == (scale, direction)


def test_gist_counts_cells_by_column():
    grey = np.full((128, 128), 128.0)
    grey[:32, 96:] += 60 * np.random.default_rng(0).standard_normal((32, 32))
    cells = gist(grey).reshape(32, 4, 4).mean(axis=0)
    assert np.unravel_index(cells.argmax(), cells.shape) == (3, 0)  # column 3, row 0
    assert np.isfinite(gist(np.full((128, 128), 7))).all()


@pytest.mark.slow
def test_features_are_near_those_of_the_prepared_file():
    """Of the small pictures at hand; the prepared ones were made of the full photographs."""
    from zipfile import ZipFile

    from PIL import Image

    with np.load(shared_data("iapr-tc12-paper") / "features.npz") as file:
        ids, edges, structure = file["image_id"][:2000:100], file["ehd"], file["gist"]
    with ZipFile(shared_data("iapr-tc12") / "images.zip") as archive:
        names = {int(name.split("/")[1].removesuffix(".jpg")): name for name in archive.namelist()}
        rows = [100 * k for k, number in enumerate(ids.tolist()) if number in names]
        pictures = [Image.open(archive.open(names[int(ids[row // 100])])).convert("RGB") for row in rows]
    for row, picture in zip(rows, pictures, strict=True):
        side = min(picture.size)
        left, top = ((size - side) // 2 for size in picture.size)
        square = picture.crop((left, top, left + side, top + side)).resize((128, 128), Image.Resampling.BILINEAR)
        found = gist(np.asarray(square, dtype=float).mean(axis=2))
        assert np.corrcoef(found, structure[row].astype(float))[0, 1] > 0.95
        large = picture.resize(tuple(round(size * 480 / max(picture.size)) for size in picture.size))
        found = edge_histogram(np.asarray(large.convert("L")))
        assert np.corrcoef(found, edges[row].astype(float))[0, 1] > 0.8
