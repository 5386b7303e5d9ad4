"""Evaluation of a model, or of codes, in all directions between its modalities.

There are three databases. ``learned`` has the training items with the codes that training made from their labels,
``hashed`` the same items with codes from their features alone. ``unseen`` has hashed items that training never saw,
which are those of the split's database that are not training items. Without such items, each query is compared with all
other query items instead. Nothing is learned at query time, so this leaks nothing; halving the queries instead would
only make the database smaller and the number noisier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypedDict, Unpack

import numpy as np

from modalhash.core.codes import check_codes
from modalhash.core.option import Option, Options
from modalhash.core.typing import Array, Codes
from modalhash.core.validation import check_choice, check_int
from modalhash.evaluation.measures import Ranking, average_precision, by_radius, by_rank, rank
from modalhash.evaluation.protocol import CHOICES, Protocol
from modalhash.evaluation.result import Direction, Result

USUAL_RANKS = (10, 100, 1000)


def measure(
    ranking: Ranking,
    protocol: Protocol,
    query: str = "queries",
    database: str = "database",
    *,
    at: Iterable[int] | None = None,
    radius: int = 2,
) -> Direction:
    n = ranking.n_items
    _check_depth(protocol.cutoff, "cutoff", n)
    ranks = [k for k in USUAL_RANKS if k <= n] if at is None else [check_int(k, "at", at_least=1) for k in at]
    for k in ranks:
        _check_depth(k, "at", n)
    radius = min(check_int(radius, "radius", at_least=0), ranking.histograms.shape[1] - 1)
    each = average_precision(ranking, ties=protocol.ties, cutoff=protocol.cutoff, normaliser=protocol.normaliser)
    counted = protocol.counted(ranking.n_relevant)
    rank_curve = by_rank(ranking, ties=protocol.ties, empty=protocol.empty)
    radius_curve = by_radius(ranking, empty=protocol.empty)
    return Direction(
        query=query,
        database=database,
        n_queries=ranking.n_queries,
        n_items=n,
        n_empty=int((ranking.n_relevant == 0).sum()),
        map=protocol.mean(each[counted]),
        chance=chance_level(ranking, protocol),
        average_precision=np.where(counted, each, np.nan).astype(np.float32),
        precision_at={k: float(rank_curve.precision[k - 1]) for k in ranks},
        recall_at={k: float(rank_curve.recall[k - 1]) for k in ranks},
        radius=radius,
        lookup_precision=float(radius_curve.precision[radius]),
        lookup_recall=float(radius_curve.recall[radius]),
        by_rank=rank_curve.thin(),
        by_radius=radius_curve,
    )


def chance_level(ranking: Ranking, protocol: Protocol) -> float:
    """Return the exact mAP of a random ranking: all items tied, in expectation over their order."""
    random = replace(ranking, histograms=ranking.histograms.sum(axis=1, keepdims=True))
    each = average_precision(random, cutoff=protocol.cutoff, normaliser=protocol.normaliser)
    return protocol.mean(each[protocol.counted(ranking.n_relevant)])


def _check_depth(k: int | None, parameter: str, n: int) -> None:
    if k is not None and k > n:
        raise ValueError(f"{parameter} is {k}, but the database has {n} items; take at most {n}")


DEFAULT = Protocol()


class EvaluationOptionValues(TypedDict, total=False):
    """The options of an evaluation as keyword arguments; see :class:`EvaluationOptions`."""

    protocol: Protocol | str
    directions: Iterable[tuple[str, str]] | None
    intra: bool
    at: Iterable[int] | None
    radius: int
    n_bits: int | None
    query_ids: Mapping[str, Any] | None
    database_ids: Mapping[str, Any] | None
    same_id: str


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(Options):
    """How retrieval is measured."""

    protocol: Annotated[Protocol | str, Option('The protocol, or its text, e.g. ``"amsh"``.')] = DEFAULT
    directions: Annotated[
        Iterable[tuple[str, str]] | None,
        Option(
            "Pairs of a query modality and the modality that it searches.",
            by_default="all ordered pairs of different modalities",
        ),
    ] = None
    intra: Annotated[bool, Option("Also measure each modality against itself.")] = False
    at: Annotated[
        Iterable[int] | None,
        Option("Ranks N for precision and recall at N.", by_default="10, 100 and 1000 up to the size of the database"),
    ] = None
    radius: Annotated[int, Option("Hamming radius of the lookup precision and recall.", at_least=0)] = 2
    n_bits: Annotated[
        int | None, Option("Length of the codes if there is no model.", by_default="all bits of the bytes", at_least=1)
    ] = None
    query_ids: Annotated[Mapping[str, Any] | None, Option("Ids of the queries by modality, for ``same_id``.")] = None
    database_ids: Annotated[
        Mapping[str, Any] | None, Option("Ids of the items of the database by modality, for ``same_id``.")
    ] = None
    same_id: Annotated[
        str,
        Option(
            "What to do about a query whose id is in the database: raise an ``error``, or ``exclude`` that item for "
            "the query, so that a set of items can be searched with its own members.",
            choices=("error", "exclude"),
        ),
    ] = "error"


def evaluate(
    model: Any, queries: tuple[Any, Any], database: tuple[Any, Any], **options: Unpack[EvaluationOptionValues]
) -> Result:
    """Measure retrieval between modalities.

    Parameters
    ----------
    model : fitted hasher, or None
        With None, queries and database hold packed codes instead of features.
    queries : (X, Y)
        Features and labels of the queries, as dicts by modality. ``model.transform`` hashes them.
    database : (X, Y)
        Features and labels of the items that are searched. For the database ``"learned"`` of the protocol, their codes
        are ``model.codes_``; the items must then be the training items in the same order, and X may be None. For
        ``"hashed"`` (the training items) and ``"unseen"`` (other items), their codes are ``model.transform(X)``.
    options
        How to measure, by name, e.g. ``protocol="amsh", radius=3``: see :class:`EvaluationOptions`.

    Returns
    -------
    Result
        One :class:`~modalhash.evaluation.result.Direction` per direction.
    """
    how = EvaluationOptions(**options)
    protocol = Protocol.parse(how.protocol) if isinstance(how.protocol, str) else how.protocol
    n_bits = how.n_bits
    (query_X, query_Y), (database_X, database_Y) = _pair(queries, "queries"), _pair(database, "database")
    if model is None:
        query_codes, database_codes = query_X, database_X
    else:
        n_bits = int(model.n_bits)
        query_codes = _hashed(model, query_X)
        learned = protocol.database == "learned"
        database_codes = _learned(model, database_Y) if learned else _hashed(model, database_X)
    for name, part in (("queries", query_codes), ("database", database_codes)):
        if not isinstance(part, Mapping) or not part:
            raise TypeError(f"{name}: codes are {type(part).__name__}; expected a dict by modality, not empty")
    if n_bits is None:
        n_bits = _bits(query_codes)
    results = {}
    for source, target in _directions(how.directions, query_codes, database_codes, how.intra):
        names = (f"queries, {source!r}", f"database, {target!r}")
        labels = _of(query_Y, source, names[0]), _of(database_Y, target, names[1])
        ranking = rank(
            query_codes[source],
            labels[0],
            database_codes[target],
            labels[1],
            n_bits=n_bits,
            excluded=_own_items(how, source, target),
            names=names,
        )
        if protocol.relevance == "same-class":
            _check_one_label(labels, names)
        results[source, target] = measure(ranking, protocol, source, target, at=how.at, radius=how.radius)
    return Result(protocol, n_bits, results)


def _pair(value: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} is {type(value).__name__}; expected (X, Y): two dicts by modality")
    return value[0], value[1]


def _hashed(model: Any, X: Any) -> Any:
    """Return the codes of a model as arrays, even if its ``set_output`` returns frames."""
    codes = model.transform(X)
    if not isinstance(codes, Mapping):
        return codes
    return {name: one.to_numpy() if hasattr(one, "to_numpy") else one for name, one in codes.items()}


def _learned(model: Any, Y: Any) -> Mapping[str, Codes]:
    codes: Mapping[str, Codes] = model.codes_
    for name, labels in Y.items() if isinstance(Y, Mapping) else ():
        if name in codes and len(codes[name]) != labels.shape[0]:
            raise ValueError(
                f"database, {name!r}: {labels.shape[0]} label rows for {len(codes[name])} learned codes, which "
                "belong to the training items: pass their labels, or use database='hashed' or 'unseen'"
            )
    return codes


def _bits(codes: Mapping[str, Any]) -> int:
    name, first = next(iter(codes.items()))
    width = first.shape[1] if getattr(first, "ndim", 0) == 2 else 1
    check_codes(first, 8 * width, f"queries, {name!r}")
    return int(8 * width)


def _directions(
    given: Iterable[tuple[str, str]] | None, queries: Mapping[str, Any], database: Mapping[str, Any], intra: bool
) -> list[tuple[str, str]]:
    if given is None:
        chosen = [(a, b) for a in queries for b in database if a != b or intra]
        if not chosen:
            raise ValueError(
                f"queries of {list(queries)} and a database of {list(database)} leave no direction between "
                "different modalities; pass intra=True to measure a modality against itself"
            )
        return chosen
    chosen = [(a, b) for a, b in given]
    for a, b in chosen:
        if a not in queries or b not in database:
            raise ValueError(f"direction {(a, b)}: queries have {list(queries)}, the database {list(database)}")
    if not chosen:
        raise ValueError("directions is empty; expected pairs (query modality, database modality), or None for all")
    return chosen


def _of(values: Any, name: str, where: str, what: str = "labels") -> Any:
    if not isinstance(values, Mapping):
        raise TypeError(f"{where}: {what} are {type(values).__name__}; expected a dict by modality")
    if name not in values:
        raise ValueError(f"{where}: there are no {what}; they are given for {list(values)}")
    return values[name]


def _own_items(how: EvaluationOptions, source: str, target: str) -> Array | None:
    """Return the database row of each query, −1 if it is not in the database; raise if it must not be."""
    if how.query_ids is None or how.database_ids is None:
        if how.same_id == "exclude":
            raise ValueError("same_id='exclude' needs query_ids and database_ids to know which items are the same")
        return None
    queries = np.asarray(_of(how.query_ids, source, f"query_ids, {source!r}", "ids"))
    items = np.asarray(_of(how.database_ids, target, f"database_ids, {target!r}", "ids"))
    both, query_rows, item_rows = np.intersect1d(queries, items, return_indices=True)
    if len(both) and how.same_id == "error":
        raise ValueError(
            f"{source}→{target}: {len(both)} of {len(queries)} queries are in the database, e.g. the id "
            f"{both[0]}: a query would find itself. Take them out of one side, or pass same_id='exclude'"
        )
    for name, ids in ((f"query_ids, {source!r}", queries), (f"database_ids, {target!r}", items)):
        if len(np.unique(ids)) != len(ids):
            raise ValueError(f"{name}: some ids occur twice; every id must occur once")
    own = np.full(len(queries), -1)
    own[query_rows] = item_rows
    return own


def _check_one_label(labels: tuple[Any, Any], names: tuple[str, str]) -> None:
    for values, name in zip(labels, names, strict=True):
        counts = np.asarray(values.sum(axis=1)).ravel()
        if (wrong := np.flatnonzero(counts != 1)).size:
            raise ValueError(
                f"{name}: item {wrong[0]} has {int(counts[wrong[0]])} labels; relevance='same-class' needs "
                "exactly one for every item. Use relevance='shared' for several labels"
            )


def evaluate_databases(
    model: Any,
    parts: Any,
    *,
    protocol: Protocol | str = DEFAULT,
    databases: Iterable[str] = CHOICES["database"],
    directions: Iterable[tuple[str, str]] | None = None,
    intra: bool = False,
) -> dict[str, Result]:
    """Evaluate a model on learned, hashed and unseen databases.

    Parameters
    ----------
    model : fitted hasher
        Fitted on ``parts.training``, in its order.
    parts : modalhash.data.SplitData
        Training, query and database items, e.g. ``dataset.parts()``. Relevance is judged by their true labels.
    protocol : Protocol or str
        Its ``database`` is replaced by each of ``databases``.
    databases : list of {"learned", "hashed", "unseen"}
        Which to measure.
    directions, intra
        As for :func:`modalhash.evaluation.evaluate`.
    """
    if isinstance(protocol, str):
        protocol = Protocol.parse(protocol)
    chosen = None if directions is None else list(directions)
    results = {}
    for kind in databases:
        check_choice(kind, "databases", CHOICES["database"])
        items, same_id = unseen_items(parts) if kind == "unseen" else (parts.training, "error")
        results[kind] = evaluate(
            model,
            (parts.query.features, parts.query.relevance),
            (items.features, items.relevance),
            protocol=protocol.with_database(kind),
            directions=chosen,
            intra=intra,
            query_ids=parts.query.ids,
            database_ids=items.ids,
            same_id=same_id,
        )
    return results


def unseen_items(parts: Any) -> tuple[Any, str]:
    """Return the unseen database of a split, and the ``same_id`` to evaluate it with."""
    rows = {name: np.flatnonzero(~np.isin(ids, parts.training.ids[name])) for name, ids in parts.database.ids.items()}
    if all(len(row) for row in rows.values()):
        return parts.database.select(rows), "error"
    return parts.query, "exclude"
