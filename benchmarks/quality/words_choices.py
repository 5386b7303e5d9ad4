"""How words are joined with codes, chosen on folds of training items: no item of a test split is loaded into an engine.

    python benchmarks/quality/words_choices.py          # OpenMoji and IAPR TC-12 (German), two folds each

The texts of four fifths of the training items are learned from; the last fifth asks. *Topic*: the whole text of a
held-out item is the query, and the share of the first 20 hits that have a label of it is measured, among the four
fifths. *Word*: the same of the rarest of its words that a text of the four fifths has. *Known item*: held-out texts are
added, hashed, and the two rarest words of each are the query; the mean of 1 over the rank of the text they come from is
measured. Results go to benchmarks/results/words_choices.json.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from modalhash import Engine
from modalhash.core.files import write_atomically
from modalhash.data import load_dataset
from modalhash.engine.search import ordering as fusion
from modalhash.store.sqlite import words as index

RESULTS = Path(__file__).parents[1] / "results" / "words_choices.json"
DATA = {"openmoji": {}, "iapr-tc12": {"text": "de"}}
N_WORDS = {"topic": 0, "word": 1, "known item": 2}
MAX_ITEMS, MAX_QUERIES, FOLDS, K = 4000, 300, 2, 20
SHARES, OFFSETS = (0.0, 0.5, 0.7, 0.9, 1.0), (10, 60)


def lines_of(name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the training texts of a data set, shuffled, at most so many."""
    data = load_dataset(name, **options)
    assert data.raw is not None
    assert data.split is not None
    training = set(data.split.training["text"])
    names = np.asarray(data.class_names)
    lines = [
        {"id": str(id), "text": str(text), "labels": names[np.flatnonzero(labels)].tolist()}
        for id, text, labels in zip(data.ids["text"], data.raw["text"], data.labels["text"], strict=True)
        if id in training and np.any(labels)
    ]
    order = np.random.default_rng(0).permutation(len(lines))[:MAX_ITEMS]
    return [lines[i] for i in order]


def rarest(text: str, counts: Counter[str], n: int) -> str:
    words = [word for word in index.quoted_words(text) if counts[word]] or index.quoted_words(text)
    return " ".join(word.strip('"') for word in sorted(words, key=lambda word: (counts[word], word))[:n])


def measure(engine: Engine, held_out: list[dict[str, Any]], counts: Counter[str], kind: str, **options: Any) -> float:
    asked = held_out[:MAX_QUERIES]
    texts = [rarest(line["text"], counts, n) if (n := N_WORDS[kind]) else line["text"] for line in asked]
    scores = []
    for line, hits in zip(asked, engine.search_many(text=texts, k=K, **options), strict=True):
        if kind != "known item":
            scores.append(sum(bool(set(line["labels"]) & set(hit.labels)) for hit in hits) / K)
        else:
            ranks = [rank for rank, hit in enumerate(hits, 1) if hit.id == line["id"]]
            scores.append(1 / ranks[0] if ranks else 0.0)
    return float(np.mean(scores))


def rows_of(name: str, fold: int, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    held_out = lines[fold::5]
    learned = [line for i, line in enumerate(lines) if i % 5 != fold]
    counts = Counter(word for line in learned for word in set(index.quoted_words(line["text"])))
    rows = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.train(learned, f"{folder}/engine", n_bits=64, on_problem=lambda _: None) as engine,
    ):
        for kind in N_WORDS:
            if kind == "known item":
                engine.add([{**line, "labels": []} for line in held_out])
                counts.update(word for line in held_out for word in set(index.quoted_words(line["text"])))
            rows.append({"variant": "codes alone", kind: measure(engine, held_out, counts, kind, hybrid=False)})
            for share, offset in product(SHARES, OFFSETS):
                index.MIN_SHARE_OF_BEST, fusion.RANK_OFFSET = share, offset
                variant = f"share {share}, offset {offset}"
                rows.append({"variant": variant, kind: measure(engine, held_out, counts, kind)})
    return [{"data": name, "fold": fold, **row} for row in rows]


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    rows: list[dict[str, Any]] = []
    for name, options in DATA.items():
        lines = lines_of(name, options)
        for fold in range(FOLDS):
            rows += rows_of(name, fold, lines)
            print(f"{name}, fold {fold}", flush=True)
    rows = [{key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} for row in rows]
    for name, kind in product(DATA, N_WORDS):
        for variant in dict.fromkeys(row["variant"] for row in rows):
            own = [row[kind] for row in rows if (row["data"], row["variant"]) == (name, variant) and kind in row]
            print(f"{name:10} {kind:11} {variant:22} {np.mean(own):.3f}")
    write_atomically(RESULTS, (json.dumps({"k": K, "rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
