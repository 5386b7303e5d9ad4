r"""Refinement vectors: at most 192 int8 values per item that order items whose codes are equal or near.

The *posterior* describes the item's labels in a space that all modalities share: a ridge regression from kernel
features to label vectors of unit length. Inner products of posteriors say how likely two items share a label. With more
than 64 labels, the 48 directions that preserve most of these products are kept, and the others, mostly rare labels, are
folded into 16 by a random projection.

The *embedding* describes the item itself: its features in 64 principal directions, centred, rotated and scaled to unit
length. Within a modality, inner products are cosines, and the signs are a binary code, the *sketch*, by which items
find their near-duplicates whatever their labels are.

The *meaning* is the item's vector in a space that encoders of pictures and texts share, such as CLIP's or the space of
names (:mod:`modalhash.encoders.names`). Each modality is centred, pictures on their mean and texts on the mean of
everyday nouns, because queries are mostly single words. It is projected to the 64 leading directions of the pictures
and has length 1.

==================  ============================  ====================================================================
symbol              here                          is
==================  ============================  ====================================================================
:math:`\tilde l`    ``_unit_labels`` (n, c)       label rows of length 1, CSR
:math:`\phi(X)`     ``_with_bias`` (n, d)         kernel features of the model, or of a kernel of its own, with a bias
:math:`G_f, C_f`    ``gram[f]``, ``cross[f]``     φᵀφ and φᵀ l̃ of a fold
:math:`W_{-f}`      ``weights[f]`` (d, c)         (G − G_f + ρI)⁻¹ (C − C_f): posteriors of fold f from the others
:math:`V`           ``basis`` (c, ≤ 64)           leading eigenvectors of Σ_f W_{-f}ᵀ G_f W_{-f}: of the posteriors,
                                                  and the others, folded
==================  ============================  ====================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy

from modalhash.core.blocks import row_slices
from modalhash.core.files import NONSENSE, write_atomically
from modalhash.core.linalg import RidgeFactor, unit_rows
from modalhash.core.parallel import parallel_map, worker_threads
from modalhash.core.randomness import draw, row_keys
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_learned
from modalhash.methods.fitted import flatten, restore

if TYPE_CHECKING:
    from modalhash.core.maps import FittedMap
    from modalhash.encoders import Encoder
    from modalhash.methods.fitted import FittedHasher


MEANING_DIMENSIONS = 64
SAMPLE = 20_000
"""Items that the directions are learned from."""
STEP = 1 / 127
"""Value of one int8 unit; no value of a vector of length 1 is larger than 127 units."""


@dataclass(frozen=True)
class Meaning:
    """Makes the meaning part of refinement vectors; learned by :func:`learn_meaning`."""

    directions: Array
    """(space, at most 64)."""
    centres: Mapping[str, Array]
    """By modality whose encoder shares the space."""

    @property
    def size(self) -> int:
        return int(self.directions.shape[1])

    def vectors(self, modality: str, encoder: Encoder | None, X: Matrix) -> Array:
        """Return the meanings of items from their features, int8; zeros for items without known features."""
        if modality not in self.centres or encoder is None:
            return np.zeros((X.shape[0], self.size), dtype=np.int8)
        known = in_space(encoder, X)
        values = unit_rows((known - self.centres[modality]) @ self.directions)
        values[~known.any(axis=1)] = 0
        return np.rint(values / STEP).astype(np.int8)


def learn_meaning(
    encoders: Mapping[str, Encoder], X: Mapping[str, Matrix], sharing: Sequence[str], *, seed: int = 0
) -> Meaning | None:
    """Learn the meaning part from the features of training items; None if no modalities share a space.

    ``X`` need not have texts that are queries only. The rotation gives all directions similar values.
    """
    if not sharing:
        return None
    texts = [name for name in sharing if encoders[name].reads == "text"]
    centres = {name: _text_centre(encoders[name], X.get(name)) for name in texts}
    moment = np.zeros(())
    for name in [name for name in sharing if name not in texts] or texts:
        values = in_space(encoders[name], X[name][draw(X[name], SAMPLE, seed)])
        centres.setdefault(name, values.mean(axis=0))
        moment = moment + np.cov(values, rowvar=False)
    directions = np.linalg.eigh(moment)[1][:, ::-1][:, :MEANING_DIMENSIONS]
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((directions.shape[1],) * 2))[0]
    return Meaning(np.ascontiguousarray(directions @ rotation, dtype=np.float32), centres)


def sharing_modalities(encoders: Mapping[str, Encoder]) -> list[str]:
    """Return the modalities whose encoders share a space with another's."""
    spaces = {name: getattr(encoder, "space", None) for name, encoder in encoders.items()}
    shared = Counter(space for space in spaces.values() if space is not None).most_common(1)
    return [name for name, space in spaces.items() if shared and shared[0][1] > 1 and space == shared[0][0]]


def in_space(encoder: Encoder, X: Matrix) -> Array:
    """Return items as vectors of their encoder's space, of length 1."""
    make = getattr(encoder, "in_space", np.asarray)
    return unit_rows(np.asarray(make(X), dtype=np.float32))


def model_features(model: FittedHasher, encoder: Encoder, X: Matrix) -> Matrix:
    """Return the model's input: features or, for a model of a shared space, vectors of it."""
    return in_space(encoder, X) if getattr(model, "space", None) == "shared" else X


def _text_centre(encoder: Encoder, X: Matrix | None) -> Array:
    """Return the mean of everyday nouns in the space, or of training texts if the encoder refuses nouns."""
    from modalhash.encoders import NOUNS

    try:
        return np.asarray(in_space(encoder, encoder.encode(list(NOUNS))).mean(axis=0))
    except ValueError:
        if X is None:
            raise
        return np.asarray(in_space(encoder, X).mean(axis=0))


POSTERIOR_DIMENSIONS = EMBEDDING_DIMENSIONS = 64
"""Largest number of values of each part."""
FOLDED_DIMENSIONS, FOLDED_SCALE = 16, 0.7
"""Values of the posterior that share the remaining directions, and the factor of their lengths: less is less noise, and
less of rare labels. Chosen on folds: benchmarks/quality/named_things.py."""
POSTERIOR_RIDGE = 0.01
N_FOLDS = 5
LABEL_BLEND = 0.9
"""Weight of the labels in the posterior of an item with a learned code; the rest is from its features."""
N_ANCHORS = 1500
"""Anchors of the kernel for methods without one."""
MAX_LABEL_DIRECTIONS = 512
"""With more labels, the posterior is learned in this number of leading directions of the label space."""
EMBEDDING_SAMPLE = 20_000
"""Items that the embedding's directions are learned from."""
BLOCK_VALUES = 2**22
"""Kernel features per block."""
MAX_WIDTH = 4096
"""Width above which the model's kernel features are not used, because their Gram matrix is too large."""
FILE = "refinement.safetensors"


class RefinementError(ValueError):
    """The file of refinement vectors is not the one that the engine was written with."""


@dataclass(frozen=True)
class Refinement:
    """Makes the refinement vectors of items and queries; learned by :func:`learn_refinement`."""

    basis: Array
    """(labels, posterior dimensions); empty without labels."""
    weights: Mapping[str, Array]
    """By modality, from kernel features and a 1 to posteriors."""
    maps: Mapping[str, FittedMap]
    """By modality, the kernel for methods without one."""
    components: Mapping[str, Array]
    """By modality, (features, embedding dimensions): principal directions, rotated."""
    centres: Mapping[str, Array]
    posterior_step: float
    """Value of one int8 unit of the posterior."""
    embedding_step: float
    meaning: Meaning | None = None
    word_codes: Array | None = None
    """Predicts codes from posterior, meaning and a 1, in an engine of pictures without texts
    (:mod:`modalhash.engine.search.photo_words`)."""
    model: FittedHasher | None = field(default=None, compare=False, repr=False)
    """Its kernel features are used for modalities that are not in ``maps``."""
    encoders: Mapping[str, Encoder] = field(default_factory=dict, compare=False, repr=False)
    """By modality, those of the shared space."""

    @property
    def n_posterior(self) -> int:
        """The number of values of the posterior."""
        return int(self.basis.shape[1])

    @property
    def knows_labels(self) -> bool:
        return bool(self.n_posterior)

    def embedding(self, modality: str) -> slice:
        return slice(self.n_posterior, self.n_posterior + int(self.components[modality].shape[1]))

    @property
    def meaning_values(self) -> slice:
        """The slice of the meaning in a vector; empty without one."""
        start = self.n_posterior + EMBEDDING_DIMENSIONS
        return slice(start, start + (0 if self.meaning is None else self.meaning.size))

    def width(self, modality: str) -> int:
        return self.embedding(modality).stop if self.meaning is None else self.meaning_values.stop

    def embedding_of(self, modality: str, vectors: Array) -> Array:
        return vectors[..., self.embedding(modality)]

    def vectors(self, modality: str, X: Matrix, *, mapped: Array | None = None) -> Array:
        """Return vectors of items from their features, int8; ``mapped`` is the output of the model's feature map."""
        posteriors = self.quantised_posteriors(self.posteriors(modality, X, mapped=mapped))
        return self.joined(modality, posteriors, X)

    def joined(self, modality: str, posteriors: Array, X: Matrix) -> Array:
        """Return vectors of items with these posteriors, and the other parts from their features, int8."""
        vectors = np.zeros((X.shape[0], self.width(modality)), dtype=np.int8)
        vectors[:, : self.n_posterior] = posteriors
        vectors[:, self.embedding(modality)] = self.embeddings(modality, X)
        if self.meaning is not None:
            vectors[:, self.meaning_values] = self.meaning.vectors(modality, self.encoders.get(modality), X)
        return vectors

    def posteriors(self, modality: str, X: Matrix, *, mapped: Array | None = None) -> Array:
        """Return posteriors before quantisation: float32 (items, posterior dimensions)."""
        if not self.n_posterior:
            return np.zeros((X.shape[0], 0), dtype=np.float32)
        feature_map, weights = feature_map_of(modality, self.maps, self.model), self.weights[modality]
        if mapped is not None and feature_map is _own_map(self.model, modality):
            return np.asarray(_biased(mapped, feature_map) @ weights)
        size = max(1, BLOCK_VALUES // max(X.shape[1], feature_map.width))
        parts = [_with_bias(feature_map, X[rows]) @ weights for rows in row_slices(X.shape[0], size)]
        return np.concatenate([np.zeros((0, weights.shape[1]), dtype=np.float32), *parts])

    def quantised_posteriors(self, posteriors: Array) -> Array:
        return _quantise(posteriors, self.posterior_step)

    def embeddings(self, modality: str, X: Matrix) -> Array:
        """Return embeddings as int8; zeros, which are near nothing, for an item without features."""
        return _quantise(_embed(X, self.components[modality], self.centres[modality]), self.embedding_step)

    def relabelled(self, vectors: Array, labels: Array, before: Array, learned: Array) -> Array:
        """Return vectors of items with other labels; the posteriors include the labels, as after training.

        ``labels`` and ``before`` are boolean (items, labels), the new and the old ones. ``learned`` says whose vectors
        include the old labels; the others are from features alone, as are vectors of items all of whose labels are new
        since the training (rows of zeros in ``basis``).
        """
        if not self.knows_labels:
            return vectors
        posteriors = vectors[:, : self.n_posterior].astype(np.float32) * np.float32(self.posterior_step)
        was, now = (np.asarray(_unit_labels(rows) @ self.basis) for rows in (before, labels))
        old, new = (LABEL_BLEND * values.any(axis=1, keepdims=True) for values in (was * learned[:, None], now))
        factor = ((1 - new) / (1 - old)).astype(np.float32)  # 1 unless the share of the features changes
        changed = vectors.copy()
        changed[:, : self.n_posterior] = self.quantised_posteriors(
            (posteriors - LABEL_BLEND * was * learned[:, None]) * factor + LABEL_BLEND * now
        )
        return changed

    def label_posteriors(self, labels: Array) -> Array:
        """Return posteriors from labels alone, int8; ``labels`` is boolean."""
        return self.quantised_posteriors(np.asarray(_unit_labels(labels) @ self.basis))

    def label_scores(self, vectors: Array) -> Array:
        """Return the label scores of vectors: float32 (vectors, labels)."""
        posteriors = vectors[:, : self.n_posterior].astype(np.float32) * np.float32(self.posterior_step)
        return np.asarray(posteriors @ self.basis.T)


class Learned(NamedTuple):
    """Result of :func:`learn_refinement`."""

    refinement: Refinement
    posteriors: dict[str, Array]
    """Out-of-fold posteriors of the training items: float32."""
    label_posteriors: dict[str, Array]
    """Posteriors of the training items from their labels: float32."""

    def training_posteriors(self, modality: str, *, labels: bool, blend: float = LABEL_BLEND) -> Array:
        """Return the int8 posteriors of the training items, blended with their labels if ``labels``."""
        posteriors = self.posteriors[modality]
        if labels:
            posteriors = (1 - blend) * posteriors + blend * self.label_posteriors[modality]
        return self.refinement.quantised_posteriors(posteriors)


def learn_refinement(
    model: FittedHasher | None,
    X: Mapping[str, Matrix],
    labels: Mapping[str, Array] | None,
    *,
    seed: int = 0,
    ridge: float = POSTERIOR_RIDGE,
    encoders: Mapping[str, Encoder] | None = None,
    sharing: Sequence[str] = (),
) -> Learned:
    """Learn refinement vectors from the training items of a fitted model.

    ``labels`` is boolean (items, labels) by modality; None if the method does not learn from labels. A kernel is fitted
    unless ``model`` has kernel features. ``sharing`` are the modalities whose ``encoders`` share a space.
    """
    with worker_threads():
        learned = _learn(model, X, labels, seed, ridge)
    if not sharing:
        return learned
    made = dict(encoders or {})
    meaning = learn_meaning(made, X, sharing, seed=seed)
    return learned._replace(refinement=replace(learned.refinement, meaning=meaning, encoders=made))


def _learn(
    model: FittedHasher | None,
    X: Mapping[str, Matrix],
    labels: Mapping[str, Array] | None,
    seed: int,
    ridge: float,
) -> Learned:
    components, centres = {}, {}
    for modality, values in X.items():
        components[modality], centres[modality] = _embedding_directions(values, seed)
    largest = max(
        float(np.abs(_embed(values[:EMBEDDING_SAMPLE], components[name], centres[name])).max(initial=0))
        for name, values in X.items()
    )
    n_labels = 0 if labels is None else next(iter(labels.values())).shape[1]
    maps: dict[str, FittedMap] = {}
    weights: dict[str, Array] = {}
    own: dict[str, Array] = {name: np.zeros((values.shape[0], 0), np.float32) for name, values in X.items()}
    from_labels = dict(own)
    basis = np.zeros((n_labels, 0), dtype=np.float32)
    if labels is not None:
        from modalhash.core.features import AnchorKernel

        maps = {
            name: AnchorKernel(min(N_ANCHORS, values.shape[0]), dtype="float32", random_state=seed).fit(values)
            for name, values in X.items()
            if _own_map(model, name) is None
        }
        targets = {name: _unit_labels(values) for name, values in labels.items()}
        directions = _label_directions(targets, seed)
        sums = {}
        for name, values in X.items():
            fold = (row_keys(values, seed) % np.uint64(N_FOLDS)).astype(np.intp)  # copies share a fold
            T = targets[name] if directions is None else targets[name] @ directions
            sums[name] = _FoldSums(feature_map_of(name, maps, model), values, T, fold, ridge)
        moment = sum(some.second_moment() for some in sums.values())
        leading = _posterior_directions(np.asarray(moment), seed)
        basis = leading if directions is None else (directions @ leading).astype(np.float32)
        for name, some in sums.items():
            weights[name] = (some.whole @ leading).astype(np.float32)
            own[name] = some.posteriors(leading)
            from_labels[name] = np.asarray(targets[name] @ basis, dtype=np.float32)
    extremes = [float(np.abs(values).max(initial=0)) for values in (*own.values(), *from_labels.values())]
    refinement = Refinement(
        basis,
        weights,
        maps,
        components,
        centres,
        posterior_step=max(extremes) / 127 or 1.0,
        embedding_step=largest / 127 or 1.0,
        model=model,
    )
    return Learned(refinement, own, from_labels)


class _FoldSums:
    """Ridge regressions from kernel features to label vectors, one without each fold, in one pass."""

    def __init__(self, feature_map: FittedMap, X: Matrix, T: Any, fold: Array, ridge: float) -> None:
        self._map, self._X, self._fold = feature_map, X, fold
        d = feature_map.width + (not feature_map.bias)
        gram, cross = np.zeros((N_FOLDS, d, d)), np.zeros((N_FOLDS, d, T.shape[1]))
        for f, (square, products) in zip(
            self._folds(), parallel_map(self._products, self._blocks(), repeat(T)), strict=True
        ):
            gram[f] += square
            cross[f] += products
        G, C = gram.sum(axis=0), cross.sum(axis=0)
        left_out = [(G - gram[f], C - cross[f]) for f in range(N_FOLDS)]
        self.whole, *self.weights = parallel_map(
            lambda G, C: RidgeFactor(G, ridge).solve(C), *zip((G, C), *left_out, strict=True)
        )
        self._gram = gram

    def second_moment(self) -> Array:
        """Return the mean of ŝ ŝᵀ over the out-of-fold posteriors."""
        moments = [W.T @ G @ W for W, G in zip(self.weights, self._gram, strict=True)]
        return np.asarray(np.sum(moments, axis=0) / max(1, len(self._fold)))

    def posteriors(self, directions: Array) -> Array:
        """Return out-of-fold posteriors of all items in these directions."""
        out = np.empty((len(self._fold), directions.shape[1]), dtype=np.float32)
        W = [(weights @ directions).astype(np.float32) for weights in self.weights]
        found = parallel_map(
            lambda rows, W: np.asarray(_with_bias(self._map, self._X[rows]) @ W),
            self._blocks(),
            [W[f] for f in self._folds()],
        )
        for rows, values in zip(self._blocks(), found, strict=True):
            out[rows] = values
        return out

    def _blocks(self) -> list[Array]:
        """Return blocks of rows, each of one fold."""
        size = max(1, BLOCK_VALUES // max(self._X.shape[1], self._map.width))
        by_fold = [np.flatnonzero(self._fold == f) for f in range(N_FOLDS)]
        return [rows[part] for rows in by_fold for part in row_slices(len(rows), size)]

    def _folds(self) -> list[int]:
        return [int(self._fold[rows[0]]) for rows in self._blocks()]

    def _products(self, rows: Array, T: Any) -> tuple[Array, Array]:
        phi = _with_bias(self._map, self._X[rows])
        return phi.T @ phi, (T[rows].T @ phi).T


def _posterior_directions(moment: Array, seed: int) -> Array:
    """Return the directions of posteriors with this second moment, as columns."""
    vectors = np.linalg.eigh(moment)[1][:, ::-1].astype(np.float32)
    n = vectors.shape[1]
    if n <= POSTERIOR_DIMENSIONS:
        return vectors
    kept = POSTERIOR_DIMENSIONS - FOLDED_DIMENSIONS
    fold = np.linalg.qr(np.random.default_rng(seed).standard_normal((n - kept, FOLDED_DIMENSIONS)))[0]
    fold *= FOLDED_SCALE * np.sqrt(
        (n - kept) / FOLDED_DIMENSIONS
    )  # a scale of 1 preserves inner products in expectation
    return np.hstack([vectors[:, :kept], vectors[:, kept:] @ fold.astype(np.float32)])


def _with_bias(feature_map: FittedMap, X: Matrix) -> Array:
    return _biased(feature_map.map(X), feature_map)


def _biased(phi: Array, feature_map: FittedMap) -> Array:
    return phi if feature_map.bias else np.column_stack([phi, np.ones(len(phi), dtype=phi.dtype)])


def _own_map(model: FittedHasher | None, modality: str) -> FittedMap | None:
    """Return the model's kernel of a modality, None if it is missing or too wide."""
    feature_map = getattr(model, "maps_", {}).get(modality)
    return feature_map if feature_map is not None and feature_map.width <= MAX_WIDTH else None


def feature_map_of(modality: str, maps: Mapping[str, FittedMap], model: FittedHasher | None) -> FittedMap:
    feature_map = maps.get(modality) or _own_map(model, modality)
    if feature_map is None:
        raise ValueError(f"no kernel of {modality!r}: the model is not the one these vectors were learned with")
    return feature_map


def _unit_labels(labels: Array) -> scipy.sparse.csr_array:
    values = scipy.sparse.csr_array(labels, dtype=np.float32)
    sizes = np.diff(values.indptr)
    values.data = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes).astype(np.float32)
    return values


def _label_directions(targets: Mapping[str, scipy.sparse.csr_array], seed: int) -> Array | None:
    """Return leading directions of the label space; None if it is small enough."""
    stacked = scipy.sparse.vstack(list(targets.values()), format="csr")
    if stacked.shape[1] <= MAX_LABEL_DIRECTIONS:
        return None
    from sklearn.decomposition import TruncatedSVD

    svd = TruncatedSVD(min(MAX_LABEL_DIRECTIONS, stacked.shape[0] - 1), random_state=seed).fit(stacked)
    return np.asarray(svd.components_.T, dtype=np.float32)


def _embedding_directions(X: Matrix, seed: int) -> tuple[Array, Array]:
    """Return rotated principal directions (features, dimensions) and the mean in them."""
    from sklearn.decomposition import PCA, TruncatedSVD

    sample = X[np.sort(np.argsort(row_keys(X, seed), kind="stable")[:EMBEDDING_SAMPLE])]
    n = min(EMBEDDING_DIMENSIONS, sample.shape[0] - 1, sample.shape[1] - 1)
    if n < 1:
        directions = np.eye(X.shape[1], 1)
    elif scipy.sparse.issparse(sample):
        directions = TruncatedSVD(n, random_state=seed).fit(sample).components_.T
    else:
        directions = PCA(n, svd_solver="randomized", random_state=seed).fit(sample).components_.T
    # A random rotation preserves cosines and gives all dimensions a similar range, for int8 and sketches.
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((directions.shape[1],) * 2))[0]
    components = np.ascontiguousarray(directions @ rotation, dtype=np.float32)
    return components, np.asarray((sample @ components).mean(axis=0), dtype=np.float32)


def has_features(X: Matrix) -> Array:
    """Return for each row whether any of its features is not zero."""
    if not scipy.sparse.issparse(X):
        return np.asarray(np.any(X, axis=1))
    if X.format == "csr" and X.data.all():
        return np.asarray(X.indptr[1:] > X.indptr[:-1])
    return np.asarray(X.astype(bool).sum(axis=1) > 0).ravel()


def _embed(X: Matrix, components: Array, centre: Array) -> Array:
    values = np.asarray(X @ components, dtype=np.float32) - centre
    values[~has_features(X)] = 0  # otherwise all items without features would share one point
    norms = np.sqrt(np.einsum("ij,ij->i", values, values))
    return np.asarray(values / np.where(norms > 0, norms, 1)[:, None])


def _quantise(values: Array, step: float) -> Array:
    return np.clip(np.rint(values / np.float32(step)), -127, 127).astype(np.int8)


def save_refinement(refinement: Refinement, folder: Path) -> dict[str, Any]:
    """Write the refinement file into an engine's folder; return its entry of the configuration."""
    from safetensors.numpy import save as to_bytes

    arrays: dict[str, Array] = {}
    learned = {name: getattr(refinement, name) for name in _SAVED}
    if refinement.word_codes is not None:
        learned["word_codes"] = refinement.word_codes
    if refinement.meaning is not None:
        learned |= {"directions": refinement.meaning.directions, "space_centres": refinement.meaning.centres}
    state = {name: flatten(value, name, arrays) for name, value in learned.items()}
    tensors = to_bytes({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write_atomically(folder / FILE, tensors)
    return {"state": state, "sha256": sha256(tensors).hexdigest()}


def load_refinement(
    folder: Path, config: Mapping[str, Any], model: FittedHasher, encoders: Mapping[str, Encoder]
) -> Refinement:
    """Read the file of :func:`save_refinement`; RefinementError if it is another one."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    try:
        tensors = (folder / FILE).read_bytes()
    except FileNotFoundError:
        raise RefinementError(f"{folder / FILE} is missing; the engine was not copied whole") from None
    if not isinstance(config, Mapping) or sha256(tensors).hexdigest() != config.get("sha256"):
        raise RefinementError(f"{folder / FILE} is truncated or not the file this engine was written with")
    try:
        arrays = from_bytes(tensors)
        check_learned(arrays)
        learned = {name: restore(config["state"][name], name, arrays) for name in _SAVED}
        meaning = None
        if "directions" in config["state"]:
            parts = (restore(config["state"][name], name, arrays) for name in ("directions", "space_centres"))
            meaning = Meaning(*parts)
        if "word_codes" in config["state"]:
            learned["word_codes"] = restore(config["state"]["word_codes"], "word_codes", arrays)
        return Refinement(**learned, meaning=meaning, model=model, encoders=encoders)
    except (SafetensorError, *NONSENSE) as error:
        raise RefinementError(f"{folder / FILE} cannot be read: {error}") from error


_SAVED = ("basis", "weights", "maps", "components", "centres", "posterior_step", "embedding_step")
