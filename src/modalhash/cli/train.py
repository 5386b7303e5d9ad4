"""The commands train and retrain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli.common import (
    EXIT_INCOMPLETE,
    EngineFolder,
    Strict,
    Trust,
    audited,
    describe_codes,
    describe_labels,
    describe_named_labels,
    describe_overlap,
    list_problems,
    open_engine,
    print_json,
    printable,
    problems_as_json,
    progress_bars,
    say,
    show_problems,
)
from modalhash.cli.options import (
    Params,
    ReadingOptions,
    ReportOptions,
    Sources,
    allow_imports,
    with_option_groups,
    with_parameter_files,
)
from modalhash.engine.settings import RetrainOverrides, TrainSettings

if TYPE_CHECKING:
    from modalhash.engine import Problem


@with_option_groups
def train(
    *,
    manifest: Sources,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="ENGINE", help="Folder of the new engine.")],
    settings: TrainSettings,
    params: Params = None,
    reading: ReadingOptions,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing engine.")] = False,
    strict: Strict = False,
    report: ReportOptions,
) -> None:
    """Train a search engine from pictures and texts.

    Each line of a manifest is an item: the [b]path[/b] of a picture (relative to
    the manifest) or a [b]text[/b], its [b]labels[/b] (separated by ; in a table),
    and optionally [b]id[/b], [b]modality[/b] and [b]split[/b]. Pictures and texts
    need not be paired. Items without labels are not trained on, but are searchable.
    In a folder, zip or tar of pictures, the names of subfolders are the labels,
    except names without meaning such as 2019 or DCIM. Table rows that name pictures
    of such a folder, by path or file name, add fields to them.

    Without any labels, the engine learns from features: photos find photos, texts
    find texts and, with encoders that share a space (extra 'photos', or CLIP), words
    find photos. If only photos have labels, [b]--labels names[/b] gives texts the
    labels whose names they contain. [b]--labels none[/b] ignores labels.

    Exit code: 0; 1 if items were skipped, each with its line and the reason;
    2 if training failed.

    [bold]Examples[/bold]

    modalhash train photos/ -o engine

    modalhash train photos/ texts.csv -o engine

    modalhash train items.jsonl -o engine --bits 32 --field image=file --field text=caption --field labels=keywords

    modalhash train items.csv -o engine --method mymodule:Mine --param ridge=0.1

    modalhash train photos/ texts.csv -o engine --quality fast

    modalhash train photos/ texts.csv -o engine --encoder image=hf:models/clip --encoder text=hf:models/clip

    modalhash train photos/ texts.csv -o engine --read-text

    modalhash train photos/ captions.csv -o engine --labels names

    modalhash train photos-by-year/ -o engine --labels folders

    modalhash train openmoji -o emoji

    modalhash train photos/ texts.xlsx -o engine --sheet Texts

    modalhash train photos/ old.csv -o engine --encoding cp1251 --separator ';'

    modalhash train items.csv -o engine --encoder text=text+use

    MODALHASH_DATABASE_URL=postgresql://… modalhash train items.csv -o engine --store postgresql
    """
    from modalhash.encoders import describe_quality
    from modalhash.engine import train_engine

    settings = with_parameter_files(replace(settings, table=reading.table), params)
    allow_imports(settings.method, settings.encoders)
    if settings.quality is not None:
        for line in describe_quality(settings.quality):
            modality = line.partition(":")[0]
            say(f"{modality}: as given by --encoder" if modality in (settings.encoders or {}) else line)
    details = {"method": settings.method, "labels": settings.labels, "bits": str(settings.n_bits)}
    with (
        progress_bars() as callback,
        audited("train", output, sources=manifest, **details, seed=settings.random_state) as noted,
    ):
        trained = train_engine(
            manifest,
            output,
            settings,
            overwrite=overwrite,
            strict=strict,
            callback=callback,
            on_problem=lambda problem: None,  # shown at the end, below the bars
        )
        noted["items"] = trained.sizes.total()
    problems, facts = trained.problems, trained.info()
    show_problems(problems, manifest)
    if report.as_json:
        print_json({**facts, "problems": problems_as_json(problems)})
    else:
        _say_done(output, facts)
    if problems:
        raise typer.Exit(EXIT_INCOMPLETE)


def _say_done(output: Path, facts: dict[str, Any]) -> None:
    from modalhash.engine import describe_expected

    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in facts["seconds"].items())
    sizes = ", ".join(f"{sum(one['items'].values()):,} {name}" for name, one in facts["modalities"].items())
    say(f"{output}: {sizes}; {describe_labels(facts)} ({seconds})")
    for line in (*map(printable, facts["notes"]), *describe_named_labels(facts), *describe_overlap(facts)):
        say(line)
    say(describe_codes(facts))
    say(describe_expected(facts["expected"], codes=facts["codes"]))
    if facts["store"]["kind"] == "postgresql":
        place = facts["store"]
        say(f"Items are in the schema {place['schema']}; opening the engine needs the URL in {place['variable']}")
    others = [name for name in facts["modalities"] if name != "text"]
    query = '"some words"' if "text" in facts["reads"] else "--image photo.jpg"
    say(f"Search it: modalhash search {output} {query} --want {(others or ['text'])[0]}")
    if facts["labels"] == "none":
        told = "" if facts["why_no_confidence"] is None else "Without labels hits have no confidence. "
        say(f"{told}Near-duplicates: modalhash duplicates {output}")


@with_option_groups
def retrain(
    *,
    engine: EngineFolder,
    overrides: RetrainOverrides,
    drop_missing: Annotated[
        bool,
        typer.Option("--drop-missing", help="Drop items whose picture is missing, and list them."),
    ] = False,
    trust: Trust = False,
    report: ReportOptions,
) -> None:
    """Retrain an engine from all its items, in place, while it is in use.

    Training includes everything added or relabelled since the last training:
    items with labels are learned from, also those that were held out, and the
    others are hashed. New words and labels then count. Encoders, method, code
    length and seed stay the same unless options change them.

    The old engine answers searches until the new one replaces it atomically;
    services switch to it. Items added, removed or relabelled meanwhile are in the
    new engine too. If the command is killed, the old engine is unchanged, and the
    next command that opens it removes leftover files. Retraining takes as long as
    training, and disk space for a second engine.

    Items whose picture is missing cannot be encoded: they are listed and nothing is
    changed, unless [b]--drop-missing[/b] is given. An engine of given features (a
    data set without pictures or texts) cannot be retrained.

    Exit code: 0; 1 if items were dropped, each with the reason; 2 if nothing was
    changed.

    [bold]Examples[/bold]

    modalhash add engine new.csv && modalhash retrain engine

    modalhash retrain engine --bits auto

    modalhash retrain engine --encoder text=text+use --drop-missing
    """
    from modalhash.engine import describe_expected

    allow_imports(overrides.method, overrides.encoders)
    bits = None if overrides.n_bits is None else str(overrides.n_bits)
    problems: list[Problem] = []
    try:
        with (
            open_engine(engine, trust=trust) as old,
            progress_bars() as callback,
            audited("retrain", engine, method=overrides.method, bits=bits) as noted,
        ):
            before = set(old.config["class_names"])
            new = old.retrain(
                drop_missing=drop_missing,
                callback=callback,
                on_problem=problems.append,  # shown at the end, below the bars
                **vars(overrides),
            )
            noted["items"] = len(new)
        with new:
            facts, after = new.info(), set(new.config["class_names"])
    finally:
        if problems:
            say(f"{len(problems):,} items cannot be read:", colour="yellow")
            list_problems(problems)
    if report.as_json:
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
