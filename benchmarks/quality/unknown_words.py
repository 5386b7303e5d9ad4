"""How a word is read that no text has: by how many known words, how sharply weighed, and whether as the nearest.

Chosen on folds of OpenMoji's training items; no item of the test split is looked at.

    python benchmarks/quality/unknown_words.py [--demo demo] [--folds 4]
    python benchmarks/quality/unknown_words.py [--demo demo] --engine

RLH and refinement vectors are learned from three of four folds with ``text+use``, as in ``named_things.py``; their
pictures are searched in, ordered by the vectors. *Words*: words of held-out texts that no text of the three folds has.
*German*: the German names of held-out emoji. Right is a picture of the emoji's subgroup: the share of right first hits,
and of right ones among the first five. *Own text*: the German names of learned emoji look for their English texts by
features alone; the mean of 1 over the rank. *Nearest word*: texts that have the query, with each unknown word that is
understood so far replaced by the known word nearest in meaning, speak for it (feedback).

With ``--engine`` German names of emoji that the demonstration's engine has learned from look for their English texts in
it, where the nearest words are searched for beside codes: how often the own text is first, the mean of 1 over its rank
among the first 20, and how many of the first five texts are of its subgroup.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from modalhash import Engine
from modalhash.core.codes import pack_signs, unpack_signs
from modalhash.data.sets.openmoji import emoji_list, names
from modalhash.encoders import get_encoder, semantic
from modalhash.encoders.text import words_of
from modalhash.engine import SearchOptions
from modalhash.engine.search import query as feedback, refinement
from modalhash.engine.search.ordering import CODE_WEIGHT
from modalhash.engine.search.query import Query
from modalhash.store import Record, SqliteStore

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from named_things import N_BITS, Fold, K
from record import RESULTS, write
from semantic import Items, openmoji

SCALE = 0.5
"""What training the demonstration chooses."""
READINGS = ((1, 1), (3, 2), (5, 2), (10, 2), (20, 2), (20, 4), (40, 2), (40, 4), (40, 8), (80, 2))
"""Known words that stand for an unknown one, and the power of their similarities."""
UNDERSTOOD = (None, 0.0, 0.25, 0.5)
"""How far a word is understood, more than this, that the nearest known one is searched for; None: never."""
MAX_QUERIES = 250
N_ENGINE, ENGINE_K = 300, 20


class Meant:
    """A fold with its queries, and the texts that were learned from in a store."""

    def __init__(self, items: Items, train: np.ndarray, held: np.ndarray, seed: int, folder: Path) -> None:
        self.fold = Fold(items, train, held, seed, get_encoder("text+use", scale=SCALE))
        self.encoder = self.fold.encoder
        self.learned = refinement.learn_refinement(self.fold.model, self.fold.X, self.fold.Y)
        self.store = SqliteStore(folder / f"items{seed}.db", n_bits=N_BITS)
        own = self.learned.training_posteriors("text", labels=True)
        codes = self.fold.model.codes_["text"]
        self.store.add(
            Record(str(row), "text", code, text=text, refinement=vector.tobytes())
            for row, (text, code, vector) in enumerate(zip(self.fold.texts, codes, own, strict=True))
        )
        known = {word for row in train for word in words_of(items.texts[row])}
        pairs = [(word, row) for row in held for word in dict.fromkeys(words_of(items.texts[row])) if word not in known]
        drawn = [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))[:MAX_QUERIES]]
        german = [(items.other[row], row) for row in held[:MAX_QUERIES]]
        self.queries = {"words": drawn, "German": german}
        self.own = train[:MAX_QUERIES]
        self.items, self.texts = items, [items.texts[row] for row in train]
        self.wanted = items.labels[:, items.relevant].astype(np.float32)

    def measure(self, least: float | None) -> dict[str, float]:
        """Search the pictures with all queries."""
        made, step, model = self.learned.refinement, self.learned.refinement.posterior_step, self.fold.model
        codes = unpack_signs(model.codes_["image"], N_BITS).astype(np.float32)
        pictures = self.learned.training_posteriors("image", labels=True).astype(np.float32) * step
        out: dict[str, float] = {}
        for kind, asked in self.queries.items():
            texts = [text for text, _ in asked]
            features = self.encoder.encode(texts)
            projections = model.decision_function({"text": features})["text"]
            spoken = texts if least is None else self.encoder.in_known_words(texts, least=least)
            queries = [
                Query(code, "text", vector=vector, text=text)
                for code, vector, text in zip(
                    pack_signs(projections), made.vectors("text", features), spoken, strict=True
                )
            ]
            searched = feedback.with_matches([(one, SearchOptions()) for one in queries], self.store, made.n_posterior)
            moved = [one.vector for one, _ in searched]
            posteriors = np.array(moved)[:, : made.n_posterior].astype(np.float32) * step
            scores = posteriors @ pictures.T + CODE_WEIGHT * (np.sign(projections) @ codes.T / N_BITS)
            scores += np.random.default_rng(0).uniform(0, 1e-4, len(pictures))  # ties in any order
            best = np.argsort(-scores, axis=1)[:, :K]
            right = np.einsum("qkc,qc->qk", self.fold.found[best], self.wanted[[row for _, row in asked]]) > 0
            out[f"{kind}, first"] = float(right[:, 0].mean())
            out[f"{kind}, first five"] = float(right.mean())
        return out

    def own_text(self) -> dict[str, float]:
        """Look for the English texts of learned emoji by their German names."""
        queries = normalize(self.encoder.encode([self.items.other[row] for row in self.own]))
        near = queries @ normalize(self.encoder.encode(self.texts)).T
        near = near.toarray() if sparse.issparse(near) else np.asarray(near)
        right = near[np.arange(len(near)), np.arange(len(near))][:, None]
        return {"own text": float((1 / ((near > right).sum(axis=1) + 1)).mean())}


def readings(items: Items, n_folds: int) -> list[dict[str, Any]]:
    """What all ways to read an unknown word find, mean of the folds."""
    part = np.random.default_rng(0).permutation(items.n_train) % 4
    found: dict[str, list[dict[str, float]]] = {}
    usual = semantic.NEAREST, semantic.POWER
    with tempfile.TemporaryDirectory() as folder:
        for k in range(n_folds):
            meant = Meant(items, np.flatnonzero(part != k), np.flatnonzero(part == k), k, Path(folder))
            for reading in READINGS:
                semantic.NEAREST, semantic.POWER = reading
                own = meant.own_text()
                for least in UNDERSTOOD if reading == usual else (None, 0.0):
                    speaks = "" if least is None else f", nearest word if understood above {least:g}"
                    variant = f"{reading[0]} nearest, power {reading[1]}{speaks}"
                    found.setdefault(variant, []).append({**meant.measure(least), **own})
                    print(k, variant, {key: round(one, 3) for key, one in found[variant][-1].items()}, flush=True)
            semantic.NEAREST, semantic.POWER = usual
    return [
        {
            "part": "readings",
            "variant": variant,
            "folds": n_folds,
            **{key: round(float(np.mean([one[key] for one in own])), 3) for key in own[0]},
        }
        for variant, own in found.items()
    ]


def searched(engine: Engine, n_queries: int) -> list[dict[str, Any]]:
    """What German names of emoji that the demonstration learned from find among its texts, with the nearest words."""
    emoji = emoji_list()
    german = dict(zip([one.id for one in emoji], names(emoji, "de"), strict=True))
    learned = sorted(
        (record for record in engine.store.scan(modality="text") if record.kind == "learned"), key=lambda one: one.id
    )
    chosen = [learned[i] for i in np.random.default_rng(0).permutation(len(learned))[:n_queries]]
    encoder: Any = engine.encoders["text"]
    own_words, rows = encoder.in_known_words, []
    for least in UNDERSTOOD:
        encoder.in_known_words = list if least is None else partial(own_words, least=least)
        hits = engine.search_many(text=[german[one.id] for one in chosen], want="text", k=ENGINE_K)
        ranks = [
            next((rank for rank, hit in enumerate(found, 1) if hit.id == one.id), np.inf)
            for found, one in zip(hits, chosen, strict=True)
        ]
        shares = [
            [bool(set(one.labels[1:]) & set(hit.labels[1:])) for hit in found[:K]]
            for found, one in zip(hits, chosen, strict=True)
        ]
        told = "no" if least is None else f"if understood above {least:g}"
        rows.append(
            {
                "part": "engine",
                "variant": f"nearest word searched for: {told}",
                "queries": len(chosen),
                "own text first": round(float(np.mean(np.array(ranks) == 1)), 3),
                "own text": round(float(np.mean(1 / np.array(ranks))), 3),
                "first five": round(float(np.mean(shares)), 3),
                "by meaning": round(
                    float(np.mean([any("meaning" in hit.found_by for hit in found) for found in hits])), 3
                ),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    encoder.in_known_words = own_words
    return rows


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="where the emoji are drawn")
    parser.add_argument("--folds", type=int, default=4, help="of four, to be held out in turn")
    parser.add_argument("--engine", action="store_true", help="search in the demonstration's engine instead")
    args = parser.parse_args()
    part = "engine" if args.engine else "readings"
    file = RESULTS / "unknown_words.json"
    before = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    if args.engine:
        with Engine.open(args.demo / "engine") as engine:
            rows = searched(engine, N_ENGINE)
    else:
        rows = readings(openmoji(args.demo), args.folds)
    write("unknown_words", [*(row for row in before if row["part"] != part), *rows])


if __name__ == "__main__":
    main()
