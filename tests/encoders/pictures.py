"""Pictures made for the tests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def scene(height: int = 96, width: int = 128) -> np.ndarray:
    """A red square top left on a ramp from dark to light."""
    pixels = np.repeat(np.linspace(40, 220, width)[None, :, None], height, axis=0).repeat(3, axis=2)
    pixels[: height // 3, : width // 3] = (220, 20, 20)
    return pixels.astype(np.uint8)


def as_bytes(picture: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture)
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()
