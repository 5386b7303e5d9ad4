"""Whether confidence is what it says, on queries that no engine has seen: the expected calibration error of its hits.

`choose` compares ways to make a probability of what is known of a pair: a logistic regression alone or with an isotonic
one after it, and what hits far down the list weigh. It learns as an engine does from four fifths of the training items
and judges the hits of the last fifth.

`folds` holds a fifth of the training items out and trains an engine on the others; `test` trains it on all of them and
asks with the test queries, once. Every query's 20 first hits in each modality, among items with learned codes and among
unseen ones, are compared with their labels. `folds` also tells how familiar texts are with few known words, and how
many hits are weak. No test query has part in `choose` or `folds`.

    python benchmarks/quality/confidence.py choose
    python benchmarks/quality/confidence.py folds
    python benchmarks/quality/confidence.py test

Results go to benchmarks/results/confidence.json, the diagrams of `test` to docs/images/.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from modalhash import Engine
from modalhash.core.codes import pack_signs
from modalhash.core.files import write_atomically
from modalhash.data import Split, load_dataset, write_openmoji
from modalhash.engine import (
    Bin,
    Query,
    SearchOptions,
    calibration_error,
    pooled,
    reliability_bins,
    reliability_svg,
)
from modalhash.engine.search import confidence
from modalhash.engine.search.refinement import learn_refinement
from modalhash.methods import registry
from rlh_choices import DATA, folds

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "confidence.json"
TOP, QUERIES = 20, 1000
KNOWN = ((-1.0, 0.0), (0.0, 0.34), (0.34, 0.67), (0.67, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("choose", "folds", "test"))
    parser.add_argument("datasets", nargs="*", default=["openmoji", "iapr-tc12"])
    parser.add_argument("--methods", default="amsh,rlh")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.datasets:
        for method in options.methods.split(","):
            if options.part == "choose":
                keep("choose", f"{name}, {method}, 64 bits", choose(name, method))
                continue
            with tempfile.TemporaryDirectory() as folder:
                keep(options.part, f"{name}, {method}, 64 bits", measure(name, method, options.part, Path(folder)))


def keep(part: str, key: str, values: dict[str, Any]) -> None:
    """Show results and write them beside what is there; draw the diagram of test queries."""
    known: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(part, {})[key] = values
    write_atomically(RESULTS, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())
    if part == "test" and ", amsh, " in key:  # what the page shows
        bins = [Bin(*row) for row in values["all hits"]["bins"]]
        path = ROOT / "docs" / "images" / f"reliability-{'-'.join(key.split(', ')[:2])}.svg"
        path.write_text(reliability_svg(bins, f"{key}, test queries"), encoding="utf-8")
    print(key)
    for name, value in values.items():
        print(f"  {name:30} { {k: v for k, v in value.items() if k != 'bins'} if isinstance(value, dict) else value }")


def measure(name: str, method: str, part: str, folder: Path) -> dict[str, Any]:
    """Return reliability and calibration error of every way to search, and of all together."""
    tables: dict[str, list[Bin]] = {}
    found: dict[str, Any] = {}
    by_known: dict[tuple[float, float], list[list[Bin]]] = {limits: [] for limits in KNOWN}
    with trained(name, method, part, folder) as (engine, batches):
        for modality, (queries, labels, own) in batches.items():
            for wanted in engine.modalities:
                for kind in ("learned", "hashed"):
                    options = SearchOptions(k=TOP + 1, want=wanted, kind=kind, hybrid=False)
                    answers = engine.answer(queries, options)
                    values, right, known, weak = [], [], [], []
                    for row, hits in enumerate(answers):
                        others = [hit for hit in hits if (hit.modality, hit.id) != (modality, own[row])][:TOP]
                        values += [hit.confidence for hit in others]
                        right += [not labels[row].isdisjoint(map(str, hit.labels)) for hit in others]
                        weak += [hit.weak for hit in others]
                        known += [1.0 if queries[row].known is None else queries[row].known] * len(others)
                    told, truth, share = np.array(values), np.array(right), np.array(known)
                    bins = reliability_bins(told, truth)
                    way = f"{modality} to {wanted}, {'learned' if kind == 'learned' else 'unseen'}"
                    tables[way] = bins
                    low = np.array(weak)
                    found[way] = described(bins, weak=low.mean(), right_if_weak=truth[low].mean() if low.any() else 0.0)
                    found[way]["right_if_not"] = round(float(truth[~low].mean()), 4) if not low.all() else 0.0
                    if modality == "text":
                        for low, high in KNOWN:
                            chosen = (share > low) & (share <= high)
                            by_known[low, high].append(reliability_bins(told[chosen], truth[chosen]))
        found["seconds"] = engine.config["seconds"]
        assert engine.confidence is not None
        found["worth of unknown words"] = dict(engine.confidence.unknown_words)
    found["all hits"] = {**described(together := pooled(tables.values())), "bins": [list(each) for each in together]}
    for database in ("learned", "unseen"):
        found[f"all {database} hits"] = described(
            pooled(bins for way, bins in tables.items() if way.endswith(database))
        )
    for (low, high), some in by_known.items():
        if any(some):
            found[f"texts, known words {max(low, 0)} to {high}"] = described(pooled(some))
    return found


def described(bins: list[Bin], **more: Any) -> dict[str, float]:
    n = sum(each.hits for each in bins)
    values = {
        "error": calibration_error(bins),
        "confidence": sum(each.hits * each.confidence for each in bins) / n,
        "right": sum(each.hits * each.right for each in bins) / n,
        **more,
    }
    return {"hits": n, **{name: round(float(value), 4) for name, value in values.items()}}


def choose(name: str, method: str) -> dict[str, Any]:
    """Return the calibration error of variants: mean and largest over the ways to search, and of all together."""
    _, parts = next(folds(name, [0]))
    X, labels = parts.training.features, parts.training.labels
    held = confidence.hold_out(X, 0)
    rest = {m: X[m][held.learned[m]] for m in X}, {m: labels[m][held.learned[m]] for m in X}
    inner, inner_vectors = fitted(method, *rest)
    outer, outer_vectors = fitted(method, X, labels)
    new = {m: X[m][held.held_out[m]] for m in X}, {m: labels[m][held.held_out[m]] for m in X}
    learning = pairs_of(inner, inner_vectors, *rest, *new)
    judged = pairs_of(outer, outer_vectors, X, labels, parts.query.features, parts.query.labels)
    found = {}
    for far in (0.0, 0.1, 0.25, 1.0):
        for isotonic in (False, True):
            tables = []
            for way, pairs in learning.items():
                columns, weight = np.column_stack(pairs.features), np.where(pairs.rank < confidence.N_HITS, 1, far)
                scale = np.maximum(columns.std(axis=0), 1e-9)
                logistic = LogisticRegression(max_iter=500).fit(columns / scale, pairs.shared, sample_weight=weight)
                first = judged[way].only(judged[way].rank < TOP)
                values = logistic.decision_function(np.column_stack(first.features) / scale)
                if isotonic:
                    curve = IsotonicRegression(out_of_bounds="clip")
                    curve.fit(logistic.decision_function(columns / scale), pairs.shared, sample_weight=weight)
                    tables.append(reliability_bins(curve.predict(values), first.shared))
                else:
                    tables.append(reliability_bins(1 / (1 + np.exp(-values)), first.shared))
            errors = [calibration_error(bins) for bins in tables]
            errors = [float(np.mean(errors)), max(errors), calibration_error(pooled(tables))]
            key = f"logistic{' and isotonic' if isotonic else ''}, far hits weigh {far}"
            found[key] = dict(zip(("mean", "largest", "all hits"), [round(error, 4) for error in errors], strict=True))
    return found


def fitted(method: str, X: Any, labels: Any) -> tuple[Any, Any]:
    anchors = {m: min(1500, values.shape[0]) for m, values in X.items()}
    model = registry.method(method)(n_bits=64, n_anchors=anchors, random_state=0).fit(X, labels)
    return model, learn_refinement(model, X, labels)


def pairs_of(model: Any, learned: Any, X: Any, labels: Any, new: Any, new_labels: Any) -> dict[Any, confidence.Pairs]:
    """Return the hits of new items among themselves and among those that a model was fitted to."""
    vectors, found = learned.refinement, {}
    codes = {m: pack_signs(values) for m, values in model.decision_function(new).items()}
    unseen = {
        m: confidence.Side(m, "hashed", codes[m], vectors.vectors(m, new[m]), new_labels[m], np.arange(len(codes[m])))
        for m in X
    }
    for m, side in unseen.items():
        rows = np.random.default_rng(3).permutation(len(codes[m]))[: confidence.MAX_QUERIES]
        query = side._replace(
            codes=side.codes[rows],
            vectors=side.vectors[rows],
            labels=side.labels[rows],
            rows=rows,
            familiarity=np.ones(len(rows)),
        )
        for other in X:
            own = np.hstack([learned.training_posteriors(other, labels=True), vectors.embeddings(other, X[other])])
            trained = model.codes_[other]
            trained_on = confidence.Side(other, "learned", trained, own, labels[other], np.arange(len(trained)))
            for database in (unseen[other], trained_on):
                itself = rows if m == other and database.kind == "hashed" else None
                found[m, other, database.kind] = confidence.sample_pairs(query, database, vectors, model.n_bits, itself)
    return found


class Queries(NamedTuple):
    """Held-out items of one modality as queries."""

    queries: list[Query]
    labels: list[set[str]]
    ids: list[str]


@contextmanager
def trained(name: str, method: str, part: str, folder: Path) -> Iterator[tuple[Engine, dict[str, Queries]]]:
    """Give an engine that keeps some items out of training, and these as queries: test items, or a fold of training."""
    source: Any
    if name == "openmoji":  # from pictures and names themselves, so that words may be unknown
        source = write_openmoji(folder / "openmoji", seed=0)
        lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
        if part == "folds":
            lines = [line for line in lines if line["split"] == "training"]
            for line in lines:
                line["split"] = "test" if zlib.crc32(line["id"].encode()) % 5 == 0 else "training"
            source.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        with Engine.train(source, folder / "engine", n_bits=64, method=method, random_state=0) as engine:
            queries = {}
            for modality, key in (("image", "path"), ("text", "text")):
                chosen = [line for line in lines if line["split"] == "test" and key in line][:QUERIES]
                contents = [line["text"] if key == "text" else source.parent / line["path"] for line in chosen]
                batch = engine.prepare(contents, modality=modality)
                queries[modality] = Queries(batch, [set(line["labels"]) for line in chosen], [x["id"] for x in chosen])
            yield engine, queries
        return
    modalities, options = DATA[name]
    data = load_dataset(name, **options).only(*modalities)
    if part == "folds":
        training = replace(data.parts().training, split=None)
        held = np.random.default_rng(7).permutation(training.sizes[modalities[0]]) % 5 == 0
        ids = np.asarray(training.ids[modalities[0]])
        split = Split(dict.fromkeys(modalities, ids[~held]), dict.fromkeys(modalities, ids[held]))
        data = replace(training, split=split)
    encoders = dict.fromkeys(modalities, "precomputed")
    with Engine.train(data, folder / "engine", n_bits=64, method=method, encoders=encoders) as engine:
        asked, queries = data.parts().query, {}
        names = np.array(list(map(str, asked.class_names)))
        for modality in modalities:
            rows = np.random.default_rng(0).permutation(asked.sizes[modality])[:QUERIES]
            batch = engine.prepare(features=asked.features[modality][rows], modality=modality)
            labels = [set(names[asked.labels[modality][row].astype(bool)].tolist()) for row in rows.tolist()]
            queries[modality] = Queries(batch, labels, [str(asked.ids[modality][row]) for row in rows.tolist()])
        yield engine, queries


if __name__ == "__main__":
    main()
