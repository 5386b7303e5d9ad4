"""Feedback: what is known of texts that have the words of a query is known of the query."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from modalhash.engine import Query, SearchOptions
from modalhash.engine.search.query import N_TEXTS, WEIGHT, with_matches
from modalhash.store import Record, SqliteStore

N = 4
"""Values of the posterior; two more are an embedding."""


def vector(*posterior):
    return np.array([*posterior, 7, -7], dtype=np.int8)


@pytest.fixture
def store(tmp_path):
    with SqliteStore(tmp_path / "items.db", n_bits=8) as store:
        yield store


def add(store, id, text, *posterior, modality="text"):
    own = vector(*posterior).tobytes() if posterior else None
    store.add([Record(id, modality, b"\0", text=text, refinement=own)])


def asked(text):
    return Query(np.zeros(1, np.uint8), "text", vector=vector(100, 0, 0, 0), text=text)


def expanded(query, store, n_posterior=N, **options):
    ((found, _),) = with_matches([(query, SearchOptions(**options))], store, n_posterior)
    return found


def test_the_posterior_moves_to_that_of_texts_with_the_words_and_nothing_else_does(store):
    add(store, "a", "coffee", 0, 100, 0, 0)
    add(store, "b", "tea", 0, 0, 100, 0)
    before = asked("coffee")
    after = expanded(before, store)
    moved = np.rint(np.array([100, 100 * WEIGHT, 0, 0]) / (1 + WEIGHT))
    np.testing.assert_array_equal(after.vector, [*moved, 7, -7])
    changed = [one.name for one in fields(before) if getattr(after, one.name) is not getattr(before, one.name)]
    assert changed == ["vector", "matches"]
    assert [record.id for record in after.matches] == ["a"]
    np.testing.assert_array_equal(before.vector, vector(100, 0, 0, 0))


def test_what_a_text_names_first_counts_for_more(store):
    add(store, "heart", "brown heart of coffee", 0, 0, 0, 100)
    add(store, "drink", "coffee, hot and black", 0, 0, 100, 0)
    moved = expanded(asked("Coffee"), store).vector
    assert moved[2] == pytest.approx(4 * moved[3], abs=3)  # three words stand before it


@pytest.mark.parametrize(
    "query",
    [
        replace(asked("coffee"), vector=None),
        asked("coffee machine"),  # no text has both
        replace(asked("coffee"), text=None),
        replace(asked("coffee"), modality="title"),
    ],
)
def test_a_query_stays_as_it_is_without_texts_that_have_all_its_words(store, query):
    add(store, "a", "coffee", 0, 100, 0, 0)
    add(store, "b", "machine", 0, 100, 0, 0)
    add(store, "c", "coffee", 0, 100, 0, 0, modality="image")
    assert expanded(query, store).vector is query.vector
    other = asked("coffee")
    assert expanded(other, store, hybrid=False) is other


def test_items_without_a_vector_and_models_without_posteriors_have_nothing_to_say(store):
    add(store, "a", "coffee")
    assert expanded(asked("coffee"), store).vector.tolist() == vector(100, 0, 0, 0).tolist()
    add(store, "b", "coffee", 0, 100, 0, 0)
    assert expanded(asked("coffee"), store, 0).vector.tolist() == vector(100, 0, 0, 0).tolist()


def test_a_common_word_does_not_matter(store):
    for row in range(30):
        add(store, f"{row}", f"a thing number {row}", 0, 100, 0, 0)
    add(store, "boat", "a boat", 0, 0, 100, 0)
    assert expanded(asked("a boat"), store).vector[2] > 0


def test_of_many_texts_the_best_are_taken(store):
    for row in range(N_TEXTS):
        add(store, f"short {row}", "boat", 0, 100, 0, 0)
    add(store, "long", f"boat {'and other things ' * 20}", 0, 0, 0, 100)
    for row in range(2 * N_TEXTS):
        add(store, f"other {row}", "tree", 0, 0, 0, 100)
    assert expanded(asked("boat"), store).vector[3] == 0


@pytest.mark.slow
def test_a_word_finds_pictures_through_texts(engine):
    """A word that the encoder has never seen stands in texts that it knows otherwise."""
    label = next(record.labels for record in engine.items() if record.modality == "image")
    texts = [record.text for record in engine.items() if record.modality == "text" and record.labels == label]
    engine.add([{"id": f"new {row}", "text": f"zeppelin {text}"} for row, text in enumerate(texts[:5])])
    with pytest.warns(UserWarning, match="None of these words is known"):
        first = engine.search(text="zeppelin", want="image", k=3)
    assert all(hit.labels == label for hit in first)
