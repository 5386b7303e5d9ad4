"""``modalhash tune``: the parameters of a method, searched on the training items of a data set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli.common import Quiet, Terminated, key_values, progress_bars, say
from modalhash.cli.options import DataOptions, Params, by_method, method_parameters, names_in, with_option_groups
from modalhash.methods import registry

if TYPE_CHECKING:
    from modalhash.core.progress import Progress
    from modalhash.experiments import Tuned

HEADER = "# Found by `modalhash tune"
"""How a file begins that this command wrote, and may replace."""


class Database(StrEnum):
    """What held-out items search."""

    unseen = "unseen"
    hashed = "hashed"
    learned = "learned"


@dataclass(frozen=True)
class TuneOptions:
    """What is searched, and how it is scored."""

    method: Annotated[str, typer.Option(help="See `modalhash methods`, or mymodule:Class.")] = "rlh"
    budget: Annotated[int, typer.Option(min=1, help="Trials, those of earlier runs of the study included.")] = 50
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPACE",
            help="The values of a parameter to search, in addition to those that the method searches by itself: "
            "[b]ridge=log:1e-4:10[/b], linear:0:1, int:1:20, logint:64:4096, [b]kernel=choice:rbf|none[/b]; may be "
            "repeated.",
            show_default=False,
        ),
    ] = None
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A parameter that is not searched; may be repeated."),
    ] = None
    params: Params = None
    bits: Annotated[int, typer.Option(min=1, help="Length of the codes.")] = 32
    folds: Annotated[int, typer.Option(min=2, help="Parts of the training items, each held out once.")] = 3
    database: Annotated[
        Database,
        typer.Option(help="What held-out items search: each other, or the items learned from, hashed or learned."),
    ] = Database.unseen
    protocol: Annotated[str, typer.Option(help="A preset (amsh, bmc, …) or e.g. 'mAP@50 ties=stable'.")] = ""
    seed: Annotated[int, typer.Option(min=0, help="Of the folds, the method and the search.")] = 0


@with_option_groups
def tune(
    data: DataOptions,
    search: TuneOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where the parameters go.", show_default="DATA-METHOD.toml"
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The study, which the next run goes on with.", show_default="DATA-METHOD.journal"
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Search the parameters of a method for a data set, on its training items alone.

    Cross-validation gives the score, Optuna's TPE proposes (extra [b]tune[/b]); the
    first trial has the defaults. Queries of the data set are never looked at, so
    that [b]modalhash evaluate[/b] can measure what was found. Stop it when you like:
    what was done is in the study file, and the same command goes on.

    [bold]Examples[/bold]

    modalhash tune wiki --method rlh --budget 50

    modalhash tune wiki --method amsh --space ridge=log:1e-4:10 --param n_anchors=500 -o amsh.toml

    modalhash evaluate wiki --method amsh,rlh --params amsh.toml --params wiki-rlh.toml

    modalhash train items.csv -o engine --params wiki-rlh.toml
    """
    from modalhash.core.imports import require

    require("optuna", extra="tune", why="modalhash tune")
    names = names_in(search.method)
    if len(names) > 1:
        raise ValueError(f"--method {search.method!r}: one method at a time; run the command once for each")
    registry.get(names[0])
    fixed = method_parameters(names, search.param, search.params)[names[0]]
    changes = by_method(names, key_values(search.space, "--space"), "--space").get(names[0], {})
    from modalhash.experiments import Tuning, search_space

    search_space(names[0], changes, fixed)  # a mistake is named before the data are read
    dataset = data.open()
    stem = re.sub(r"[^\w.+-]", "-", f"{dataset.name}-{names[0]}")
    output, study = output or Path(f"{stem}.toml"), study or Path(f"{stem}.journal")
    _check_output(output)
    if dataset.split is None:
        say(
            f"{dataset.name} comes without a split: the items that `modalhash evaluate --seeds 1` draws as queries are "
            "left out; further seeds of it ask items that were learned from here",
            colour="yellow",
        )
    try:
        tuning = Tuning(
            dataset,
            names[0],
            study,
            space=changes,
            fixed=fixed,
            n_bits=search.bits,
            folds=search.folds,
            seed=search.seed,
            scenario=None if data.scenario is None else data.scenario.value,
            protocol=search.protocol,
            database=search.database.value,
            test_share=data.test_share,
        )
    except ValueError as error:
        raise ValueError(f"{data.dataset}: {error}") from error
    searched = ", ".join(f"{name} {text}" for name, text in tuning.settings["space"].items())
    say(f"{names[0]}, {search.bits} bits, {search.folds} folds; searched: {searched}")
    if (work := tuning.describe_work(search.budget)) is not None:
        say(work)
    try:
        with progress_bars(note=_best) as callback:
            found = tuning.run(search.budget, callback)
    except (KeyboardInterrupt, Terminated) as stopped:
        try:
            _write(tuning.found(), output)
            say(f"stopped; the best so far is in {output}, every trial in {study}. The same command goes on.")
        except ValueError:
            say("stopped before the first trial ended")
        if isinstance(stopped, Terminated):
            raise
        raise typer.Exit(130) from None
    except ValueError as error:
        raise ValueError(f"{data.dataset}: {names[0]}: {error}") from error
    _write(found, output)
    failed = f", {found.failed} failed" if found.failed else ""
    say(f"{found.trials} trials{failed}: {found.score:.4f}; with the defaults {found.default_score:.4f}")
    for name, value in found.parameters.items():
        say(f"  {name} = {value}")
    if not found.parameters:
        say("  nothing that was tried is better than the defaults")
    say(f"written: {output}; study: {study}")
    say(f"Measure it: modalhash evaluate {data.dataset} --method {names[0]} --params {output}")


def _best(progress: Progress) -> str:
    return "" if progress.objective is None else f"best {progress.objective:.4f}"


def _check_output(path: Path) -> None:
    """Refuse to replace a file that this command did not write."""
    if path.suffix.lower() not in (".toml", ".json"):
        raise ValueError(f"{path}: expected a name that ends in .toml or .json")
    if path.suffix.lower() == ".json" and path.exists():
        raise FileExistsError(f"{path}: there already; take another --output, or remove it")
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(HEADER):
        raise FileExistsError(f"{path}: there already, and not written by `modalhash tune`; take another --output")


def _write(found: Tuned, path: Path) -> None:
    from modalhash.experiments import write_parameters

    write_parameters(path, {found.method: found.parameters}, found.notes())
