"""Check training labels: which ones modalities share, and which are probably typing errors.

Unpaired modalities are related by labels only, and a label is its exact text: ``Boat`` of a folder and ``boat`` of a
table are two labels to a method.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from modalhash.engine.search.photo_words import singular

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
        """Groups of labels that differ only in case, spaces or Unicode normalization, or in number across modalities.

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
