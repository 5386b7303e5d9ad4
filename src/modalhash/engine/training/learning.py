"""What an engine learns besides its codes: refinement vectors, how words are read, and how far hits can be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modalhash.core.progress import Reporter
from modalhash.core.typing import Array, Matrix
from modalhash.encoders import NAMES, NOUNS
from modalhash.engine.items.item import Item
from modalhash.engine.reports.expected_quality import measure_expected_quality, unknown_quality
from modalhash.engine.search.confidence import (
    HELD_OUT,
    MIN_HELD_OUT,
    Confidence,
    LabelWords,
    confidence_of_names,
    fit_confidence,
    hold_out,
    search_held_out,
)
from modalhash.engine.search.photo_words import TEXT, learn_word_codes, words_for
from modalhash.engine.search.refinement import Learned, learn_refinement, sharing_modalities

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.methods.base import CrossModalHasher


class TrainingData(NamedTuple):
    """What there is to learn from, by modality."""

    class_names: list[str]
    items: dict[str, list[Item]]
    features: dict[str, Matrix]
    labels: dict[str, Array] | None
    """None where the method does not learn from labels."""


class WordReader(NamedTuple):
    """The encoders of an engine, and the one that reads words where it has pictures and no texts."""

    encoders: Mapping[str, Encoder]
    """By modality."""
    words: Encoder | None
    """None where texts are a modality of their own, or nothing puts words into the space of the pictures."""
    pictures: str | None
    """The modality that words search in, where texts are none of their own."""

    @property
    def by_names(self) -> bool:
        """Whether words are read in the space of names."""
        return self.pictures is not None and getattr(self.words, "space", None) == NAMES

    @property
    def sharing(self) -> list[str]:
        """The modalities whose encoders share a space."""
        return sharing_modalities(self.in_space)

    @property
    def in_space(self) -> dict[str, Encoder]:
        """The encoders of modalities and of words."""
        return {**self.encoders, **({} if self.words is None else {TEXT: self.words})}


def read_words(encoders: Mapping[str, Encoder], given: Encoder | None, class_names: Sequence[str]) -> WordReader:
    """Choose how words are read as queries."""
    pictures = next((name for name, encoder in encoders.items() if encoder.reads == "image"), None)
    if pictures is None or TEXT in encoders or any(encoder.reads == "text" for encoder in encoders.values()):
        return WordReader(encoders, None, None)
    return WordReader(encoders, words_for(encoders[pictures], given, class_names), pictures)


def learn_vectors(hasher: CrossModalHasher, data: TrainingData, reader: WordReader, seed: int) -> Learned:
    """Learn refinement vectors and, where words are read without texts, their codes."""
    sharing = list(data.features) if getattr(hasher, "space", None) == "shared" else reader.sharing
    learned = learn_refinement(hasher, data.features, data.labels, seed=seed, encoders=reader.in_space, sharing=sharing)
    name = reader.pictures
    if name is None or not (learned.refinement.knows_labels or learned.refinement.meaning):
        return learned
    posteriors = learned.training_posteriors(name, labels=False)
    vectors = learned.refinement.joined(name, posteriors, data.features[name])
    made = learn_word_codes(learned.refinement, vectors, hasher.codes_[name], hasher.n_bits)
    return learned._replace(refinement=made)


def learn_confidence(
    hasher: CrossModalHasher, data: TrainingData, reader: WordReader, seed: int, progress: Reporter
) -> tuple[Confidence | None, dict[str, Any]]:
    """Fit the method once more to most of the training items, and learn from the others how far hits are right.

    Return also what quality is to be expected of new items, or why that cannot be told.
    """
    from sklearn.base import clone

    names = confidence_of_names(str(reader.pictures)) if reader.by_names else None
    if data.labels is None:
        return names, unknown_quality("it was learned without labels, so that nothing tells which hits are right")
    held = hold_out(data.features, seed)
    fewest = min(held.held_out, key=lambda name: len(held.held_out[name]))
    if len(held.held_out[fewest]) < MIN_HELD_OUT:
        return names, unknown_quality(
            f"{len(data.items[fewest]):,} labelled {fewest} items are too few to hold some out and measure by them: "
            f"about {HELD_OUT * MIN_HELD_OUT} of each modality are needed"
        )
    rest = TrainingData(
        data.class_names,
        {name: [items[row] for row in held.learned[name].tolist()] for name, items in data.items.items()},
        {name: values[held.learned[name]] for name, values in data.features.items()},
        {name: values[held.learned[name]] for name, values in data.labels.items()},
    )
    progress("confidence", 0, 2)
    pairs = pairs_of(rest.items) if type(hasher).needs_pairs else None
    model = with_anchors(clone(hasher), rest).fit(rest.features, rest.labels, pairs=pairs)
    progress("confidence", 1, 2)
    known = {}
    for name, encoder in reader.encoders.items():
        texts = [item.text for item in data.items.get(name, ())]
        if encoder.reads == "text" and texts and all(text is not None for text in texts):
            known[name] = _known_words(encoder, texts, held.learned[name], held.held_out[name])
    words = None
    if reader.pictures is not None:
        everyday = np.array([name.casefold() in NOUNS for name in data.class_names])
        words = LabelWords(None if reader.words is None else reader.words.encode(data.class_names), everyday)
    vectors = learn_vectors(model, rest, reader, seed)
    searches = search_held_out(model, data.features, data.labels, held, vectors, known=known, words=words, seed=seed)
    ids = {name: [item.id for item in items] for name, items in data.items.items()}
    if reader.pictures is not None:
        ids[TEXT] = data.class_names
    learned, expected = fit_confidence(searches), measure_expected_quality(searches, data.features, ids)
    if reader.by_names:
        learned = confidence_of_names(str(reader.pictures), learned)
    progress("confidence", 2, 2)
    return learned, expected


def _known_words(encoder: Encoder, texts: Sequence[str | None], learned: Array, held_out: Array) -> Array:
    """Return the share of words of held-out texts that the encoder would know if it had learned from the others."""
    if not hasattr(encoder, "known"):
        return np.ones(len(held_out))
    other = deepcopy(encoder).fit([texts[row] for row in learned.tolist()])
    return np.asarray(other.known([texts[row] for row in held_out.tolist()]))


def with_anchors(hasher: CrossModalHasher, data: TrainingData) -> CrossModalHasher:
    """Return the method with no more anchors than items: of few all are, without a warning that nobody asked for."""
    anchors = hasher.get_params(deep=False).get("n_anchors")
    if isinstance(anchors, int):
        anchors = dict.fromkeys(data.items, anchors)
    if isinstance(anchors, Mapping):
        hasher.set_params(n_anchors={name: min(n, len(data.items[name])) for name, n in anchors.items()})
    return hasher


def pairs_of(items: Mapping[str, list[Item]]) -> Array:
    """Return the rows of the items that have the same id in every modality."""
    rows = [{item.id: row for row, item in enumerate(some)} for some in items.values()]
    shared = [id for id in rows[0] if all(id in others for others in rows[1:])]
    if not shared:
        raise ValueError(
            "this method learns from pairs, and no id stands in every modality; take rlh, which needs none"
        )
    return np.array([[own[id] for own in rows] for id in shared])
