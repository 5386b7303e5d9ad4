"""``modalhash demo``: from a folder of pictures and a pile of names to a page that finds them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli.engine_tools import plain_errors

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modalhash.engine import Engine
    from modalhash.evaluation import Result

EXAMPLES = ("cat", "fruit", "red car", "heart", "happy face", "flag", "snow", "medal")
PORT = 8000


class Data(StrEnum):
    """What the demonstration runs on."""

    openmoji = "openmoji"
    generated = "generated"


def demo(
    data: Annotated[
        Data, typer.Option(help="OpenMoji pictures and names (extra 'demo'), or generated features: the table alone.")
    ] = Data.openmoji,
    folder: Annotated[Path, typer.Option(help="Where pictures, manifest and engine go.")] = Path("demo"),
    bits: Annotated[int, typer.Option(help="Length of the codes.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of shuffling and training.")] = 0,
    serve: Annotated[bool, typer.Option(help="End with the page, until Ctrl-C.")] = True,
    port: Annotated[int, typer.Option(help="Of the page; a free one if it is taken.", min=0, max=65535)] = PORT,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew even if that was done before.")] = False,
) -> None:
    """Pictures and names of emoji, shuffled apart: train AMSH, measure, search, and serve a page.

    Every step is one that you can take with things of your own; the commands
    are shown as it goes. A second run takes up the engine of the first.
    """
    from rich.console import Console

    console = Console(highlight=False)
    with plain_errors():
        if data is Data.generated:
            _generated(console, bits=bits, seed=seed)
            return
        with show(console, folder, bits=bits, seed=seed, fresh=fresh) as engine:
            if serve:
                _serve(console, engine, port)
            else:
                console.print(f"\nSee it in a browser:\n[bold]$ modalhash serve {engine.path}[/bold]")


def show(console: Console, folder: Path, *, bits: int, seed: int, fresh: bool) -> Engine:
    """All steps before the page, on any console; returns the engine."""
    from modalhash.cli.demo_engine import measured, show_searches

    manifest, engine = _engine(console, folder, bits=bits, seed=seed, fresh=fresh)
    console.print(_table(measured(engine, manifest)))
    _explain(console)
    show_searches(console, engine)
    return engine


def _generated(console: Console, *, bits: int, seed: int) -> None:
    from modalhash import AMSH
    from modalhash.cli.bars import bars
    from modalhash.data import generate, unpaired
    from modalhash.evaluation import evaluate_databases

    dataset = generate(n_items=3000, seed=seed).dataset()
    parts = unpaired(dataset, seed=seed).parts()
    training = parts.training
    sizes = " and ".join(f"{n:,} {name}s" for name, n in training.sizes.items())
    console.print(f"[bold]{dataset.name}[/bold]: {sizes} with {len(dataset.class_names)} labels, shuffled apart.")
    with bars(console) as callback:
        model = AMSH(n_bits=bits, n_anchors=min(1000, *training.sizes.values()), random_state=seed)
        model.fit(training.features, training.labels, callback=callback)
    console.print(_table(evaluate_databases(model, parts)))
    _explain(console)


def _engine(console: Console, folder: Path, *, bits: int, seed: int, fresh: bool) -> tuple[Path, Engine]:
    """Pictures, manifest and engine in the folder; what is there already is taken."""
    from modalhash.cli.bars import bars
    from modalhash.cli.demo_engine import reusable
    from modalhash.data import openmoji_attribution as attribution
    from modalhash.data import write_openmoji
    from modalhash.engine import Engine

    with bars(console) as callback:
        manifest = write_openmoji(folder, seed=seed, callback=callback)
    n = sum(1 for _ in manifest.open(encoding="utf-8")) // 2
    console.print(
        f"{manifest}: [bold]{n:,} pictures and {n:,} names[/bold] of emoji with labels, each in an order of its own. "
        f"Nothing that is learned from tells which name belongs to which picture.\n[dim]{attribution()}[/dim]\n"
    )
    place = folder / "engine"
    console.print(f"[bold]$ modalhash train {manifest} -o {place} --bits {bits} --seed {seed}[/bold]")
    engine = None if fresh else reusable(place, manifest, bits=bits, seed=seed)
    if engine is not None:
        console.print(f"trained {engine.config['created']}; [dim]modalhash demo --fresh trains anew[/dim]\n")
        return manifest, engine
    with bars(console) as callback:
        engine = Engine.train(manifest, place, n_bits=bits, random_state=seed, overwrite=True, callback=callback)
    console.print()
    return manifest, engine


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


def _explain(console: Console) -> None:
    console.print(
        "Queries are new items, hashed from their features. The database is [bold]learned[/bold]: coded from its "
        "labels; [bold]hashed[/bold]: the same items, coded from their features alone; or [bold]unseen[/bold]: new "
        "items, coded from features. Papers report the first; a builder gets the last."
    )


def _serve(console: Console, engine: Engine, port: int) -> None:
    """The page, until Ctrl-C."""
    from modalhash.serve import Settings, bind, page_url, run

    settings = Settings(examples=EXAMPLES, name="OpenMoji", quiet=True)
    console.print(f"\n[bold]$ modalhash serve {engine.path}[/bold]")
    try:
        sock = bind(settings.host, port)
    except ValueError:
        sock = bind(settings.host, 0)
        console.print(f"[dim]port {port} is taken; another one is used[/dim]")
    with sock:
        ready = f"Open [bold]{page_url(sock)}[/bold] in a browser. Ctrl-C stops it."
        run(engine, settings, sock, on_ready=lambda: console.print(ready))
