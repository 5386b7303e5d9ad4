"""Do encoders that understand words find more? Counted words, sentence encoders, and both, on three sets of texts.

    python benchmarks/quality/semantic.py [--data DATA] [--demo demo] [--cache FOLDER] [--encoders use …] [--table]

*Choices* are made on one of four folds of OpenMoji's training items, by posteriors from texts alone: how many known
words stand for an unknown one, with which weights; and the prefix of E5. No test item is asked with for them.

Then everything is *measured* once on test items, one seed: texts of OpenMoji (names and keywords, as the demonstration
has them) and 1,000 captions of IAPR TC-12 in English and in German, drawn at random; 500 of its test split ask.
AMSH and RLH, 64 bits, learn from training pictures and texts, no pairs. mAP over the full ranking, ties in expectation,
relevant: shares a label; the database is unseen, the test items of the other modality. Share of right ones among the
first five learned pictures, by AMSH's codes, for whole test texts and for single words of them, those apart that no
training text has; right is the subgroup of the emoji, or any label of the photo. *Another language*: the model that
learned from texts of one language is asked with the names or captions of the same test items in the other (German;
English, where it learned from German); and the text of the same item is looked for among the test texts by features
alone. Times are processor seconds.
Vectors of E5 are kept in FOLDER, because they take minutes. What there are results of is not measured again, unless
``--fresh`` says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from modalhash import AMSH, RLH
from modalhash.core.codes import pack_signs, unpack_signs
from modalhash.data import label_matrix, read, write_openmoji
from modalhash.data.sets.openmoji import emoji_list, names
from modalhash.encoders import (
    combined,
    encode_items,
    fit_encoder,
    get_encoder,
    semantic,
)
from modalhash.encoders.text import TfidfEncoder, words_of
from modalhash.engine.search.refinement import learn_refinement
from modalhash.evaluation import mean_average_precision

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from record import RESULTS, write

ENCODERS = ("tfidf", "use", "text+use", "e5", "text+e5")
N_BITS, N_ANCHORS, K, MAX_WORDS, N_CHOSEN_ON = 64, 500, 5, 300, 200
N_TRAIN, N_TEST = 1000, 500
KEPT_AT_ONCE = 250
NEAREST_AND_POWER = ((10, 2), (20, 2), (20, 4), (40, 2), (40, 4))
UNKNOWN_WEIGHTS = (0.5, 1.0)


class Items(NamedTuple):
    """Items of a data set, training ones first: row i of the pictures is not said to belong to text i."""

    name: str
    images: np.ndarray
    texts: list[str]
    other: list[str]
    """The same texts in another language."""
    labels: np.ndarray
    relevant: np.ndarray
    """Which labels make a hit right among the first five."""
    n_train: int


def openmoji(folder: Path) -> Items:
    items = read(write_openmoji(folder))
    training = set(items.split.training["image"].tolist())
    chosen = sorted(items.ids["image"].tolist(), key=lambda key: (key not in training, key))
    rows = {name: {key: row for row, key in enumerate(items.ids[name].tolist())} for name in items.modalities}
    paths = [folder / items.raw["image"][rows["image"][key]] for key in chosen]
    emoji = emoji_list()
    german = dict(zip([one.id for one in emoji], names(emoji, "de"), strict=True))
    texts = [str(items.raw["text"][rows["text"][key]]) for key in chosen]
    labels = np.asarray(items.labels["text"])[[rows["text"][key] for key in chosen]].astype(bool)
    images = np.asarray(encode_items(get_encoder("image"), paths, workers=1).features)
    subgroup = np.array([not str(name).startswith("group: ") for name in items.class_names])
    return Items("openmoji", images, texts, [german[key] for key in chosen], labels, subgroup, len(training))


def iapr(folder: Path, language: str) -> Items:
    lines = [json.loads(line) for line in (folder / "items.jsonl").read_text(encoding="utf-8").splitlines()]
    whole = [
        row
        for row, one in enumerate(lines)
        if one["labels"] and one["caption_de"].strip() and one["caption_en"].strip()
    ]
    train = np.random.default_rng(0).permutation([row for row in whole if lines[row]["split"] == "train"])[:N_TRAIN]
    test = np.random.default_rng(1).permutation([row for row in whole if lines[row]["split"] != "train"])[:N_TEST]
    chosen = [*train.tolist(), *test.tolist()]
    with np.load(folder / "features.npz") as file:
        images = file["image"][chosen].astype(np.float32)
    own = [lines[row]["labels"] for row in chosen]
    labels = label_matrix(own, sorted({name for some in own for name in some}))
    captions = {name: [lines[row][f"caption_{name}"] for row in chosen] for name in ("de", "en")}
    other = captions["en" if language == "de" else "de"]
    relevant = np.ones(labels.shape[1], bool)
    return Items(f"iapr-tc12-{language}", images, captions[language], other, labels, relevant, N_TRAIN)


class Kept:
    """Vectors of E5 that earlier runs made."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / "e5.npz"
        self._rows: dict[str, np.ndarray] = {}
        if self._path is not None and self._path.exists():
            with np.load(self._path) as file:
                self._rows = dict(zip(file["texts"].tolist(), file["rows"], strict=True))
        cache = semantic._cached_rows(semantic.MultilingualE5)
        self._make, cache._make = cache._make, self

    def __call__(self, texts: list[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        for start in range(0, len(new), KEPT_AT_ONCE):  # a run that is stopped loses no more than these
            some = new[start : start + KEPT_AT_ONCE]
            self._rows.update(zip(some, self._make(some), strict=True))
            self.save()
        return np.stack([self._rows[text] for text in texts])

    def save(self) -> None:
        if self._path is not None and self._rows:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(self._path, texts=np.array(list(self._rows)), rows=np.stack(list(self._rows.values())))


def first_five(scores: np.ndarray, found: np.ndarray, wanted: np.ndarray) -> float:
    """The share of right ones among the first five, ties in any order."""
    scores = scores + np.random.default_rng(0).uniform(0, 1e-4, scores.shape[1])
    best = np.argsort(-scores, axis=1)[:, :K]
    return float((np.einsum("qkc,qc->qk", found[best].astype(np.float32), wanted.astype(np.float32)) > 0).mean())


def choices(items: Items) -> list[dict[str, Any]]:
    """What is chosen, on one of four folds of training items."""
    texts, labels = items.texts[: items.n_train], items.labels[: items.n_train]
    part = np.random.default_rng(0).permutation(len(texts)) % 4
    train, held = np.flatnonzero(part != 0), np.flatnonzero(part == 0)
    own = [texts[row] for row in train]
    known = {word for text in own for word in words_of(text)}
    pairs = [(word, row) for row in held for word in dict.fromkeys(words_of(texts[row]))]
    order = np.random.default_rng(0).permutation(len(pairs))
    some = held[:N_CHOSEN_ON]
    queries = {
        "known words": [pairs[i] for i in order if pairs[i][0] in known][:N_CHOSEN_ON],
        "unknown words": [pairs[i] for i in order if pairs[i][0] not in known][:N_CHOSEN_ON],
        "texts": [(texts[row], row) for row in some],
        "German names": [(items.other[row], row) for row in some],
    }
    wanted = labels[:, items.relevant]

    def told(variant: str, encode: Callable[[list[str]], Any], learned: Any = None) -> dict[str, Any]:
        learned = learn_refinement(None, {"text": encode(own)}, {"text": labels[train]}) if learned is None else learned
        row: dict[str, Any] = {"part": "choices", "data": items.name, "variant": variant}
        for kind, asked in queries.items():
            scores = learned.refinement.posteriors("text", encode([text for text, _ in asked]))
            scores = scores @ learned.label_posteriors["text"].T
            row[kind] = round(first_five(scores, wanted[train], wanted[[owner for _, owner in asked]]), 3)
        return row

    rows = [told("tfidf", TfidfEncoder().fit(own).encode), told("use", get_encoder("use").encode)]
    encoder = get_encoder("text+use", scale=0.0).fit(own)
    learned = learn_refinement(None, {"text": encoder.encode(own)}, {"text": labels[train]})
    defaults = semantic.NEAREST, semantic.POWER, combined.UNKNOWN_WEIGHT
    for nearest, power in NEAREST_AND_POWER:
        for weight in UNKNOWN_WEIGHTS if (nearest, power) == defaults[:2] else (defaults[2],):
            semantic.NEAREST, semantic.POWER, combined.UNKNOWN_WEIGHT = nearest, power, weight
            variant = f"text+use, scale 0, {nearest} nearest, power {power}, weight {weight}"
            rows.append(told(variant, encoder.encode, learned))
    semantic.NEAREST, semantic.POWER, combined.UNKNOWN_WEIGHT = defaults
    rows += [
        told(f"text+use, scale {scale}", get_encoder("text+use", scale=scale).fit(own).encode) for scale in (0.5, 1.0)
    ]
    start = time.process_time()
    encoder = get_encoder("text+use").fit_labelled(own, labels[train])
    seconds = round(time.process_time() - start, 1)
    rows.append(
        {
            "part": "choices",
            "data": items.name,
            "variant": "chosen",
            "scale": encoder.learned_scale,
            "cpu_seconds": seconds,
        }
    )
    return rows


def prefixes(items: Items) -> list[dict[str, Any]]:
    """E5 with each prefix: German names find their English texts, and neighbours share labels, among training items."""
    rows = np.random.default_rng(0).permutation(items.n_train)[:N_CHOSEN_ON]
    model = semantic._loaded(semantic.MultilingualE5)
    wanted = items.labels[rows][:, items.relevant]
    out: dict[str, Any] = {"part": "prefixes", "data": items.name}
    made = {
        (prefix, which): normalize(np.asarray(getattr(model, prefix)([texts[row] for row in rows])))
        for prefix in ("query", "passage")
        for which, texts in (("texts", items.texts), ("German", items.other))
    }
    for asks, found in (("query", "query"), ("passage", "passage"), ("query", "passage")):
        near = made[asks, "German"] @ made[found, "texts"].T
        own = made[asks, "texts"] @ made[found, "texts"].T
        np.fill_diagonal(own, -1)
        out[f"{asks} asks {found}, first"] = round(float((near.argmax(axis=1) == np.arange(len(rows))).mean()), 3)
        out[f"{asks} asks {found}, first five"] = round(first_five(own, wanted, wanted), 3)
    return [out]


def measure(items: Items, name: str) -> list[dict[str, Any]]:
    """Everything that is measured of one encoder on one set."""
    n = items.n_train
    train, test = slice(0, n), slice(n, len(items.texts))
    encoder = get_encoder(name)
    start = time.process_time()
    fit_encoder(encoder, items.texts[train], items.labels[train])
    learned = time.process_time() - start
    start = time.process_time()
    features = encode_items(encoder, items.texts, workers=1, strict=True).features
    seconds = time.process_time() - start
    other = encode_items(encoder, items.other[test], workers=1, strict=True).features
    order = np.random.default_rng(0).permutation(n)  # texts in an order of their own
    X = {"image": items.images[train], "text": features[train][order]}
    Y = {"image": items.labels[train], "text": items.labels[train][order]}
    row: dict[str, Any] = {
        "part": "measured",
        "data": items.name,
        "encoder": name,
        "training items": n,
        "queries": len(items.texts) - n,
        "features": int(features.shape[1]),
        "scale": getattr(encoder, "learned_scale", None),
        "fit_cpu_seconds": round(learned, 1),
        "cpu_ms_per_text": round(1e3 * seconds / len(items.texts), 2),
    }
    labels = items.labels[test]
    for method in (AMSH, RLH):
        model = method(n_bits=N_BITS, n_anchors=min(N_ANCHORS, n), random_state=0).fit(X, Y)
        unseen = {"image": items.images[test], "text": features[test]}
        signs = {key: np.sign(values) for key, values in model.decision_function(unseen).items()}
        asked = np.sign(model.decision_function({"text": other})["text"])
        label = method.__name__
        row[f"{label}, image to text"] = expected_map(signs["image"], signs["text"], labels)
        row[f"{label}, text to image"] = expected_map(signs["text"], signs["image"], labels)
        row[f"{label}, other language to image"] = expected_map(asked, signs["image"], labels)
        if method is not AMSH:
            continue
        pictures = unpack_signs(model.codes_["image"], N_BITS).astype(np.float32)
        wanted = items.labels[:, items.relevant]
        known = {word for text in items.texts[train] for word in words_of(text)}
        pairs = [
            (word, number)
            for number in range(n, len(items.texts))
            for word in dict.fromkeys(words_of(items.texts[number]))
        ]
        drawn = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))]
        kinds = {
            "known words": [one for one in drawn if one[0] in known][:MAX_WORDS],
            "unknown words": [one for one in drawn if one[0] not in known][:MAX_WORDS],
        }
        row["texts, first five"] = round(first_five(signs["text"] @ pictures.T, wanted[train], wanted[test]), 3)
        row["other language, first five"] = round(first_five(asked @ pictures.T, wanted[train], wanted[test]), 3)
        for kind, some in kinds.items():
            codes = pack_signs(model.decision_function({"text": encoder.encode([word for word, _ in some])})["text"])
            scores = unpack_signs(codes, N_BITS).astype(np.float32) @ pictures.T
            row[f"{kind}, first five"] = round(first_five(scores, wanted[train], wanted[[own for _, own in some]]), 3)
    vectors = [normalize(values) for values in (other, features[test])]
    near = vectors[0] @ vectors[1].T
    near = near.toarray() if sparse.issparse(near) else near
    right = near[np.arange(len(near)), np.arange(len(near))]
    row["other language finds its text first"] = round(
        float((right > 0)[right >= near.max(axis=1)].sum() / len(near)), 3
    )
    return [row]


def expected_map(queries: np.ndarray, database: np.ndarray, labels: np.ndarray) -> float:
    """MAP over the full ranking by Hamming distance, ties in expectation, of items in the same order."""
    return round(float(mean_average_precision(pack_signs(queries), labels, pack_signs(database), labels)), 3)


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("MODALHASH_DATA"), help="folder of data sets")
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="where the emoji are drawn")
    parser.add_argument("--cache", type=Path, help="where vectors of E5 are kept")
    parser.add_argument("--encoders", nargs="*", default=ENCODERS)
    parser.add_argument("--table", action="store_true", help="only print the results there are")
    parser.add_argument("--fresh", action="store_true", help="measure again what there are results of")
    args = parser.parse_args()
    if args.table:
        return print_table()
    kept = Kept(args.cache)
    sets: dict[str, Callable[[], Items]] = {"openmoji": cache(partial(openmoji, args.demo))}
    if args.data and (args.data / "iapr-tc12" / "items.jsonl").is_file():
        sets |= {f"iapr-tc12-{name}": cache(partial(iapr, args.data / "iapr-tc12", name)) for name in ("en", "de")}
    emoji = "openmoji"
    steps: list[tuple[tuple[str, ...], Callable[[Items], list[dict[str, Any]]]]] = [
        (("choices", emoji), choices),
        *((("measured", data, name), partial(measure, name=name)) for name in args.encoders for data in sets),
        (("prefixes", emoji), prefixes),
    ]
    file = RESULTS / "semantic.json"
    rows: list[dict[str, Any]] = []
    if file.exists() and not args.fresh:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    for key, step in steps:
        if key in {(row["part"], row["data"], *filter(None, [row.get("encoder")])) for row in rows}:
            continue
        rows += step(sets[key[1]]())
        print(json.dumps(rows[-1]), flush=True)
        kept.save()
        write("semantic", rows)


def print_table() -> None:
    """The results as tables for the documentation."""
    rows = json.loads((RESULTS / "semantic.json").read_text(encoding="utf-8"))["rows"]
    for data in dict.fromkeys(row["data"] for row in rows if row["part"] == "measured"):
        print(f"\n{data}\n")
        print(
            "| encoder | scale | AMSH, I→T / T→I | RLH, I→T / T→I | a text | a known word | an unknown word |", end=""
        )
        print(" the other language | T→I | finds its text |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for row in rows:
            if row["part"] != "measured" or row["data"] != data:
                continue
            cells = [f"`{row['encoder']}`", "" if row["scale"] is None else f"{row['scale']:g}"]
            cells += [
                f"{row[f'{method}, image to text']:.3f} / {row[f'{method}, text to image']:.3f}"
                for method in ("AMSH", "RLH")
            ]
            asked = ("texts", "known words", "unknown words", "other language")
            cells += [f"{row[f'{key}, first five']:.3f}" for key in asked]
            cells += [
                f"{row[key]:.3f}" for key in ("RLH, other language to image", "other language finds its text first")
            ]
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
