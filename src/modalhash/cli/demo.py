"""The command demo: train, measure, search and serve, with emoji or with a folder of photos."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash import __version__
from modalhash.cli.common import audited, console, describe_codes, progress_bars, rate_and_time_left, show_problems
from modalhash.cli.options import with_option_groups
from modalhash.cli.serve import listen, serve_until_stopped
from modalhash.core.files import write_atomically
from modalhash.core.option import Option, Options
from modalhash.engine.settings import TrainSettings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modalhash.engine import Engine, Hit
    from modalhash.evaluation import Result


ENGINE = "photos-engine"
"""Name of the engine trained with ``--photos``."""
N_WORDS, N_PHOTO_HITS = 4, 5
"""Number of example words, and of photos listed for each."""


def show_photos(out: Console, photos: Path, folder: Path, *, bits: int | str, seed: int, quality: str | None) -> Engine:
    """Train an engine from unlabelled photos, try some words, and return it."""
    from modalhash.engine import Engine

    photos = photos.expanduser()
    if not photos.exists():  # train would take it for the name of a data set
        raise FileNotFoundError(f"{photos} does not exist; expected a folder or a zip of photos")
    source, target = str(photos), folder / ENGINE
    chosen = [] if quality is None else ["--quality", str(quality)]
    print_command(out, ["train", source, "-o", str(target), "--labels", "none", *chosen, *other_options(bits, seed)])
    with progress_bars(out) as callback, audited("train", target, sources=[source], bits=bits, seed=seed):
        engine = Engine.train(
            source,
            target,
            n_bits=bits,
            labels="none",
            quality=quality,
            random_state=seed,
            overwrite=True,
            callback=callback,
            on_problem=lambda problem: None,  # shown below the bars
        )
    show_problems(engine.problems, [source])
    out.print(
        f"[bold]{len(engine):,} photos[/bold] with codes of {engine.n_bits} bits, learned from their content alone, "
        "without labels, texts or folder names."
    )
    _try_words(out, engine, photos)
    return engine


def _try_words(out: Console, engine: Engine, photos: Path) -> None:
    """Show hits for words that suit the photos, or for a photo if no word does."""
    words = engine.config.get("examples", [])
    if words:
        out.print(f"Words that probably find some of them: [bold]{', '.join(words)}[/bold]. Others work too.")
        for word in words[:N_WORDS]:
            out.print()
            print_command(out, ["search", str(engine.path), word, "-k", str(N_PHOTO_HITS)])
            _print_hits(out, [str(hit.uri) for hit in engine.search(text=word, k=N_PHOTO_HITS)], photos)
        return
    first = str(engine.get(next(iter(engine.items())).id).uri)
    if getattr(engine.encoders["image"], "space", None) is None:
        out.print("The encoder of --quality fast cannot search by words; best can. A photo finds similar ones:")
    else:
        out.print("No common word clearly matches them, but you can try some. A photo finds similar ones:")
    out.print()
    print_command(out, ["search", str(engine.path), "--image", os.path.relpath(first), "-k", str(N_PHOTO_HITS)])
    _print_hits(out, [str(hit.uri) for hit in engine.search(image=first, k=N_PHOTO_HITS)], photos)


def _print_hits(out: Console, found: list[str], photos: Path) -> None:
    root = str(photos.resolve())
    names = (os.path.relpath(path, root) if path.startswith(f"{root}{os.sep}") else path for path in found)
    out.print("  ".join(names), markup=False)


def other_options(bits: int | str, seed: int) -> list[str]:
    """Return the options of ``train`` for a code length and a seed that are not the defaults."""
    return [*(["--bits", str(bits)] if bits != "auto" else []), *(["--seed", str(seed)] if seed else [])]


def print_command(out: Console, words: list[str]) -> None:
    """Print the equivalent command."""
    out.print(f"$ {shlex.join(['modalhash', *words])}", style="bold", markup=False, soft_wrap=True)


Measured = dict[str, Any]
"""Number of queries, databases, and mAP and chance level for each direction."""

SHARED_BY = 8
"""Minimum number of emoji that share a keyword for it to become a label."""
EXAMPLES = ("cat", "fruit", "red car", "heart", "happy face", "snow", "music", "Weihnachten")
"""Searches offered by the page."""
WORDS = ("cat", "fruit")
"""Searches shown in the terminal."""
PICTURE = "1F697"
"""Query picture in the terminal: a car."""
N_HITS = 8
DONE = "demo.json"
"""File with the recipe and the measured results of the engine."""


class Data(StrEnum):
    """Data of the demonstration."""

    openmoji = "openmoji"
    generated = "generated"


@dataclass(frozen=True)
class DemoSettings(Options, like=TrainSettings):
    """How the demonstration learns."""

    n_bits: int | str = "auto"
    random_state: int = 0
    quality: Annotated[
        str | None,
        Option(
            "Encoders. ``fast`` is built in and matches only known words.",
            by_default="best; for photos the best installed",
            choices=("fast", "best"),
        ),
    ] = None


@with_option_groups
def demo(
    *,
    data: Annotated[
        Data,
        typer.Option(help="OpenMoji pictures and names (extra 'demo'), or generated features (prints only the table)."),
    ] = Data.openmoji,
    photos: Annotated[
        Path | None, typer.Option(help="Use your own photos, a folder or a zip, instead of emoji; they need no labels.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder for pictures, manifest and engine.")] = Path("demo"),
    settings: DemoSettings,
    serve: Annotated[bool, typer.Option(help="Serve the page at the end, until Ctrl-C.")] = True,
    port: Annotated[int, typer.Option(help="Port of the page; a free one if it is in use.", min=0, max=65535)] = 8000,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again instead of reusing the engine.")] = False,
) -> None:
    """Train on pictures and names of emoji that are not paired, then measure, search, and serve a page.

    Each step prints the command with which you can do the same with your own
    data. A second run reuses the trained engine. With [b]--photos[/b], the demo
    uses your own photos: they need no labels, and words find what they show.
    Photos are never changed.

    [bold]Examples[/bold]

    modalhash demo

    modalhash demo --no-serve --bits 32 --folder emoji

    modalhash demo --photos ~/Pictures

    modalhash demo --data generated
    """
    out = console()
    bits, seed, quality = settings.n_bits, settings.random_state, settings.quality
    if photos is not None and data is Data.generated:
        raise ValueError("--photos and --data generated exclude each other; use one of them")
    if data is Data.generated:
        _measure_generated(out, bits=64 if bits == "auto" else bits, seed=seed)
        return
    if photos is not None:
        engine = show_photos(out, photos, folder, bits=bits, seed=seed, quality=quality)
        about: dict[str, Any] = {"name": photos.expanduser().resolve().name}
    else:
        engine = show(out, folder, bits=bits, seed=seed, fresh=fresh, quality=quality or "best")
        about = {"name": "OpenMoji", "examples": EXAMPLES}
    with engine:
        if serve:
            _serve(out, engine, port, about)
        else:
            out.print("\nSee it in a browser:")
            print_command(out, ["serve", str(engine.path)])


def show(
    out: Console, folder: Path, *, bits: int | str = "auto", seed: int = 0, fresh: bool = False, quality: str = "best"
) -> Engine:
    """Run all steps before the page, and return the engine."""
    manifest = _write_manifest(out, folder, seed=seed)
    recipe = recipe_of(manifest, bits=bits, seed=seed, quality=quality)
    engine, measured = _take_up(out, folder, manifest, recipe, fresh=fresh)
    if engine is None or measured is None:
        engine = _train(out, folder / "engine", manifest, recipe)
        measured = _measure(out, engine, manifest)
        done = {"recipe": recipe, "model": engine.config["model"], "measured": measured}
        write_atomically(folder / DONE, json.dumps(done, indent=1).encode())
    out.print(f"{describe_codes(engine.info())}\n")
    out.print(
        "The engine has learned from all pictures and texts. To estimate how well it works for new ones, the same "
        "model is trained on four fifths of them and queried with the rest:"
    )
    out.print(_table(measured))
    _explain(out)
    _search(out, engine)
    return engine


def recipe_of(manifest: Path, *, bits: int | str, seed: int, quality: str) -> dict[str, Any]:
    """Return what determines the engine: items, options and version. Opening it checks its encoders."""
    items = hashlib.sha256(manifest.read_bytes()).hexdigest()
    return {"bits": bits, "seed": seed, "quality": str(quality), "items": items, "modalhash": __version__}


def _write_manifest(out: Console, folder: Path, *, seed: int) -> Path:
    from modalhash.data import openmoji_attribution, write_openmoji

    with progress_bars(out, rate_and_time_left) as callback:
        manifest = write_openmoji(folder, seed=seed, keyword_labels=SHARED_BY, callback=callback)
    lines = map(json.loads, manifest.read_text(encoding="utf-8").splitlines())
    sets = Counter(frozenset(line["labels"]) for line in lines if "text" in line)
    n, n_labels = sets.total(), len({label for labels in sets for label in labels})
    alone = sum(count == 1 for count in sets.values())
    out.print(
        f"{manifest}: [bold]{n:,} pictures and {n:,} texts[/bold] (names and keywords) of emoji, shuffled separately. "
        f"They have {n_labels} labels: groups, subgroups, and keywords that at least {SHARED_BY} emoji share. Only the "
        f"labels connect texts and pictures; {alone:,} of the {n:,} emoji have a unique set of labels."
        f"\n[dim]{openmoji_attribution()}[/dim]\n"
    )
    return manifest


def _take_up(
    out: Console, folder: Path, manifest: Path, recipe: dict[str, Any], *, fresh: bool
) -> tuple[Engine | None, Measured | None]:
    """Return the engine and results of an earlier run if training would produce the same."""
    from modalhash.engine import Engine, EngineError

    options = ["--quality", recipe["quality"], "--learn-from", "all", *other_options(recipe["bits"], recipe["seed"])]
    print_command(out, ["train", str(manifest), "-o", str(folder / "engine"), *options])
    try:
        done = {} if fresh else json.loads((folder / DONE).read_text(encoding="utf-8"))
        engine = Engine.open(folder / "engine") if done.get("recipe") == recipe else None
    except (OSError, ValueError, EngineError):
        return None, None
    if engine is None or engine.config["model"] != done["model"]:
        if not fresh:
            out.print("[dim]items, options or the version have changed since the last run: training again[/dim]")
        return None, None
    out.print(
        f"reusing the engine trained {engine.config['created']}: items, options and version are the same; "
        "[dim]modalhash demo --fresh trains again[/dim]"
    )
    return engine, done["measured"]


def _train(out: Console, folder: Path, manifest: Path, recipe: dict[str, Any]) -> Engine:
    from modalhash.engine import Engine

    bits, seed = recipe["bits"], recipe["seed"]
    with (
        progress_bars(out, rate_and_time_left) as callback,
        audited("train", folder, sources=[str(manifest)], bits=bits, seed=seed),
    ):
        return Engine.train(
            manifest,
            folder,
            n_bits=bits,
            quality=recipe["quality"],
            learn_from="all",
            random_state=seed,
            overwrite=True,
            callback=callback,
        )


def _measure(out: Console, engine: Engine, manifest: Path) -> Measured:
    """Fit the model again on the training items only, and evaluate it on the held-out items."""
    import numpy as np
    from sklearn.base import clone

    from modalhash.core.progress import Reporter
    from modalhash.data import read
    from modalhash.encoders import encode_items, fit_encoder
    from modalhash.evaluation import evaluate_databases

    items = read(manifest)
    assert items.split is not None  # write_openmoji gives one
    with progress_bars(out, rate_and_time_left) as callback:
        report = Reporter(callback)
        features = {}
        for step, name in enumerate(items.modalities):
            report("measure", step, 4)
            contents = items.raw[name].tolist()
            if name == "image":
                contents = [manifest.parent / path for path in contents]
            training = np.flatnonzero(np.isin(items.ids[name], items.split.training[name]))
            encoder = deepcopy(engine.encoders[name])
            fit_encoder(encoder, [contents[row] for row in training], np.asarray(items.labels[name])[training])
            features[name] = encode_items(encoder, contents).features
        parts = replace(items, features=features).parts()
        report("measure", 2, 4)
        anchors = {name: min(engine.model.n_anchors[name], size) for name, size in parts.training.sizes.items()}
        model = clone(engine.model).set_params(n_anchors=anchors)
        model.fit(parts.training.features, parts.training.labels)
        report("measure", 3, 4)
        measured = _measured(evaluate_databases(model, parts))
        report("measure", 4, 4)
    return measured


def _measured(results: dict[str, Result]) -> Measured:
    first = next(iter(results.values()))
    return {
        "queries": len(next(iter(first.directions.values())).average_precision),
        "databases": list(results),
        "rows": [
            {
                "direction": direction.name,
                "map": [result.directions[key].map for result in results.values()],
                "chance": direction.chance,
            }
            for key, direction in first.directions.items()
        ],
    }


def _measure_generated(out: Console, *, bits: Any, seed: int) -> None:
    from modalhash import RLH
    from modalhash.data import generate, unpaired
    from modalhash.evaluation import evaluate_databases

    dataset = generate(n_items=3000, seed=seed).dataset()
    parts = unpaired(dataset, seed=seed).parts()
    training = parts.training
    sizes = " and ".join(f"{n:,} {name}s" for name, n in training.sizes.items())
    out.print(f"[bold]{dataset.name}[/bold]: {sizes} with {len(dataset.class_names)} labels, shuffled separately.")
    with progress_bars(out) as callback:
        model = RLH(n_bits=bits, n_anchors=min(1000, *training.sizes.values()), random_state=seed)
        model.fit(training.features, training.labels, callback=callback)
    out.print(_table(_measured(evaluate_databases(model, parts))))
    _explain(out)


def _table(measured: Measured) -> Table:
    from rich.table import Table

    table = Table(title=f"mAP of {measured['queries']:,} queries, one seed")
    table.title_justify = table.caption_justify = "left"
    table.caption = "full ranking, ties in expectation, relevant: shares a label"
    table.add_column("query → database", no_wrap=True)
    for kind in measured["databases"]:
        table.add_column(kind, justify="right")
    table.add_column("chance", justify="right")
    for row in measured["rows"]:
        table.add_row(row["direction"], *(f"{value:.3f}" for value in row["map"]), f"{row['chance']:.3f}")
    return table


def _explain(out: Console) -> None:
    out.print(
        "Queries are new items, hashed from their features. Databases: [bold]learned[/bold] codes come from labels; "
        "[bold]hashed[/bold] codes of the same items come from features alone; [bold]unseen[/bold] are new items, "
        "coded from features. Papers report the first; applications get the last."
    )


def _search(out: Console, engine: Engine) -> None:
    for word in WORDS:
        hits = engine.search(text=word, want="image", k=N_HITS)
        found = "  ".join(str(hit.extra["emoji"]) for hit in hits)
        _show_hits(out, engine, [word, "--want", "image"], hits, found)
    picture = os.path.relpath(str(engine.get(PICTURE, modality="image").uri))
    hits = engine.search(image=picture, want="text", k=N_HITS)
    names = ", ".join(str(hit.text).partition(";")[0] for hit in hits)
    _show_hits(out, engine, ["--image", picture, "--want", "text"], hits, names)


def _show_hits(out: Console, engine: Engine, query: list[str], hits: list[Hit], text: str) -> None:
    distances = [hit.distance for hit in hits]
    differing = dict.fromkeys((min(distances), max(distances)))
    out.print()
    print_command(out, ["search", str(engine.path), *query, "-k", str(N_HITS)])
    out.print(f"{text}   [dim]{' to '.join(map(str, differing))} of {engine.n_bits} bits differ[/dim]")


def _serve(out: Console, engine: Engine, port: int, about: dict[str, Any]) -> None:
    from modalhash.serve import Settings

    settings = Settings(port=port, quiet=True, **about)
    out.print()
    print_command(out, ["serve", str(engine.path)])
    with listen(settings, any_port=True) as sock:
        if port and sock.getsockname()[1] != port:
            out.print(f"[dim]port {port} is in use; using another one[/dim]")
        serve_until_stopped(
            engine,
            settings,
            sock,
            on_ready=lambda address: out.print(f"Open [bold]{address}[/bold] in a browser. Ctrl-C stops it."),
        )
