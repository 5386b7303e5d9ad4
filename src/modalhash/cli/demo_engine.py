"""The demonstration's engine: whether it can be used again, how good it is, and what it finds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modalhash import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from modalhash.engine import Engine, Hit
    from modalhash.evaluation import Result

WORDS = ("cat", "fruit")
PICTURE = "1F697"
"""The picture that is asked with: a car."""
K = 8


def reusable(place: Path, manifest: Path, *, bits: int, seed: int) -> Engine | None:
    """The engine of an earlier run, if it is what training now would make."""
    from modalhash.engine import Engine
    from modalhash.engine.folder import CONFIG, EngineError

    try:
        engine = Engine.open(place)
    except EngineError:
        return None
    wanted = {"n_bits": bits, "random_state": seed}
    same = {name: engine.model.get_params(deep=False)[name] for name in wanted} == wanted
    newer = (place / CONFIG).stat().st_mtime >= manifest.stat().st_mtime
    if same and newer and engine.config["modalhash"] == __version__:
        return engine
    engine.close()
    return None


def measured(engine: Engine, manifest: Path) -> dict[str, Result]:
    """MAP of the engine's own codes: items held out by the manifest ask the three kinds of database."""
    from modalhash.data import read
    from modalhash.encoders import encode_items
    from modalhash.evaluation import evaluate_databases

    items = read(manifest)
    contents = {name: items.raw[name].tolist() for name in items.modalities}
    contents["image"] = [manifest.parent / name for name in contents["image"]]
    features = {name: encode_items(engine.encoders[name], some).features for name, some in contents.items()}
    return evaluate_databases(engine.model, replace(items, features=features).parts())


def show_searches(console: Console, engine: Engine) -> None:
    """Two words and a picture, with what they find."""
    for word in WORDS:
        hits = engine.search(text=word, want="image", k=K)
        _show(console, engine, f'"{word}" --want image', hits, "  ".join(str(hit.extra["emoji"]) for hit in hits))
    picture = os.path.relpath(str(engine.get(PICTURE, modality="image").uri))
    hits = engine.search(image=picture, want="text", k=K)
    names = ", ".join(str(hit.text).partition(";")[0] for hit in hits)
    _show(console, engine, f"--image {picture} --want text", hits, names)


def _show(console: Console, engine: Engine, query: str, hits: list[Hit], found: str) -> None:
    differing = dict.fromkeys((hits[0].distance, hits[-1].distance))
    console.print(f"\n[bold]$ modalhash search {engine.path} {query} -k {K}[/bold]", soft_wrap=True)
    console.print(f"{found}   [dim]{' to '.join(map(str, differing))} of {engine.n_bits} bits differ[/dim]")
