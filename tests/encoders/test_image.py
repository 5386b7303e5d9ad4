"""The picture encoder: parts of equal weight, known answers, and stable values."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import as_bytes, scene
from PIL import Image

from modalhash.data.picture_features import edge_histogram, picture_features
from modalhash.encoders import ImageEncoder
from modalhash.encoders.image import DECODED_TOGETHER, DIRECTIONS, GIST_GRID, SCALES, _even_contrast, features_of, gist
from modalhash.encoders.image_kernels import LANES, mean_responses, twiddles
from reference import gist as reference

GRADIENTS, STRUCTURE, COLOUR = slice(0, 512), slice(512, 1024), slice(1024, 1249)


def stripes(cycles: float, degrees: float, size: int = 64) -> np.ndarray:
    """Waves with this frequency in cycles per pixel; at 0° brightness changes from left to right."""
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


def grey_pictures() -> list[np.ndarray]:
    """Brightness of noise, of a scene, of waves and of nothing."""
    noise = np.random.default_rng(0).random((64, 64))
    drawn = np.asarray(Image.fromarray(scene()).convert("L").resize((64, 64))) / 255
    return [values.astype(np.float32) for values in (noise, drawn, stripes(0.1, 30), np.full((64, 64), 0.5))]


@pytest.mark.parametrize("grey", grey_pictures(), ids=["noise", "scene", "waves", "flat"])
def test_gist_is_that_of_the_reference(grey):
    expected = reference.gist(grey)
    if grey.std() == 0:  # all there is is rounding, which scaling to length 1 makes large
        expected, found = reference.even_contrast(np.log1p(255 * grey)), _even_contrast(np.log1p(255 * grey))
        np.testing.assert_allclose(found, expected, atol=1e-4)
        return
    np.testing.assert_allclose(gist(grey), expected, atol=2e-6)


def test_gist_on_coarser_grids_is_that_of_the_whole_grid():
    """Against all filters sampled at every pixel: what the smaller grids leave out is little."""
    grey = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    quick = gist(grey).reshape(SCALES, -1)
    spectrum = np.fft.fft2(reference.even_contrast(np.log1p(255 * grey.astype(np.float64))))
    slow = np.stack(
        [reference.means(reference.response(spectrum, *which, step=1), 1) for which in reference.filters()]
    ).reshape(SCALES, -1)
    slow /= np.linalg.norm(slow)
    np.testing.assert_allclose(quick[:2], slow[:2], atol=1e-4)
    np.testing.assert_allclose(quick, slow, atol=0.03 * slow.max())


@pytest.mark.parametrize("size", [20, 40, 80])
def test_transforms_of_vectors_are_those_of_numpy(size):
    """Every filter of the bank has its own gains, so that no vector can stand in for another."""
    rng = np.random.default_rng(size)
    spectrum = (rng.normal(size=(size, size)) + 1j * rng.normal(size=(size, size))).astype(np.complex64)
    bank = rng.random((size, size, LANES)).astype(np.float32)
    work = np.empty((size + 2, size, 2, LANES), dtype=np.float32)
    out = np.empty((1, 1, LANES), dtype=np.float32)
    mean_responses(spectrum.view(np.float32).reshape(size, size, 2), bank, twiddles(size), 2, work, out)
    slow = [np.abs(np.fft.ifft2(spectrum * bank[:, :, lane].T))[2:-2, 2:-2].mean() for lane in range(LANES)]
    np.testing.assert_allclose(out[0, 0], slow, rtol=1e-5)


def test_a_size_that_has_no_steps():
    with pytest.raises(ValueError, match="factor 7"):
        twiddles(70)


def test_parts_weigh_alike():
    features = ImageEncoder().encode([as_bytes(scene())])[0]
    lengths = [np.linalg.norm(features[part]) for part in (GRADIENTS, STRUCTURE, COLOUR)]
    np.testing.assert_allclose(lengths, 1 / np.sqrt(3), rtol=1e-5)


def diagonal() -> np.ndarray:
    """Brightness rises in steps along a diagonal: edges lie exactly between two directions."""
    y, x = np.mgrid[:128, :128]
    return np.repeat(((x + y) % 256).astype(np.uint8)[:, :, None], 3, axis=2)


def noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)


PICTURES = {
    "scene": np.asarray(Image.fromarray(scene()).resize((128, 128))),
    "noise": noise(),
    "few levels": noise() // 64 * 64,
    "diagonal": diagonal(),
    "other diagonal": diagonal()[::-1],
    "falling diagonal": 255 - diagonal(),
}


@pytest.mark.parametrize("name", PICTURES)
def test_gradients_are_those_of_the_data_sets(name):
    ours, theirs = features_of(PICTURES[name]), picture_features(PICTURES[name])
    np.testing.assert_allclose(ours[GRADIENTS] * np.sqrt(3), theirs[:512], atol=1e-6)


@pytest.mark.parametrize("name", PICTURES)
def test_colours_are_those_of_the_data_sets(name):
    ours, theirs = features_of(PICTURES[name]), picture_features(PICTURES[name])
    even = "diagonal" in name  # no skew at all: of what rounding leaves, 1e-17, the cube root is 2e-6
    theirs = theirs[512:] / np.linalg.norm(theirs[512:])
    np.testing.assert_allclose(ours[COLOUR] * np.sqrt(3), theirs, atol=1e-5 if even else 1e-6)


@pytest.mark.parametrize("name", PICTURES)
def test_parts_are_chosen(name):
    pixels = PICTURES[name]
    default = features_of(pixels)
    both = np.concatenate([features_of(pixels, ["colours"]), features_of(pixels, ["gradients"])])
    np.testing.assert_allclose(features_of(pixels, ["colours", "gradients"]) * np.sqrt(2), both, rtol=1e-6)
    np.testing.assert_allclose(features_of(pixels, ["gist"]), default[STRUCTURE] * np.sqrt(3), atol=1e-7)
    grey = pixels.astype(np.float64) @ [0.299, 0.587, 0.114]
    edges, expected = features_of(pixels, ["edges"]), edge_histogram(grey)
    np.testing.assert_allclose(
        edges, expected / max(np.linalg.norm(expected), 1e-9), atol=2e-3
    )  # few blocks at the threshold


def test_a_choice_of_parts_is_part_of_the_encoder():
    encoder = ImageEncoder(parts=["edges", "gist"])
    assert encoder.dim == 662
    assert encoder.encode([as_bytes(scene())]).shape == (1, 662)
    assert ImageEncoder.restore(encoder.state).parts == ("edges", "gist")
    assert encoder.digest != ImageEncoder().digest
    assert ImageEncoder(parts=["gradients", "gist", "colours"]).state == ImageEncoder().state
    assert "parts" not in ImageEncoder().state.config
    with pytest.raises(ValueError, match="parts is 'shape'; expected one of 'gradients'"):
        ImageEncoder(parts=["shape"])
    with pytest.raises(ValueError, match="each once"):
        ImageEncoder(parts=["gist", "gist"])


def test_features_do_not_depend_on_the_layout_in_memory():
    turned = np.rot90(noise()) // 64 * 64
    assert not turned.flags.c_contiguous
    np.testing.assert_array_equal(features_of(turned), features_of(np.ascontiguousarray(turned)))


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


def test_more_pictures_than_are_decoded_together():
    contents = [as_bytes(scene(40 + i, 50)) for i in range(DECODED_TOGETHER + 3)]
    encoder = ImageEncoder()
    whole = encoder.encode(contents)
    np.testing.assert_array_equal(whole, np.concatenate([encoder.encode([content]) for content in contents]))


def test_like_pictures_are_near():
    base = scene()
    near, far = np.clip(base.astype(int) + 12, 0, 255).astype(np.uint8), np.rot90(255 - base).copy()
    a, b, c = ImageEncoder().encode([as_bytes(pixels) for pixels in (base, near, far)])
    assert np.linalg.norm(a - b) < 0.5 * np.linalg.norm(a - c)
