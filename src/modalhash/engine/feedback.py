r"""Feedback: the words of a query stand in texts of the engine, and what is known of these texts is known of the query.

A word alone says little to an encoder that learned from whole texts. But where stored texts have all words of a query,
their posteriors, which labels went into, tell what the words are about; by them the words find pictures too. Before a
search, the posterior :math:`q` of the query moves towards theirs, as Rocchio's feedback does [1]_:

.. math:: q' = \frac{q + \beta \sum_t w_t p_t}{1 + \beta}, \qquad w_t \propto 1 / (1 + \text{words before in } t)

over the best texts :math:`t` by BM25: what a text names first is what it is about, and a hot beverage that is also
called coffee counts for more than a colour that is. The code stays what it is: distances are those of the query itself.

References
----------
.. [1] J. J. Rocchio: Relevance feedback in information retrieval. In: The SMART Retrieval System, 1971.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from modalhash.engine.query import SearchRequest
from modalhash.store import Comparison, Store

WEIGHT, N_TEXTS = 1.0, 30
"""β, and the texts that are taken at most: chosen on folds, benchmarks/quality/named_things.py."""
UNFOUND = 9
"""Words before, where a text has the query's words in another form."""
_WORD = re.compile(r"[^\W_]+")


def expand_query(request: SearchRequest, store: Store, n_posterior: int) -> SearchRequest:
    """Return a request whose posterior, the first values of its vector, knows texts that have all its words."""
    if request.text is None or request.vector is None or not request.options.hybrid or not n_posterior:
        return request
    own = Comparison("modality", "=", str(request.modality))
    numbers = store.words(request.text, where=own, limit=N_TEXTS, every=True).tolist()
    records = store.records(numbers) if numbers else {}
    found = [records[number] for number in numbers if number in records]
    found = [record for record in found if len(record.refinement or b"") >= n_posterior]
    if not found:
        return request
    asked = set(_WORD.findall(request.text.casefold()))
    weights = np.array([1 / (1 + _words_before(asked, record.text)) for record in found])
    posteriors = np.array([np.frombuffer(record.refinement or b"", np.int8)[:n_posterior] for record in found])
    vector = request.vector.copy()
    moved = (vector[:n_posterior] + WEIGHT * (weights / weights.sum()) @ posteriors) / (1 + WEIGHT)
    vector[:n_posterior] = np.rint(moved)
    return replace(request, vector=vector)


def _words_before(asked: set[str], text: str | None) -> int:
    """Return how many words stand before the first that is asked for."""
    words = _WORD.findall((text or "").casefold())
    return next((place for place, word in enumerate(words) if word in asked), UNFOUND)
