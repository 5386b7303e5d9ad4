"""Does the name of a thing find it? Rare labels in posteriors, and feedback of words, on folds of training items.

    python benchmarks/quality/named_things.py [--data DATA] [--folds 2] [--items 4000]

Texts and pictures of OpenMoji (names and keywords, as the demonstration has them), and German captions and photos of
IAPR TC-12 where DATA has them; no item of a test split is loaded. RLH and refinement vectors are learned from three of
four folds, whose pictures are searched in, ordered by the vectors. *Names*: each word of the names of these emoji,
right if a hit has the subgroup of an emoji that is named so. *Words*: words of held-out texts that a text of the three
folds has, and *texts*: held-out texts as they are; right if a hit has the subgroup (OpenMoji) or a label (IAPR TC-12)
of the item they are from. Shares of right first hits, of queries with four right among five, and, of texts, mAP over
all labels in learned and in held-out pictures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from modalhash import RLH
from modalhash.core.codes import pack_signs, unpack_signs
from modalhash.encoders import Encoder
from modalhash.encoders.text import TfidfEncoder, words_of
from modalhash.engine import SearchOptions
from modalhash.engine.search import query as feedback, refinement
from modalhash.engine.search.ordering import CODE_WEIGHT
from modalhash.engine.search.query import Query
from modalhash.store import Record, SqliteStore

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from record import write
from single_words import MAX_WORDS, Items, iapr, openmoji

K, ENOUGH, MOST_NAMED, N_BITS = 5, 4, 20, 64
FOLDINGS = ((1, 0.0), (16, 0.35), (16, 0.5), (16, 0.7), (16, 1.0), (32, 0.7))
"""Dimensions that share what the leading ones leave, and the scale there; 0 is the leading 63 alone."""
FEEDBACKS = ((0.5, 10), (1.0, 10), (0.5, 30), (1.0, 30), (2.0, 30))
"""Weight, and number of texts."""


class Fold:
    """What is learned from three of four folds, and what is asked."""

    def __init__(
        self, items: Items, train: np.ndarray, held: np.ndarray, seed: int, encoder: Encoder | None = None
    ) -> None:
        self.items, self.held = items, held
        texts = [items.texts[row] for row in train]
        order = np.random.default_rng(seed).permutation(len(train))  # texts in an order of their own
        self.texts = [texts[row] for row in order]
        self.encoder = (encoder or TfidfEncoder()).fit(texts)
        self.labels = items.labels[train]
        self.X = {"image": items.images[train], "text": self.encoder.encode(self.texts)}
        self.Y = {"image": self.labels, "text": self.labels[order]}
        self.model = RLH(n_bits=N_BITS, n_anchors=min(1500, len(train)), random_state=seed).fit(self.X, self.Y)
        subgroups = items.labels[:, items.relevant]
        self.queries: dict[str, tuple[list[str], np.ndarray]] = {}
        if items.name == "openmoji":
            named: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(subgroups.shape[1], dtype=int))
            for row in train:
                for word in set(words_of(items.texts[row].partition(";")[0])):
                    named[word] += subgroups[row]
            words = [word for word, n in named.items() if word.isalpha() and len(word) > 2 and n.sum() <= MOST_NAMED]
            self.queries["names"] = words, np.array([named[word] > 0 for word in words])
        known = {word for text in texts for word in words_of(text)}
        pairs = [(word, row) for row in held for word in dict.fromkeys(words_of(items.texts[row]))]
        drawn = [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))[:MAX_WORDS]]
        drawn = [(word, row) for word, row in drawn if word in known]
        self.queries["words"] = [word for word, _ in drawn], subgroups[[row for _, row in drawn]]
        self.queries["texts"] = [items.texts[row] for row in held], subgroups[held]
        self.found = subgroups[train].astype(np.float32)

    def measure(self, learned: refinement.Learned) -> dict[str, float]:
        """Search with all queries, by vectors of one making."""
        made, step = learned.refinement, learned.refinement.posterior_step
        codes = unpack_signs(self.model.codes_["image"], N_BITS).astype(np.float32)
        pictures = learned.training_posteriors("image", labels=True).astype(np.float32) * step
        unseen = made.vectors("image", self.items.images[self.held])[:, : made.n_posterior].astype(np.float32) * step
        unseen_codes = np.sign(self.model.decision_function({"image": self.items.images[self.held]})["image"])
        out: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "items.db", n_bits=N_BITS) as store:
            own = learned.training_posteriors("text", labels=True)
            store.add(
                Record(str(row), "text", code, text=text, refinement=vector.tobytes())
                for row, (text, code, vector) in enumerate(zip(self.texts, self.model.codes_["text"], own, strict=True))
            )
            for kind, (texts, wanted) in self.queries.items():
                features = self.encoder.encode(texts)
                projections = self.model.decision_function({"text": features})["text"]
                asked = [
                    Query(code, "text", vector=vector, text=text)
                    for code, vector, text in zip(
                        pack_signs(projections), made.vectors("text", features), texts, strict=True
                    )
                ]
                searched = feedback.with_matches([(one, SearchOptions()) for one in asked], store, made.n_posterior)
                moved = [one.vector for one, _ in searched]
                posteriors = np.array(moved)[:, : made.n_posterior].astype(np.float32) * step
                signs = np.sign(projections)
                scores = posteriors @ pictures.T + CODE_WEIGHT * (signs @ codes.T / N_BITS)
                scores += np.random.default_rng(0).uniform(0, 1e-4, len(pictures))  # ties in any order
                best = np.argsort(-scores, axis=1)[:, :K]
                right = np.einsum("qkc,qc->qk", self.found[best], wanted.astype(np.float32)) > 0
                out[f"{kind}, first"] = float(right[:, 0].mean())
                out[f"{kind}, four of five"] = float((right.sum(axis=1) >= ENOUGH).mean())
                if kind == "texts":
                    own_labels = self.items.labels[self.held].astype(np.float32)
                    out["texts, mAP learned"] = mean_ap(scores, own_labels @ self.labels.T > 0)
                    scores = posteriors @ unseen.T + CODE_WEIGHT * (signs @ unseen_codes.T / N_BITS)
                    out["texts, mAP unseen"] = mean_ap(scores, own_labels @ own_labels.T > 0)
        return out


def mean_ap(scores: np.ndarray, relevant: np.ndarray) -> float:
    ranked = np.take_along_axis(relevant, np.argsort(-scores, axis=1), 1)
    precision = np.cumsum(ranked, axis=1) / np.arange(1, ranked.shape[1] + 1)
    return float(((precision * ranked).sum(axis=1) / np.maximum(ranked.sum(axis=1), 1)).mean())


def variants(fold: Fold) -> dict[str, dict[str, float]]:
    """Measure all foldings without feedback, and all feedbacks with the folding that was chosen."""
    own = refinement.FOLDED_DIMENSIONS, refinement.FOLDED_SCALE, feedback.WEIGHT, feedback.N_TEXTS
    rows = {}
    for dimensions, scale in FOLDINGS:
        refinement.FOLDED_DIMENSIONS, refinement.FOLDED_SCALE, feedback.WEIGHT = dimensions, scale, 0.0
        learned = refinement.learn_refinement(fold.model, fold.X, fold.Y)
        rows[f"folded {dimensions}, scale {scale}"] = fold.measure(learned)
    refinement.FOLDED_DIMENSIONS, refinement.FOLDED_SCALE = own[:2]
    learned = refinement.learn_refinement(fold.model, fold.X, fold.Y)
    for feedback.WEIGHT, feedback.N_TEXTS in FEEDBACKS:
        rows[f"feedback {feedback.WEIGHT}, {feedback.N_TEXTS} texts"] = fold.measure(learned)
    feedback.WEIGHT, feedback.N_TEXTS = own[2:]
    return rows


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("MODALHASH_DATA"), help="folder of data sets")
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="where the emoji are drawn")
    parser.add_argument("--folds", type=int, default=2, help="of four, to be held out in turn")
    parser.add_argument("--items", type=int, default=4000, help="training items of IAPR TC-12 to take")
    args = parser.parse_args()
    sets = [openmoji(args.demo)]
    if args.data and (Path(args.data) / "iapr-tc12" / "items.jsonl").is_file():
        sets.append(iapr(Path(args.data) / "iapr-tc12", args.items))
    rows: list[dict[str, Any]] = []
    for items in sets:
        part = np.random.default_rng(0).permutation(len(items.texts)) % 4
        found = [
            variants(Fold(items, np.flatnonzero(part != k), np.flatnonzero(part == k), k)) for k in range(args.folds)
        ]
        for variant in found[0]:
            mean = {key: round(float(np.mean([one[variant][key] for one in found])), 3) for key in found[0][variant]}
            rows.append({"data": items.name, "variant": variant, "folds": args.folds, **mean})
            print(json.dumps(rows[-1]), flush=True)
    write("named_things", rows)


if __name__ == "__main__":
    main()
