"""GIST with numpy, one filter after the other: what the compiled kernels of the picture encoder are compared with."""

from __future__ import annotations

import numpy as np

SIZE, PAD, GRID, DIRECTIONS = 64, 8, 4, 8
STEPS = (1, 1, 2, 4)
"""Sampling of the response of each scale."""


def gist(grey: np.ndarray) -> np.ndarray:
    """Return the features of a ``(64, 64)`` picture of brightness from 0 to 1, scaled to length 1, in float64."""
    spectrum = np.fft.fft2(even_contrast(np.log1p(255 * grey.astype(np.float64))))
    features = np.concatenate([means(response(spectrum, scale, k), STEPS[scale]) for scale, k in filters()])
    length = np.linalg.norm(features)
    return features / length if length > 0 else features


def filters() -> list[tuple[int, int]]:
    return [(scale, direction) for scale in range(len(STEPS)) for direction in range(DIRECTIONS)]


def even_contrast(grey: np.ndarray) -> np.ndarray:
    """Return brightness less its surroundings', divided by their spread, with the edge around the picture."""
    grey = np.pad(grey, PAD, mode="symmetric")
    cycles = np.fft.fftfreq(len(grey), 1 / len(grey))
    smoothing = np.exp(-(cycles[:, None] ** 2 + cycles**2) * np.log(2) / 4**2)

    def smooth(values: np.ndarray) -> np.ndarray:
        return np.fft.ifft2(np.fft.fft2(values) * smoothing).real

    detail = grey - smooth(grey)
    return detail / (0.2 + np.sqrt(np.abs(smooth(detail * detail))))


def response(spectrum: np.ndarray, scale: int, direction: int, step: int | None = None) -> np.ndarray:
    """Return the strength of one filter's response, at every ``step``-th pixel."""
    step = step or STEPS[scale]
    size = len(spectrum) // step
    middle = np.fft.fftfreq(size, 1 / size).astype(int)
    across = np.fft.fftfreq(size, step)
    frequency, angle = np.hypot(across[:, None], across), np.arctan2(across[:, None], across)
    turned = (angle + np.pi * direction / DIRECTIONS + np.pi) % (2 * np.pi) - np.pi
    gabor = np.exp(-3.5 * (frequency / (0.3 / 1.85**scale) - 1) ** 2 - 2 * np.pi * turned**2)
    return np.abs(np.fft.ifft2(spectrum[np.ix_(middle, middle)] * gabor)) / step**2


def means(strength: np.ndarray, step: int) -> np.ndarray:
    """Return the mean in each field of the picture without its edge."""
    edge, side = PAD // step, SIZE // step // GRID
    inner = strength[edge : len(strength) - edge, edge : len(strength) - edge]
    return inner.reshape(GRID, side, GRID, side).mean(axis=(1, 3)).ravel()
