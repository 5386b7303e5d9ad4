"""GIST: how much structure of which size and direction is where in a picture.

A. Oliva, A. Torralba. Modeling the Shape of the Scene: A Holistic Representation of the Spatial Envelope.
International Journal of Computer Vision 42, 2001.

The picture, local contrast evened out, passes a bank of Gabor filters (4 sizes × 8 directions) in the Fourier domain;
the mean response in each field of a 4×4 grid is a feature. A coarse filter lets only low frequencies through, so its
response is computed on a coarser grid: the inverse transform of the middle of the spectrum, which loses nothing of it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import fft

from modalhash._typing import Array

SIZE, PAD, GRID = 64, 8, 4
SCALES, DIRECTIONS = 4, 8
N_FEATURES = SCALES * DIRECTIONS * GRID * GRID
STEPS = (1, 1, 2, 4)
"""Sampling of each scale's response; what the smaller grids cut off is below 1e-4 of the filter's peak."""
CONTRAST_CYCLES, CONTRAST_FLOOR = 4, 0.2


def gist(grey: Array) -> Array:
    """512 features of a ``(64, 64)`` picture of brightness from 0 to 1, scaled to length 1."""
    spectrum = fft.fft2(_even_contrast(np.pad(np.log1p(255 * grey), PAD, mode="symmetric")))
    found = [_responses(spectrum, step) for step in dict.fromkeys(STEPS)]
    features = np.concatenate(found)
    length = np.linalg.norm(features)
    return features / length if length > 0 else features


def _even_contrast(grey: Array) -> Array:
    """Brightness less its surroundings', divided by their spread: shadow and sun look alike."""
    smooth = _smoothing(grey.shape[0])
    detail = grey - fft.irfft2(fft.rfft2(grey) * smooth, s=grey.shape)
    spread = np.sqrt(np.abs(fft.irfft2(fft.rfft2(detail * detail) * smooth, s=grey.shape)))
    out: Array = detail / (np.float32(CONTRAST_FLOOR) + spread)
    return out


def _responses(spectrum: Array, step: int) -> Array:
    """Mean response by filter and field, of the filters that are sampled at every ``step``-th pixel."""
    size, side = spectrum.shape[0] // step, SIZE // step
    if step > 1:
        middle = np.fft.fftfreq(size, 1 / size).astype(int)
        spectrum = spectrum[np.ix_(middle, middle)]
    strength = np.abs(fft.ifft2(spectrum * _filters(size, step), overwrite_x=True))
    edge, field = PAD // step, side // GRID
    inner = strength[:, edge : edge + side, edge : edge + side]
    sums = inner.reshape(-1, GRID, field, side).sum(axis=2).reshape(-1, GRID, GRID, field).sum(axis=3)
    out: Array = sums.reshape(-1) / np.float32(field * field * step * step)
    return out


@cache
def _filters(size: int, step: int) -> Array:
    """Transfer functions ``(filters, size, size)`` of the scales with this step; read only."""
    across = np.fft.fftfreq(size, step)
    frequency, angle = np.hypot(across[:, None], across), np.arctan2(across[:, None], across)
    bank = []
    for scale in (scale for scale, own in enumerate(STEPS) if own == step):
        centre = 0.3 / 1.85**scale
        radial = -3.5 * (frequency / centre - 1) ** 2
        for direction in range(DIRECTIONS):
            turned = (angle + np.pi * direction / DIRECTIONS + np.pi) % (2 * np.pi) - np.pi
            bank.append(np.exp(radial - 2 * np.pi * (DIRECTIONS / 8) ** 2 * turned**2))
    return np.stack(bank).astype(np.float32)


@cache
def _smoothing(size: int) -> Array:
    """Gaussian low-pass for ``rfft2``; read only."""
    down, across = np.fft.fftfreq(size, 1 / size)[:, None], np.fft.rfftfreq(size, 1 / size)
    gaussian: Array = np.exp(-(down**2 + across**2) * np.log(2) / CONTRAST_CYCLES**2)
    return gaussian.astype(np.float32)
