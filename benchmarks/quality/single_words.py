"""Does a word alone find what its texts are about? Options of the TF-IDF encoder, on folds of training items.

    python benchmarks/quality/single_words.py [--data DATA] [--folds 4] [--items 4000]

Texts and pictures of OpenMoji (names and keywords, as the demonstration has them), and German captions and photos of
IAPR TC-12 where DATA has them. Folds of the training items are held out in turn: whole texts, and each word alone,
search the pictures of the other folds by AMSH's codes. A hit counts if it has the subgroup of the emoji that the word
was taken from (OpenMoji), or shares a label (IAPR TC-12). Test items are not touched. ``counted`` is what counting
labels of texts per word would reach, for words that are known: no word says more about its emoji than that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modalhash import AMSH
from modalhash.core.codes import pack_signs, unpack_signs
from modalhash.data import label_matrix, read, write_openmoji
from modalhash.encoders import encode_items, get_encoder
from modalhash.encoders.text import TfidfEncoder, words_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from record import write

OPTIONS: list[dict[str, Any]] = [
    {"min_df": min_df, "context": context} for context in (0.0, 0.25, 0.5, 0.75) for min_df in (1, 2)
]
K = 5
MAX_WORDS = 3000
"""Words of a fold that are searched for, drawn from all if there are more."""


class Items(NamedTuple):
    """Training items of a data set: row i of the pictures is not said to belong to text i."""

    name: str
    n_bits: int
    images: np.ndarray
    texts: list[str]
    labels: np.ndarray
    """Of pictures and texts alike, for every row."""
    relevant: np.ndarray
    """Which labels make a hit."""


def openmoji(folder: Path) -> Items:
    manifest = write_openmoji(folder)
    items = read(manifest)
    chosen = sorted(items.split.training["image"].tolist())
    rows = {name: {key: row for row, key in enumerate(items.ids[name].tolist())} for name in items.modalities}
    paths = [folder / items.raw["image"][rows["image"][key]] for key in chosen]
    texts = [str(items.raw["text"][rows["text"][key]]) for key in chosen]
    labels = np.asarray(items.labels["text"])[[rows["text"][key] for key in chosen]].astype(bool)
    features = encode_items(get_encoder("image").fit(paths), paths).features
    subgroup = np.array([not str(name).startswith("group: ") for name in items.class_names])
    return Items("openmoji", 128, np.asarray(features), texts, labels, subgroup)


def iapr(folder: Path, n_items: int) -> Items:
    lines = [json.loads(line) for line in (folder / "items.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [
        row for row, one in enumerate(lines) if one["split"] == "train" and one["labels"] and one["caption_de"].strip()
    ]
    chosen = np.random.default_rng(0).permutation(rows)[:n_items]
    with np.load(folder / "features.npz") as file:
        images = file["image"][chosen].astype(np.float32)
    own = [lines[row]["labels"] for row in chosen]
    names = sorted({name for some in own for name in some})
    labels = label_matrix(own, names).astype(bool)
    return Items(
        "iapr-tc12", 64, images, [lines[row]["caption_de"] for row in chosen], labels, np.ones(len(names), bool)
    )


def measure(items: Items, options: dict[str, Any], train: np.ndarray, held: np.ndarray, seed: int) -> dict[str, float]:
    """Precision of the first hit and of the first five, for whole texts and for words alone."""
    texts = [items.texts[row] for row in train]
    encoder = TfidfEncoder(**options).fit(texts)
    labels = items.labels[train]
    start = time.perf_counter()
    order = np.random.default_rng(seed).permutation(len(train))  # texts in an order of their own
    features = {"image": items.images[train], "text": encoder.encode([texts[row] for row in order])}
    anchors = min(1500, len(train))
    model = AMSH(n_bits=items.n_bits, n_anchors=anchors, random_state=seed)
    model.fit(features, {"image": labels, "text": labels[order]})
    seconds = time.perf_counter() - start
    database = unpack_signs(model.codes_["image"], items.n_bits).astype(np.float32)
    wanted = items.labels[:, items.relevant].astype(np.float32)

    def precision(queries: list[str], owners: np.ndarray) -> np.ndarray:
        codes = pack_signs(model.decision_function({"text": encoder.encode(queries)})["text"])
        agree = unpack_signs(codes, items.n_bits).astype(np.float32) @ database.T
        agree += np.random.default_rng(0).uniform(0, 0.5, len(train)).astype(np.float32)  # ties in any order
        best = np.argsort(-agree, axis=1)[:, :K]
        return np.array([(wanted[train[some]] @ wanted[own]) > 0 for some, own in zip(best, owners, strict=True)])

    pairs = [(word, row) for row in held for word in dict.fromkeys(words_of(items.texts[row]))]
    drawn = np.random.default_rng(seed).permutation(len(pairs))[:MAX_WORDS]
    words, owners = [pairs[i][0] for i in drawn], np.array([pairs[i][1] for i in drawn])
    whole, alone = precision([items.texts[row] for row in held], held), precision(words, owners)
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for row in train:
        for word in set(words_of(items.texts[row])):
            counts[word].update(np.flatnonzero(items.labels[row] & items.relevant).tolist())
    known = np.array([word in counts for word in words])
    most = [
        items.labels[own, counts[word].most_common(1)[0][0]]
        for word, own in zip(words, owners, strict=True)
        if word in counts
    ]
    return {
        "texts_p1": float(whole[:, 0].mean()),
        "texts_p5": float(whole.mean()),
        "words_p1": float(alone[:, 0].mean()),
        "words_p5": float(alone.mean()),
        "known_p1": float(alone[known, 0].mean()),
        "known_p5": float(alone[known].mean()),
        "counted": float(np.mean(most)),
        "seconds": seconds,
    }


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("MODALHASH_DATA"), help="folder of data sets")
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="where the emoji are drawn")
    parser.add_argument("--folds", type=int, default=4, help="of four, to be held out in turn")
    parser.add_argument("--items", type=int, default=4000, help="training items of IAPR TC-12 to take")
    args = parser.parse_args()
    sets = [openmoji(args.demo)]
    if args.data and (args.data / "iapr-tc12" / "items.jsonl").is_file():
        sets.append(iapr(args.data / "iapr-tc12", args.items))
    rows = []
    for items in sets:
        fold = np.random.default_rng(0).permutation(len(items.texts)) % 4
        for options in OPTIONS:
            found = [
                measure(items, options, np.flatnonzero(fold != k), np.flatnonzero(fold == k), seed=k)
                for k in range(args.folds)
            ]
            mean = {key: round(float(np.mean([one[key] for one in found])), 3) for key in found[0]}
            rows.append({"data": items.name, **options, "folds": args.folds, **mean})
            print(json.dumps(rows[-1]), flush=True)
    write("single_words", rows)


if __name__ == "__main__":
    main()
