"""Find pictures that show the same although one is mirrored, turned by quarters or cropped.

A *print* of a picture has its sorted colours and 30 × 30 grey pixels. ``prints.npy`` in the engine's folder caches
prints by path, size and modification time of the file; it may be deleted at any time. Pairs are found in three steps,
each for fewer candidates:

1. A k-d tree finds pictures with similar sorted colours, which do not depend on the orientation and change little when
  edges are cropped.
2. At 6 × 6 pixels, one picture must correlate with the other, or with a part of it that is cropped by up to 0.15 of its
  width or height, in one of eight orientations.
3. The details at 16 × 16 pixels must correlate [1]_ after the part is moved and resized for the best fit. Details are
  the difference to neighbouring pixels, normalised to the same contrast: two sunsets share no more than their horizon.

Drawings are excluded, because a mirrored arrow is another symbol, and two flags may differ less than a photo and its
copy.

References
----------
.. [1] J. P. Lewis. Fast Normalized Cross-Correlation. Vision Interface, 1995
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from modalhash.core.archives import ArchiveMember
from modalhash.core.blocks import row_slices
from modalhash.core.files import write_atomically
from modalhash.core.imports import MissingExtraError
from modalhash.core.parallel import parallel_map, pool_map
from modalhash.core.typing import Array
from modalhash.encoders import ItemError, read_picture
from modalhash.engine.items.item import File

FILE = "prints.npy"
SIDE, N_COLOURS = 30, 16
PRINT = np.dtype([("key", "<u8"), ("colours", "u1", (3, N_COLOURS)), ("grey", "u1", (SIDE, SIDE))])
"""One picture: the key of its file, quantiles of luma and both chroma channels, and its pixels."""
MOST_PLAIN = 0.25
"""Largest fraction of pixels of one grey level in a photo; 1 in 300 photos of IAPR TC-12 has more, and all but 1 in 200
pictures of OpenMoji."""
COLOUR_DIRECTIONS, NEIGHBOURS = 10, 48
"""Principal directions of the sorted colours, and number of neighbours of each picture."""
COARSE_SIDE, LEAST_WHOLE, LEAST_PART = 6, 0.5, 0.87
"""Pixels per side in step 2, and least correlations of two wholes, and of a whole and a part: low enough for planted
copies of training photos (benchmarks/quality/duplicates.py)."""
FINE_SIDE, LEAST_FIT = 16, 0.3
"""Pixels per side in step 3, and least correlation before the part is moved."""
MOST_CUT = 14
"""Eightieths of a side that may be cropped at one end: 12 are 0.15, and two more for rounding in small files."""
ROUNDS = (2, 2, 1, 1)
"""Eightieths by which the sides of a part are moved in each round."""
NO_DETAIL, LITTLE_DETAIL = 0.5, 2.0
"""Grey levels of 256: details of this size are noise, and smaller than normalised details."""
PAIRS_AT_ONCE, QUERIES_AT_ONCE = 256, 1024
_LUMA = np.array([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]], dtype=np.float32)


class SamePairs(NamedTuple):
    """Distinct pairs of rows that show the same picture, the smaller row first."""

    left: Array
    right: Array
    scores: Array
    """Correlation of the details, at most 1."""


def print_of(pixels: Array) -> tuple[Array, Array]:
    """Return sorted colours and grey pixels of a picture of uint8 ``(30, 30, 3)``."""
    values = pixels.reshape(-1, 3).astype(np.float32) @ _LUMA.T + np.array([0, 128, 128], dtype=np.float32)
    values = np.rint(values).clip(0, 255).astype(np.uint8)
    at = ((np.arange(N_COLOURS) + 0.5) * len(values) / N_COLOURS).astype(np.intp)
    return np.sort(values, axis=0)[at].T, values[:, 0].reshape(SIDE, SIDE)


def find_same(prints: Array, least: float) -> SamePairs:
    """Return the pairs of photos whose details correlate with at least ``least``."""
    photos = np.flatnonzero([np.bincount(grey.ravel()).max() <= MOST_PLAIN * grey.size for grey in prints["grey"]])
    prints = prints[photos]
    laid = _candidates(prints)
    blocks = list(row_slices(len(laid), PAIRS_AT_ONCE))
    scores = np.concatenate(
        [np.empty(0, np.float32), *parallel_map(lambda rows: _agreement(prints["grey"], laid[rows]), blocks)]
    )
    laid, scores = laid[scores >= least], scores[scores >= least]
    pairs = np.sort(laid[:, :2], axis=1)
    best = np.lexsort((-scores, pairs[:, 1], pairs[:, 0]))
    pairs, scores = pairs[best], scores[best]
    first = np.r_[True, (np.diff(pairs, axis=0) != 0).any(axis=1)][: len(pairs)]
    pairs = photos[pairs[first]]
    return SamePairs(pairs[:, 0], pairs[:, 1], scores[first])


def _candidates(prints: Array) -> Array:
    """Return rows of a whole and a possible part, the orientation and the crop, for similar colours."""
    from scipy.spatial import KDTree

    if len(prints) < 2:
        return np.empty((0, 4), np.intp)
    points = _colour_points(prints["colours"].reshape(len(prints), -1))
    tree = KDTree(points)
    k = min(NEIGHBOURS + 1, len(prints))

    def look_up(asking: Array) -> Array:
        near = tree.query(points[asking], k=k)[1].reshape(-1)
        own = np.repeat(asking, k)
        pairs = np.stack([own, near], axis=1)[own != near]
        return _laid(prints["grey"], np.concatenate([pairs, pairs[:, ::-1]]))

    blocks = [tree.indices[rows] for rows in row_slices(len(prints), QUERIES_AT_ONCE)]  # neighbours share a block
    return np.unique(np.concatenate(list(parallel_map(look_up, blocks))), axis=0)


def _colour_points(colours: Array) -> Array:
    """Return sorted colours in their principal directions, the larger ones scaled down."""
    values = colours.astype(np.float32)
    values -= values.mean(axis=0)
    values /= np.maximum(values.std(axis=0), 1)
    variances, directions = np.linalg.eigh(values.T @ values / len(values))
    scale = np.maximum(variances[-COLOUR_DIRECTIONS:], 1e-6) ** -0.25
    return np.asarray(values @ (directions[:, -COLOUR_DIRECTIONS:] * scale))


def _laid(grey: Array, pairs: Array) -> Array:
    """Return pairs that correlate coarsely: rows of the whole and the part, orientation, and crop."""
    rows, place = np.unique(pairs, return_inverse=True)
    place = place.reshape(-1, 2)
    parts = _coarse_parts(grey[rows])
    wholes = parts[:, 0].reshape(-1, COARSE_SIDE, COARSE_SIDE)
    turned = np.stack([_turn(wholes, way).reshape(len(rows), -1) for way in range(8)], axis=1)
    likeness = np.einsum("pi,pwi->pw", parts[place[:, 0], 0], turned[place[:, 1]])
    at, way = np.nonzero(likeness >= LEAST_WHOLE)
    whole, other = place[at].T
    fit = np.einsum("pki,pi->pk", parts[whole], turned[other, way])
    part = fit.argmax(axis=1)
    enough = fit.max(axis=1, initial=-1) >= LEAST_PART
    return np.column_stack([rows[whole], rows[other], way, part])[enough]


def _coarse_parts(grey: Array) -> Array:
    """Return 16 parts of pictures, the whole first, as 36 values of mean 0 and length 1."""
    sampled = _COARSE @ grey.astype(np.float32) @ _COARSE.T
    n = len(_COARSE_CUTS)
    parts = sampled.reshape(-1, n, COARSE_SIDE, n, COARSE_SIDE).swapaxes(2, 3).reshape(len(grey), n * n, -1)
    parts = parts - parts.mean(axis=2, keepdims=True)
    return np.asarray(parts / np.sqrt((parts**2).sum(axis=2, keepdims=True) + COARSE_SIDE**2 * NO_DETAIL**2))


def _turn(pictures: Array, way: int) -> Array:
    """Return pictures in one of eight orientations: transposed or not, mirrored along each axis or not."""
    turned = pictures.swapaxes(1, 2) if way & 4 else pictures
    return turned[:, :: -1 if way & 2 else 1, :: -1 if way & 1 else 1]


def _agreement(grey: Array, laid: Array) -> Array:
    """Return the correlation of the details of pictures with the parts they are compared with."""
    wholes, wanted = grey[laid[:, 0]].astype(np.float32), np.empty((len(laid), SIDE, SIDE), np.float32)
    for way in range(8):
        own = laid[:, 2] == way
        wanted[own] = _turn(grey[laid[own, 1]], way)
    n = len(_COARSE_CUTS)
    cuts = np.concatenate([_COARSE_CUTS[laid[:, 3] // n], _COARSE_CUTS[laid[:, 3] % n]], axis=1)
    details = _details(wanted, np.zeros_like(cuts))
    scores: Array = np.einsum("pij,pij->p", _details(wholes, cuts), details)
    good = np.flatnonzero(scores >= LEAST_FIT)
    scores[good] = _refine(wholes[good], details[good], cuts[good])
    return scores


def _refine(wholes: Array, wanted: Array, cuts: Array) -> Array:
    """Return the best correlation with ``wanted`` when each side of a part is moved a little."""
    best = np.zeros(len(wholes), dtype=np.float32)
    for step in ROUNDS:
        for moves in _MOVES:
            options = (cuts[:, None] + step * moves).clip(0, MOST_CUT)
            fit = np.einsum("poij,pij->po", _details(wholes[:, None], options), wanted)
            cuts, best = options[np.arange(len(cuts)), fit.argmax(axis=1)], fit.max(axis=1, initial=0)
    return best


def _details(pictures: Array, cuts: Array) -> Array:
    """Return the details of parts of pictures, normalised in contrast and scaled to length 1.

    ``cuts`` are eightieths of a side that the parts are cropped by: top, bottom, left, right.
    """
    rows, columns = _FINE[cuts[..., 0], cuts[..., 1]], _FINE[cuts[..., 2], cuts[..., 3]]
    parts = rows @ pictures @ columns.swapaxes(-1, -2)
    details = parts - _NEAR @ parts @ _NEAR.T
    details /= np.sqrt(_AROUND @ details**2 @ _AROUND.T + LITTLE_DETAIL**2)
    squares = np.einsum("...ij,...ij->...", details, details)[..., None, None]
    return np.asarray(details / np.sqrt(squares + FINE_SIDE**2 * (NO_DETAIL / 8) ** 2))


def _averaging(first: int, last: int, n: int) -> Array:
    """Return the matrix that averages the pixels of a side into n, without eightieths at both ends."""
    edges = np.linspace(first / 80, 1 - last / 80, n + 1) * SIDE
    pixel = np.arange(SIDE)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.asarray(overlap.clip(0) / np.diff(edges)[:, None], dtype=np.float32)


def _blur(n: int, reach: int) -> Array:
    """Return the matrix that averages each of n values with its neighbours."""
    near = np.abs(np.arange(n)[:, None] - np.arange(n)) <= reach
    return np.asarray(near / near.sum(axis=1, keepdims=True), dtype=np.float32)


_COARSE_CUTS = np.array([(0, 0), (0, 10), (5, 5), (10, 0)])
"""Crops of one side; the first crops nothing."""
_COARSE = np.concatenate([_averaging(first, last, COARSE_SIDE) for first, last in _COARSE_CUTS.tolist()])
_FINE = np.array([[_averaging(a, b, FINE_SIDE) for b in range(MOST_CUT + 1)] for a in range(MOST_CUT + 1)])
"""Matrices by the crop at both ends."""
_NEAR, _AROUND = _blur(FINE_SIDE, 1), _blur(FINE_SIDE, 2)
_ONE_SIDE = np.array([(first, last) for first in (0, -1, 1) for last in (0, -1, 1)])
_MOVES = np.pad(_ONE_SIDE, ((0, 0), (0, 2))), np.pad(_ONE_SIDE, ((0, 0), (2, 0)))


READ_TOGETHER = 32
"""Files per task of a thread."""
NO_FILE = 0
"""Key of a missing file."""


class PrintKeeper:
    """Makes the prints of files and caches them in ``folder``, or in memory only without one."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._known = np.empty(0, PRINT)
        self._loaded = False

    def prints(self, files: Sequence[File | None]) -> Array:
        """Return the prints of files; zeros for files that are not readable pictures."""
        keys = np.array([_key(file) for file in files], dtype=np.uint64)
        if not self._loaded:
            self._known, self._loaded = self._load(), True
        wanted, rows = np.unique(keys, return_index=True)
        missing = (wanted != NO_FILE) & ~np.isin(wanted, self._known["key"])
        made = _read([file for row in rows[missing].tolist() if (file := files[row]) is not None])
        made["key"] = wanted[missing]
        if len(made):
            kept = self._known
            if len(kept) > 2 * len(files):  # most are of deleted or changed files
                kept = kept[np.isin(kept["key"], keys)]
            self._known = np.sort(np.concatenate([kept, made]), order="key")
            if self._path is not None:
                with suppress(OSError):  # they are read again next time
                    write_atomically(
                        self._path, lambda file: np.save(file, self._known, allow_pickle=False), sync=False
                    )
        found = np.zeros(len(files), PRINT)
        there = np.flatnonzero(keys != NO_FILE)
        found[there] = self._known[np.searchsorted(self._known["key"], keys[there])]
        return found

    def _load(self) -> Array:
        if self._path is not None:
            with suppress(OSError, ValueError, EOFError):
                known = np.load(self._path, allow_pickle=False)
                if known.dtype == PRINT and known.ndim == 1 and (np.diff(known["key"].astype(object)) > 0).all():
                    return known
        return np.empty(0, PRINT)


def _key(file: File | None) -> int:
    """Return a hash of the path, size and modification time of a file."""
    if file is None:
        return NO_FILE
    path, member = (file.archive, file.name) if isinstance(file, ArchiveMember) else (file, "")
    try:
        about = path.stat()
    except (OSError, ValueError):
        return NO_FILE
    text = "\0".join([os.fspath(path), member, str(about.st_size), str(about.st_mtime_ns)])
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()) or 1


def _read(files: Sequence[File]) -> Array:
    blocks = [files[rows] for rows in row_slices(len(files), READ_TOGETHER)]
    return np.concatenate([np.empty(0, PRINT), *pool_map(_read_some, blocks, n_threads=os.cpu_count())])


def _read_some(files: Sequence[File]) -> Array:
    prints = np.zeros(len(files), PRINT)
    for row, file in enumerate(files):
        with suppress(ItemError, MissingExtraError, OSError, ValueError):
            pixels = read_picture(file.read() if isinstance(file, ArchiveMember) else file, size=SIDE)
            prints["colours"][row], prints["grey"][row] = print_of(pixels)
    return prints
