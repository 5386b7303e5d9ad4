"""``modalhash retrain``: an engine trained anew from its own items, in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from modalhash.cli._common import (
    EXIT_INCOMPLETE,
    MAX_PROBLEMS,
    AsJson,
    EngineFolder,
    Quiet,
    Trust,
    Workers,
    audited,
    bits_or_auto,
    describe_codes,
    describe_labels,
    describe_named_labels,
    import_from_here,
    key_any,
    key_values,
    open_engine,
    print_json,
    printable,
    problems_as_json,
    progress_bars,
    say,
)
from modalhash.cli._training_options import Labels
from modalhash.cli.train import CodesChoice

if TYPE_CHECKING:
    from modalhash.engine import Problem


def retrain(
    engine: EngineFolder,
    bits: Annotated[
        str | None, typer.Option(help="Length of the codes, or [b]auto[/b].", show_default="as it is")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Another method: see [b]modalhash methods[/b].", show_default="as it is")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the method, e.g. [b]ridge=1[/b]; may be repeated.")
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(help="Another encoder of a modality, e.g. [b]text=text+use[/b], as for [b]train[/b]; repeatable."),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch a model that is named as hf:ID and is not on this disk.")
    ] = False,
    labels: Annotated[
        Labels | None, typer.Option(help="Labels to learn from, as for [b]train[/b].", show_default="as it is")
    ] = None,
    codes: Annotated[
        CodesChoice | None,
        typer.Option(help="Codes of the items learned from, as for [b]train[/b].", show_default="as it is"),
    ] = None,
    drop_missing: Annotated[
        bool,
        typer.Option("--drop-missing", help="Leave out items whose picture cannot be read any more, and say which."),
    ] = False,
    workers: Workers = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train an engine anew from all its items, in its place, while it is in use.

    Whatever was added or relabelled since the last training takes part: items
    with labels are learned from, also those that were held out, the others are
    hashed. Words and labels that are new then count. Encoders, method and code
    length stay, unless told otherwise, and so does the seed.

    Searches go on in the old engine until the new one is whole and takes its
    place in one step; a service follows by itself. What others add, remove or
    relabel meanwhile is in the new engine too. If the command is killed, the old
    engine is there as it was; the next command that opens it removes what was
    left. It takes as long as training, and room for a second engine.

    An item whose picture is gone cannot have a code of the new model: without
    [b]--drop-missing[/b] nothing is changed and these items are listed. An engine
    of given features (a data set without pictures or texts) cannot be retrained.

    Exit code: 0; 1 if items were left out, each with the reason; 2 if nothing was
    changed.

    [bold]Examples[/bold]

    modalhash add engine new.csv && modalhash retrain engine

    modalhash retrain engine --bits auto

    modalhash retrain engine --encoder text=text+use --drop-missing
    """
    from modalhash.encoders import names_module
    from modalhash.engine import describe_expected

    encoders = key_values(encoder, "--encoder")
    if ":" in (method or "") or any(names_module(name) for name in encoders.values()):
        import_from_here()
    problems: list[Problem] = []
    try:
        with (
            open_engine(engine, trust=trust) as old,
            progress_bars() as callback,
            audited("retrain", engine, method=method, bits=bits) as noted,
        ):
            before = set(old.config["class_names"])
            new = old.retrain(
                n_bits=None if bits is None else bits_or_auto(bits),
                method=method,
                parameters=key_any(param, "--param"),
                encoders=encoders,
                labels=None if labels is None else labels.value,
                codes=None if codes is None else codes.value,
                drop_missing=drop_missing,
                workers=workers,
                callback=callback,
                on_problem=problems.append,  # shown at the end, below the bars
                download=download,
            )
            noted["items"] = len(new)
        with new:
            facts, after = new.info(), set(new.config["class_names"])
    finally:
        _show_lost(problems)
    if as_json:
        new_labels = sorted(after - before)
        print_json({**facts, "new_labels": new_labels, "problems": problems_as_json(tuple(problems))})
    else:
        sizes = ", ".join(f"{sum(one['items'].values()):,} {name}" for name, one in facts["modalities"].items())
        learned = ", ".join(f"{one['trained_on']:,} {name}" for name, one in facts["modalities"].items())
        seconds = ", ".join(f"{name} {value:.1f} s" for name, value in facts["seconds"].items())
        say(f"{engine}: {sizes}; learned from {learned}; {describe_labels(facts)} ({seconds})")
        sides = ((after - before, "new"), (before - after, "gone"))
        if changed := [f"{len(some):,} {what}" for some, what in sides if some]:
            say(f"labels: {', '.join(changed)}")
        for line in describe_named_labels(facts):
            say(line)
        say(describe_codes(facts))
        say(describe_expected(facts["expected"], codes=facts["codes"]))
    if problems:
        raise typer.Exit(EXIT_INCOMPLETE)


def _show_lost(problems: list[Problem]) -> None:
    if problems:
        say(f"{len(problems):,} items cannot be read any more:", colour="yellow")
    for problem in problems[:MAX_PROBLEMS]:
        say(f"  {printable(str(problem))}")
    if len(problems) > MAX_PROBLEMS:
        say(f"  … and {len(problems) - MAX_PROBLEMS:,} more; --json lists them all")
