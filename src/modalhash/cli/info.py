"""``modalhash info``: what an engine is made of."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli._common import (
    AsJson,
    EngineFolder,
    ReadOnly,
    Trust,
    console,
    describe_codes,
    describe_labels,
    describe_named_labels,
    open_engine,
    print_json,
)

if TYPE_CHECKING:
    from modalhash.engine import Engine


def info(
    engine: EngineFolder,
    report: Annotated[
        Path | None, typer.Option(help="Write how far confidence can be believed, as a page (HTML) with diagrams.")
    ] = None,
    trust: Trust = False,
    read_only: ReadOnly = False,
    as_json: AsJson = False,
) -> None:
    """What an engine is made of, and how many items are in it.

    [bold]Example[/bold]

    modalhash info engine --json

    modalhash info engine --report reliability.html
    """
    with open_engine(engine, trust=trust, read_only=read_only) as opened:
        facts = opened.info()
        if report is not None:
            report.write_text(_reliability_page(opened), encoding="utf-8")
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("modality", "items", "learned", "hashed", "trained on", "encoder", "features", title_justify="left")
    table.title = f"{facts['items']:,} items, {facts['n_bits']} bits, {facts['method']}, {describe_labels(facts)}"
    for name, one in facts["modalities"].items():
        kinds, encoder = one["items"], one["encoder"]
        numbers = [sum(kinds.values()), kinds["learned"], kinds["hashed"], one["trained_on"] or 0]
        made_by = f"{encoder['name']} {encoder['version']} ({encoder['digest'][:8]})"
        table.add_row(name, *(f"{number:,}" for number in numbers), made_by, f"{encoder['dim']:,}")
    out = console()
    out.print(table)
    if facts["collisions"] is not None:
        out.print(describe_codes(facts))
    for line in describe_named_labels(facts):
        out.print(line)
    if facts["labels"] == "none":
        out.print("learned without labels: hits have no confidence, which would be that of sharing a label")
    megabytes = facts["bytes"] / 1e6
    out.print(
        f"made {facts['created']} by modalhash {facts['modalhash']}, format {facts['format']}; {megabytes:.1f} MB"
    )


def _reliability_page(engine: Engine) -> str:
    """Return the reliability of an engine's confidence on held-out queries as HTML."""
    from modalhash.engine import calibration_error, pooled, reliability_svg

    if engine.confidence is None:
        raise ValueError(f"there is nothing to report: {engine.why_no_confidence}")
    tables = {" ".join(pair): bins for pair, bins in engine.confidence.reliability.items() if bins}
    tables = {"all": pooled(tables.values()), **tables}
    parts = []
    for name, bins in tables.items():
        title = f"{name}: expected calibration error {calibration_error(bins):.3f}"
        cells = ([f"{b.start:.2f}", f"{b.hits}", f"{b.confidence:.3f}", f"{b.right:.3f}"] for b in bins)
        rows = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in cells)
        head = "<tr><th>from</th><th>hits</th><th>confidence</th><th>right</th></tr>"
        parts.append(f"<h2>{escape(title)}</h2><div>{reliability_svg(bins, name)}<table>{head}{rows}</table></div>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Reliability of confidence</title>'
        "<style>body{font:16px sans-serif;max-width:60rem;margin:auto}svg{width:24rem}div{display:flex;gap:2rem}"
        "td,th{text-align:right;padding:0 .5rem}</style><h1>Reliability of confidence</h1>"
        "<p>First hits of held-out queries: query, hit, kind of the hit's code. A circle on the diagonal is a "
        "confidence that is what it says.</p>"
        f"{''.join(parts)}</html>\n"
    )
