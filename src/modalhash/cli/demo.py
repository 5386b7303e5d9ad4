"""``modalhash demo``: from a folder of pictures and a pile of names to a page that finds them."""

from __future__ import annotations

import os
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash import __version__
from modalhash.cli._common import bits_or_auto, console, describe_codes, progress_bars
from modalhash.cli.serve import listen, serve_until_stopped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modalhash.engine import Engine, Hit
    from modalhash.evaluation import Result

EXAMPLES = ("cat", "fruit", "red car", "heart", "happy face", "flag", "snow", "medal")
"""Searches that the page offers."""
WORDS = ("cat", "fruit")
"""Searches that are shown in the terminal."""
PICTURE = "1F697"
"""The picture that is searched by in the terminal: a car."""
N_HITS = 8


class Data(StrEnum):
    """What the demonstration runs on."""

    openmoji = "openmoji"
    generated = "generated"


def demo(
    data: Annotated[
        Data, typer.Option(help="OpenMoji pictures and names (extra 'demo'), or generated features: the table alone.")
    ] = Data.openmoji,
    folder: Annotated[Path, typer.Option(help="Where pictures, manifest and engine go.")] = Path("demo"),
    bits: Annotated[
        str, typer.Option(help="Length of the codes; [b]auto[/b] is enough to keep what is labelled otherwise apart.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of shuffling and training.")] = 0,
    serve: Annotated[bool, typer.Option(help="End with the page, until Ctrl-C.")] = True,
    port: Annotated[int, typer.Option(help="Of the page; a free one if it is taken.", min=0, max=65535)] = 8000,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew even if that was done before.")] = False,
) -> None:
    """Pictures and names of emoji, shuffled apart: train AMSH, measure, search, and serve a page.

    Every step is one that you can take with things of your own; the commands
    are shown as it goes. A second run takes up the engine of the first.

    [bold]Examples[/bold]

    modalhash demo

    modalhash demo --no-serve --bits 32 --folder emoji

    modalhash demo --data generated
    """
    out = console()
    if data is Data.generated:
        _measure_generated(out, bits=64 if bits == "auto" else bits_or_auto(bits), seed=seed)
        return
    with show(out, folder, bits=bits_or_auto(bits), seed=seed, fresh=fresh) as engine:
        if serve:
            _serve(out, engine, port)
        else:
            out.print(f"\nSee it in a browser:\n[bold]$ modalhash serve {engine.path}[/bold]")


def show(out: Console, folder: Path, *, bits: int | str, seed: int, fresh: bool) -> Engine:
    """Take all steps before the page, on any console; return the engine."""
    manifest = _write_manifest(out, folder, seed=seed)
    engine = _train(out, folder / "engine", manifest, bits=bits, seed=seed, fresh=fresh)
    out.print(_table(_measure(engine, manifest)))
    _explain(out)
    _search(out, engine)
    return engine


def _write_manifest(out: Console, folder: Path, *, seed: int) -> Path:
    from modalhash.data import openmoji_attribution, write_openmoji

    with progress_bars(out) as callback:
        manifest = write_openmoji(folder, seed=seed, callback=callback)
    n = sum(1 for _ in manifest.open(encoding="utf-8")) // 2
    out.print(
        f"{manifest}: [bold]{n:,} pictures and {n:,} names[/bold] of emoji with labels, each in an order of its own. "
        f"Nothing that is learned from tells which name belongs to which picture."
        f"\n[dim]{openmoji_attribution()}[/dim]\n"
    )
    return manifest


def _train(out: Console, folder: Path, manifest: Path, *, bits: int | str, seed: int, fresh: bool) -> Engine:
    """Train the engine, or take up that of an earlier run."""
    from modalhash.engine import Engine

    out.print(f"[bold]$ modalhash train {manifest} -o {folder} --bits {bits} --seed {seed}[/bold]")
    engine = None if fresh else _reusable(folder, manifest, bits=bits, seed=seed)
    if engine is not None:
        out.print(f"trained {engine.config['created']}; [dim]modalhash demo --fresh trains anew[/dim]")
        out.print(f"{describe_codes(engine.info())}\n")
        return engine
    with progress_bars(out) as callback:
        engine = Engine.train(manifest, folder, n_bits=bits, random_state=seed, overwrite=True, callback=callback)
    out.print(f"{describe_codes(engine.info())}\n")
    return engine


def _reusable(folder: Path, manifest: Path, *, bits: int | str, seed: int) -> Engine | None:
    """Return the engine of an earlier run if it is what training now would make, else None."""
    from modalhash.engine import Engine, EngineError

    try:
        engine = Engine.open(folder)
    except EngineError:
        return None
    same_bits = "bits_tried" in engine.config if bits == "auto" else engine.n_bits == bits
    same = same_bits and engine.model.get_params(deep=False)["random_state"] == seed
    newer = (folder / "config.json").stat().st_mtime >= manifest.stat().st_mtime
    if same and newer and engine.config["modalhash"] == __version__:
        return engine
    engine.close()
    return None


def _measure(engine: Engine, manifest: Path) -> dict[str, Result]:
    """Measure the engine's own codes: items that the manifest holds out are searched for in the three databases."""
    from modalhash.data import read
    from modalhash.encoders import encode_items
    from modalhash.evaluation import evaluate_databases

    items = read(manifest)
    contents = {name: items.raw[name].tolist() for name in items.modalities}
    contents["image"] = [manifest.parent / name for name in contents["image"]]
    features = {name: encode_items(engine.encoders[name], some).features for name, some in contents.items()}
    return evaluate_databases(engine.model, replace(items, features=features).parts())


def _measure_generated(out: Console, *, bits: Any, seed: int) -> None:
    from modalhash import AMSH
    from modalhash.data import generate, unpaired
    from modalhash.evaluation import evaluate_databases

    dataset = generate(n_items=3000, seed=seed).dataset()
    parts = unpaired(dataset, seed=seed).parts()
    training = parts.training
    sizes = " and ".join(f"{n:,} {name}s" for name, n in training.sizes.items())
    out.print(f"[bold]{dataset.name}[/bold]: {sizes} with {len(dataset.class_names)} labels, shuffled apart.")
    with progress_bars(out) as callback:
        model = AMSH(n_bits=bits, n_anchors=min(1000, *training.sizes.values()), random_state=seed)
        model.fit(training.features, training.labels, callback=callback)
    out.print(_table(evaluate_databases(model, parts)))
    _explain(out)


def _table(results: dict[str, Result]) -> Table:
    from rich.table import Table

    first = next(iter(results.values()))
    table = Table(title=f"mAP of {len(next(iter(first.directions.values())).average_precision):,} queries, one seed")
    table.title_justify = table.caption_justify = "left"
    table.caption = "full ranking, ties in expectation, relevant: shares a label"
    table.add_column("query → database", no_wrap=True)
    for kind in results:
        table.add_column(kind, justify="right")
    table.add_column("chance", justify="right")
    for key, direction in first.directions.items():
        scores = [f"{result.directions[key].map:.3f}" for result in results.values()]
        table.add_row(direction.name, *scores, f"{direction.chance:.3f}")
    return table


def _explain(out: Console) -> None:
    out.print(
        "Queries are new items, hashed from their features. The database is [bold]learned[/bold]: coded from its "
        "labels; [bold]hashed[/bold]: the same items, coded from their features alone; or [bold]unseen[/bold]: new "
        "items, coded from features. Papers report the first; a builder gets the last."
    )


def _search(out: Console, engine: Engine) -> None:
    """Show what two words and a picture find."""
    for word in WORDS:
        hits = engine.search(text=word, want="image", k=N_HITS)
        _show_hits(out, engine, f'"{word}" --want image', hits, "  ".join(str(hit.extra["emoji"]) for hit in hits))
    picture = os.path.relpath(str(engine.get(PICTURE, modality="image").uri))
    hits = engine.search(image=picture, want="text", k=N_HITS)
    names = ", ".join(str(hit.text).partition(";")[0] for hit in hits)
    _show_hits(out, engine, f"--image {picture} --want text", hits, names)


def _show_hits(out: Console, engine: Engine, query: str, hits: list[Hit], text: str) -> None:
    differing = dict.fromkeys((hits[0].distance, hits[-1].distance))
    out.print(f"\n[bold]$ modalhash search {engine.path} {query} -k {N_HITS}[/bold]", soft_wrap=True)
    out.print(f"{text}   [dim]{' to '.join(map(str, differing))} of {engine.n_bits} bits differ[/dim]")


def _serve(out: Console, engine: Engine, port: int) -> None:
    """Serve the page until Ctrl-C."""
    from modalhash.serve import Settings

    settings = Settings(port=port, examples=EXAMPLES, name="OpenMoji", quiet=True)
    out.print(f"\n[bold]$ modalhash serve {engine.path}[/bold]")
    with listen(settings, any_port=True) as sock:
        if port and sock.getsockname()[1] != port:
            out.print(f"[dim]port {port} is taken; another one is used[/dim]")
        serve_until_stopped(
            engine,
            settings,
            sock,
            on_ready=lambda address: out.print(f"Open [bold]{address}[/bold] in a browser. Ctrl-C stops it."),
        )
