"""The commands check, train and retrain."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli.common import (
    EXIT_INCOMPLETE,
    EngineFolder,
    Strict,
    audited,
    describe_codes,
    describe_labels,
    describe_named_labels,
    describe_overlap,
    describe_problem,
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
from modalhash.core.progress import spoken
from modalhash.engine.settings import RetrainOverrides, TrainSettings, Trust

if TYPE_CHECKING:
    from modalhash.engine import Problem, SourceCheck, TrainingPlan


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


def _say_learned(folder: Path, facts: dict[str, Any], notes: list[str], *, learned: str = "") -> None:
    """Print the sizes and the seconds of a training, notes, the codes and the quality to expect."""
    from modalhash.engine import describe_expected

    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in facts["seconds"].items())
    sizes = ", ".join(f"{sum(one['items'].values()):,} {name}" for name, one in facts["modalities"].items())
    say(f"{folder}: {sizes}; {learned}{describe_labels(facts)} ({seconds})")
    for line in (*notes, *describe_named_labels(facts), *describe_overlap(facts)):
        say(line)
    say(describe_codes(facts))
    say(describe_expected(facts["expected"], codes=facts["codes"]))


def _say_done(output: Path, facts: dict[str, Any]) -> None:
    _say_learned(output, facts, [*map(printable, facts["notes"])])
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

    With [b]--online[/b], an engine of a method that learns in chunks ([b]--method lemon[/b])
    learns from new labelled items alone. Codes learned before stay, those of items
    without labels follow, and encoders, confidence and the order of hits stay as
    they were. New labels that arrive late are found less well than after a full
    retraining, so do one from time to time.

    Items whose picture is missing cannot be encoded: they are listed and nothing is
    changed, unless [b]--drop-missing[/b] is given. An engine of given features (a
    data set without pictures or texts) cannot be retrained.

    Exit code: 0; 1 if items were dropped, each with the reason; 2 if nothing was
    changed.

    [bold]Examples[/bold]

    modalhash add engine new.csv && modalhash retrain engine

    modalhash retrain engine --bits auto

    modalhash add engine new.csv && modalhash retrain engine --online

    modalhash retrain engine --encoder text=text+use --drop-missing
    """
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
        learned = ", ".join(f"{one['trained_on']:,} {name}" for name, one in facts["modalities"].items())
        sides = ((after - before, "new"), (before - after, "gone"))
        changed = ", ".join(f"{len(some):,} {what}" for some, what in sides if some)
        notes = [f"labels: {changed}"] if changed else []
        _say_learned(engine, facts, notes, learned=f"learned from {learned}; ")
    if problems:
        raise typer.Exit(EXIT_INCOMPLETE)


WIDTH = 80
EXAMPLES = 2
"""Number of items printed for each kind of problem."""


@partial(with_option_groups, include=lambda option: option.check)
def check(
    sources: Sources,
    settings: TrainSettings,
    reading: ReadingOptions,
    report: ReportOptions,
) -> None:
    """Check sources before training: what would be skipped, what looks wrong, and how long it would take.

    Reads everything that [b]modalhash train[/b] would read, with the same
    options, and decodes every picture, but trains and writes nothing. Labels
    connect pictures and texts, so it reports which labels they share, and which
    look misspelled or like several labels in one.

    Exit code: 0 if nothing is wrong; 1 if items would be skipped or something
    needs attention; 2 if training is not possible.

    [bold]Examples[/bold]

    modalhash check photos/ texts.csv

    modalhash check items.csv --field text=caption --field labels=keywords

    modalhash check photos/ texts.csv --quality best

    modalhash check photos/ texts.csv --json
    """
    from modalhash.encoders import default_quality
    from modalhash.engine import check_sources

    settings = replace(settings, table=reading.table)
    allow_imports(settings.method, settings.encoders)
    with progress_bars() as callback:
        found = check_sources(sources, callback=callback, **vars(settings))
    if report.as_json:
        print_json({**found.to_dict(), "problems": problems_as_json(found.problems)})
    else:
        for line in _lines(found, settings.encoders or {}, settings.quality or default_quality()):
            typer.echo(line)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _lines(found: SourceCheck, encoders: Mapping[str, Any], quality: str) -> list[str]:
    lines = _sources(found)
    if found.modalities:
        lines += ["", *_counts(found)]
    if found.problems:
        lines += ["", *_left_out(found)]
    for title, attention in (("Needs attention", True), ("Good to know", False)):
        if remarks := [remark for remark in found.remarks if remark.attention == attention]:
            lines += ["", title]
            for remark in remarks:
                lines += _wrapped(remark.text, "  - ", "    ")
    if found.plan is not None:
        lines += ["", "What train would do", *_plan(found, found.plan, encoders, quality)]
    return [*lines, "", *_verdict(found)]


def _sources(found: SourceCheck) -> list[str]:
    kinds = {"pictures": "pictures; subfolders are labels", "manifest": "manifest", "dataset": "data set"}
    return _aligned([(printable(one.path), one.description or kinds[one.kind]) for one in found.sources], "")


def _counts(found: SourceCheck) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "items", "to learn from", "labelled", "labels")]
    for name, one in found.modalities.items():
        rows.append((name, *(f"{n:,}" for n in (one.items, one.training, one.labelled, one.labels))))
    labels = found.labels
    if labels is not None and len(found.modalities) > 1:
        rows.append(("in both" if len(found.modalities) == 2 else "shared", "", "", "", f"{len(labels.shared):,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "   ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]


def _left_out(found: SourceCheck) -> list[str]:
    from modalhash.engine import group_problems

    n = len(found.problems)
    lines = [f"Skipped: {_number(n, 'item')}"]
    for what, group in group_problems(found.problems).items():
        lines += _wrapped(f"{len(group):,} × {what}", "  ", "    ")
        for problem in group[:EXAMPLES]:
            lines += _wrapped(describe_problem(problem), "      ", "      ")
        if len(group) > EXAMPLES:
            lines.append(f"      … and {len(group) - EXAMPLES:,} more; --json lists them all")
    return lines


def _plan(found: SourceCheck, plan: TrainingPlan, encoders: Mapping[str, Any], quality: str) -> list[str]:
    from modalhash.encoders import QUALITIES

    learns = "without labels" if found.labels is None else f"from {_number(len(found.labels.items), 'label')}"
    rows = [("method", f"{plan.method}, {learns}"), ("bits", f"{plan.n_bits} ({plan.why_bits})")]
    for modality, one in plan.encoders.items():
        speed = f"here {one.per_second:,.0f}, {_about(one.seconds)} for all"
        own = QUALITIES[quality].get(modality)
        if own is None or own.encoder != one.encoder or modality in encoders:
            why = "as requested" if modality in encoders else "features of the source"
            rows.append((modality, f"{one.encoder} ({why}): items per second and core {speed}"))
            continue
        rows.append((modality, f"{one.encoder}, {own.reason}; {speed}"))
        for other, choices in QUALITIES.items():
            choice = choices.get(modality, own)
            if choice.encoder != own.encoder:
                seconds = one.seconds * own.per_second / choice.per_second
                rows.append(("", f"--quality {other} uses {choice.encoder}, {choice.reason}; {_about(seconds)}"))
    if plan.seconds is not None:
        stages = ", ".join(f"{stage} {spoken(seconds)}" for stage, seconds in plan.seconds.items())
        rows.append(("time", f"{_about(sum(plan.seconds.values()))} on this machine ({stages})"))
    else:
        rows.append(("time", f"encoding as above; the training time of {plan.method} is not estimated"))
    memory = "" if plan.memory is None else f"about {_size(plan.memory)}; "
    rows.append(("memory", f"{memory}the engine will be about {_size(plan.disk)}"))
    return _aligned(rows, "  ")


def _verdict(found: SourceCheck) -> list[str]:
    if found.error is not None:
        lines = _wrapped(f"Training is not possible: {printable(found.error)}", "", "  ")
        return lines + [f"  {printable(line)}" for line in (found.details or "").splitlines()]
    if not found.exit_code:
        return ["No problems found."]
    n, looks = len(found.problems), sum(remark.attention for remark in found.remarks)
    parts = [f"{_number(n, 'item')} would be skipped"] * bool(n)
    parts += [f"{looks:,} {'remark needs' if looks == 1 else 'remarks need'} attention"] * bool(looks)
    return [f"Training is possible; {' and '.join(parts)}."]


def _number(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _about(seconds: float) -> str:
    return "less than a second" if seconds < 1 else f"about {spoken(seconds)}"


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{max(1, round(n_bytes / 1e6)):,} MB"


def _aligned(rows: list[tuple[str, str]], indent: str) -> list[str]:
    """Return rows as two columns."""
    width = min(max((len(name) for name, _ in rows), default=0), 30)
    lines = []
    for name, text in rows:
        lines += _wrapped(text, f"{indent}{name.ljust(width)}  ", indent + " " * (width + 2))
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
