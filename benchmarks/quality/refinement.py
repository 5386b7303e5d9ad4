"""Refinement vectors: what was chosen on folds of training items, and what the chosen ones give on test queries.

`choose` cuts the training items into five folds, learns vectors from four and asks with the fifth, which no vector has
seen. It measures the ridge of the posteriors, the blend of labels in the posteriors of items with learned codes, the
weight of codes beside posteriors and of embeddings within a modality, and from which value a label counts as clear. No
test query is loaded into anything there. `test` trains an engine and ranks its items for the test queries with what was
chosen.

    python benchmarks/quality/refinement.py choose
    python benchmarks/quality/refinement.py test

Results go to benchmarks/results/refinement.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from modalhash import AMSH, Engine
from modalhash.core.codes import unpack_signs
from modalhash.core.files import write_atomically
from modalhash.core.typing import Array
from modalhash.data import SplitData, load_dataset
from modalhash.engine import SearchOptions
from modalhash.engine.search import ordering, refinement
from modalhash.engine.search.hits import MAX_TIES, shortlist_size
from modalhash.evaluation.measures import precision_sums
from modalhash.methods.rlh import RLH
from modalhash.store import Comparison
from rlh_choices import DATA, folds

RESULTS = Path(__file__).parents[1] / "results" / "refinement.json"
SETS = ("openmoji", "iapr-tc12")
WAYS = (("image", "text"), ("text", "image"), ("image", "image"), ("text", "text"))
RIDGES = (0.003, 0.01, 0.03, 0.1)
BLENDS = (0.0, 0.5, 0.75, 0.9, 1.0)
CODE_WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4)
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4)
CLEAR = (0.1, 0.15, 0.2, 0.25, 0.3)
RELATIVE = (0.0, 0.3, 0.5)
TOP = 24
QUERIES_AT_ONCE = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("choose", "test"))
    parser.add_argument("datasets", nargs="*", default=list(SETS))
    parser.add_argument("--methods", default="amsh,rlh")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.datasets:
        if options.part == "choose":
            keep("folds", name, choose(name))
        else:
            for method in options.methods.split(","):
                keep("test", f"{name}, {method}, 64 bits", test(name, method))


def keep(part: str, key: str, values: dict[str, Any]) -> None:
    """Show results and write them beside what is there."""
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(part, {})[key] = values
    write_atomically(RESULTS, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())
    print(key)
    for name, value in values.items():
        print(f"  {name:40} {value}", flush=True)


# -- choices, on folds of training items


def choose(name: str) -> dict[str, Any]:
    """Return mAP of whole rankings by vectors alone, for every choice, of the first fold."""
    _, parts = next(folds(name, [0]))
    found: dict[str, Any] = {}
    for ridge in RIDGES:
        learned = refinement.learn_refinement(None, parts.training.features, parts.training.labels, ridge=ridge)
        found[f"unseen, ridge {ridge}"] = cross(unseen_posteriors(learned, parts), parts)
        if ridge == refinement.POSTERIOR_RIDGE:
            chosen = learned
    queries = unseen_posteriors(chosen, parts)
    for blend in BLENDS:
        database = {
            modality: chosen.training_posteriors(modality, labels=True, blend=blend).astype(np.float32)
            for modality in queries
        }
        found[f"learned, blend {blend}"] = cross(queries, parts, database)
    for method in (AMSH, RLH):
        anchors = {modality: min(1500, size) for modality, size in parts.training.sizes.items()}
        model = method(n_bits=64, n_anchors=anchors, random_state=0)
        model.fit(parts.training.features, parts.training.labels)
        for weight in CODE_WEIGHTS:
            what = f"{method.__name__} codes, weight {weight} beside the posterior"
            found[what] = with_codes(model, chosen, parts, weight)
    for weight in WEIGHTS:
        found[f"within a modality, embedding {weight}"] = within(chosen, parts, weight)
    for clear in CLEAR:
        for relative in RELATIVE:
            found[f"shared labels, from {clear}, {relative} of the largest"] = labels_named(
                chosen, parts, clear, relative
            )
    return found


def unseen_posteriors(learned: refinement.Learned, parts: SplitData) -> dict[str, Array]:
    made = learned.refinement
    return {
        name: made.quantised_posteriors(made.posteriors(name, values)).astype(np.float32)
        for name, values in parts.query.features.items()
    }


def cross(queries: dict[str, Array], parts: SplitData, database: dict[str, Array] | None = None) -> list[float]:
    labels = (parts.query if database is None else parts.training).labels
    database = queries if database is None else database
    return [
        mean_ap(queries[first], database[second], parts.query.labels[first], labels[second])
        for first, second in WAYS[:2]
    ]


def with_codes(model: Any, learned: refinement.Learned, parts: SplitData, weight: float) -> list[float]:
    """Return mAP, unseen and learned in one direction and then in the other, of posteriors and codes together."""
    scale = np.sqrt(weight / model.n_bits)

    def joined(posteriors: Array, signs: Array) -> Array:
        return np.hstack([posteriors * learned.refinement.posterior_step, scale * signs]).astype(np.float32)

    signs = {
        name: np.where(values > 0, 1, -1) for name, values in model.decision_function(parts.query.features).items()
    }
    posteriors = unseen_posteriors(learned, parts)
    queries = {name: joined(posteriors[name], signs[name]) for name in signs}
    database = {
        name: joined(learned.training_posteriors(name, labels=True), unpack_signs(model.codes_[name], model.n_bits))
        for name in signs
    }
    unseen, trained = cross(queries, parts), cross(queries, parts, database)
    return [unseen[0], trained[0], unseen[1], trained[1]]


def within(learned: refinement.Learned, parts: SplitData, weight: float) -> list[float]:
    """Return mAP of image → image and text → text, unseen items asking learned ones."""
    made, found = learned.refinement, []
    step = made.posterior_step
    for name in ("image", "text"):
        queries = unseen_posteriors(learned, parts)[name] * step
        database = learned.training_posteriors(name, labels=True).astype(np.float32) * step
        sides = []
        for posteriors, items in ((queries, parts.query), (database, parts.training)):
            values = made.embeddings(name, items.features[name]).astype(np.float32)
            lengths = np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1)
            sides.append(np.hstack([posteriors, np.sqrt(weight) * values / lengths]))
        found.append(mean_ap(*sides, parts.query.labels[name], parts.training.labels[name]))
    return found


def labels_named(learned: refinement.Learned, parts: SplitData, clear: float, relative: float) -> dict[str, float]:
    """Return how many labels are named for the first hit of image → text and text → image, and how many are right."""
    made, named, right, n = learned.refinement, 0, 0, 0
    for first, second in WAYS[:2]:
        queries = unseen_posteriors(learned, parts)[first]
        database = learned.training_posteriors(second, labels=True).astype(np.float32)
        best = np.argmax(queries @ database.T, axis=1)
        own, theirs = made.label_scores(queries), made.label_scores(database[best])
        both = ordering.clear_labels(own, clear, relative) & ordering.clear_labels(theirs, clear, relative)
        truth = parts.query.labels[first] & parts.training.labels[second][best]
        named, right, n = named + int(both.sum()), right + int((both & truth).sum()), n + len(both)
    return {"named": round(named / n, 2), "right": round(right / max(1, named), 3)}


def mean_ap(queries: Array, database: Array, query_labels: Array, labels: Array) -> float:
    """Return the mAP of rankings by inner product."""
    total = 0.0
    columns = labels.T.astype(np.float32)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        rows = slice(start, start + QUERIES_AT_ONCE)
        order = np.argsort(-(queries[rows] @ database.T), axis=1, kind="stable")
        relevant = np.take_along_axis(query_labels[rows].astype(np.float32) @ columns > 0, order, axis=1)
        precision = relevant.cumsum(axis=1) / np.arange(1, relevant.shape[1] + 1)
        total += float(((precision * relevant).sum(axis=1) / np.maximum(1, relevant.sum(axis=1))).sum())
    return round(total / len(queries), 4)


# -- test queries, once


def test(name: str, method: str) -> dict[str, Any]:
    """Return the mAP of an engine's whole order: codes alone, and with shortlists of several sizes refined."""
    modalities, options = DATA[name]
    data = load_dataset(name, **options).only(*modalities)
    queries = data.parts().query
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.train(
            data,
            Path(folder) / "engine",
            n_bits=64,
            method=method,
            encoders=dict.fromkeys(modalities, "precomputed"),
        ) as engine,
    ):
        for kind, database in (("learned", "learned"), ("hashed", "unseen")):
            numbers = engine.store.matching(Comparison("kind", "=", kind))
            shipped = shortlist_size(SearchOptions(k=TOP), len(engine))
            for first, second in WAYS[:2]:
                ranks = Order(engine, numbers, queries, first, second)
                n = len(ranks.numbers)
                sizes = {
                    "codes alone": (0, 0),
                    f"shipped for top-{TOP}": (shipped, MAX_TIES * shipped),
                    "a tenth": (n // 10, n // 10),
                    "all": (n, n),
                }
                for what, (k, most) in sizes.items():
                    value, share = ranks.mean_ap(min(k, n), min(most, n))
                    found[f"{database}, {first} to {second}, {what}"] = {"map": value, "refined_share": share}
    return found


class Order:
    """The whole order that an engine gives to some of its items, for the queries of one modality."""

    def __init__(self, engine: Engine, numbers: Array, queries: Any, first: str, second: str) -> None:
        self.engine, self.group = engine, engine.store.modalities()[second]
        kept = engine.store.records(numbers)
        self.numbers = np.array([number for number in numbers.tolist() if kept[number].modality == second])
        column = {label: c for c, label in enumerate(map(str, queries.class_names))}
        labels = np.zeros((len(self.numbers), len(column)), dtype=np.float32)
        for row, number in enumerate(self.numbers.tolist()):
            labels[row, [column[str(label)] for label in kept[number].labels]] = 1
        self.relevant = queries.labels[first].astype(np.float32) @ labels.T > 0
        self.queries = engine.prepare(features=queries.features[first], modality=first)
        hits = engine.index.search(
            np.stack([query.code for query in self.queries]), k=len(self.numbers), ids=self.numbers, group=self.group
        )
        self.places, self.distances = np.searchsorted(self.numbers, hits.ids), hits.distances

    def mean_ap(self, k: int, most: int) -> tuple[float, float]:
        """Return the mAP, ties expected, with the k nearest and their ties (up to ``most``) refined; and their share.

        Beyond the shortlist the order is that of the codes.
        """
        ranker = self.engine._ranker
        assert ranker is not None
        total, refined = 0.0, 0
        found = zip(self.queries, self.places, self.distances, self.relevant, strict=True)
        for query, places, distances, relevant in found:
            assert query.vector is not None
            n = min(most, int(np.searchsorted(distances, distances[k - 1], "right"))) if k else 0
            vector = ordering.pad(query.vector, ranker.vectors.width)
            order = ranker.rank(
                query.code,
                vector,
                self.numbers[places[:n]],
                distances[:n],
                self.engine.index,
                own_group=None,
                similar=np.empty(0, np.int64),
            )
            first = relevant[np.searchsorted(self.numbers, order.numbers)]
            rest = np.stack(
                [
                    np.bincount(distances[n:], minlength=65),
                    np.bincount(distances[n:], weights=relevant[places[n:]], minlength=65),
                ],
                axis=1,
            )
            groups = np.concatenate([np.stack([np.ones(n), first], axis=1), rest])[None]
            sums, hits = precision_sums(groups, "expected", len(places))
            total += float(sums[0] / max(1.0, hits[0]))
            refined += n
        n_queries, n_items = self.places.shape
        return round(total / n_queries, 4), round(refined / n_queries / n_items, 3)


if __name__ == "__main__":
    main()
