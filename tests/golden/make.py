"""Wrote model-1, engine-1 and engine-1.tar.gz; kept to show how.

A golden file is never written again: later formats get their own.

python tests/golden/make.py model FOLDER
python tests/golden/make.py engine FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from little_world import make_world
from modalhash import AMSH, Engine
from modalhash.data import generate
from modalhash.encoders import ImageEncoder
from modalhash.engine import backup_engine
from modalhash.engine.items.item import HOME
from modalhash.engine.storage.folder import FEATURES, read_config, write_config
from modalhash.store import Record

SEARCHES: tuple[dict[str, Any], ...] = (
    {"text": "a red ball", "want": "image", "k": 4, "refine": False},
    {"text": "a ball under the lighthouse", "k": 1},
    {"text": "a blue box", "where": "year > 2000"},
    {"id": "note", "want": "image", "k": 4},
    {"id": "saved", "want": "text", "k": 4},
    {"id": "saved", "want": "image", "k": 2},
)
"""What other machines find as well: no order among hits whose scores differ in the last bits."""


def make_model(folder: Path) -> None:
    data = generate(n_items=40, n_queries=3, n_classes=4, n_features={"image": 6, "text": 5}, seed=7)
    kernel = {"image": "rbf", "text": None}
    model = AMSH(n_bits=10, n_anchors=8, kernel=kernel, random_state=7).fit(data.X, data.Y)
    model.save(folder)
    queries = {name: np.round(X.astype(float), 3) for name, X in data.queries[0].items()}
    expected = {
        "class": "AMSH",
        "queries": {name: X.tolist() for name, X in queries.items()},
        "projections": {
            name: np.round(P.astype(float), 6).tolist() for name, P in model.decision_function(queries).items()
        },
        "codes": {name: codes.tolist() for name, codes in model.codes_.items()},
        "n_iter": model.n_iter_,
    }
    write_expected(folder, expected)


def make_engine(folder: Path) -> None:
    """Train on just enough items for confidence, add two and remove one."""
    with TemporaryDirectory() as name:
        world, made = Path(name), Path(name) / "engine"
        encoders = {"image": ImageEncoder(parts=["colours"])}
        parameters = {"n_anchors": 8}
        manifest = make_world(world, n=100)
        with Engine.train(
            manifest, made, n_bits=16, quality="fast", encoders=encoders, parameters=parameters
        ) as engine:
            picture = (world / "photos" / "0.png").read_bytes()
            engine.add([{"id": "saved", "data": picture, "labels": ["green", "square"], "year": 1999}], keep=True)
            note = {"id": "note", "text": "a red ball under the lighthouse", "labels": ["red", "circle"], "year": 2006}
            engine.add([note])
            engine.remove(["photos/1.png"])
            expected = {
                "items": len(engine),
                "labels": engine.labels(),
                "records": list(map(describe, engine.records(["photos/0.png", "saved", "note"]))),
                "searches": [{"query": query, "hits": find(engine, query)} for query in SEARCHES],
            }
        (made / FEATURES).unlink()  # a cache
        write_config(made, {**read_config(made), HOME: "/engines/engine-1"})
        shutil.copytree(made, folder)
        backup_engine(made, folder.with_name(f"{folder.name}.tar.gz"))
    write_expected(folder, expected)


def describe(record: Record) -> dict[str, Any]:
    """Return a record as JSON holds it."""
    assert record.refinement is not None
    return {
        **{name: getattr(record, name) for name in ("id", "modality", "kind", "text", "uri")},
        "labels": list(record.labels),
        "extra": dict(record.extra),
        "code": bytes(record.code).hex(),
        "refinement": record.refinement.hex(),
    }


def find(engine: Engine, query: dict[str, Any]) -> list[Any]:
    """Return modality, id and distance of the hits of a query."""
    return [[hit.modality, hit.id, hit.distance] for hit in engine.search(**query)]


def write_expected(folder: Path, expected: dict[str, Any]) -> None:
    folder.with_name(f"{folder.name}.expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    {"model": make_model, "engine": make_engine}[sys.argv[1]](Path(sys.argv[2]))
