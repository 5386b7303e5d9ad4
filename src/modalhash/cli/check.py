"""The command check: inspect sources before training."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from modalhash.cli.common import (
    describe_problem,
    describe_seconds,
    print_json,
    printable,
    problems_as_json,
    progress_bars,
)
from modalhash.cli.options import ReadingOptions, ReportOptions, Sources, allow_imports, with_option_groups
from modalhash.engine.settings import TrainSettings

if TYPE_CHECKING:
    from modalhash.engine import SourceCheck, TrainingPlan

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
        stages = ", ".join(f"{stage} {describe_seconds(seconds)}" for stage, seconds in plan.seconds.items())
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
    return "less than a second" if seconds < 1 else f"about {describe_seconds(seconds)}"


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
