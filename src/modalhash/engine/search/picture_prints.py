"""Prints of an engine's pictures: made of their files when they are first asked for, and kept in its folder.

``prints.npy`` holds them (:data:`~modalhash.engine.search.picture_prints.PRINT`) by a digest of path, size and time of
the file. It may be deleted at any time; what is missing or changed is read again.
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

# -- Pictures that show the same though one is mirrored, turned by quarters or cropped, told by small copies of them.
#
# A *print* is what is kept of a picture: its colours, sorted, and 30 × 30 pixels of grey. Pairs are found in three
# steps, each for fewer of them:
#
# 1. Sorted colours are the same whichever way a picture is turned, and change little when its edges are cut off. A k-d
# tree finds for every picture those with the most similar ones. 2. One of them is laid on the other in each of eight
# ways, turned and mirrored, and on parts of it that lack 0.15 of its    width or height. At 6 × 6 pixels of grey they
# have to correlate. 3. So do the details, at 16 × 16 pixels, when the part is moved and resized until they fit best.
# Details are what the    surroundings of a pixel do not tell, brought to like contrast everywhere: two sunsets share
# their horizon, not more.
#
# Drawings are left out: a mirrored arrow is another sign, and two flags differ in less than a photo and its copy do.
#
# References
# ----------
# J. P. Lewis. Fast Normalized Cross-Correlation. Vision Interface, 1995

FILE = "prints.npy"
SIDE, N_COLOURS = 30, 16
PRINT = np.dtype([("key", "<u8"), ("colours", "u1", (3, N_COLOURS)), ("grey", "u1", (SIDE, SIDE))])
"""One picture: which file it was made of, quantiles of lightness and of both colour differences, and its pixels."""
MOST_PLAIN = 0.25
"""The largest share of pixels of the same grey that a photo has; one in 300 photos of IAPR TC-12 has more, and all but
one in 200 pictures of OpenMoji."""
COLOUR_DIRECTIONS, NEIGHBOURS = 10, 48
"""Principal directions of the sorted colours, and pictures that are compared with each."""
COARSE_SIDE, LEAST_WHOLE, LEAST_PART = 6, 0.5, 0.87
"""Pixels along a side of what is compared first, and the least correlations of two wholes, and of a whole and a part:
low enough for planted copies of training photos (benchmarks/quality/duplicates.py)."""
FINE_SIDE, LEAST_FIT = 16, 0.3
"""Pixels along a side of parts whose details are compared, and the least correlation before the part is moved."""
MOST_CUT = 14
"""Eightieths of a side that may be cut off at one end: 12 are 0.15, and two more for rounded sides of small files."""
ROUNDS = (2, 2, 1, 1)
"""By how many eightieths the sides of a part are moved, one round after the other."""
NO_DETAIL, LITTLE_DETAIL = 0.5, 2.0
"""Grey levels of 256: details of this size are noise, and less than what others are brought to."""
PAIRS_AT_ONCE, QUERIES_AT_ONCE = 256, 1024
_LUMA = np.array([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]], dtype=np.float32)


class SamePairs(NamedTuple):
    """Pairs of rows whose pictures show the same, each once and the smaller row first, and how well they agree."""

    left: Array
    right: Array
    scores: Array
    """The correlation of the details, at most 1."""


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


# -- 1: pictures of similar colours


def _candidates(prints: Array) -> Array:
    """Return what may show the same: the rows of a whole and of what may be a part of it, and how they are laid."""
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

    blocks = [tree.indices[rows] for rows in row_slices(len(prints), QUERIES_AT_ONCE)]  # near ones share a block
    return np.unique(np.concatenate(list(parallel_map(look_up, blocks))), axis=0)


def _colour_points(colours: Array) -> Array:
    """Return sorted colours in their principal directions, of which the larger ones are shortened."""
    values = colours.astype(np.float32)
    values -= values.mean(axis=0)
    values /= np.maximum(values.std(axis=0), 1)
    variances, directions = np.linalg.eigh(values.T @ values / len(values))
    scale = np.maximum(variances[-COLOUR_DIRECTIONS:], 1e-6) ** -0.25
    return np.asarray(values @ (directions[:, -COLOUR_DIRECTIONS:] * scale))


# -- 2: how one is laid on the other


def _laid(grey: Array, pairs: Array) -> Array:
    """Return pairs of a whole and what may be a part of it: their rows, how the part is turned, and where it is.

    Parameters
    ----------
    grey : uint8 (pictures, 30, 30)
    pairs : rows of a whole and of another picture
    """
    rows, place = np.unique(pairs, return_inverse=True)
    place = place.reshape(-1, 2)
    parts = _coarse_parts(grey[rows])
    wholes = parts[:, 0].reshape(-1, COARSE_SIDE, COARSE_SIDE)
    turned = np.stack([_turn(wholes, way).reshape(len(rows), -1) for way in range(8)], axis=1)
    alike = np.einsum("pi,pwi->pw", parts[place[:, 0], 0], turned[place[:, 1]])
    at, way = np.nonzero(alike >= LEAST_WHOLE)
    whole, other = place[at].T
    fit = np.einsum("pki,pi->pk", parts[whole], turned[other, way])
    part = fit.argmax(axis=1)
    enough = fit.max(axis=1, initial=-1) >= LEAST_PART
    return np.column_stack([rows[whole], rows[other], way, part])[enough]


def _coarse_parts(grey: Array) -> Array:
    """Return 16 parts of pictures, of which the first is the whole, as 36 values of mean 0 and length 1."""
    sampled = _COARSE @ grey.astype(np.float32) @ _COARSE.T
    n = len(_COARSE_CUTS)
    parts = sampled.reshape(-1, n, COARSE_SIDE, n, COARSE_SIDE).swapaxes(2, 3).reshape(len(grey), n * n, -1)
    parts = parts - parts.mean(axis=2, keepdims=True)
    return np.asarray(parts / np.sqrt((parts**2).sum(axis=2, keepdims=True) + COARSE_SIDE**2 * NO_DETAIL**2))


def _turn(pictures: Array, way: int) -> Array:
    """Return pictures turned in one of eight ways: transposed or not, mirrored in none, one or both directions."""
    turned = pictures.swapaxes(1, 2) if way & 4 else pictures
    return turned[:, :: -1 if way & 2 else 1, :: -1 if way & 1 else 1]


# -- 3: whether the details agree


def _agreement(grey: Array, laid: Array) -> Array:
    """Return how well the details of pictures correlate with those of the parts that they are laid on, or near them."""
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
    """Return the best correlation with the details that are wanted, moving each side of a part a little."""
    best = np.zeros(len(wholes), dtype=np.float32)
    for step in ROUNDS:
        for moves in _MOVES:
            options = (cuts[:, None] + step * moves).clip(0, MOST_CUT)
            fit = np.einsum("poij,pij->po", _details(wholes[:, None], options), wanted)
            cuts, best = options[np.arange(len(cuts)), fit.argmax(axis=1)], fit.max(axis=1, initial=0)
    return best


def _details(pictures: Array, cuts: Array) -> Array:
    """Return the details of parts of pictures, of like contrast everywhere and scaled to length 1.

    ``cuts`` are eightieths of a side that the parts lack: at the top, at the bottom, on the left, on the right.
    """
    rows, columns = _FINE[cuts[..., 0], cuts[..., 1]], _FINE[cuts[..., 2], cuts[..., 3]]
    parts = rows @ pictures @ columns.swapaxes(-1, -2)
    details = parts - _NEAR @ parts @ _NEAR.T
    details /= np.sqrt(_AROUND @ details**2 @ _AROUND.T + LITTLE_DETAIL**2)
    squares = np.einsum("...ij,...ij->...", details, details)[..., None, None]
    return np.asarray(details / np.sqrt(squares + FINE_SIDE**2 * (NO_DETAIL / 8) ** 2))


def _averaging(first: int, last: int, n: int) -> Array:
    """Return the matrix that averages the pixels of a side, less some eightieths at both ends, into n."""
    edges = np.linspace(first / 80, 1 - last / 80, n + 1) * SIDE
    pixel = np.arange(SIDE)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    return np.asarray(overlap.clip(0) / np.diff(edges)[:, None], dtype=np.float32)


def _blur(n: int, reach: int) -> Array:
    """Return the matrix that averages each of n values with those near it, fewer at the ends."""
    near = np.abs(np.arange(n)[:, None] - np.arange(n)) <= reach
    return np.asarray(near / near.sum(axis=1, keepdims=True), dtype=np.float32)


_COARSE_CUTS = np.array([(0, 0), (0, 10), (5, 5), (10, 0)])
"""Of one side; the first cuts nothing off."""
_COARSE = np.concatenate([_averaging(first, last, COARSE_SIDE) for first, last in _COARSE_CUTS.tolist()])
_FINE = np.array([[_averaging(a, b, FINE_SIDE) for b in range(MOST_CUT + 1)] for a in range(MOST_CUT + 1)])
"""Matrices by what is cut off at both ends."""
_NEAR, _AROUND = _blur(FINE_SIDE, 1), _blur(FINE_SIDE, 2)
_ONE_SIDE = np.array([(first, last) for first in (0, -1, 1) for last in (0, -1, 1)])
_MOVES = np.pad(_ONE_SIDE, ((0, 0), (0, 2))), np.pad(_ONE_SIDE, ((0, 0), (2, 0)))


READ_TOGETHER = 32
"""Files that one thread reads before it takes others."""
NO_FILE = 0
"""The key of what is not there."""


class PrintKeeper:
    """Makes the prints of files and keeps them.

    Parameters
    ----------
    folder : of the engine; None where nothing may be written, so that they are kept in memory alone
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._known = np.empty(0, PRINT)
        self._loaded = False

    def prints(self, files: Sequence[File | None]) -> Array:
        """Return the prints of files; all zeros where there is no picture that can be read."""
        keys = np.array([_key(file) for file in files], dtype=np.uint64)
        if not self._loaded:
            self._known, self._loaded = self._load(), True
        wanted, rows = np.unique(keys, return_index=True)
        missing = (wanted != NO_FILE) & ~np.isin(wanted, self._known["key"])
        made = _read([file for row in rows[missing].tolist() if (file := files[row]) is not None])
        made["key"] = wanted[missing]
        if len(made):
            kept = self._known
            if len(kept) > 2 * len(files):  # most are of files that are gone or changed
                kept = kept[np.isin(kept["key"], keys)]
            self._known = np.sort(np.concatenate([kept, made]), order="key")
            self._save()
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

    def _save(self) -> None:
        if self._path is not None:
            with suppress(OSError):  # they are read again next time
                write_atomically(self._path, lambda file: np.save(file, self._known, allow_pickle=False), sync=False)


def _key(file: File | None) -> int:
    """Return a number that changes with the path, the size and the time of a file."""
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
