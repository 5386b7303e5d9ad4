"""Picture features against direct calculation."""

from __future__ import annotations

import numpy as np
import pytest

from modalhash.data.pictures import N_FEATURES, colour_moments, gradient_histogram, picture_features


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
    assert features.shape == (N_FEATURES,)
    assert np.isfinite(features).all()


def test_tiny_picture_is_refused():
    with pytest.raises(ValueError, match="at least 5×5"):
        colour_moments(np.zeros((4, 9, 3)))
