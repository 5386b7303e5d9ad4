"""The definition of a measurement, printed with every table.

Two numbers called "mAP" may differ by the order of ties, the cut-off, the divisor of the sum, the value of a query
without relevant items, and the codes of the database. :class:`Protocol` names each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from modalhash.core.typing import Array
from modalhash.core.validation import check_choice, check_int
from modalhash.evaluation.measures import TIES

CHOICES: dict[str, tuple[str, ...]] = {
    "ties": TIES,
    "normaliser": ("relevant", "retrieved", "smaller"),
    "empty": ("zero", "skip"),
    "database": ("learned", "hashed", "unseen"),
    "relevance": ("shared", "same-class"),
}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How retrieval is measured.

    Parameters
    ----------
    ties : order of items at the same distance: ``"expected"`` is the exact mean over all orders, ``"stable"`` the order
        of the database, ``"optimistic"`` relevant first, ``"pessimistic"`` last
    cutoff : ranks that count for average precision; None for the whole database
    normaliser : divisor of the sum of precisions: the ``"relevant"`` items in the database, those ``"retrieved"`` up to
        the cut-off, or the ``"smaller"`` of cut-off and relevant items
    empty : a query without relevant items counts as ``"zero"``, or ``"skip"`` excludes it
    database : ``"learned"`` codes of the training items (from their labels), ``"hashed"`` codes of the same items (from
        features alone), or the hashed codes of ``"unseen"`` items
    relevance : ``"shared"``: at least one label in common; ``"same-class"``: the same, with exactly one label per item
    count_from : initial value of the number of queries that the mean is divided by; 10 by mistake in published codes

    Examples
    --------
    >>> print(Protocol(cutoff=50, database="hashed"))
    mAP@50 ties=expected normaliser=relevant empty=zero database=hashed
    >>> Protocol.parse("amsh database=unseen").ties
    'stable'
    """

    ties: str = "expected"
    cutoff: int | None = None
    normaliser: str = "relevant"
    empty: str = "zero"
    database: str = "learned"
    relevance: str = "shared"
    count_from: int = 0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            check_choice(getattr(self, name), name, choices)
        if self.cutoff is not None:
            check_int(self.cutoff, "cutoff", at_least=1)
        check_int(self.count_from, "count_from", at_least=0)

    @property
    def measure(self) -> str:
        """Return ``mAP@all`` or ``mAP@k``."""
        return f"mAP@{'all' if self.cutoff is None else self.cutoff}"

    def __str__(self) -> str:
        always = ("ties", "normaliser", "empty", "database")
        parts = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if field.name in always or (field.name != "cutoff" and getattr(self, field.name) != field.default)
        ]
        return " ".join([self.measure, *parts])

    @classmethod
    def parse(cls, text: str) -> Protocol:
        """Return the protocol that prints as ``text``; the name of a preset may come first.

        Examples
        --------
        >>> Protocol.parse(str(Protocol(ties="stable"))) == Protocol(ties="stable")
        True
        """
        words = text.split()
        start = cls()
        if words and words[0] in PRESETS:
            start = PRESETS[words.pop(0)]
        changes: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals and word.startswith("mAP@"):
                name, value = "cutoff", word.removeprefix("mAP@")
            elif not equals or name not in {field.name for field in fields(cls)}:
                raise ValueError(
                    f"protocol {text!r}: {word!r} is not understood; expected a preset "
                    f"({', '.join(PRESETS)}), mAP@k, or name=value with {', '.join(CHOICES)}, count_from"
                )
            if name in changes:
                raise ValueError(f"protocol {text!r}: {name} is given twice")
            changes[name] = _number(name, value, text) if name in ("cutoff", "count_from") else value
        return replace(start, **changes)

    def with_database(self, database: str) -> Protocol:
        return replace(self, database=database)

    def counted(self, n_relevant: Array) -> Array:
        return np.asarray(n_relevant > 0) if self.empty == "skip" else np.ones(len(n_relevant), dtype=bool)

    def mean(self, average_precisions: Array) -> float:
        """Return the mean over the queries that count."""
        if not len(average_precisions):
            raise ValueError(
                "no query has a relevant item in the database and empty='skip' excludes all of them; "
                "check that queries and database share their label columns"
            )
        total = float(np.sum(average_precisions, dtype=np.float64))
        return total / (len(average_precisions) + self.count_from)


def _number(name: str, value: str, text: str) -> int | None:
    if name == "cutoff" and value in ("all", "None"):
        return None
    if not value.isdecimal():
        raise ValueError(f"protocol {text!r}: {name} is {value!r}; expected a whole number")
    return int(value)


def _published(**changes: Any) -> Protocol:
    # MATLAB's sort is stable, so ties keep the order of the database in all published codes
    return Protocol(**{"ties": "stable", "normaliser": "retrieved", **changes})


PRESETS: dict[str, Protocol] = {
    "amsh": _published(),
    "batch": _published(),
    "scratch": _published(),
    "srlch": _published(),
    "fcmh": _published(),
    # perf_metric4Label.m skips queries without relevant items and re-encodes the database
    "sephlike": _published(normaliser="relevant", empty="skip", database="hashed"),
    # the same file as shipped for CMFH, SMFH, SCRATCH, CVH, IMH, LSSH, SCM …: the counter starts at 10
    "bmc": _published(normaliser="relevant", empty="skip", database="hashed", count_from=10),
    "fsh": _published(cutoff=100, relevance="same-class", database="hashed"),
    "smfh-wiki": _published(cutoff=100, relevance="same-class"),
    "smfh-bmc": _published(cutoff=2173, relevance="same-class", database="hashed"),
    "ocmfh": _published(cutoff=100),
}
"""Protocols of published codes, by method or collection."""
