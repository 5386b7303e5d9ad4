"""``modalhash info``: what an engine is made of."""

from __future__ import annotations

from typing import Any

from modalhash.cli._common import AsJson, EngineFolder, Trust, console, describe_codes, open_engine, print_json


def info(engine: EngineFolder, trust: Trust = False, as_json: AsJson = False) -> None:
    """What an engine is made of, and how many items are in it.

    [bold]Example[/bold]

    modalhash info engine --json
    """
    with open_engine(engine, trust=trust) as opened:
        facts = opened.info()
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("modality", "items", "learned", "hashed", "trained on", "encoder", "features", title_justify="left")
    table.title = f"{facts['items']:,} items, {facts['n_bits']} bits, {facts['method']}, {facts['classes']} labels"
    for name, one in facts["modalities"].items():
        kinds, encoder = one["items"], one["encoder"]
        numbers = [sum(kinds.values()), kinds["learned"], kinds["hashed"], one["trained_on"] or 0]
        made_by = f"{encoder['name']} {encoder['version']} ({encoder['digest'][:8]})"
        table.add_row(name, *(f"{number:,}" for number in numbers), made_by, f"{encoder['dim']:,}")
    out = console()
    out.print(table)
    if facts["collisions"] is not None:
        out.print(describe_codes(facts))
    megabytes = facts["bytes"] / 1e6
    out.print(
        f"made {facts['created']} by modalhash {facts['modalhash']}, format {facts['format']}; {megabytes:.1f} MB"
    )
