"""Expected quality on new items, measured with held-out items when an engine is trained.

The queries are the held-out items of :mod:`modalhash.engine.search.confidence`, whose model was fitted without them.
Each direction between modalities has three databases (:mod:`modalhash.evaluation`): ``learned``, the training items
with codes from their labels; ``hashed``, the same items with codes from features; and ``unseen``, the held-out items
with codes from features, like items that are added later.

Average precision is that of codes, under a :class:`~modalhash.evaluation.Protocol`. ``first_hits`` is the fraction of
right hits among the first in the engine's order. The numbers are a little low, because the model learned from fewer
items, and a little high, because encoders were fitted to the held-out items too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.typing import Array, Matrix
from modalhash.engine.search.confidence import Pair, Pairs, Searches, Side, find_queries

FIRST = (1, 10)
"""Numbers of first hits that are measured."""
N_GOOD, N_TYPICAL, N_BAD = 3, 2, 3
"""Examples of each direction."""
EXAMPLE_HITS = 6
"""Hits of an example."""
NEAR_CHANCE = 0.5
"""Quality is near chance below 1.5 times chance, or below a quarter of the way from chance to 1 if that is less."""
FEW_DIRECTIONS = 2
"""Number of directions up to which each is described."""

Expected = dict[str, Any]
"""JSON values of :func:`measure_expected_quality`."""


def unknown_quality(reason: str) -> Expected:
    return {"reason": reason}


def measure_expected_quality(searches: Searches, X: Mapping[str, Matrix], ids: Mapping[str, Sequence[str]]) -> Expected:
    """Measure the hits of held-out items; ``X`` and ``ids`` are of all training items by modality.

    Return JSON values: ``held_out``, ``learned_from`` and ``queries``, numbers of items by modality; ``protocols`` of
    the mAP by database; ``directions``, a row for each pair of modalities and database; ``examples``, good, typical and
    bad searches among learned items by the ids of query and hits.
    """
    from modalhash.evaluation import Protocol

    protocols = {kind: Protocol(database=kind) for kind in ("learned", "hashed", "unseen")}
    databases: dict[str, dict[str, Side]] = {side.modality: {} for side in searches.databases}
    for side in searches.databases:
        name = side.modality
        if side.kind == "hashed":
            databases[name]["unseen"] = side
        else:
            again = pack_signs(searches.model.decision_function({name: X[name][side.rows]})[name])
            databases[name] |= {"learned": side, "hashed": side._replace(codes=again)}
    directions, examples = [], []
    for query in searches.queries:
        for name, own in databases.items():
            for kind, protocol in protocols.items():
                database = own[kind]
                found = None
                if kind != "hashed":
                    found = searches.samples[Pair(query.modality, name, database.kind)]
                directions.append(_direction(query, database, protocol, searches.model.n_bits, found))
            if query.modality in ids and (name != query.modality or len(searches.queries) == 1):
                pairs = searches.samples[Pair(query.modality, name, "learned")]
                examples += _examples(query, own["learned"], pairs, ids)
    return {
        "held_out": {side.modality: len(side.rows) for side in searches.databases if side.kind == "hashed"},
        "learned_from": {side.modality: len(side.rows) for side in searches.databases if side.kind == "learned"},
        "queries": {side.modality: len(side.rows) for side in searches.queries},
        "protocols": {kind: str(protocol) for kind, protocol in protocols.items()},
        "directions": directions,
        "examples": examples,
    }


def _direction(query: Side, database: Side, protocol: Any, n_bits: int, found: Pairs | None) -> dict[str, Any]:
    """Return the measures of one direction and database; ``found`` are hits in the engine's order, if sampled."""
    from modalhash.evaluation import measure, rank

    ranking = rank(
        query.codes,
        query.labels,
        database.codes,
        database.labels,
        n_bits=n_bits,
        excluded=find_queries(query, database) if protocol.database == "unseen" else None,
    )
    measured = measure(ranking, protocol, at=FIRST)
    first = None
    if found is not None:
        first = {str(n): _rounded(found.shared[found.rank < n].mean()) for n in FIRST}
    return {
        "query": query.modality,
        "hit": database.modality,
        "database": protocol.database,
        "map": _rounded(measured.map),
        "chance": _rounded(measured.chance),
        "precision_at": {str(n): _rounded(value) for n, value in measured.precision_at.items()},
        "first_hits": first,
        "share_right": _rounded(ranking.n_relevant.mean() / ranking.n_items),
        "queries": measured.n_queries,
        "items": measured.n_items,
        "empty": measured.n_empty,
    }


def _examples(query: Side, database: Side, found: Pairs, ids: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return good, typical and bad searches of one direction, with distinct labels."""
    n = max(FIRST)
    first = found.rank < n
    hits = found.item[first].reshape(len(query.rows), -1)
    right = found.shared[first].reshape(hits.shape).mean(axis=1)
    chance: Array = (query.labels.astype(np.float32) @ database.labels.T.astype(np.float32) > 0).mean(axis=1)
    possible = np.flatnonzero(chance > 0)
    if not len(possible):
        return []
    typical = float(np.median(right[possible]))
    orders = {  # prefer rare labels that are found, and frequent ones that are missed
        "good": (N_GOOD, np.lexsort((chance, -right)), right > 0),
        "bad": (N_BAD, np.lexsort((-chance, right)), right < 1),
        "typical": (N_TYPICAL, np.lexsort((chance, np.abs(right - typical))), chance > 0),
    }
    examples, seen = [], set()
    for kind, (wanted, order, fitting) in orders.items():
        for row in order[np.isin(order, possible) & fitting[order]].tolist():
            labels = query.labels[row].tobytes()
            if not wanted or labels in seen:
                continue
            seen.add(labels)
            wanted -= 1
            examples.append(
                {
                    "kind": kind,
                    "query": [query.modality, ids[query.modality][query.rows[row]]],
                    "hits": [
                        [database.modality, ids[database.modality][item]]
                        for item in database.rows[hits[row, :EXAMPLE_HITS]].tolist()
                    ],
                    "right": _rounded(right[row]),
                    "share_right": _rounded(chance[row]),
                }
            )
    return examples


def _rounded(value: Any) -> float:
    return round(float(value), 4)


def cross_modal_rows(expected: Expected, database: str) -> list[dict[str, Any]]:
    """Return the rows of a database across modalities, or within the only modality."""
    rows = [row for row in expected["directions"] if row["database"] == database]
    return [row for row in rows if row["query"] != row["hit"]] or rows


def describe_expected(expected: Expected, *, codes: str = "learned") -> str:
    """Describe the ``expected`` quality of :meth:`Engine.info` in one line; ``codes`` are those of training items."""
    if "reason" in expected:
        return f"No quality to expect was measured: {expected['reason']}"
    known, new = cross_modal_rows(expected, "learned"), cross_modal_rows(expected, "unseen")
    asked = sum(expected["queries"].values())
    begin = f"Expected of new queries, measured with {asked:,} held-out items: of the first 10 hits"
    meant = "share a label with the query"
    quality, chance = (float(np.mean([row[name] for row in new])) for name in ("map", "chance"))
    measured = f"mAP {_decimal(quality)}, by chance {_decimal(chance)}"
    if codes == "learned":
        unlabelled = f"{begin} among items without labels {_first_hits(new, meant)}"
        return f"{unlabelled}; {measured}; among labelled items {_first_hits(known)}"
    return f"{begin} {_first_hits(new, meant)}; {measured}"


def near_chance(expected: Expected) -> str | None:
    """Return advice if new items are found hardly better than by chance, else None."""
    if "directions" not in expected:
        return None
    new = cross_modal_rows(expected, "unseen")
    right = float(np.mean([row["first_hits"]["10"] for row in new]))
    chance = float(np.mean([row["share_right"] for row in new]))
    if right >= chance + min(NEAR_CHANCE * chance, NEAR_CHANCE / 2 * (1 - chance)):
        return None
    return (
        f"the expected quality on new items is near chance ({10 * right:.1f} of 10, by chance {10 * chance:.1f}), "
        "because the labels hardly describe the content of the items. Look at them (modalhash check), label what the "
        "items show or say, or learn without labels, with labels='none' (--labels none)"
    )


def _first_hits(rows: Sequence[Mapping[str, Any]], meant: str = "") -> str:
    """Describe how many of ten hits are right, by direction, or on average over many."""
    right = [10 * row["first_hits"]["10"] for row in rows]
    chance = [10 * row["share_right"] for row in rows]
    names = [f"{row['query']} → {row['hit']}" for row in rows]
    words = f" {meant}" if meant else ""
    if len(rows) <= FEW_DIRECTIONS:
        first, *others = (
            (f"{own:.1f}", f"({name}; by chance {level:.1f})" if meant else f"(by chance {level:.1f})")
            for own, level, name in zip(right, chance, names, strict=True)
        )
        return ", ".join([f"{first[0]}{words} {first[1]}", *(f"{own} {note}" for own, note in others)])
    ends = (f"{right[row]:.1f} ({names[row]})" for row in (int(np.argmin(right)), int(np.argmax(right))))
    return f"{np.mean(right):.1f}{words} (by chance {np.mean(chance):.1f}; from {' to '.join(ends)})"


def _decimal(value: float) -> str:
    """Format a number below 1 without its leading zero.

    Examples
    --------
    >>> _decimal(0.5432), _decimal(0.999)
    ('.54', '1.00')
    """
    return f"{value:.2f}".removeprefix("0")
