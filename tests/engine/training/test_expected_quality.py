"""What is expected of new items is what held-out items found, by the rules of evaluation."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from modalhash.engine import describe_expected
from modalhash.engine.search.confidence import Pair, PairFeatures, Pairs, Searches, Side, find_queries
from modalhash.engine.training.expected_quality import cross_modal_rows, measure_expected_quality, near_chance
from modalhash.evaluation import Protocol, evaluate

N, N_HELD, N_ASK, N_BITS, N_HITS = 60, 25, 20, 16, 24
IDS = {name: [f"{name} {row}" for row in range(N + N_HELD)] for name in ("image", "text")}


def make_searches(rng, *, right, modalities=("image", "text")):
    """Items with random codes and one label of three; of the first ten hits of query q, ``right(q)`` are right."""
    hashed = {name: rng.normal(size=(N + N_HELD, N_BITS)) for name in modalities}
    queries, databases, samples = [], [], {}
    for name in modalities:
        labels = np.eye(3, dtype=bool)[rng.integers(0, 3, N + N_HELD)]
        order = rng.permutation(N + N_HELD)
        codes = rng.integers(0, 256, (N + N_HELD, N_BITS // 8), dtype=np.uint8)
        for kind, rows in (("hashed", np.sort(order[:N_HELD])), ("learned", np.sort(order[N_HELD:]))):
            databases.append(Side(name, kind, codes[rows], np.zeros((len(rows), 1)), labels[rows], rows))
        rows = rng.permutation(np.sort(order[:N_HELD]))[:N_ASK]
        queries.append(Side(name, "query", codes[rows], np.zeros((N_ASK, 1)), labels[rows], rows))
    for query in queries:
        for database in databases:
            shared = np.array([rank < right(row) for row in range(N_ASK) for rank in range(N_HITS)])
            item = np.tile(np.arange(N_HITS), N_ASK)
            rank, number = item, np.repeat(np.arange(N_ASK), N_HITS)
            nothing = PairFeatures(*np.zeros((5, len(rank))))
            pairs = Pairs(number, rank, nothing, np.ones(len(rank)), shared, 0.3, item)
            samples[Pair(query.modality, database.modality, database.kind)] = pairs
    model = SimpleNamespace(
        n_bits=N_BITS, decision_function=lambda X: {name: hashed[name][values[:, 0]] for name, values in X.items()}
    )
    X = {name: np.arange(N + N_HELD)[:, None] for name in modalities}
    return Searches(model, queries, databases, samples, {}, frozenset()), X


def test_queries_are_found_where_they_are_and_only_among_themselves(rng):
    searches, _ = make_searches(rng, right=lambda row: 5)
    query = searches.queries[0]
    unseen, learned, other, _ = searches.databases
    assert (unseen.rows[find_queries(query, unseen)] == query.rows).all()
    assert find_queries(query, learned) is None
    assert find_queries(query, other) is None


def test_the_numbers_are_those_of_an_evaluation(rng):
    searches, X = make_searches(rng, right=lambda row: 5)
    expected = measure_expected_quality(searches, X, IDS)
    assert expected["held_out"] == {"image": N_HELD, "text": N_HELD}
    assert expected["learned_from"] == {"image": N, "text": N}
    assert len(expected["directions"]) == 4 * 3
    queries = ({q.modality: q.codes for q in searches.queries}, {q.modality: q.labels for q in searches.queries})
    for kind, stored in (("learned", "learned"), ("unseen", "hashed")):
        own = {side.modality: side for side in searches.databases if side.kind == stored}
        database = {name: side.codes for name, side in own.items()}, {name: side.labels for name, side in own.items()}
        ids = {q.modality: [f"{q.modality} {row}" for row in q.rows] for q in searches.queries}
        oracle = evaluate(
            None,
            queries,
            database,
            protocol=Protocol(database=kind),
            intra=True,
            at=(1, 10),
            n_bits=N_BITS,
            query_ids=ids,
            database_ids={name: [f"{name} {row}" for row in side.rows] for name, side in own.items()},
            same_id="exclude",
        )
        rows = [row for row in expected["directions"] if row["database"] == kind]
        assert {(row["query"], row["hit"]) for row in rows} == set(oracle.directions)
        for row in rows:
            direction = oracle[row["query"], row["hit"]]
            assert row["map"] == pytest.approx(direction.map, abs=1e-4)
            assert row["chance"] == pytest.approx(direction.chance, abs=1e-4)
            assert row["precision_at"]["10"] == pytest.approx(direction.precision_at[10], abs=1e-4)
            assert row["items"] == direction.n_items
            assert row["first_hits"] == {"1": 1.0, "10": 0.5}
    assert expected["protocols"]["unseen"] == str(Protocol(database="unseen"))
    assert {row["first_hits"] is None for row in expected["directions"] if row["database"] == "hashed"} == {True}


def test_examples_are_good_bad_and_typical_ones_each_with_labels_of_its_own(rng):
    searches, X = make_searches(rng, right=lambda row: row % 11)
    expected = measure_expected_quality(searches, X, IDS)
    for source, target in (("image", "text"), ("text", "image")):
        own = [one for one in expected["examples"] if one["query"][0] == source]
        assert [one["kind"] for one in own] == ["good"] * 3, "there are no more than three sets of labels"
        assert own[0]["right"] == 1.0
        assert all({name for name, _ in one["hits"]} == {target} and len(one["hits"]) == 6 for one in own)
        held = searches.queries[source == "text"].rows
        assert {one["query"][1] for one in own} <= {IDS[source][row] for row in held}
    searches = searches._replace(
        queries=[
            query._replace(labels=np.unpackbits(np.arange(1, N_ASK + 1, dtype=np.uint8)[:, None], axis=1).astype(bool))
            for query in searches.queries
        ],
        databases=[
            side._replace(
                labels=np.unpackbits(np.arange(1, len(side.rows) + 1, dtype=np.uint8)[:, None], axis=1).astype(bool)
            )
            for side in searches.databases
        ],
    )
    own = [one for one in measure_expected_quality(searches, X, IDS)["examples"] if one["query"][0] == "image"]
    assert [one["kind"] for one in own] == ["good"] * 3 + ["bad"] * 3 + ["typical"] * 2
    assert max(one["right"] for one in own[3:6]) < min(one["right"] for one in own[6:]) < own[2]["right"]


def test_one_line_says_it_without_the_name_of_a_measure(rng):
    searches, X = make_searches(rng, right=lambda row: 7)
    expected = measure_expected_quality(searches, X, IDS)
    line = describe_expected(expected)
    assert line.startswith(
        "Expected of new queries, measured with 40 held-out items: of the first 10 hits among items without labels 7.0 "
        "share a label with the query (image → text; by chance "
    )
    assert "; among labelled items 7.0 (by chance" in line
    hashed = describe_expected(expected, codes="hashed")
    assert "without labels" not in hashed
    assert hashed.count("7.0") == 2
    assert "\n" not in line


def test_one_modality_searches_itself_and_many_are_told_on_average(rng):
    searches, X = make_searches(rng, right=lambda row: 7, modalities=("text",))
    assert "(text → text; by chance" in describe_expected(measure_expected_quality(searches, X, IDS))
    rows = [
        {"query": a, "hit": b, "database": kind, "map": 0.5, "chance": 0.2, "share_right": 0.2,
         "first_hits": {"1": 1.0, "10": 0.1 * "abc".index(a) + 0.5}}
        for a in "abc" for b in "abc" for kind in ("learned", "unseen")
    ]  # fmt: skip
    many = {"directions": rows, "queries": dict.fromkeys("abc", 20)}
    assert len(cross_modal_rows(many, "learned")) == 6
    assert "6.0 share a label with the query (by chance 2.0; from 5.0 (a → b) to 7.0 (c → a))" in describe_expected(
        many
    )


@pytest.mark.parametrize(
    ("quality", "chance", "near"),
    [(0.14, 0.1, True), (0.16, 0.1, False), (0.6, 0.5, True), (0.65, 0.5, False), (0.9, 0.9, True), (1.0, 1.0, False)],
)
def test_a_quality_near_chance_is_said_with_what_to_do(quality, chance, near):
    rows = [
        {"query": "image", "hit": "image", "database": "unseen", "first_hits": {"10": quality}, "share_right": chance}
    ]
    said = near_chance({"directions": rows})
    assert (said is not None) is near
    if said:
        assert "--labels none" in said
    assert near_chance({"reason": "too few"}) is None


@pytest.mark.slow
def test_why_there_is_no_number_is_said(engine):
    """The little world has sixty pictures and sixty texts."""
    reason = "60 labelled image items are too few to hold some out for measuring; about 100 of each modality are"
    assert reason in describe_expected(engine.info()["expected"])
