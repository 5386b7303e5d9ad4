"""``modalhash evaluate``: methods on a data set, with learned, hashed and unseen databases side by side."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash import registry
from modalhash.cli._common import (
    Map,
    ReadMemory,
    ReadSeconds,
    command_with,
    console,
    file_mapping,
    open_dataset,
    say,
)
from modalhash.cli._method_options import Params, method_parameters, names_in

if TYPE_CHECKING:  # numpy and what needs it are loaded when the command runs: `modalhash --help` stays quick
    from modalhash.data import Dataset
    from modalhash.experiments import Comparison


class Scenario(StrEnum):
    """What is done to the training items: each is a function of :mod:`modalhash.data` of the same name."""

    paired = "paired"
    unpaired = "unpaired"
    unequal = "unequal"
    semi_paired = "semi_paired"
    noisy_labels = "noisy_labels"
    missing_labels = "missing_labels"


def evaluate(
    dataset: Annotated[str, typer.Argument(metavar="DATA", help="Name of a data set, or a file that `read` takes.")],
    method: Annotated[
        str, typer.Option(help="Methods, separated by commas: see `modalhash methods`, or mymodule:Class.")
    ] = "amsh",
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD.NAME=VALUE",
            help="A parameter, e.g. [b]amsh.ridge=0.1[/b], or [b]ridge=0.1[/b] of a single method; may be repeated.",
        ),
    ] = None,
    params: Params = None,
    bits: Annotated[str, typer.Option(help="Code lengths, separated by commas.")] = "16,32,64,128",
    scenario: Annotated[
        Scenario | None,
        typer.Option(
            help="What is done to the training items.", show_default="paired if a method needs pairs, else unpaired"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, seeds 0, 1, …")] = 3,
    protocol: Annotated[str, typer.Option(help="A preset (amsh, bmc, …) or e.g. 'mAP@50 ties=stable'.")] = "",
    against: Annotated[
        str,
        typer.Option(metavar="METHOD", help="Test the other methods against this one.", show_default="the first"),
    ] = "",
    mapping: Map = None,
    modalities: Annotated[str, typer.Option(help="Only these, separated by commas.")] = "",
    test_share: Annotated[float, typer.Option(help="Items drawn as queries where there is no split.")] = 0.2,
    root: Annotated[Path | None, typer.Option(help="Folder that holds the data sets.")] = None,
    read_memory: ReadMemory = None,
    read_seconds: ReadSeconds = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write DATA.json (every run and query), DATA.csv and DATA.tex there."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of --out that are there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Every single run, as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="A LaTeX table (booktabs).")] = False,
    output: Annotated[Path | None, typer.Option(help="Write there instead of to the terminal.")] = None,
) -> None:
    """Train methods and print their mAP on learned, hashed and unseen databases, with the chance level.

    With several methods, arrows mark what differs from the first beyond chance:
    a paired randomisation test over queries, corrected by Holm for all tests of
    the table.

    [bold]Examples[/bold]

    modalhash evaluate openmoji --bits 16,32 --seeds 3

    modalhash evaluate wiki --method amsh,rlh,batch --bits 16,32 --seeds 5 --out results

    modalhash evaluate wiki --method amsh,rlh --param amsh.ridge=0.1 --params wiki-rlh.toml

    modalhash evaluate features.mat --method mymodule:Mine --json --output mine.json

    modalhash evaluate other.mat --map image=feat_i --map text=feat_t --map labels=gnd

    modalhash evaluate wiki --method batch --scenario paired --protocol 'mAP@50 ties=stable'
    """
    from modalhash.evaluation import Protocol

    if as_json + markdown + latex > 1:
        raise ValueError("take one of --json, --markdown and --latex")
    rules = Protocol.parse(protocol)
    lengths = parse_bits(bits)
    names = names_in(method)
    for name in names:  # what is unknown is named before the data are read
        registry.get(name)
    parameters = method_parameters(names, param, params)
    data = open_dataset(dataset, root, file_mapping(mapping))
    check_labels(data, dataset)
    if modalities:
        data = data.only(*modalities.split(","))
    files = None if out is None else _files(out, data.name, overwrite=overwrite)

    def keep(found: Comparison) -> None:
        if files is not None:
            _write(found, files)
            say(f"not all was measured; what was is in {files['json']}, .csv and .tex")

    from modalhash.experiments import compare_methods

    try:
        found = compare_methods(
            data,
            parameters,
            bits=lengths,
            seeds=range(seeds),
            scenario=None if scenario is None else scenario.value,
            protocol=rules,
            reference=against or None,
            test_share=test_share,
            report=partial(console(stderr=True).print, soft_wrap=True, markup=False),
            partial=keep,
        )
    except ValueError as error:  # what a method says of its features does not say whose they are
        raise ValueError(f"{dataset}: {error}") from error
    if files is not None:
        _write(found, files)
    table = found.table()
    text = found.to_json() if as_json else table.to_latex() if latex else table.to_markdown()
    if output is not None:
        output.write_text(text.rstrip() + "\n", encoding="utf-8")
    elif as_json or markdown or latex:
        typer.echo(text.rstrip())
    else:
        console().print(table.to_rich())
    if files is not None:
        say(f"written: {', '.join(str(path) for path in files.values())}")


def check_labels(data: Dataset, name: str) -> None:
    """Refuse a data set without labels; where a variable of the file may have them, show how to say so."""
    if data.labels or not data.features:
        return
    from modalhash.data import guess_mapping

    error = ValueError(f"{name}: there are no labels, and without them nothing is relevant to a query")
    guessed = guess_mapping(name) if Path(name).exists() else {}
    if "labels" in guessed and (line := command_with(guessed)):
        error.add_note(f"If a variable that was not recognised has them, say which is which:\n  {line}")
    else:
        error.add_note(
            "A file of arrays has them as a variable `labels`: a row per item and a column of 0 and 1 per class, or "
            "one column of class numbers; a table as a column `labels`"
        )
    raise error


def parse_bits(text: str) -> list[int]:
    """Parse code lengths such as ``16,32``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"bits is {text!r}; expected whole numbers separated by commas, e.g. 16,32,64")
    return [int(word) for word in words]


def _files(folder: Path, name: str, *, overwrite: bool) -> dict[str, Path]:
    """Return the files of ``--out``; those that are there are refused before anything is fitted."""
    stem = re.sub(r"[^\w.+-]", "-", name)
    files = {kind: folder / f"{stem}.{kind}" for kind in ("json", "csv", "tex")}
    if there := [str(path) for path in files.values() if path.exists() and not overwrite]:
        raise FileExistsError(f"{', '.join(there)}: there already; take another --out, or --overwrite")
    folder.mkdir(parents=True, exist_ok=True)
    return files


def _write(found: Comparison, files: dict[str, Path]) -> None:
    from modalhash._files import write_atomically

    contents: dict[str, Any] = {
        "json": found.to_json(per_query=True) + "\n",
        "csv": found.to_csv(),
        "tex": found.table().to_latex(),
    }
    for kind, path in files.items():
        write_atomically(path, contents[kind].encode())
