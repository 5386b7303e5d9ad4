"""The corpus of a training: the items of a source by modality, their labels as matrices, and how to learn from them.

Unpaired modalities are related by labels only. Spellings that differ in case, spaces or Unicode normalization are one
label (:mod:`modalhash.core.label_names`). :class:`LabelCheck` finds which labels modalities share, and which are
probably typing errors.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy

from modalhash.core.label_names import LabelNames
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_fewer_bits
from modalhash.data import ReadLimits
from modalhash.engine.items.item import Item, OnProblem, Problem, ReadOptions, group_problems
from modalhash.engine.items.sources import choose_encoders, open_source, read_batches
from modalhash.engine.search.photo_words import find_named_labels, singular
from modalhash.engine.settings import TrainSettings
from modalhash.methods import registry

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.methods.base import CrossModalHasher

RARE = 5
"""Number of items below which a label is rare."""
SIDE_BY_SIDE = 10
"""Labels per modality that are listed if modalities share none."""
MAX_EXAMPLES = 3
_BETWEEN_WORDS = re.compile(r"[\s_\-]+")
_CLEARLY_SEVERAL = re.compile(r"[,;|\t\n]")
_PERHAPS_SEVERAL = re.compile(r"[/+&]| and ")
"""Characters that may also occur within one label; they separate labels only if every part is one."""


class NoSharedLabelError(ValueError):
    """The items of a modality share no label with those of any other."""


@dataclass(frozen=True)
class LabelCheck:
    """Number of training items per label, by modality."""

    counts: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, labels: Mapping[str, Iterable[Iterable[str]]]) -> LabelCheck:
        return cls({modality: Counter(one for row in rows for one in row) for modality, rows in labels.items()})

    @cached_property
    def items(self) -> Counter[str]:
        """Number of items per label, over all modalities."""
        return sum((Counter(own) for own in self.counts.values()), Counter[str]())

    @cached_property
    def shared(self) -> list[str]:
        """Labels of two or more modalities, the most frequent first."""
        times = Counter(label for own in self.counts.values() for label in own)
        return [label for label, _ in self.items.most_common() if times[label] > 1]

    def only(self, modality: str) -> list[str]:
        """Return the labels that no other modality has, the most frequent first."""
        shared = set(self.shared)
        return [label for label, _ in Counter(self.counts[modality]).most_common() if label not in shared]

    @property
    def rare(self) -> dict[str, int]:
        """Labels with fewer than :data:`RARE` items, the rarest first."""
        return {label: n for label, n in sorted(self.items.items(), key=lambda one: (one[1], one[0])) if n < RARE}

    @property
    def several_in_one(self) -> dict[str, int]:
        """Labels that look like several, e.g. ``mountain, outdoor``, the most frequent first."""

        def is_several(label: str) -> bool:
            if _CLEARLY_SEVERAL.search(label):
                return True
            parts = [part.strip() for part in _PERHAPS_SEVERAL.split(label)]
            return len(parts) > 1 and all(part in self.items for part in parts)

        return {label: n for label, n in self.items.most_common() if is_several(label)}

    @property
    def alike(self) -> list[tuple[str, ...]]:
        """Groups of labels that differ only in hyphens and underscores, or in number across modalities.

        ``boat`` and ``boats`` within one modality may be two labels; in different modalities they are probably one.
        """
        found = _groups(self.items, _spelling)
        known = {label for group in found for label in group}
        owners = {label: [name for name, own in self.counts.items() if label in own] for label in self.items}
        for group in _groups([label for label in self.items if label not in known], _singular_spelling):
            if all(len(owners[label]) == 1 for label in group) and len({owners[label][0] for label in group}) > 1:
                found.append(group)
        return found

    def check_shared(self) -> None:
        """Raise :class:`NoSharedLabelError`, with a table of labels as a note, if a modality shares no label."""
        if len(self.counts) < 2:
            return
        shared = set(self.shared)
        alone = [modality for modality, own in self.counts.items() if not shared & set(own)]
        if not alone:
            return
        others = [modality for modality in self.counts if modality != alone[0]]
        names = f"{alone[0]!r} and {' and '.join(map(repr, others))}"
        groups = [
            group for group in self.alike if sum(any(one in own for one in group) for own in self.counts.values()) > 1
        ]
        if groups:
            remedy = f"Spell labels the same way, such as {describe_alike(groups)}"
        else:
            remedy = (
                "Give them the same labels, use another column (--field labels=COLUMN), or learn without labels "
                "(--labels none)"
            )
        error = NoSharedLabelError(f"{names} have no label in common, so nothing relates them. {remedy}")
        error.add_note(side_by_side(self.counts))
        raise error

    def to_config(self) -> dict[str, Any]:
        only = {modality: self.only(modality) for modality in self.counts}
        return {
            "labels": len(self.items),
            "shared": len(self.shared),
            "only": {name: {"labels": len(own), "examples": own[:MAX_EXAMPLES]} for name, own in only.items()},
        }


def describe_label_overlap(overlap: Mapping[str, Any]) -> str:
    """Describe how many labels modalities share, from :meth:`LabelCheck.to_config`."""
    names = " and ".join(overlap["only"])
    parts = [f"{names} share {overlap['shared']:,} of {overlap['labels']:,} labels"]
    for modality, own in overlap["only"].items():
        if own["labels"]:
            shown = ", ".join(map(repr, own["examples"]))
            more = ", …" if own["labels"] > len(own["examples"]) else ""
            parts.append(f"only {modality} has {own['labels']:,} ({shown}{more})")
    return "; ".join(parts)


def describe_alike(groups: Sequence[Sequence[str]]) -> str:
    def shown(group: Sequence[str]) -> str:
        seen = {unicodedata.normalize("NFC", label) for label in group}
        return " and ".join(map(repr, group)) + (" (accents stored in two ways)" if len(seen) < len(group) else "")

    return "; ".join(map(shown, groups[:MAX_EXAMPLES])) + ("; …" if len(groups) > MAX_EXAMPLES else "")


def side_by_side(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return the most frequent labels as columns of text, one per modality."""
    columns = []
    for modality, own in counts.items():
        frequent = sorted(own.items(), key=lambda one: (-one[1], one[0].casefold()))
        rows = [f"{modality}: {len(own):,} labels", *(f"{n:>6,}  {label!r}" for label, n in frequent[:SIDE_BY_SIDE])]
        if len(frequent) > SIDE_BY_SIDE:
            rows.append(f"        … and {len(frequent) - SIDE_BY_SIDE:,} more")
        columns.append(rows)
    height = max(map(len, columns))
    padded = [[*rows, *[""] * (height - len(rows))] for rows in columns]
    widths = [max(map(len, rows)) for rows in padded]
    lines = zip(*padded, strict=True)
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _spelling(label: str) -> str:
    """Return a label without differences of case, separators and Unicode normalization."""
    return _BETWEEN_WORDS.sub(" ", unicodedata.normalize("NFKC", label).casefold()).strip()


def _singular_spelling(label: str) -> str:
    return " ".join(singular(word) for word in _spelling(label).split(" "))


def _groups(labels: Iterable[str], key: Any) -> list[tuple[str, ...]]:
    by_key: dict[str, list[str]] = {}
    for label in labels:
        by_key.setdefault(key(label), []).append(label)
    return [tuple(sorted(group)) for group in by_key.values() if len(group) > 1]


AUTO = "auto"
"""Requests the shortest sufficient code length."""
WITH_LABELS, WITHOUT_LABELS = "rlh", "itq"
"""Default methods."""


@dataclass(frozen=True)
class Corpus:
    """Items by modality, in columns: items and contents as read, then labels, then features."""

    items: dict[str, list[Item]]
    contents: dict[str, Any]
    """Inputs of the encoders: lists, or the rows of arrays or CSR matrices; empty once the items are encoded."""
    class_names: list[str] = field(default_factory=list)
    labels: dict[str, scipy.sparse.csr_array] | None = None
    """Boolean (items, class names), empty rows for held-out items; None if the method does not learn from labels."""
    features: dict[str, Matrix] = field(default_factory=dict)

    def take(self, rows: Mapping[str, Array]) -> Corpus:
        """Return some rows of these modalities."""
        return replace(
            self,
            items={name: [self.items[name][row] for row in own.tolist()] for name, own in rows.items()},
            contents={name: _rows_of(self.contents[name], own) for name, own in rows.items() if name in self.contents},
            labels=None if self.labels is None else {name: self.labels[name][own] for name, own in rows.items()},
            features={name: self.features[name][own] for name, own in rows.items() if name in self.features},
        )

    def with_features(self, features: dict[str, Matrix]) -> Corpus:
        """Return the corpus with features, and without labels that no item has."""
        if self.labels is None:
            return replace(self, features=features)
        used = np.flatnonzero(sum(own.sum(axis=0) for own in self.labels.values()))
        names = [self.class_names[column] for column in used.tolist()]
        labels = {name: own[:, used] for name, own in self.labels.items()}
        return replace(self, features=features, class_names=names, labels=labels)

    def training_rows(self) -> dict[str, Array]:
        """Return the rows to learn from: not held out by a split, and labelled if the method learns from labels."""
        rows = {name: np.array([item.training for item in some], dtype=bool) for name, some in self.items.items()}
        if self.labels is not None:
            rows = {name: own & (np.diff(self.labels[name].indptr) > 0) for name, own in rows.items()}
        return {name: np.flatnonzero(own) for name, own in rows.items()}

    def label_arrays(self) -> dict[str, Array] | None:
        return None if self.labels is None else {name: own.toarray() for name, own in self.labels.items()}

    def label_check(self) -> LabelCheck:
        """Return the number of items of each label; the method must learn from labels."""
        assert self.labels is not None
        counts = {
            name: zip(self.class_names, own.sum(axis=0).tolist(), strict=True) for name, own in self.labels.items()
        }
        return LabelCheck({name: {label: n for label, n in own if n} for name, own in counts.items()})

    def fit_encoder(self, encoder: Encoder, modality: str) -> None:
        """Fit an encoder to the items that are not held out, with labels if it takes them."""
        from modalhash.encoders import fit_encoder

        rows = np.flatnonzero([item.training for item in self.items[modality]])
        labels = None
        if self.labels is not None and hasattr(encoder, "fit_labelled"):
            own = self.labels[modality][rows]
            labels = own[:, np.flatnonzero(own.sum(axis=0))].toarray()
        everything = len(rows) == len(self.items[modality])
        contents = self.contents[modality]
        fit_encoder(encoder, contents if everything else _rows_of(contents, rows), labels)


def _rows_of(contents: Any, rows: Array) -> Any:
    return contents[rows] if hasattr(contents, "shape") else [contents[row] for row in rows.tolist()]


class TrainingInput(NamedTuple):
    """A corpus that was read, and how to learn from it."""

    corpus: Corpus
    source: Any
    """As opened."""
    encoders: dict[str, Encoder]
    """Of all possible modalities."""
    method: str
    hasher: CrossModalHasher
    labels: str
    """The requested labels, or "none" because no item has any."""
    named: dict[str, dict[str, Any]]
    """Labels that unlabelled texts name, by modality; empty unless requested."""


def read_training_input(
    source: Any, settings: TrainSettings, report: OnProblem, note: Callable[[str], None]
) -> TrainingInput:
    """Read all items of a source; ``note`` is called with notes on the reading.

    If ``labels`` is "names", unlabelled texts get the labels that they name. If no item has labels and no method is
    given, features alone are learned from.
    """
    labels = settings.labels
    method, hasher = _choose_method(settings, labels)
    opened = open_source(source, fields=settings.fields, table=settings.table)
    encoders = choose_encoders(opened, settings.encoders, quality=settings.quality, download=settings.download)
    how = ReadOptions(settings.fields, settings.table, labels == "folders", settings.exif, note)
    input_kinds = {modality: encoder.reads for modality, encoder in encoders.items()}
    batches = list(read_batches(opened, input_kinds, report, how))  # one per modality
    corpus = Corpus({one.modality: one.items for one in batches}, {one.modality: one.contents for one in batches})
    if settings.learn_from == "all":
        for some in corpus.items.values():
            some[:] = [replace(item, training=True) for item in some]
    if joined := _join_labels(corpus.items):
        note(joined)
    named = _name_labels(corpus.items, encoders) if labels == "names" else {}
    unlabelled = not any(item.labels for some in corpus.items.values() for item in some)
    if labels in ("given", "folders") and settings.method is None and unlabelled:
        labels = "none"
        method, hasher = _choose_method(settings, labels)
    if type(hasher).supervised:
        corpus = _with_labels(corpus, opened)
    return TrainingInput(corpus, opened, encoders, method, hasher, labels, named)


def check_learnable(settings: TrainSettings, given: TrainingInput, left_out: Sequence[Problem]) -> None:
    """Raise ValueError for items that cannot be learned from, before any work."""
    corpus, hasher = given.corpus, given.hasher
    if not corpus.items:
        raise no_usable_item(left_out)
    _set_space(hasher, settings.parameters or {}, {modality: given.encoders[modality] for modality in corpus.items})
    if corpus.labels is not None:
        _check_labelled(corpus)
        if not type(hasher).needs_pairs:
            corpus.label_check().check_shared()
    sizes = {modality: len(rows) for modality, rows in corpus.training_rows().items()}
    check_fewer_bits(1 if settings.n_bits == AUTO else settings.n_bits, sizes)


def no_usable_item(left_out: Sequence[Problem]) -> ValueError:
    """Return the error for a source without usable items, with the reasons and an example of each."""
    if not left_out:
        return ValueError("no usable item: the source has none; expected at least one text or picture")
    reasons = "; ".join(f"{len(group)} × {what}, e.g. {group[0]}" for what, group in group_problems(left_out).items())
    return ValueError(f"no usable item: all {len(left_out):,} were left out. {reasons}")


def _choose_method(settings: TrainSettings, labels: str) -> tuple[str, CrossModalHasher]:
    """Return the name of the method, or of the default one, and a new hasher; raise if it does not fit the labels."""
    name = settings.method or (WITHOUT_LABELS if labels == "none" else WITH_LABELS)
    hasher = _make_hasher(name, settings.method_parameters)
    if labels == "none" and type(hasher).supervised:
        raise ValueError(
            f"{name} learns from labels, and with labels='none' (--labels none) it gets none. Omit the method, "
            f"which selects {WITHOUT_LABELS}, or choose another that is unsupervised (`modalhash methods`)"
        )
    if labels == "names" and not type(hasher).supervised:
        raise ValueError(
            f"{name} does not learn from labels, so labels='names' (--labels names) has no effect; omit the "
            "method or this option"
        )
    return name, hasher


def _make_hasher(method: str, parameters: Mapping[str, Any]) -> CrossModalHasher:
    hasher = registry.method(method)()
    known = hasher.get_params(deep=False)
    if "n_bits" in parameters:
        raise ValueError("the code length is not a method parameter; give it as n_bits=… (--bits)")
    if unknown := [name for name in parameters if name not in (*known, "random_state")]:
        raise ValueError(f"{method} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    hasher.set_params(**{name: value for name, value in parameters.items() if name in known})
    return hasher


def _join_labels(items: Mapping[str, list[Item]]) -> str | None:
    """Give each label the spelling of its first item, and describe the labels that were written in several ways."""
    names = LabelNames()
    for some in items.values():
        some[:] = [replace(item, labels=names.of(item.labels)) if item.labels else item for item in some]
    return names.describe_joined()


def _name_labels(items: Mapping[str, list[Item]], encoders: Mapping[str, Encoder]) -> dict[str, dict[str, Any]]:
    """Give unlabelled texts the labels that they name, for training; return statistics by modality."""
    names = sorted({name for some in items.values() for item in some if item.training for name in item.labels})
    found = {}
    for modality, some in items.items():
        rows = [row for row, item in enumerate(some) if item.training and not item.labels and item.text is not None]
        if not rows or encoders[modality].reads != "text":
            continue
        named = find_named_labels([some[row].text or "" for row in rows], names, encoders[modality])
        for row, own in zip(rows, named.labels, strict=True):
            some[row] = replace(some[row], named_labels=own)
        found[modality] = named.to_config()
    if not found:
        raise ValueError(
            "labels='names' (--labels names) labels unlabelled texts by the labels they name, and there is no such text"
        )
    return found


def _with_labels(corpus: Corpus, source: Any) -> Corpus:
    """Return the corpus with a matrix of the labels of each modality; raise ReadError if they would be too large."""
    own = {
        modality: [tuple(dict.fromkeys(item.training_labels)) if item.training else () for item in some]
        for modality, some in corpus.items.items()
    }
    names = sorted({name for rows in own.values() for row in rows for name in row})
    _limit_labels(source, len(names), sum(bool(row) for rows in own.values() for row in rows))
    column = {name: number for number, name in enumerate(names)}
    return replace(corpus, class_names=names, labels={name: _matrix(rows, column) for name, rows in own.items()})


def _matrix(rows: Sequence[Sequence[str]], column: Mapping[str, int]) -> scipy.sparse.csr_array:
    columns = np.array([column[label] for row in rows for label in row], dtype=np.int64)
    ends = np.cumsum([0, *map(len, rows)])
    return scipy.sparse.csr_array((np.ones(len(columns), dtype=bool), columns, ends), shape=(len(rows), len(column)))


def _limit_labels(source: Any, n_names: int, n_items: int) -> None:
    """Limit the label matrix of manifest files, because every short line may have a new label."""
    paths = source if isinstance(source, list) and all(isinstance(one, Path) for one in source) else []
    if files := [path for path in paths if path.is_file()]:
        largest = max(files, key=lambda path: path.stat().st_size)
        ReadLimits().check(n_items * n_names, largest, f"a matrix of {n_names:,} labels of {n_items:,} items")


def _set_space(hasher: CrossModalHasher, parameters: Mapping[str, Any], encoders: Mapping[str, Encoder]) -> None:
    """Set ``space="shared"`` on a method that has this parameter, if the encoders share a space.

    Several modalities without a common space raise, because nothing relates pictures to texts.
    """
    if "space" not in hasher.get_params(deep=False) or len(encoders) < 2:
        return
    spaces = {getattr(encoder, "space", None) for encoder in encoders.values()}
    if parameters.get("space") != "shared" and (None in spaces or len(spaces) > 1):
        names = " and ".join(map(repr, encoders))
        raise ValueError(
            f"nothing relates {names}: there are no labels and no pairs, and their encoders share no space. Three "
            "solutions: give labels to some items of each and omit labels='none' (--labels none); give related items "
            "the same id and choose a method that learns from pairs (--method cre); or use one encoder with comparable "
            "vectors for all, such as CLIP (see docs/without-labels.md). A single modality needs none of them"
        )
    hasher.set_params(space="shared")


def _check_labelled(corpus: Corpus) -> None:
    """Raise ValueError for a modality without labelled training items."""
    assert corpus.labels is not None
    names = sorted({name for some in corpus.items.values() for item in some if item.training for name in item.labels})
    for modality, some in corpus.items.items():
        if corpus.labels[modality].nnz:
            continue
        ways = ["Give labels to some"]
        if len(corpus.items) > 1:
            ways.append("leave this modality out of the manifest")
        texts = [item.text for item in some if item.training and item.text is not None]
        if n := sum(map(bool, find_named_labels(texts, names).labels)):
            ways.append(
                f"use labels='names' (--labels names), because {n:,} of {len(texts):,} texts name labels of the others"
            )
        ways.append("learn without labels with labels='none' (--labels none)")
        raise ValueError(f"{modality!r}: none of {len(some)} items has a label. {', '.join(ways[:-1])}, or {ways[-1]}")
