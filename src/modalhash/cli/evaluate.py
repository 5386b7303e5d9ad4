"""The commands evaluate, tune and compare: measure methods on data sets and search their parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli.common import Quiet, Terminated, check_drawing, console, key_values, progress_bars, say
from modalhash.cli.options import DataOptions, Params, by_method, method_parameters, names_in, with_option_groups
from modalhash.methods import registry

if TYPE_CHECKING:
    from modalhash.experiments import MethodComparison, Tuned

TUNED_HEADER = "# Found by `modalhash tune"
"""First line of a file that `modalhash tune` wrote and may replace."""


@dataclass(frozen=True)
class MethodOptions:
    """Methods to fit, and how to measure them."""

    method: Annotated[
        str, typer.Option(help="Methods, separated by commas: see `modalhash methods`, or mymodule:Class.")
    ] = "amsh"
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD.NAME=VALUE",
            help="A parameter, e.g. [b]amsh.ridge=0.1[/b], or [b]ridge=0.1[/b] for a single method; may be repeated.",
        ),
    ] = None
    params: Params = None
    bits: Annotated[str, typer.Option(help="Code lengths, separated by commas.")] = "16,32,64,128"
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, seeds 0, 1, …")] = 3
    protocol: Annotated[str, typer.Option(help="A preset (amsh, bmc, …) or e.g. 'mAP@50 ties=stable'.")] = ""
    against: Annotated[
        str, typer.Option(metavar="METHOD", help="Test the other methods against this one.", show_default="the first")
    ] = ""


@dataclass(frozen=True)
class PrintOptions:
    """Form of the results."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the values, or every single run.")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False
    latex: Annotated[bool, typer.Option("--latex", help="Print a LaTeX table (booktabs).")] = False
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None

    def check(self) -> None:
        """Raise for options that exclude each other."""
        if self.as_json + self.markdown + self.latex > 1:
            raise ValueError("use only one of --json, --markdown and --latex")

    def show(self, table: Any, to_json: Callable[[], str]) -> None:
        text = to_json() if self.as_json else table.to_latex() if self.latex else table.to_markdown()
        if self.output is not None:
            self.output.write_text(text.rstrip() + "\n", encoding="utf-8")
        elif self.as_json or self.markdown or self.latex:
            typer.echo(text.rstrip())
        else:
            console().print(table.to_rich())


@dataclass(frozen=True)
class FileOptions:
    """Files of the results."""

    curves: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw precision over recall into this file, .svg, .png or .pdf. Needs the extra [b]plot[/b].",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write DATA.json (every run and query), DATA.csv, DATA.tex and, with the extra [b]plot[/b], DATA.svg "
            "(curves) to this folder.",
        ),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files of --out.")] = False

    def files(self, name: str) -> dict[str, Path]:
        """Return the files to write, by kind; raise if one exists and must not be replaced."""
        from importlib.util import find_spec

        files = {}
        if self.out is not None:
            drawn = self.curves is None and find_spec("matplotlib") is not None
            stem = re.sub(r"[^\w.+-]", "-", name)
            files = {kind: self.out / f"{stem}.{kind}" for kind in ("json", "csv", "tex", *(["svg"] if drawn else []))}
            if there := [str(path) for path in files.values() if path.exists() and not self.overwrite]:
                raise FileExistsError(f"{', '.join(there)}: already exists; choose another --out, or use --overwrite")
            self.out.mkdir(parents=True, exist_ok=True)
        if self.curves is not None:
            files[self.curves.suffix.lower().removeprefix(".")] = self.curves
        return files


@with_option_groups
def evaluate(data: DataOptions, methods: MethodOptions, written: FileOptions, output: PrintOptions) -> None:
    """Train methods and print their mAP on learned, hashed and unseen databases, with the chance level.

    First prints the number of fits and an estimate of their time, from small
    fits. With several methods, arrows mark significant differences from the first:
    a paired randomisation test over queries with Holm correction for the table.

    [bold]Examples[/bold]

    modalhash evaluate openmoji --bits 16,32 --seeds 3

    modalhash evaluate wiki --method amsh,rlh,batch --bits 16,32 --seeds 5 --out results

    modalhash evaluate wiki --method amsh,rlh --curves curves.svg

    modalhash evaluate wiki --method amsh,rlh --param amsh.ridge=0.1 --params wiki-rlh.toml

    modalhash evaluate features.mat --method mymodule:Mine --json --output mine.json

    modalhash evaluate other.mat --map image=feat_i --map text=feat_t --map labels=gnd

    modalhash evaluate wiki --method batch --scenario paired --protocol 'mAP@50 ties=stable'
    """
    from modalhash.evaluation import Protocol

    output.check()
    if written.curves is not None:
        check_drawing(written.curves)
    rules = Protocol.parse(methods.protocol)
    lengths = parse_bits(methods.bits)
    names = names_in(methods.method)
    for name in names:  # raise for unknown methods before reading data
        registry.method(name)
    parameters = method_parameters(names, methods.param, methods.params)
    dataset = data.open()
    files = written.files(dataset.name)

    def keep(found: MethodComparison) -> None:
        if files:
            write(found, files)
            say(f"stopped before all was measured; the results so far are in {', '.join(map(str, files.values()))}")

    from modalhash.experiments import compare_methods

    try:
        found = compare_methods(
            dataset,
            parameters,
            bits=lengths,
            seeds=range(methods.seeds),
            scenario=None if data.scenario is None else data.scenario.value,
            protocol=rules,
            reference=methods.against or None,
            test_share=data.test_share,
            report=partial(console(stderr=True).print, soft_wrap=True, markup=False),
            partial=keep,
        )
    except ValueError as error:  # add the name of the data set
        raise ValueError(f"{data.dataset}: {error}") from error
    write(found, files)
    output.show(found.table(), found.to_json)
    if files:
        say(f"written: {', '.join(map(str, files.values()))}")


def parse_bits(text: str) -> list[int]:
    """Parse code lengths such as ``16,32``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"bits is {text!r}; expected whole numbers separated by commas, e.g. 16,32,64")
    return [int(word) for word in words]


def write(found: MethodComparison, files: dict[str, Path]) -> None:
    from modalhash.core.files import write_atomically

    for kind, path in files.items():
        if kind == "json":
            content = (found.to_json(per_query=True) + "\n").encode()
        elif kind == "csv":
            content = found.to_csv().encode()
        elif kind == "tex":
            content = found.table().to_latex().encode()
        else:
            content = found.to_figure(kind)
        write_atomically(path, content)


class Database(StrEnum):
    """Items that held-out items search."""

    unseen = "unseen"
    hashed = "hashed"
    learned = "learned"


@dataclass(frozen=True)
class TuneOptions:
    """Search space, and how trials are scored."""

    method: Annotated[str, typer.Option(help="See `modalhash methods`, or mymodule:Class.")] = "rlh"
    budget: Annotated[
        int, typer.Option(min=1, help="Number of trials, including those of earlier runs of the study.")
    ] = 50
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SPACE",
            help="Search space of a parameter, in addition to the method's own: [b]ridge=log:1e-4:10[/b], linear:0:1, "
            "int:1:20, logint:64:4096, [b]kernel=choice:rbf|none[/b]; may be repeated.",
            show_default=False,
        ),
    ] = None
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A fixed parameter; may be repeated.")
    ] = None
    params: Params = None
    bits: Annotated[int, typer.Option(min=1, help="Length of the codes.")] = 32
    folds: Annotated[int, typer.Option(min=2, help="Number of cross-validation folds.")] = 3
    database: Annotated[
        Database,
        typer.Option(
            help="Database of held-out queries: each other (unseen), or the training items, hashed or learned."
        ),
    ] = Database.unseen
    protocol: Annotated[str, typer.Option(help="A preset (amsh, bmc, …) or e.g. 'mAP@50 ties=stable'.")] = ""
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds, the method and the search.")] = 0


@with_option_groups
def tune(
    data: DataOptions,
    search: TuneOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File for the parameters.", show_default="DATA-METHOD.toml"
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File of the study, which the next run continues.", show_default="DATA-METHOD.journal"
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Search the parameters of a method for a data set, using only its training items.

    Optuna's TPE (extra [b]tune[/b]) proposes parameters, and cross-validation scores
    them; the first trial uses the defaults. Queries of the data set are never used,
    so [b]modalhash evaluate[/b] can measure the result. You can stop at any time:
    trials are saved in the study file, and the same command continues.

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
    registry.method(names[0])
    fixed = method_parameters(names, search.param, search.params)[names[0]]
    changes = by_method(names, key_values(search.space, "--space"), "--space").get(names[0], {})
    from modalhash.experiments import Tuning, search_space

    search_space(names[0], changes, fixed)  # raise for mistakes before reading data
    dataset = data.open()
    stem = re.sub(r"[^\w.+-]", "-", f"{dataset.name}-{names[0]}")
    output, study = output or Path(f"{stem}.toml"), study or Path(f"{stem}.journal")
    _check_tuned(output)
    if dataset.split is None:
        say(
            f"{dataset.name} has no split: the queries of `modalhash evaluate --seeds 1` are held out; queries of "
            "further seeds are used for tuning",
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
        with progress_bars(
            note=lambda done: "" if done.objective is None else f"best {done.objective:.4f}"
        ) as callback:
            found = tuning.run(search.budget, callback)
    except (KeyboardInterrupt, Terminated) as stopped:
        try:
            _write_tuned(tuning.found(), output)
            say(f"stopped; the best so far is in {output}, all trials in {study}. The same command continues.")
        except ValueError:
            say("stopped before the first trial ended")
        if isinstance(stopped, Terminated):
            raise
        raise typer.Exit(130) from None
    except ValueError as error:
        raise ValueError(f"{data.dataset}: {names[0]}: {error}") from error
    _write_tuned(found, output)
    failed = f", {found.failed} failed" if found.failed else ""
    say(f"{found.trials} trials{failed}: {found.score:.4f}; with the defaults {found.default_score:.4f}")
    for name, value in found.parameters.items():
        say(f"  {name} = {value}")
    if not found.parameters:
        say("  no trial is better than the defaults")
    say(f"written: {output}; study: {study}")
    say(f"Measure it: modalhash evaluate {data.dataset} --method {names[0]} --params {output}")


def _check_tuned(path: Path) -> None:
    """Raise if the file exists and this command did not write it."""
    if path.suffix.lower() not in (".toml", ".json"):
        raise ValueError(f"{path}: expected a name that ends in .toml or .json")
    if path.suffix.lower() == ".json" and path.exists():
        raise FileExistsError(f"{path}: already exists; choose another --output, or remove it")
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(TUNED_HEADER):
        raise FileExistsError(f"{path}: exists, and was not written by `modalhash tune`; choose another --output")


def _write_tuned(found: Tuned, path: Path) -> None:
    from modalhash.experiments import write_parameters

    write_parameters(path, {found.method: found.parameters}, found.notes())


@with_option_groups
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN…", help="Run files, the reference first; may be gzipped.")
    ],
    qrels: Annotated[Path, typer.Option(help="File of relevance judgements.", show_default=False)],
    measures: Annotated[
        str, typer.Option(help="Separated by commas: AP, P@k, R@k, nDCG, RR; each with a cut-off @k.")
    ] = "AP,P@10,nDCG@10",
    *,
    output: PrintOptions,
) -> None:
    """Compare TREC runs on the same queries, with the p-value of every difference.

    Runs may come from any system: lines are [b]query Q0 item rank score tag[/b], those
    of the qrels [b]query 0 item relevance[/b]. Values equal those of trec_eval -c, in
    which a missing query counts 0. The test is a paired randomisation test over
    queries with Holm correction. Write runs with [b]modalhash.evaluation.write_run[/b].

    [bold]Examples[/bold]

    modalhash compare amsh.run rlh.run --qrels wiki.qrels

    modalhash compare base.run.gz a.run b.run --qrels q.txt --measures AP,P@1,nDCG@100 --latex --output table.tex
    """
    from modalhash.evaluation import RunMeasure, compare_runs, read_qrels, read_run

    output.check()
    if len(runs) < 2:
        raise ValueError(f"got one run, {runs[0]}; expected at least two")
    chosen = [RunMeasure.parse(text) for text in measures.split(",")]
    if twice := [path for path in runs if runs.count(path) > 1]:
        raise ValueError(f"{twice[0]} is given twice; expected different runs")
    judged = read_qrels(qrels)
    names = [path.name for path in runs]
    shown = names if len(set(names)) == len(names) else [str(path) for path in runs]
    table = compare_runs({name: read_run(path) for name, path in zip(shown, runs, strict=True)}, judged, chosen)
    output.show(table, table.to_json)
