"""``modalhash demo``: the whole idea in a few seconds."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modalhash.evaluation.result import Result


class Data(StrEnum):
    """What the demonstration runs on."""

    openmoji = "openmoji"
    generated = "generated"


def demo(
    data: Annotated[
        Data, typer.Option(help="OpenMoji pictures and names (extra 'demo'), or generated features.")
    ] = Data.openmoji,
    bits: Annotated[int, typer.Option(help="Length of the codes.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of shuffling and training.")] = 0,
) -> None:
    """Train AMSH on pictures and names that were shuffled apart, and measure search between them."""
    from rich.console import Console

    show(Console(highlight=False), data=data, bits=bits, seed=seed)


def show(console: Console, *, data: Data, bits: int, seed: int) -> None:
    """The demonstration on any console."""
    from modalhash import AMSH
    from modalhash.cli.bars import bars
    from modalhash.data import generate, load_dataset, unpaired
    from modalhash.evaluation.databases import evaluate_databases

    with console.status("preparing the data (the first time takes a few seconds)"):
        dataset = load_dataset("openmoji") if data is Data.openmoji else generate(n_items=3000, seed=seed).dataset()
    parts = unpaired(dataset, seed=seed).parts()
    training = parts.training
    sizes = " and ".join(f"{n:,} {name}s" for name, n in training.sizes.items())
    n_classes = len(dataset.class_names)
    console.print(f"[bold]{dataset.name}[/bold]: {sizes} with {n_classes} labels, each modality shuffled on its own.")
    if attribution := dataset.provenance.get("attribution") or dataset.provenance.get("licence"):
        console.print(f"[dim]{attribution}[/dim]")
    console.print(f"[bold]AMSH[/bold] learns codes of {bits} bits; it never knows which picture belongs to which name:")
    with bars(console) as callback:
        model = AMSH(n_bits=bits, n_anchors=min(1000, *training.sizes.values()), random_state=seed)
        model.fit(training.features, training.labels, callback=callback)
    console.print(_table(evaluate_databases(model, parts)))
    console.print(
        "Queries are new items, hashed from their features. The database is [bold]learned[/bold]: coded from its "
        "labels; [bold]hashed[/bold]: the same items, coded from their features alone; or [bold]unseen[/bold]: new "
        "items, coded from features. Papers report the first; a builder gets the last."
    )


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
