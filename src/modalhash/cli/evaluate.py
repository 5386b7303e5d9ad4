"""``modalhash evaluate``: methods on a data set, with learned, hashed and unseen databases side by side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli.common import check_drawing, console, say
from modalhash.cli.options import DataOptions, Params, method_parameters, names_in, with_option_groups
from modalhash.methods import registry

if TYPE_CHECKING:
    from modalhash.experiments import MethodComparison


@dataclass(frozen=True)
class MethodOptions:
    """What is fitted, and how it is measured."""

    method: Annotated[
        str, typer.Option(help="Methods, separated by commas: see `modalhash methods`, or mymodule:Class.")
    ] = "amsh"
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD.NAME=VALUE",
            help="A parameter, e.g. [b]amsh.ridge=0.1[/b], or [b]ridge=0.1[/b] of a single method; may be repeated.",
        ),
    ] = None
    params: Params = None
    bits: Annotated[str, typer.Option(help="Code lengths, separated by commas.")] = "16,32,64,128"
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, seeds 0, 1, …")] = 3
    protocol: Annotated[str, typer.Option(help="A preset (amsh, bmc, …) or e.g. 'mAP@50 ties=stable'.")] = ""
    against: Annotated[
        str,
        typer.Option(metavar="METHOD", help="Test the other methods against this one.", show_default="the first"),
    ] = ""


@dataclass(frozen=True)
class OutputOptions:
    """Where the results go."""

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
            "(curves) there.",
        ),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of --out that are there.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Every single run, as JSON.")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False
    latex: Annotated[bool, typer.Option("--latex", help="A LaTeX table (booktabs).")] = False
    output: Annotated[Path | None, typer.Option(help="Write there instead of to the terminal.")] = None

    def check(self) -> None:
        """Refuse what contradicts itself or cannot be written."""
        if self.as_json + self.markdown + self.latex > 1:
            raise ValueError("take one of --json, --markdown and --latex")
        if self.curves is not None:
            check_drawing(self.curves)

    def files(self, name: str) -> dict[str, Path]:
        """Return the files to write, by kind; those of --out that are there are refused unless they may be replaced."""
        from importlib.util import find_spec

        files = {}
        if self.out is not None:
            drawn = self.curves is None and find_spec("matplotlib") is not None
            stem = re.sub(r"[^\w.+-]", "-", name)
            files = {kind: self.out / f"{stem}.{kind}" for kind in ("json", "csv", "tex", *(["svg"] if drawn else []))}
            if there := [str(path) for path in files.values() if path.exists() and not self.overwrite]:
                raise FileExistsError(f"{', '.join(there)}: there already; take another --out, or --overwrite")
            self.out.mkdir(parents=True, exist_ok=True)
        if self.curves is not None:
            files[self.curves.suffix.lower().removeprefix(".")] = self.curves
        return files

    def show(self, found: MethodComparison) -> None:
        """Print the table, or write it to --output."""
        table = found.table()
        text = found.to_json() if self.as_json else table.to_latex() if self.latex else table.to_markdown()
        if self.output is not None:
            self.output.write_text(text.rstrip() + "\n", encoding="utf-8")
        elif self.as_json or self.markdown or self.latex:
            typer.echo(text.rstrip())
        else:
            console().print(table.to_rich())


@with_option_groups
def evaluate(data: DataOptions, methods: MethodOptions, output: OutputOptions) -> None:
    """Train methods and print their mAP on learned, hashed and unseen databases, with the chance level.

    It begins by saying how many fits there are and about how long they will take,
    which it finds out by small fits. With several methods, arrows mark what
    differs from the first beyond chance: a paired randomisation test over queries,
    corrected by Holm for all tests of the table.

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
    rules = Protocol.parse(methods.protocol)
    lengths = parse_bits(methods.bits)
    names = names_in(methods.method)
    for name in names:  # what is unknown is named before the data are read
        registry.get(name)
    parameters = method_parameters(names, methods.param, methods.params)
    dataset = data.open()
    files = output.files(dataset.name)

    def keep(found: MethodComparison) -> None:
        if files:
            write(found, files)
            say(f"not all was measured; what was is in {', '.join(map(str, files.values()))}")

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
    except ValueError as error:  # what a method says of its features does not say whose they are
        raise ValueError(f"{data.dataset}: {error}") from error
    write(found, files)
    output.show(found)
    if files:
        say(f"written: {', '.join(map(str, files.values()))}")


def parse_bits(text: str) -> list[int]:
    """Parse code lengths such as ``16,32``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"bits is {text!r}; expected whole numbers separated by commas, e.g. 16,32,64")
    return [int(word) for word in words]


def write(found: MethodComparison, files: dict[str, Path]) -> None:
    """Write the files of a comparison, by kind."""
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


# -- ``modalhash compare``: TREC runs beside each other, with significance.


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run files, the reference first; gzip too.")],
    qrels: Annotated[Path, typer.Option(help="The file that says what is relevant.", show_default=False)],
    measures: Annotated[
        str, typer.Option(help="Separated by commas: AP, P@k, R@k, nDCG, RR; each with a cut-off @k.")
    ] = "AP,P@10,nDCG@10",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="A LaTeX table (booktabs).")] = False,
    output: Annotated[Path | None, typer.Option(help="Write there instead of to the terminal.")] = None,
) -> None:
    """Compare TREC runs on the same queries, with the p-value of every difference.

    Runs may come from any system: a line is [b]query Q0 item rank score tag[/b], of
    the qrels [b]query 0 item relevance[/b]. Values are those of trec_eval -c: a query
    that a run lacks counts 0. The test is a paired randomisation test over queries,
    corrected by Holm. Your own runs: [b]modalhash.evaluation.write_run[/b].

    [bold]Examples[/bold]

    modalhash compare amsh.run rlh.run --qrels wiki.qrels

    modalhash compare base.run.gz a.run b.run --qrels q.txt --measures AP,P@1,nDCG@100 --latex --output table.tex
    """
    from modalhash.evaluation import RunMeasure, compare_runs, read_qrels, read_run

    if as_json + markdown + latex > 1:
        raise ValueError("take one of --json, --markdown and --latex")
    if len(runs) < 2:
        raise ValueError(f"one run, {runs[0]}; expected two or more to compare")
    chosen = [RunMeasure.parse(text) for text in measures.split(",")]
    if twice := [path for path in runs if runs.count(path) > 1]:
        raise ValueError(f"{twice[0]} is named twice; a run does not differ from itself")
    judged = read_qrels(qrels)
    names = [path.name for path in runs]
    shown = names if len(set(names)) == len(names) else [str(path) for path in runs]
    table = compare_runs({name: read_run(path) for name, path in zip(shown, runs, strict=True)}, judged, chosen)
    text = table.to_json() if as_json else table.to_latex() if latex else table.to_markdown()
    if output is not None:
        output.write_text(text.rstrip() + "\n", encoding="utf-8")
    elif as_json or markdown or latex:
        typer.echo(text.rstrip())
    else:
        console().print(table.to_rich())
