"""From which radius and cosine on two items are near-duplicates: chosen on training items with planted copies.

Photos of IAPR TC-12 and pictures of OpenMoji are saved again as smaller JPEG files, resized, cropped, made lighter;
captions and names get a word less, another word, another order. Photos are also mirrored, turned and cropped further:
by these copies the correlation is chosen from which pixels tell the same photo, and what features alone find of them is
counted for two encoders. The embedding is learned from four fifths of the
sampled training items, and never from a copy. A pair of a copy and an item is right if the copy was made of that item.
Real collections have near-duplicates of their own, which count as wrong here unless they are identical: precision is a
lower bound.

    python benchmarks/quality/duplicates.py            # about ten minutes on two cores; needs the extra photos
    python benchmarks/quality/duplicates.py --items 500 --copies 100

Results go to benchmarks/results/duplicates.json. No item of a test split is read.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from modalhash.core.codes import pack_signs
from modalhash.core.files import write_atomically
from modalhash.core.typing import Array
from modalhash.data.catalog import data_root
from modalhash.data.sets import openmoji
from modalhash.encoders import ImageEncoder, TfidfEncoder, encode_items, get_encoder, read_picture
from modalhash.engine.search.near_duplicates import (
    DUPLICATE_RADIUS,
    DUPLICATE_THRESHOLD,
    Group,
    group_vectors,
    join_same,
    share_of_words,
    words_in,
)
from modalhash.engine.search.picture_prints import PRINT, SIDE, find_same, print_of
from modalhash.engine.search.refinement import learn_refinement

RESULTS = Path(__file__).parents[1] / "results" / "duplicates.json"
THRESHOLDS = (0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)
RADII = (2, 3, 4, 5, 6, 7, 8, 10, 12)
SHARED = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)
CORRELATIONS = (0.85, 0.9, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98)
PHOTO_ENCODERS = ("image", "efficientnet-lite0")
N_GROUPED = 7000
AS_GOOD = 0.001
"""Of correlations with nearly the best F1 the largest is chosen: collections have more that looks alike than these."""
LEAST_SHARE = 0.99
PAPER = (255, 255, 255)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=4000, help="training items of each collection")
    parser.add_argument("--copies", type=int, default=300, help="items of which copies are made, of every kind")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name, (originals, changes, encoder) in collections(options.items).items():
        found[name] = measure(originals, changes, encoder, options.copies)
        print(name, flush=True)
    chosen = choose(found)
    photos = measure_photos(options.items, options.copies)
    print(json.dumps({**chosen, **photos}, indent=1))
    if not options.dry:
        written = {"chosen": chosen, "photos by pixels": photos, **found}
        write_atomically(RESULTS, (json.dumps(written, indent=1) + "\n").encode())


# -- items and their copies


def collections(n: int) -> dict[str, tuple[list[Any], dict[str, Callable[..., Any]], Any]]:
    """Return items of training splits, how they are changed, and what encodes them."""
    lines, photos = iapr(n)
    emoji = sample([item for item in openmoji.emoji_list() if openmoji.is_training(item.id)], n)
    return {
        "iapr-tc12, photos": (photos, PICTURE_CHANGES, ImageEncoder()),
        "openmoji, pictures": ([openmoji.png(e.id, size=144) for e in emoji], PICTURE_CHANGES, ImageEncoder()),
        "iapr-tc12, captions": ([line["caption_en"] for line in lines], TEXT_CHANGES, TfidfEncoder()),
        "openmoji, names": (openmoji.names(emoji), TEXT_CHANGES, TfidfEncoder()),
    }


def iapr(n: int | None) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return some or all training items of IAPR TC-12 and their photos."""
    folder = data_root() / "iapr-tc12"
    lines = [json.loads(line) for line in (folder / "items.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = sample([line for line in lines if line["split"] == "train"], n)
    with zipfile.ZipFile(folder / "images.zip") as archive:
        return lines, [archive.read(line["image"]) for line in lines]


def sample(items: list[Any], n: int | None) -> list[Any]:
    rows = np.random.default_rng(0).permutation(len(items))[:n]
    return [items[row] for row in np.sort(rows)]


def on_paper(data: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(data)).convert("RGBA")
    paper = Image.new("RGBA", picture.size, (*PAPER, 255))
    return Image.alpha_composite(paper, picture).convert("RGB")


def saved(picture: Image.Image, form: str = "JPEG", quality: int = 90) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **({"quality": quality} if form == "JPEG" else {}))
    return file.getvalue()


def cropped(data: bytes, share: float) -> bytes:
    picture = on_paper(data)
    x, y = (round(side * share / 2) for side in picture.size)
    return saved(picture.crop((x, y, picture.width - x, picture.height - y)))


def resized(data: bytes, share: float) -> bytes:
    picture = on_paper(data)
    size = [max(1, round(side * share)) for side in picture.size]
    return saved(picture.resize((size[0], size[1]), Image.Resampling.LANCZOS))


PICTURE_CHANGES: dict[str, Callable[..., Any]] = {
    "saved as PNG": lambda data, rng: saved(on_paper(data), "PNG"),
    "saved as JPEG, quality 75": lambda data, rng: saved(on_paper(data), quality=75),
    "saved as JPEG, quality 40": lambda data, rng: saved(on_paper(data), quality=40),
    "two thirds of the size": lambda data, rng: resized(data, 2 / 3),
    "twice the size": lambda data, rng: resized(data, 2),
    "cropped by 3 %": lambda data, rng: cropped(data, 0.03),
    "cropped by 8 %": lambda data, rng: cropped(data, 0.08),
    "10 % lighter": lambda data, rng: saved(ImageEnhance.Brightness(on_paper(data)).enhance(1.1)),
}


def turned(data: bytes, way: Image.Transpose) -> bytes:
    return saved(on_paper(data).transpose(way))


def cut_anywhere(data: bytes, share: float, rng: np.random.Generator) -> bytes:
    """Return a picture without a share of its width and height, not the same at both ends."""
    picture = on_paper(data)
    width, height = (round(side * (1 - share)) for side in picture.size)
    x, y = rng.integers(picture.width - width + 1), rng.integers(picture.height - height + 1)
    return saved(picture.crop((x, y, x + width, y + height)))


PHOTO_CHANGES: dict[str, Callable[..., Any]] = {
    **PICTURE_CHANGES,
    "cropped by 10 %": lambda data, rng: cropped(data, 0.10),
    "cropped by 15 %": lambda data, rng: cropped(data, 0.15),
    "cropped by 15 %, anywhere": lambda data, rng: cut_anywhere(data, 0.15, rng),
    "mirrored": lambda data, rng: turned(data, Image.Transpose.FLIP_LEFT_RIGHT),
    "turned by 90°": lambda data, rng: turned(data, Image.Transpose.ROTATE_90),
    "turned by 180°": lambda data, rng: turned(data, Image.Transpose.ROTATE_180),
    "turned by 270°": lambda data, rng: turned(data, Image.Transpose.ROTATE_270),
    "mirrored and cropped by 10 %": lambda data, rng: turned(
        cut_anywhere(data, 0.10, rng), Image.Transpose.FLIP_LEFT_RIGHT
    ),
}


def without_a_word(text: str, rng: np.random.Generator) -> str:
    words = text.split()
    del words[rng.integers(len(words))]
    return " ".join(words) or text


def with_another_word(text: str, rng: np.random.Generator) -> str:
    words = text.split()
    words[rng.integers(len(words))] = OTHER_WORDS[rng.integers(len(OTHER_WORDS))]
    return " ".join(words)


OTHER_WORDS = (
    *("tree", "street", "water", "mountain", "blue", "child", "window"),
    *("table", "animal", "old", "car", "flower", "round", "large"),
)
TEXT_CHANGES: dict[str, Callable[..., Any]] = {
    "upper case": lambda text, rng: text.upper(),
    "another order": lambda text, rng: " ".join(rng.permutation(text.split())),
    "without a word": without_a_word,
    "another word": with_another_word,
}


# -- what is found


def measure(originals: list[Any], changes: dict[str, Callable[..., Any]], encoder: Any, copies: int) -> dict[str, Any]:
    """Return precision, recall and F1 by threshold and share of words, and how many right pairs a radius keeps."""
    rng = np.random.default_rng(1)
    sources = np.sort(rng.permutation(len(originals))[:copies])
    changed = [change(originals[row], rng) for change in changes.values() for row in sources]
    learned_from = np.flatnonzero(np.arange(len(originals)) % 5 > 0)
    if hasattr(encoder, "fit"):
        encoder.fit([originals[row] for row in learned_from])
    X = encode_items(encoder, originals).features
    made = learn_refinement(None, {"items": X[learned_from]}, None).refinement
    cosines, distances = compare(
        made.embeddings("items", encode_items(encoder, changed).features), made.embeddings("items", X)
    )
    right = np.tile(sources, len(changes))
    pairs = np.arange(len(changed)), right
    twice = np.array([[originals[row] == other for other in originals] for row in sources])  # in the collection itself
    twice = np.tile(twice, (len(changes), 1))
    twice[pairs] = False
    texts = isinstance(originals[0], str)
    shares = overlaps(changed, originals, cosines) if texts else np.ones_like(cosines)
    table = []
    for threshold in THRESHOLDS:
        for shared in SHARED if texts else SHARED[:1]:
            near = (cosines >= threshold) & (shares >= shared) & ~twice
            own = near[pairs]
            precision, recall = own.sum() / max(1, near.sum()), own.mean()
            table.append(
                {
                    "threshold": threshold,
                    "words": shared,
                    "precision": round(float(precision), 4),
                    "recall": round(float(recall), 4),
                    "f1": round(float(2 * precision * recall / max(1e-9, precision + recall)), 4),
                    "recall by change": dict(
                        zip(changes, own.reshape(len(changes), -1).mean(axis=1).round(3).tolist(), strict=True)
                    ),
                    "within radius": {
                        str(radius): round(float((distances[pairs][own] <= radius).mean()), 4) for radius in RADII
                    },
                }
            )
    return {"items": len(originals), "copies": len(changed), "texts": texts, "table": table}


# -- photos by their pixels


def measure_photos(n: int, copies: int) -> dict[str, Any]:
    """Return what pixels find of changed photos, by the least correlation, and what features find without them."""
    _, photos = iapr(n)
    rng = np.random.default_rng(1)
    sources = np.sort(rng.permutation(n := len(photos))[:copies])
    changed = [change(photos[row], rng) for change in PHOTO_CHANGES.values() for row in sources]
    right = np.tile(sources, len(PHOTO_CHANGES))
    scores = pixel_scores(photos, changed, len(sources))
    twice = np.array([[photos[row] == other for other in photos] for row in sources])
    twice = np.tile(twice, (len(PHOTO_CHANGES), 1))
    twice[np.arange(len(changed)), right] = False
    by_correlation = {str(least): rates(scores >= least, right, twice) for least in CORRELATIONS}
    best_f1 = max(row["f1"] for row in by_correlation.values())
    best = max(least for least in CORRELATIONS if by_correlation[str(least)]["f1"] >= best_f1 - AS_GOOD)
    return {
        "correlation": best,
        "by correlation": by_correlation,
        "encoders": {
            name: with_encoder(name, photos, changed, right, twice, scores >= best) for name in PHOTO_ENCODERS
        },
        "groups": {name: grouped(name, best) for name in PHOTO_ENCODERS},
    }


def prints_of(photos: list[bytes]) -> Array:
    prints = np.zeros(len(photos), PRINT)
    for row, data in enumerate(photos):
        prints["colours"][row], prints["grey"][row] = print_of(read_picture(data, size=SIDE))
    return prints


def pixel_scores(photos: list[bytes], changed: list[bytes], copies: int) -> Array:
    """Return correlations (changed, photos), 0 where they are small; copies of one kind are searched at a time."""
    originals, prints = prints_of(photos), prints_of(changed)
    n, scores = len(photos), np.zeros((len(changed), len(photos)), np.float32)
    for start in range(0, len(changed), copies):
        same = find_same(np.concatenate([originals, prints[start : start + copies]]), min(CORRELATIONS))
        pairs = (same.left < n) & (same.right >= n)
        scores[start + same.right[pairs] - n, same.left[pairs]] = same.scores[pairs]
    return scores


def rates(near: Array, right: Array, twice: Array) -> dict[str, Any]:
    """Return precision, recall and F1 of pairs, and the recall of every kind of copy."""
    near = near & ~twice
    own = near[np.arange(len(right)), right]
    precision, recall = own.sum() / max(1, near.sum()), own.mean()
    return {
        "precision": round(float(precision), 4),
        "recall": round(float(recall), 4),
        "f1": round(float(2 * precision * recall / max(1e-9, precision + recall)), 4),
        "recall by change": dict(
            zip(PHOTO_CHANGES, own.reshape(len(PHOTO_CHANGES), -1).mean(axis=1).round(3).tolist(), strict=True)
        ),
    }


def with_encoder(
    name: str, photos: list[bytes], changed: list[bytes], right: Array, twice: Array, same: Array
) -> dict[str, Any]:
    """Return what features find, and features and pixels together."""
    encoder = get_encoder(name)
    X = encode_items(encoder, photos).features
    made = learn_refinement(None, {"items": X[np.arange(len(X)) % 5 > 0]}, None).refinement
    cosines, distances = compare(
        made.embeddings("items", encode_items(encoder, changed).features), made.embeddings("items", X)
    )
    near = (cosines >= DUPLICATE_THRESHOLD) & (distances <= DUPLICATE_RADIUS)
    return {"features": rates(near, right, twice), "features and pixels": rates(near | same, right, twice)}


def grouped(name: str, least: float) -> dict[str, Any]:
    """Return how many groups there are among the first photos as they are, by features and with pixels."""
    photos = iapr(None)[1][:N_GROUPED]
    X = encode_items(get_encoder(name), photos).features
    made = learn_refinement(None, {"items": X}, None).refinement
    alike = group_vectors(made.embeddings("items", X), radius=DUPLICATE_RADIUS, threshold=DUPLICATE_THRESHOLD)
    groups = [Group(rows, cosines, len({photos[row] for row in rows}) == 1) for rows, cosines in alike]
    others = {row for group in groups for row in group.numbers[1:].tolist()}
    firsts = np.array([row for row in range(len(photos)) if row not in others])
    joined = join_same(groups, firsts, find_same(prints_of([photos[row] for row in firsts.tolist()]), least))
    return {
        "photos": len(photos),
        "features": {"exact": sum(group.exact for group in groups), "near": sum(not group.exact for group in groups)},
        "features and pixels": {
            "exact": sum(group.exact for group in joined),
            "near": sum(not group.exact for group in joined),
            "that pixels made or joined": sum(bool(group.by_pixels) for group in joined),
        },
    }


def overlaps(changed: list[str], originals: list[str], cosines: Array) -> Array:
    """Return the share of words of pairs whose cosine comes into question, 0 for the others."""
    left, right = [words_in(text) for text in changed], [words_in(text) for text in originals]
    shares = np.zeros_like(cosines)
    for row, column in np.argwhere(cosines >= min(THRESHOLDS)).tolist():
        shares[row, column] = share_of_words(left[row], right[column])
    return shares


def choose(found: dict[str, Any]) -> dict[str, Any]:
    """Return threshold and share of words of the best mean F1, and the smallest radius that keeps 99 % of the pairs."""

    def at(one: dict[str, Any], threshold: float, shared: float) -> dict[str, Any]:
        wanted = threshold, shared if one["texts"] else SHARED[0]
        return next(row for row in one["table"] if (row["threshold"], row["words"]) == wanted)

    def mean_f1(choice: tuple[float, float]) -> float:
        return float(np.mean([at(one, *choice)["f1"] for one in found.values()]))

    best = max(((threshold, shared) for threshold in THRESHOLDS for shared in SHARED), key=mean_f1)
    kept = {radius: min(at(one, *best)["within radius"][str(radius)] for one in found.values()) for radius in RADII}
    enough = [radius for radius in RADII if kept[radius] >= LEAST_SHARE]
    return {
        "threshold": best[0],
        "words": best[1],
        "radius": enough[0] if enough else RADII[-1],
        "mean f1": round(mean_f1(best), 4),
        "collections": {
            name: {key: at(one, *best)[key] for key in ("precision", "recall", "recall by change")}
            for name, one in found.items()
        },
        "kept within radius, at least": kept,
        "mean f1 by threshold": {str(t): round(mean_f1((t, best[1])), 4) for t in THRESHOLDS},
        "mean f1 by share of words": {str(s): round(mean_f1((best[0], s)), 4) for s in SHARED},
    }


def compare(queries: Array, items: Array) -> tuple[Array, Array]:
    """Return cosines of embeddings and Hamming distances of sketches, (queries, items)."""

    def unit(vectors: Array) -> Array:
        values = vectors.astype(np.float32)
        return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1)

    def signs(vectors: Array) -> Array:
        return np.unpackbits(pack_signs(vectors), axis=1)[:, : vectors.shape[1]].astype(np.float32) * 2 - 1

    agreeing = signs(queries) @ signs(items).T
    return unit(queries) @ unit(items).T, np.rint((queries.shape[1] - agreeing) / 2).astype(np.int16)


if __name__ == "__main__":
    main()
