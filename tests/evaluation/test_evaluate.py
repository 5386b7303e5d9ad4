from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import slow_ranking as slow

from modalhash.evaluation import (
    Protocol,
    chance_level,
    compare,
    evaluate,
    evaluate_databases,
    mean_average_precision,
    rank,
)

MODALITIES = ("image", "text", "sound")


class Folding:
    """A stand-in for a fitted hasher: a code is the signs of the features, learned codes are others."""

    n_bits = 12

    def __init__(self, learned):
        self.codes_ = learned

    def transform(self, X):
        return {name: np.packbits(values > 0, axis=1) for name, values in X.items()}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)

    def draw(n):
        X = {name: rng.standard_normal((n, 12)) for name in MODALITIES}
        Y = {name: np.eye(5, dtype=int)[rng.integers(5, size=n)] for name in MODALITIES}
        return X, Y

    training, queries = draw(60), draw(20)
    learned = {name: np.packbits(rng.random((60, 12)) < 0.5, axis=1) for name in MODALITIES}
    return Folding(learned), training, queries


def test_every_direction(data):
    model, training, queries = data
    result = evaluate(model, queries, training)
    assert set(result.directions) == {(a, b) for a in MODALITIES for b in MODALITIES if a != b}
    hashed = model.transform(queries[0])
    for (a, b), found in result.directions.items():
        wanted = mean_average_precision(hashed[a], queries[1][a], model.codes_[b], training[1][b], n_bits=12)
        assert found.map == wanted
        assert found.average_precision.dtype == np.float32
        assert found.average_precision.mean() == pytest.approx(wanted, rel=1e-6)
        assert (found.n_queries, found.n_items, found.name) == (20, 60, f"{a}→{b}")
    assert result.map == pytest.approx(np.mean([found.map for found in result.directions.values()]))


def test_intra_and_chosen_directions(data):
    model, training, queries = data
    assert len(evaluate(model, queries, training, intra=True).directions) == 9
    one = evaluate(model, queries, training, directions=[("text", "text")])
    assert list(one.directions) == [("text", "text")]
    with pytest.raises(ValueError, match=r"direction \('text', 'smell'\): queries have"):
        evaluate(model, queries, training, directions=[("text", "smell")])
    with pytest.raises(KeyError, match="measured were"):
        one["image", "text"]


def test_learned_hashed_and_codes(data):
    model, training, queries = data
    learned = evaluate(model, queries, (None, training[1]))
    hashed = evaluate(model, queries, training, protocol="database=hashed")
    assert learned.map == evaluate(model, queries, (model.codes_, training[1])).map != hashed.map
    codes = model.transform(queries[0]), model.transform(training[0])
    plain = evaluate(None, (codes[0], queries[1]), (codes[1], training[1]), n_bits=12, protocol=Protocol())
    assert plain.map == hashed.map
    assert (plain.n_bits, evaluate(None, (codes[0], queries[1]), (codes[1], training[1])).n_bits) == (12, 16)


def test_measures_at_ranks_and_radius(data):
    model, training, queries = data
    found = evaluate(model, queries, training, at=[3, 60], protocol="ties=stable")["image", "text"]
    distance = slow.distances(model.transform(queries[0])["image"], model.codes_["text"])
    relevant = queries[1]["image"] @ training[1]["text"].T > 0
    order = np.argsort(distance, axis=1, kind="stable")
    hits = np.take_along_axis(relevant, order, axis=1)
    assert found.precision_at[3] == pytest.approx(hits[:, :3].mean())
    assert found.recall_at[3] == pytest.approx((hits[:, :3].sum(axis=1) / relevant.sum(axis=1)).mean())
    assert found.recall_at[60] == pytest.approx(1)
    inside = distance <= 2
    precision = (inside & relevant).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
    assert found.lookup_precision == pytest.approx(precision.mean())
    low, high = found.interval()
    assert low < found.map < high


def test_chance_level_is_that_of_random_rankings():
    rng = np.random.default_rng(4)
    case = slow.random_case(rng, 4, 30, 8, single=True)
    ranking = rank(*case)
    for protocol in (Protocol(), Protocol(cutoff=7, normaliser="retrieved"), Protocol(count_from=10)):
        drawn = []
        for _ in range(1500):
            for q in range(4):
                relevant = (case[3] @ case[1][q] > 0)[rng.permutation(30)]
                drawn.append(slow.average_precision(relevant, protocol.cutoff, protocol.normaliser))
        wanted = np.mean(drawn) * 4 / (4 + protocol.count_from)
        assert chance_level(ranking, protocol) == pytest.approx(wanted, abs=4 * np.std(drawn) / np.sqrt(6000))


def test_a_query_that_is_in_the_database(data):
    model, training, queries = data
    ids = {name: np.arange(20) for name in MODALITIES}
    given = {"protocol": "database=unseen", "query_ids": ids, "database_ids": ids}
    with pytest.raises(ValueError, match=r"image→text: 20 of 20 queries are in the database, e\.g\. the id 0"):
        evaluate(model, queries, queries, **given)
    result = evaluate(model, queries, queries, same_id="exclude", at=[5], **given)
    codes = model.transform(queries[0])
    for (a, b), found in result.directions.items():
        rest = ~np.eye(20, dtype=bool)
        each = [
            mean_average_precision(
                codes[a][q : q + 1], queries[1][a][q : q + 1], codes[b][rest[q]], queries[1][b][rest[q]], n_bits=12
            )
            for q in range(20)
        ]
        assert found.map == pytest.approx(np.mean(each))
        assert found.n_items == 19
    disjoint = {name: np.arange(100, 160) for name in MODALITIES}
    evaluate(model, queries, training, query_ids=ids, database_ids=disjoint)
    with pytest.raises(ValueError, match="needs query_ids and database_ids"):
        evaluate(model, queries, training, same_id="exclude")


@pytest.mark.parametrize("ties", ["stable", "expected", "optimistic", "pessimistic"])
@pytest.mark.parametrize("cutoff", [None, 5, 29, 30])
def test_excluded_items_are_as_if_absent(ties, cutoff):
    rng = np.random.default_rng(2)
    query_codes, query_labels, codes, labels = slow.random_case(rng, 6, 30, 6, single=True)
    excluded = np.array([3, -1, 29, 0, -1, 7])
    from modalhash.evaluation.measures import average_precision

    rules = {"ties": ties, "cutoff": cutoff, "normaliser": "retrieved"}
    got = average_precision(rank(query_codes, query_labels, codes, labels, excluded=excluded), **rules)
    for q, item in enumerate(excluded):
        keep = np.arange(30) != item
        alone = rank(query_codes[q : q + 1], query_labels[q : q + 1], codes[keep], labels[keep])
        rules["cutoff"] = min(cutoff or 30, int(keep.sum()))
        assert got[q] == pytest.approx(average_precision(alone, **rules)[0], abs=1e-12)
    with pytest.raises(ValueError, match="excluded: values from 3 to 30"):
        rank(query_codes[:2], query_labels[:2], codes, labels, excluded=[3, 30])


def test_three_databases(data):
    model, training, queries = data

    def part(pair, ids):
        out = SimpleNamespace(features=pair[0], relevance=pair[1], ids=dict.fromkeys(MODALITIES, ids))
        out.select = lambda rows: part(
            ({n: pair[0][n][r] for n, r in rows.items()}, {n: pair[1][n][r] for n, r in rows.items()}),
            ids[rows["text"]],
        )
        return out

    train, query = part(training, np.arange(60)), part(queries, np.arange(60, 80))
    parts = SimpleNamespace(training=train, query=query, database=train)
    results = evaluate_databases(model, parts, protocol="amsh")
    assert list(results) == ["learned", "hashed", "unseen"]
    assert [results[kind].protocol.database for kind in results] == list(results)
    assert {kind: result["image", "text"].n_items for kind, result in results.items()} == {
        "learned": 60,
        "hashed": 60,
        "unseen": 19,
    }
    # a database of its own: the 60 training items and 40 more
    more = tuple({n: np.concatenate([old[n], old[n][:40]]) for n in MODALITIES} for old in training)
    own = part(more, np.concatenate([np.arange(60), np.arange(100, 140)]))
    results = evaluate_databases(
        model, SimpleNamespace(training=train, query=query, database=own), databases=["unseen"]
    )
    assert results["unseen"]["image", "text"].n_items == 40


def test_compare(data):
    model, training, queries = data
    a, b = (evaluate(model, queries, training, protocol=f"database={kind}") for kind in ("learned", "hashed"))
    with pytest.raises(ValueError, match="the protocols differ"):
        compare(a, b)
    other = evaluate(Folding({n: c[::-1].copy() for n, c in model.codes_.items()}), queries, training)
    table = compare(a, other, draws=200)
    assert len(table.rows) == 6
    assert all(0 < row[-1] <= 1 for row in table.rows)
    assert all(row[-1] == 1 for row in compare(a, a).rows)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"queries": None}, TypeError, r"queries is NoneType; expected \(X, Y\)"),
        ({"protocol": "mAP@61"}, ValueError, "cutoff is 61, but the database has 60 items; take at most 60"),
        ({"at": [10, 100]}, ValueError, "at is 100, but the database has 60 items"),
        ({"at": [0]}, ValueError, "at is 0; expected an integer ≥ 1"),
        ({"radius": -1}, ValueError, "radius is -1"),
        ({"directions": []}, ValueError, "directions is empty"),
        ({"same_id": "ignore"}, ValueError, "same_id is 'ignore'"),
    ],
)
def test_bad_input(data, change, error, match):
    model, training, queries = data
    with pytest.raises(error, match=match):
        evaluate(model, **{"queries": queries, "database": training, **change})


def test_labels_that_do_not_fit(data):
    model, training, queries = data
    short = {name: labels[:-1] for name, labels in training[1].items()}
    with pytest.raises(ValueError, match="database, 'image': 59 label rows for 60 learned codes"):
        evaluate(model, queries, (None, short))
    with pytest.raises(ValueError, match="\"database, 'text'\": 59 label rows for 60 items"):
        evaluate(model, queries, (training[0], short), protocol="database=hashed")
    with pytest.raises(ValueError, match="queries, 'sound': there are no labels"):
        evaluate(model, (queries[0], {"image": queries[1]["image"], "text": queries[1]["text"]}), training)
    with pytest.raises(TypeError, match="labels are ndarray; expected a dict by modality"):
        evaluate(model, (queries[0], queries[1]["image"]), training)
    nothing = {name: np.zeros_like(labels) for name, labels in queries[1].items()}
    with pytest.raises(ValueError, match="none of the 20 items has a label"):
        evaluate(model, (queries[0], nothing), training)


def test_one_modality_has_no_direction(data):
    model, _, queries = data
    one = tuple({"text": part["text"]} for part in queries)
    with pytest.raises(ValueError, match="pass intra=True"):
        evaluate(None, ({"text": model.codes_["text"][:20]}, one[1]), ({"text": model.codes_["text"][20:40]}, one[1]))


def test_json_has_everything(data):
    model, training, queries = data
    content = json.loads(evaluate(model, queries, training, protocol="sephlike").to_json())
    assert Protocol.parse(content["protocol"]["text"]) == Protocol.parse("sephlike")
    first = content["directions"][0]
    assert len(first["average_precision"]) == 20
    assert set(first["by_rank"]) == set(first["by_radius"]) == {"at", "precision", "recall"}
    assert first["precision_at"]["10"] == pytest.approx(first["by_rank"]["precision"][9])
