"""Do everyday words find what a person would accept? The demonstration, judged by a list that was written before.

    python benchmarks/quality/demo_words.py [--demo demo] [--seed 0] [--quality fast]

Takes up or trains the demonstration in a folder, searches its pictures for each word of tests/cli/demo_words.toml, and
prints the first five with what is acceptable. Nothing is chosen by these words; what is chosen, is by
``single_words.py``, on folds of training items.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

from modalhash import Engine
from modalhash.data.sets.openmoji import emoji_list, labels_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "speed"))

LIST = ROOT / "tests" / "cli" / "demo_words.toml"
K, ENOUGH = 5, 4
"""Hits that are looked at, and how many of them a person has to accept."""


def read_list() -> tuple[dict[str, list[str]], list[str]]:
    """What is acceptable for each everyday word, and the words that no text has."""
    content = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return content["words"], content["unknown"]


def read_meanings() -> tuple[dict[str, list[str]], list[str]]:
    """What is acceptable for each word that only means what pictures show, and what nobody understands."""
    content = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return content["meaning"], content["nonsense"]


def judge(engine: Engine, words: dict[str, list[str]], unknown: list[str]) -> list[dict[str, Any]]:
    """A row for each word: what it finds, which of that is acceptable, and whether all of it is marked as weak."""
    subgroups = {item.id: set(labels_of(item)) for item in emoji_list()}  # without the keywords that are labels as well
    rows: list[dict[str, Any]] = []
    for word in (*words, *unknown):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that nothing is known of a word, which is what is tried
            hits = engine.search(text=word, want="image", k=K)
        accepted = set(words.get(word, ()))
        rows.append(
            {
                "word": word,
                "known": word in words,
                "found": [str(hit.extra["emoji"]) for hit in hits],
                "acceptable": [bool(accepted & subgroups[hit.id]) for hit in hits],
                "distance": hits[0].distance,
                "weak": all(hit.to_dict().get("weak", False) for hit in hits),
            }
        )
    return rows


def totals(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Words with an acceptable first hit, with four among five, and unknown ones whose hits are marked as weak."""
    known = [row for row in rows if row["known"]]
    return {
        "words": len(known),
        "first": sum(row["acceptable"][0] for row in known),
        "four of five": sum(sum(row["acceptable"]) >= ENOUGH for row in known),
        "unknown": len(rows) - len(known),
        "unknown, weak": sum(row["weak"] for row in rows if not row["known"]),
        "known, weak": sum(row["weak"] for row in known),
    }


def main() -> None:
    from rich.console import Console

    from modalhash.cli.demo import show
    from record import write

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="folder of the demonstration")
    parser.add_argument("--seed", type=int, default=0, help="of its training")
    parser.add_argument("--quality", default="best", help="of its encoders")
    args = parser.parse_args()
    with show(Console(stderr=True), args.demo, seed=args.seed, quality=args.quality) as engine:
        rows, meant = judge(engine, *read_list()), judge(engine, *read_meanings())
    for row in (*rows, *meant):
        marks = "".join("+" if one else "-" for one in row["acceptable"]) if row["known"] else "unknown"
        print(f"{row['word']:15}{marks:9}{'  '.join(row['found'])}   {row['distance']} bits{', weak' * row['weak']}")
    print(totals(rows))
    print(totals(meant))
    told = {"seed": args.seed, "quality": args.quality}
    write("demo_words", [{**told, **totals(rows)}, *rows, {**told, "list": "meaning", **totals(meant)}, *meant])


if __name__ == "__main__":
    main()
