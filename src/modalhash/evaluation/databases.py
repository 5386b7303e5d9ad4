"""The three databases next to each other: what a paper reports, and what a builder gets.

``learned``
    the training items with the codes that training made from their labels.
``hashed``
    the same items with codes from their features alone.
``unseen``
    hashed items that training never saw: those of the split's database that are not training items.
    Where there are none, the query items themselves: each query is compared with all other query items,
    never with the item that has its own id. Nothing is learned at query time, so this leaks nothing; halving
    the queries instead would only make the database smaller and the number noisier.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from modalhash.evaluation.protocol import CHOICES, Protocol
from modalhash.evaluation.result import Result
from modalhash.evaluation.retrieval import DEFAULT, evaluate
from modalhash.validation import check_choice


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
        Training, query and database items, e.g. ``dataset.parts()``. Relevance is judged by their
        true labels.
    protocol : Protocol or str
        Its ``database`` is replaced by each of ``databases`` in turn.
    databases : list of {"learned", "hashed", "unseen"}
        Which to measure.
    directions, intra
        As for :func:`modalhash.evaluation.evaluate`.

    Returns
    -------
    dict from database to Result
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
    """Return the unseen database of a split, and what to do about a query that is in it."""
    rows = {name: np.flatnonzero(~np.isin(ids, parts.training.ids[name])) for name, ids in parts.database.ids.items()}
    if all(len(row) for row in rows.values()):
        return parts.database.select(rows), "error"
    return parts.query, "exclude"
