"""How well AMSH does with each encoder: IAPR TC-12 photos and captions, 64 bits, no pairs given.

    python benchmarks/quality/encoders.py DATA [--photos image efficientnet-lite0] [--texts tfidf hashing minilm]
                                  [--languages de en] [--items 4000] [--seeds 1] [--cache FOLDER]

DATA holds ``images.zip`` and ``items.jsonl``. Every pair of a photo and a text encoder is measured: tie-expected mAP
over the full ranking on learned, hashed and unseen databases (the unseen one is the queries themselves). With
``--items`` the training items are the first of a fixed shuffle and all queries stay. Rows of earlier runs are
kept in ``results/encoders.json`` unless measured anew. Times are processor seconds: the machine may be shared.
The labels were drawn from the English captions, so English texts give them away.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
from scipy import sparse

from modalhash import AMSH
from modalhash.data import Dataset, Split
from modalhash.encoders import encode_items, get_encoder
from modalhash.evaluation import evaluate_databases

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from record import RESULTS, write

BITS = 64
KEYS = ("photos", "texts", "language", "training_items", "seed")


def load_items(folder: Path, limit: int | None) -> list[dict]:
    with (folder / "items.jsonl").open(encoding="utf-8") as lines:
        items = [json.loads(line) for line in lines]
    items = [item for item in items if item["caption_de"].strip() and item["caption_en"].strip()]
    training = [item for item in items if item["split"] == "train"]
    if limit is not None:
        order = np.random.default_rng(0).permutation(len(training))[:limit]
        training = [training[i] for i in sorted(order.tolist())]
    return training + [item for item in items if item["split"] != "train"]


def encoded(name: str, contents: list, n_training: int, cache: Path | None, key: str):
    """Features, features per item, and processor milliseconds per item; from the cache if they are there."""
    path = None if cache is None else cache / f"{name}-{key}-{n_training}.npz"
    if path is not None and path.exists():
        with np.load(path) as file:
            values = {part: file[part] for part in file.files}
        ms = float(values.pop("ms"))
        dense = values.get("dense")
        features = (
            dense if dense is not None else sparse.csr_array((values["d"], values["i"], values["p"]), values["s"])
        )
        return features, ms
    encoder = get_encoder(name)
    encoder.fit(contents[:n_training])
    start = time.process_time()
    features, rows, failures = encode_items(encoder, contents, workers=1, strict=True)
    ms = (time.process_time() - start) / len(rows) * 1e3
    assert not failures
    if path is not None:
        cache.mkdir(parents=True, exist_ok=True)
        parts = {"dense": features}
        if sparse.issparse(features):
            parts = {"d": features.data, "i": features.indices, "p": features.indptr, "s": np.array(features.shape)}
        np.savez(path, ms=ms, **parts)
    return features, ms


def dataset_of(items: list[dict], features: dict) -> Dataset:
    names = sorted({label for item in items for label in item["labels"]})
    labels = np.array([[name in item["labels"] for name in names] for item in items])
    ids = np.array([item["id"] for item in items])
    train = np.array([item["split"] == "train" for item in items])
    split = Split(dict.fromkeys(features, ids[train]), dict.fromkeys(features, ids[~train]))
    both = dict.fromkeys(features, labels)
    return Dataset(features, both, dict.fromkeys(features, ids), class_names=names, name="iapr-tc12", split=split)


def measure(dataset: Dataset, seed: int) -> dict:
    parts = dataset.parts()
    start = time.process_time()
    model = AMSH(BITS, random_state=seed).fit(parts.training.features, parts.training.labels)
    seconds = time.process_time() - start
    found = evaluate_databases(model, parts)
    scores = {
        database: {f"{a} to {b}": round(float(direction.map), 4) for (a, b), direction in result.directions.items()}
        for database, result in found.items()
    }
    return {"map": scores, "fit_cpu_seconds": round(seconds, 1)}


def keep(row: dict) -> None:
    path = RESULTS / "encoders.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    same = [row[key] for key in KEYS]
    rows = [old for old in rows if [old[key] for key in KEYS] != same]
    write("encoders", sorted([*rows, row], key=lambda r: [str(r[key]) for key in KEYS]))


def print_table() -> None:
    """The results as a table for the documentation."""
    print("| photos | texts | captions | trained on | learned | hashed | unseen |\n|---|---|---|---|---|---|---|")
    for row in json.loads((RESULTS / "encoders.json").read_text())["rows"]:
        scores = [
            f"{row['map'][name]['image to text']:.3f} / {row['map'][name]['text to image']:.3f}"
            for name in ("learned", "hashed", "unseen")
        ]
        cells = [f"`{row['photos']}`", f"`{row['texts']}`", row["language"], f"{row['training_items']:,}", *scores]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--photos", nargs="*", default=["image"])
    parser.add_argument("--texts", nargs="*", default=["tfidf", "hashing"])
    parser.add_argument("--languages", nargs="*", default=["de", "en"])
    parser.add_argument("--items", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--table", action="store_true", help="only print the results there are")
    options = parser.parse_args()
    if options.table:
        return print_table()
    warnings.simplefilter("ignore")
    items = load_items(options.data, options.items)
    n = sum(item["split"] == "train" for item in items)
    with zipfile.ZipFile(options.data / "images.zip") as archive:
        photos = [archive.read(item["image"]) for item in items]
    for photo in options.photos:
        X_photo, photo_ms = encoded(photo, photos, n, options.cache, "photos")
        for text in options.texts:
            for language in options.languages:
                captions = [item[f"caption_{language}"] for item in items]
                X_text, text_ms = encoded(text, captions, n, options.cache, language)
                for seed in range(options.seeds):
                    row = {
                        "photos": photo,
                        "texts": text,
                        "language": language,
                        "training_items": n,
                        "queries": len(items) - n,
                        "seed": seed,
                        "bits": BITS,
                        "dim": {"image": X_photo.shape[1], "text": X_text.shape[1]},
                        "cpu_ms_per_item": {"image": round(photo_ms, 3), "text": round(text_ms, 3)},
                        **measure(dataset_of(items, {"image": X_photo, "text": X_text}), seed),
                    }
                    print(json.dumps(row), flush=True)
                    keep(row)


if __name__ == "__main__":
    main()
