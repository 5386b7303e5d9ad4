"""How well words find photos: none labelled, a tenth labelled, all labelled.

    python benchmarks/quality/photos.py --data DATA [--choose] [--work FOLDER]

Engines are trained as a person would train them, from IAPR TC-12's photos, and searched by single keywords in English
and German, and by captions. A photo is right for a keyword if it has it: keywords come from captions and leave out
much of what photos show, so that an eye finds more hits right than these figures say. A caption has to find its photo.

``--choose`` takes 3,000 training photos instead of the 1,962 test photos: by it the recipe of the space of names
(modalhash.encoders.names), the weight of meanings (modalhash.engine.search.ordering) and the curve of confidence where
nothing is labelled (modalhash.engine.search.confidence) were chosen, and that curve is fitted again. Without it
results are written to benchmarks/results/photos.json, from which docs/measurements/photos.md is made.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from modalhash.engine import Engine, Hit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from record import RESULTS, write

N_CHOSEN, N_LABELLED = 3000, 5000
"""Training photos that choices are made on, and those that are labelled where all are."""
TENTH = 10
LEAST = 5
"""Photos that have a keyword, at least, for it to be asked for."""
GERMAN = {
    "airplane": "Flugzeug", "beach": "Strand", "bed": "Bett", "bench": "Bank", "bicycle": "Fahrrad", "bird": "Vogel",
    "boat": "Boot", "bottle": "Flasche", "bridge": "Brücke", "building": "Gebäude", "bus": "Bus", "cactus": "Kaktus",
    "canyon": "Schlucht", "car": "Auto", "cathedral": "Kathedrale", "chair": "Stuhl", "church": "Kirche",
    "city": "Stadt", "cliff": "Klippe", "cloud": "Wolke", "coast": "Küste", "cyclist": "Radfahrer", "desert": "Wüste",
    "dog": "Hund", "dune": "Düne", "flag": "Flagge", "flower": "Blume", "forest": "Wald", "fountain": "Brunnen",
    "garden": "Garten", "glacier": "Gletscher", "grass": "Gras", "harbour": "Hafen", "helmet": "Helm",
    "highway": "Autobahn", "horse": "Pferd", "house": "Haus", "island": "Insel", "jeep": "Jeep", "lake": "See",
    "lamp": "Lampe", "lion": "Löwe", "llama": "Lama", "meadow": "Wiese", "monument": "Denkmal", "mountain": "Berg",
    "night": "Nacht", "painting": "Gemälde", "palm": "Palme", "penguin": "Pinguin", "pool": "Schwimmbad",
    "racetrack": "Rennstrecke", "restaurant": "Restaurant", "river": "Fluss", "road": "Straße", "rock": "Felsen",
    "room": "Zimmer", "ruin": "Ruine", "sea": "Meer", "ship": "Schiff", "shop": "Laden", "skyline": "Skyline",
    "skyscraper": "Wolkenkratzer", "snow": "Schnee", "square": "Platz", "stadium": "Stadion", "statue": "Statue",
    "street": "Gasse", "summit": "Gipfel", "sunset": "Sonnenuntergang", "surfer": "Surfer", "table": "Tisch",
    "tennis": "Tennis", "tent": "Zelt", "tower": "Turm", "train": "Zug", "tree": "Baum", "valley": "Tal",
    "village": "Dorf", "waterfall": "Wasserfall", "wave": "Welle",
}  # fmt: skip
"""Keywords for things and scenes, and the same in German."""


class Photos:
    """Photos with keywords and captions, extracted to a folder."""

    def __init__(self, data: Path, folder: Path, *, test: bool) -> None:
        lines = [json.loads(line) for line in (data / "items.jsonl").open(encoding="utf-8")]
        train = [line for line in lines if line["split"] == "train"]
        rng = np.random.default_rng(0)
        chosen = [train[row] for row in np.sort(rng.permutation(len(train))[: N_CHOSEN + N_LABELLED])]
        self.others = chosen[N_CHOSEN:]
        self.lines = [line for line in lines if line["split"] != "train"] if test else chosen[:N_CHOSEN]
        self.tenth = set(np.random.default_rng(1).permutation(len(self.lines))[: len(self.lines) // TENTH].tolist())
        self.folder = folder
        with zipfile.ZipFile(data / "images.zip") as archive:
            for line in (*self.lines, *self.others):
                if not (folder / line["image"]).exists():  # so that engines of the last time know their features
                    archive.extract(line["image"], folder)
        self.labels = {line["id"]: set(line["labels"]) for line in self.lines}

    def source(self, labelled: str) -> list[dict[str, Any]]:
        """Return what an engine is trained from: ``none``, a ``tenth``, or ``all`` of the others are labelled."""
        items = [
            self._item(line, labelled=labelled == "tenth" and row in self.tenth) for row, line in enumerate(self.lines)
        ]
        return items + [self._item(line, labelled=True) for line in self.others if labelled == "all"]

    def _item(self, line: dict[str, Any], *, labelled: bool) -> dict[str, Any]:
        item = {"id": line["id"], "path": str(self.folder / line["image"])}
        return {**item, "labels": line["labels"]} if labelled else item

    def keywords(self) -> list[str]:
        """Return the keywords of things and scenes that enough photos have."""
        counts = {word: sum(word in own for own in self.labels.values()) for word in GERMAN}
        return [word for word, n in counts.items() if n >= LEAST]


def word_measures(engine: Engine, photos: Photos, words: Sequence[str], asked: Sequence[str]) -> dict[str, Any]:
    """Return mAP, the precision of the first 10 and confidence, among photos without labels and among all."""
    unlabelled: dict[str, list[float]] = {"map": [], "p10": []}
    every: dict[str, list[float]] = {"map": [], "p10": []}
    pairs: list[tuple[float, bool, bool, float]] = []
    own = set(photos.labels)
    for word, hits in zip(words, engine.search_many(text=list(asked), k=len(engine), want="image"), strict=True):
        hits = [hit for hit in hits if hit.id in own]
        right = np.array([word in photos.labels[hit.id] for hit in hits])
        known = np.array([bool(hit.labels) for hit in hits])
        for found, chosen in ((every, right), (unlabelled, right[~known])):
            found["map"].append(_average_precision(chosen))
            found["p10"].append(float(chosen[:10].mean()))
        pairs += [(hit.confidence or 0.0, bool(good), bool(hit.labels), _cosine(hit)) for hit, good in
                  zip(hits[:24], right[:24], strict=True)]  # fmt: skip
    return {
        "words": len(words),
        "unlabelled": {name: round(float(np.mean(values)), 3) for name, values in unlabelled.items()},
        "all": {name: round(float(np.mean(values)), 3) for name, values in every.items()},
        "confidence_error": {
            name: _calibration_error([pair for pair in pairs if pair[2] == wanted])
            for name, wanted in (("labelled", True), ("unlabelled", False))
        },
        "most_certain_wrong": round(max((pair[0] for pair in pairs if not pair[1] and not pair[2]), default=0.0), 3),
        "pairs": pairs,
    }


def caption_recall(engine: Engine, photos: Photos, field: str) -> float:
    """Return the share of captions that find their photo among the first 10, of photos that have no labels."""
    asked = [line for row, line in enumerate(photos.lines) if row not in photos.tenth][:500]
    answers = engine.search_many(text=[line[field] for line in asked], k=10, want="image", kind="hashed")
    found = [line["id"] in {hit.id for hit in hits} for line, hits in zip(asked, answers, strict=True)]
    return round(float(np.mean(found)), 3)


def _average_precision(right: np.ndarray) -> float:
    if not right.any():
        return 0.0
    return float((np.cumsum(right) / np.arange(1, len(right) + 1))[right].mean())


def _calibration_error(pairs: list[tuple[float, bool, bool, float]]) -> float | None:
    """Return the mean difference of confidence and truth over ten equal bins."""
    if len(pairs) < 100:
        return None
    confidence, right = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    bins = np.array_split(np.argsort(confidence, kind="stable"), 10)
    gaps = [abs(confidence[rows].mean() - right[rows].mean()) * len(rows) for rows in bins]
    return round(float(sum(gaps) / len(pairs)), 3)


def _cosine(hit: Hit) -> float:
    return float(hit.score or 0.0)


def fit_curve(pairs: list[tuple[float, bool, bool, float]]) -> None:
    """Print the curve of confidence by the cosine of meanings."""
    cosines, right = np.array([[pair[3]] for pair in pairs]), np.array([pair[1] for pair in pairs])
    curve = LogisticRegression(C=1e4).fit(cosines, right)
    print(f"curve without labels: weight {curve.coef_[0][0]:.2f}, constant {curve.intercept_[0]:.2f}")


def print_table() -> None:
    """Print the results as the table of docs/measurements/photos.md."""
    print(
        "| encoders | labelled | words | P@10 | mAP | P@10 without labels | mAP without labels | caption in first 10 |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in json.loads((RESULTS / "photos.json").read_text(encoding="utf-8"))["rows"]:
        for language in ("en", "de"):
            own, caption = row[language], row.get("captions", {}).get(language)
            values = (own["all"]["p10"], own["all"]["map"], own["unlabelled"]["p10"], own["unlabelled"]["map"], caption)
            cells = " | ".join("" if value is None else f"{value:.3f}".removeprefix("0") for value in values)
            print(f"| `{row['quality']}` | {row['labelled']} | {language} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder that has iapr-tc12/")
    parser.add_argument("--choose", action="store_true", help="on training photos; nothing is written")
    parser.add_argument("--work", type=Path, help="keep photos and engines here, to go on later")
    parser.add_argument("--table", action="store_true", help="print the table of the documentation and stop")
    given = parser.parse_args()
    if given.table:
        print_table()
        return
    warnings.simplefilter("ignore", UserWarning)
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        photos = Photos(given.data / "iapr-tc12", work / "photos", test=not given.choose)
        words, rows = photos.keywords(), []
        for quality in ("best", "fast"):
            for labelled in ("none", "tenth", "all"):
                if (quality, labelled) == ("fast", "none"):
                    continue  # words cannot be searched for
                folder = work / f"{'chosen' if given.choose else 'test'}-{quality}-{labelled}"
                Engine.train(photos.source(labelled), folder, quality=quality, overwrite=True).close()
                with Engine.open(folder, read_only=True) as engine:
                    row: dict[str, Any] = {"quality": quality, "labelled": labelled, "photos": len(photos.lines)}
                    for language, asked in (("en", words), ("de", [GERMAN[word] for word in words])):
                        measured = word_measures(engine, photos, words, asked)
                        pairs = measured.pop("pairs")
                        row[language] = measured
                        if labelled == "none" and language == "en" and given.choose:
                            fit_curve(pairs)
                    if quality == "best":
                        captions = {name: caption_recall(engine, photos, f"caption_{name}") for name in ("en", "de")}
                        row["captions"] = captions
                print(json.dumps(row), flush=True)
                rows.append(row)
    if not given.choose:
        write("photos", rows)


if __name__ == "__main__":
    main()
