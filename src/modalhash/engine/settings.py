"""Option values of the engine: what a search returns, and what a retraining changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict

from modalhash.core.validation import check_choice, check_int
from modalhash.store import KINDS, Comparison, Filter, all_of

PART_SIZE = 2048
"""Inputs per file of :meth:`modalhash.engine.Engine.encode_to`, except for tars."""


class OptionValues(TypedDict, total=False):
    """The options of a search as keyword arguments; see :class:`SearchOptions`."""

    k: int
    radius: int | None
    want: str | Sequence[str] | None
    labels: str | Sequence[str]
    kind: str | None
    refine: bool
    asymmetric: bool
    shortlist: int | None
    where: Filter | str | Mapping[str, Any] | None
    hybrid: bool
    limit: int | None
    min_confidence: float | None
    unique: bool


@dataclass(frozen=True)
class SearchOptions:
    """What a search returns: how many hits, of which items, in which order.

    Parameters
    ----------
    k : the number of hits
    radius : return all items within this Hamming distance instead of the ``k`` nearest
    want : the modality, or modalities, to search in; all by default
    labels : return only items that have all of these labels
    kind : return only items with this kind of code, ``"learned"`` or ``"hashed"``
    refine : order the ``shortlist`` nearest by their refinement vectors, and find items of the query's own modality by
        their features as well. False orders by Hamming distance alone, then in the order of adding
    asymmetric : re-rank the ``shortlist`` nearest by the query's real-valued projections instead
    shortlist : the number of items to re-rank. By default 10 times ``k``, and at least 200 with ``asymmetric``; with
        ``refine`` at least 2,000, or 200 of more than 100,000 items, and all items at the distance of the last
    where : return only items that pass this filter, e.g. ``"label = boat and year >= 2005"``; see
        :class:`~modalhash.store.Filter`
    hybrid : search the words of a text also in the texts, captions and ids of items, and join both rankings
    limit : the largest number of hits within a ``radius``; all by default
    min_confidence : drop hits that are less likely than this to share a label with the query; see
        :attr:`Hit.confidence`
    unique : drop near-duplicates of better hits and return further hits instead
    """

    k: int = 20
    radius: int | None = None
    want: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    kind: str | None = None
    refine: bool = True
    asymmetric: bool = False
    shortlist: int | None = None
    where: Filter | None = None
    hybrid: bool = True
    limit: int | None = None
    min_confidence: float | None = None
    unique: bool = False

    def __post_init__(self) -> None:
        if self.want is not None:
            object.__setattr__(self, "want", (self.want,) if isinstance(self.want, str) else tuple(self.want))
        object.__setattr__(self, "labels", (self.labels,) if isinstance(self.labels, str) else tuple(self.labels))
        check_int(self.k, "k", at_least=1)
        if self.radius is not None:
            check_int(self.radius, "radius", at_least=0)
        if self.kind is not None:
            check_choice(self.kind, "kind", KINDS)
        if self.shortlist is not None:
            check_int(self.shortlist, "shortlist", at_least=self.k)
        if self.where is not None:
            object.__setattr__(self, "where", Filter.of(self.where))
        if self.limit is not None:
            check_int(self.limit, "limit", at_least=1)
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise ValueError(f"min_confidence is {self.min_confidence}; expected a probability, from 0 to 1")

    @cached_property
    def filter(self) -> Filter | None:
        """The conjunction of ``where``, the labels and the kind."""
        return all_of(
            self.where,
            *(Comparison("label", "=", label) for label in self.labels),
            None if self.kind is None else Comparison("kind", "=", self.kind),
        )


@dataclass(frozen=True)
class RetrainOverrides:
    """Overrides for retraining. None keeps the value of the last training."""

    n_bits: int | str | None = None
    method: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    encoders: Mapping[str, Any] = field(default_factory=dict)
    labels: str | None = None
    codes: str | None = None
    download: bool = False
