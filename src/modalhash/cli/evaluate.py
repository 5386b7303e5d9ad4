"""``modalhash evaluate``: a method on a data set, with learned, hashed and unseen databases side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash import registry
from modalhash.cli._common import ReadMemory, ReadSeconds, console, import_from_here, open_dataset

if TYPE_CHECKING:  # numpy and what needs it are loaded when the command runs: `modalhash --help` stays quick
    from modalhash.data import Dataset, Parts
    from modalhash.evaluation import Protocol, Table


class Scenario(StrEnum):
    """What is done to the training items: each is a function of :mod:`modalhash.data` of the same name."""

    paired = "paired"
    unpaired = "unpaired"
    unequal = "unequal"
    semi_paired = "semi_paired"
    noisy_labels = "noisy_labels"
    missing_labels = "missing_labels"


@dataclass(frozen=True)
class Run:
    """The mAP of one direction in one database, measured once."""

    method: str
    bits: int
    seed: int
    direction: str
    database: str
    map: float
    chance: float
    n_queries: int
    n_items: int
    fit_seconds: float


def evaluate(
    dataset: Annotated[str, typer.Argument(help="Name of a data set, or a file that `read` recognises.")],
    method: Annotated[str, typer.Option(help="See `modalhash methods`, or mymodule:Class.")] = "amsh",
    bits: Annotated[str, typer.Option(help="Code lengths, separated by commas.")] = "16,32,64,128",
    scenario: Annotated[Scenario, typer.Option(help="What is done to the training items.")] = Scenario.unpaired,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, seeds 0, 1, …")] = 3,
    protocol: Annotated[str, typer.Option(help="A preset (amsh, bmc, …) or e.g. 'mAP@50 ties=stable'.")] = "",
    modalities: Annotated[str, typer.Option(help="Only these, separated by commas.")] = "",
    test_share: Annotated[float, typer.Option(help="Items drawn as queries where there is no split.")] = 0.2,
    root: Annotated[Path | None, typer.Option(help="Folder that holds the data sets.")] = None,
    read_memory: ReadMemory = None,
    read_seconds: ReadSeconds = None,
    as_json: Annotated[bool, typer.Option("--json", help="Every single run, as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="A LaTeX table (booktabs).")] = False,
    output: Annotated[Path | None, typer.Option(help="Write there instead of to the terminal.")] = None,
) -> None:
    """Train a method and print its mAP on learned, hashed and unseen databases, with the chance level.

    [bold]Examples[/bold]

    modalhash evaluate openmoji --bits 16,32 --seeds 3

    modalhash evaluate wiki --method batch --scenario paired --protocol 'mAP@50 ties=stable'

    modalhash evaluate features.mat --method mymodule:Mine --json --output mine.json
    """
    from modalhash.evaluation import Protocol

    if as_json + markdown + latex > 1:
        raise ValueError("take one of --json, --markdown and --latex")
    rules = Protocol.parse(protocol)
    lengths = parse_bits(bits)
    if ":" in method:
        import_from_here()
    registry.get(method)  # an unknown one is named before the data are read
    data = open_dataset(dataset, root)
    if modalities:
        data = data.only(*modalities.split(","))
    report = partial(console(stderr=True).print, soft_wrap=True)
    try:
        check_measurable(data)
        runs = study(data, method, lengths, scenario, range(seeds), rules, test_share=test_share, report=report)
    except ValueError as error:  # what a method says of its features does not say whose they are
        raise ValueError(f"{dataset}: {error}") from error
    table = summarise(runs, data.name, scenario, rules, test_share=None if data.split else test_share)
    if as_json:
        text = json.dumps(
            {**json.loads(table.to_json()), "runs": [vars(run) for run in runs]}, indent=2, ensure_ascii=False
        )
    else:
        text = table.to_latex() if latex else table.to_markdown()
    if output is not None:
        output.write_text(text.rstrip() + "\n", encoding="utf-8")
    elif as_json or markdown or latex:
        typer.echo(text.rstrip())
    else:
        console().print(table.to_rich())


def check_measurable(dataset: Dataset) -> None:
    """Refuse a data set without features or labels."""
    if not dataset.features:
        raise ValueError(
            "there are no features, only texts or paths of pictures; `modalhash train` makes an engine of such a file"
        )
    if not dataset.labels:
        raise ValueError("there are no labels, and without them nothing is relevant to a query")


def study(
    dataset: Dataset,
    method: str,
    bits: Sequence[int],
    scenario: str,
    seeds: Sequence[int],
    protocol: Protocol,
    *,
    test_share: float = 0.2,
    report: Callable[[str], Any] | None = None,
) -> list[Run]:
    """Fit and measure for every code length and seed; the seed draws split, scenario and method alike.

    ``report`` is called with a line after every fit.
    """
    from modalhash.evaluation import evaluate_databases

    cls = registry.get(method)
    runs = []
    for n_bits in bits:
        for seed in seeds:
            split = dataset if dataset.split else draw_split(dataset, test_share, seed)
            changed, pairs = apply_scenario(split, scenario, seed)
            parts = changed.parts()
            if pairs is None and parts.training.paired:
                pairs = "aligned"  # the ids say so
            if pairs is None and cls.needs_pairs:
                raise ValueError(
                    f"{method} learns from pairs, and the scenario {str(scenario)!r} leaves none; "
                    "take --scenario paired or semi_paired, or an unpaired method such as amsh"
                )
            parameters: dict[str, Any] = {"n_bits": n_bits, "random_state": seed, "unlabelled": "allow"}
            model = cls()
            known = model.get_params(deep=False)
            model.set_params(**{name: value for name, value in parameters.items() if name in known})
            start = time.perf_counter()
            model.fit(parts.training.features, parts.training.labels, pairs=pairs)
            seconds = time.perf_counter() - start
            results = evaluate_databases(model, parts, protocol=protocol, databases=_large_enough(parts, protocol))
            for kind, result in results.items():
                runs += [
                    Run(method, n_bits, seed, d.name, kind, d.map, d.chance, d.n_queries, d.n_items, seconds)
                    for d in result.directions.values()
                ]
            if report is not None:
                maps = ", ".join(f"{kind} {result.map:.4f}" for kind, result in results.items())
                report(f"{method}, {n_bits} bits, seed {seed}: fitted in {seconds:.1f} s; {maps}")
    return runs


def _large_enough(parts: Parts, protocol: Protocol) -> list[str]:
    """Return the databases that reach as deep as the cut-off of a published protocol."""
    from modalhash.evaluation import CHOICES, unseen_items

    unseen, same_id = unseen_items(parts)
    sizes = {kind: min(parts.training.sizes.values()) for kind in CHOICES["database"]}
    sizes["unseen"] = min(unseen.sizes.values()) - (same_id == "exclude")
    kinds = [kind for kind in CHOICES["database"] if sizes[kind] >= (protocol.cutoff or 1)]
    if not kinds:
        raise ValueError(f"the cut-off is {protocol.cutoff}; the databases have only {sizes} items")
    return kinds


def summarise(
    runs: Sequence[Run], dataset: str, scenario: str, protocol: Protocol, *, test_share: float | None = None
) -> Table:
    """Return a table of mean ± standard deviation over the seeds, with a column per database."""
    import numpy as np

    from modalhash.evaluation import CHOICES, Spread, Table

    kinds = CHOICES["database"]
    rows = []
    for n_bits, direction in dict.fromkeys((run.bits, run.direction) for run in runs):
        same = [run for run in runs if (run.bits, run.direction) == (n_bits, direction)]
        by_kind = {kind: [run for run in same if run.database == kind] for kind in kinds}
        maps = [Spread.of([run.map for run in some]) if some else None for some in by_kind.values()]
        chances = [[run.chance for run in by_kind[kind]] for kind in ("learned", "unseen")]
        rows.append([str(n_bits), direction, *maps, *(float(np.mean(some)) if some else None for some in chances)])
    sizes = {run.database: run for run in reversed(runs)}
    seeds = len({run.seed for run in runs})
    notes = [f"Protocol: {protocol.with_database(kind)}" for kind in kinds]
    notes += [
        f"{kind}: {sizes[kind].n_queries} queries, {sizes[kind].n_items} items ({sizes[kind].direction})"
        if kind in sizes
        else f"{kind}: not measured; fewer items than the cut-off of {protocol.cutoff}"
        for kind in ("learned", "unseen")
    ]
    notes.append(f"{seeds} seed(s): mean ± sample standard deviation. Chance: a random ranking, exactly.")
    if test_share is not None:
        notes.append(f"The data come without a split: {test_share:g} of the items were drawn as queries per seed.")
    columns = ["bits", "direction", *kinds, "chance", "chance (unseen)"]
    return Table(f"{runs[0].method} on {dataset}, {scenario}: {protocol.measure}", columns, rows, notes)


def parse_bits(text: str) -> list[int]:
    """Parse code lengths such as ``16,32``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"bits is {text!r}; expected whole numbers separated by commas, e.g. 16,32,64")
    return [int(word) for word in words]


def draw_split(dataset: Dataset, test_share: float, seed: int) -> Dataset:
    """Split by id at random, for data that come without a split: an item is a query in all modalities or in none."""
    import numpy as np

    from modalhash.data import Split

    if not 0 < test_share < 1:
        raise ValueError(f"test_share is {test_share}; expected a share between 0 and 1")
    every = np.unique(np.concatenate(list(dataset.ids.values())))
    drawn = np.random.default_rng(seed).permutation(every)[: max(1, round(test_share * len(every)))]
    masks = {name: np.isin(ids, drawn) for name, ids in dataset.ids.items()}
    training = {name: ids[~masks[name]] for name, ids in dataset.ids.items()}
    query = {name: ids[masks[name]] for name, ids in dataset.ids.items()}
    return replace(dataset, split=Split(training, query))


def apply_scenario(dataset: Dataset, scenario: str, seed: int) -> tuple[Dataset, Any]:
    """Return the data set under the scenario, and the pairs that are left where the scenario says so."""
    from modalhash import data

    if scenario == "paired":
        return data.paired(dataset), None
    if scenario == "semi_paired":
        return data.semi_paired(dataset, seed=seed)
    change: Callable[..., Dataset] = getattr(data, scenario)
    if scenario in ("noisy_labels", "missing_labels"):  # a pair has one label row, and stays one
        return change(dataset, seed=seed, shared=dataset.parts().training.paired), None
    return change(dataset, seed=seed), None
