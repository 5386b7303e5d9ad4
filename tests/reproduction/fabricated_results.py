"""A results folder without any fit: what measuring every cell would have written."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from modalhash import __version__
from modalhash.data import twin, write_npz
from modalhash.experiments import Point, Results, cells_of
from reproduction.paper_data import SOURCES
from reproduction.published import load_all

QUERIES = 40


def little_root(folder: Path, name: str = "wiki", kind: str | None = "twin") -> Path:
    """A data root with a small generated data set under a known name, which says what it is."""
    (folder / name).mkdir(parents=True)
    data = twin("mirflickr25k", scale=0.02)
    write_npz(replace(data, provenance={"kind": kind} if kind else {}), folder / name / f"{name}.npz")
    return folder


def facts_of(name: str) -> dict:
    source = SOURCES[name]
    sizes = {"total": 160, "training": 120, "image": 12, "text": 6, "classes": 4, **source.table1}
    first, second = source.modalities
    return {
        "name": name,
        "title": source.title,
        "digest": f"{name:0<64}",
        "kind": {"paper": "recomputed features", "stand-in": "substitute", "twin": "twin"}[source.role],
        "features": {first: sizes["image"], second: sizes["text"]},
        "items": sizes["total"],
        "training": sizes["training"],
        "queries": QUERIES,
        "classes": sizes["classes"],
        "own_split": True,
        "labels_per_item": 1.5,
    }


def result_of(cell, key) -> dict:
    rng = np.random.default_rng(zlib.crc32(f"{cell.method}{cell.bits}{cell.seed}{key}".encode()))
    base = {"amsh": 0.6, "batch": 0.55}.get(cell.method, 0.4) + cell.bits / 2000
    amsh = cell.method == "amsh"
    result = {
        "seconds": {"fit": 1.0, "cpu": 1 + rng.random(), "stages": {"codes": 0.7, "rest": 0.3}},
        "objective": {
            "codes": [3.0, 2.0, 1.9999],
            "functions": {m: [2.0, 1.5, 1.4999] for m in SOURCES[cell.dataset].modalities},
        }
        if amsh
        else {"training": [0.7, 0.6, 0.5], "validation": [0.7, 0.65, 0.66], "map": [0.3, 0.5, 0.4]}
        if cell.method in ("dcmh", "prdh", "aadah")
        else [2.0, 1.0],
        "solver": "samples" if amsh else None,
        "queries": "same",
        "warnings": [],
        "environment": {
            "machine": "none",
            "versions": {"modalhash": __version__},
            "blas": ["none"],
            "threads": 1,
            "commit": None,
        },
        "started": 0,
        "took": 1.0,
    }
    if cell.measured:
        first, second = SOURCES[cell.dataset].modalities
        result["databases"] = {}
        for kind, share in (("learned", 1.0), ("hashed", 0.8), ("unseen", 0.6)):
            result["databases"][kind] = {}
            for task in (f"{first}→{second}", f"{second}→{first}"):
                each = np.clip(base * share + 0.05 * rng.standard_normal(QUERIES), 0, 1).round(4)
                result["databases"][kind][task] = {
                    "map": float(each.mean()), "chance": 0.2, "n_queries": QUERIES, "n_items": 120,
                    "average_precision": each.tolist(), "curve": np.linspace(base, 0.2, 51).tolist(),
                }  # fmt: skip
    return result


def fabricate_part(folder: Path, name: str, experiment: str, bits: int) -> Results:
    """Results of one experiment on one data set at one length, one seed."""
    store, facts = Results(folder), facts_of(name)
    store.write_dataset(facts)
    for cell in cells_of(load_all()[experiment].grid, name, facts["digest"]).values():
        if cell.seed == 0 and cell.bits == bits:
            store.write(cell, result_of(cell, None))
    return store


def fabricate(
    folder: Path, datasets=("wiki", "iapr-tc12-255-cnn", "mirflickr25k", "mirflickr25k-twin"), *, seeds=2
) -> Results:
    """Results of the whole plan on these data sets; one cell failed."""
    store = Results(folder)
    experiments = load_all()
    for name in datasets:
        facts = facts_of(name)
        store.write_dataset(facts)
        for experiment in experiments.values():
            if name in experiment.datasets and (experiment.id != "extended" or name == "wiki"):
                for cell in cells_of(experiment.grid, name, facts["digest"]).values():
                    if cell.seed < seeds:
                        store.write(cell, result_of(cell, json.loads(cell.parameters).get("quantization")))
    cells = cells_of(experiments["table3"].grid, datasets[0], facts_of(datasets[0])["digest"])
    store.write(cells[Point("UCMH", "unpaired", "", 16, 0)], {"error": "ValueError: it would not"})
    return store
