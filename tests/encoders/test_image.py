"""The picture encoder: parts of equal weight, known answers, and stable values."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import as_bytes, scene
from PIL import Image

from modalhash.data.pictures import picture_features
from modalhash.encoders import ImageEncoder
from modalhash.encoders.image import DIRECTIONS, GIST_GRID, SCALES, features_of, gist

EDGES, STRUCTURE, COLOUR = slice(0, 512), slice(512, 1024), slice(1024, 1249)


def stripes(cycles: float, degrees: float, size: int = 64) -> np.ndarray:
    """Waves of so many cycles per pixel; at 0° brightness changes from left to right."""
    y, x = np.mgrid[:size, :size]
    turn = np.deg2rad(degrees)
    return (0.5 + 0.4 * np.cos(2 * np.pi * cycles * (np.cos(turn) * x + np.sin(turn) * y))).astype(np.float32)


@pytest.mark.parametrize("scale", range(SCALES))
@pytest.mark.parametrize("direction", [0, 2, 4])
def test_gist_knows_size_and_direction(scale, direction):
    features = gist(stripes(0.3 / 1.85**scale, -180 * direction / DIRECTIONS)).reshape(
        SCALES, DIRECTIONS, GIST_GRID * GIST_GRID
    )
    strength = features.mean(axis=2)
    assert np.unravel_index(strength.argmax(), strength.shape) == (scale, direction)


def test_gist_knows_the_place():
    grey = np.full((64, 64), 0.5, dtype=np.float32)
    grey[:16, 48:] = stripes(0.3, 0, 16)
    fields = gist(grey).reshape(SCALES, DIRECTIONS, GIST_GRID, GIST_GRID)[0].mean(axis=0)
    assert np.unravel_index(fields.argmax(), fields.shape) == (0, 3)


def test_gist_on_coarser_grids_is_that_of_the_whole_grid():
    """Against all filters sampled at every pixel: what the smaller grids leave out is little."""
    from modalhash.encoders import image as module

    grey = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    quick = gist(grey).reshape(SCALES, -1)
    spectrum = np.fft.fft2(module._even_contrast(np.pad(np.log1p(255 * grey), module.GIST_PAD, mode="symmetric")))
    across = np.fft.fftfreq(80)
    frequency, angle = np.hypot(across[:, None], across), np.arctan2(across[:, None], across)
    slow = []
    for scale in range(SCALES):
        for k in range(DIRECTIONS):
            turned = (angle + np.pi * k / DIRECTIONS + np.pi) % (2 * np.pi) - np.pi
            gabor = np.exp(-3.5 * (frequency / (0.3 / 1.85**scale) - 1) ** 2 - 2 * np.pi * turned**2)
            strength = np.abs(np.fft.ifft2(spectrum * gabor))[8:-8, 8:-8]
            slow.append(strength.reshape(4, 16, 4, 16).mean(axis=(1, 3)).ravel())
    slow = np.array(slow).reshape(SCALES, -1)
    slow /= np.linalg.norm(slow)
    np.testing.assert_allclose(quick[:2], slow[:2], atol=1e-4)
    np.testing.assert_allclose(quick, slow, atol=0.03 * slow.max())


def test_parts_weigh_alike():
    features = ImageEncoder().encode([as_bytes(scene())])[0]
    lengths = [np.linalg.norm(features[part]) for part in (EDGES, STRUCTURE, COLOUR)]
    np.testing.assert_allclose(lengths, 1 / np.sqrt(3), rtol=1e-5)


def test_edges_and_colours_are_those_of_the_data_sets():
    pixels = np.asarray(Image.fromarray(scene()).resize((128, 128)))
    ours, theirs = features_of(pixels), picture_features(pixels)
    np.testing.assert_allclose(ours[EDGES] * np.sqrt(3), theirs[:512], atol=1e-6)
    np.testing.assert_allclose(ours[COLOUR] * np.sqrt(3), theirs[512:] / np.linalg.norm(theirs[512:]), atol=1e-6)


@pytest.mark.parametrize("colour", ["black", "white", "#7f7f7f"])
def test_flat_pictures_are_finite(colour):
    features = ImageEncoder().encode([as_bytes(Image.new("RGB", (50, 40), colour))])
    assert features.dtype == np.float32
    assert np.isfinite(features).all()


def test_rows_do_not_depend_on_the_batch(tmp_path):
    contents = [as_bytes(scene(60 + i, 90), "JPEG") for i in range(3)]
    path = tmp_path / "a.jpg"
    path.write_bytes(contents[0])
    encoder = ImageEncoder()
    whole = encoder.encode([path, *contents[1:]])
    np.testing.assert_array_equal(whole, np.concatenate([encoder.encode([content]) for content in contents]))
    np.testing.assert_array_equal(whole[:1], encoder.encode([str(path)]))
    assert encoder.encode([]).shape == (0, encoder.dim)


def test_like_pictures_are_near():
    base = scene()
    near, far = np.clip(base.astype(int) + 12, 0, 255).astype(np.uint8), np.rot90(255 - base).copy()
    a, b, c = ImageEncoder().encode([as_bytes(pixels) for pixels in (base, near, far)])
    assert np.linalg.norm(a - b) < 0.5 * np.linalg.norm(a - c)
