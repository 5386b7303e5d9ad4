"""``modalhash upgrade``: an engine of an earlier version brought to the newest format."""

from __future__ import annotations

from dataclasses import asdict

from modalhash.cli._common import AsJson, EngineFolder, Trust, audited, import_from_here, print_json, say


def upgrade(engine: EngineFolder, trust: Trust = False, as_json: AsJson = False) -> None:
    """Bring an engine that an earlier version made to the newest format.

    Model and codes stay as they are. The engine may be in use: searches go on,
    who adds items waits, and a service follows by itself. The new engine takes
    the place of the old one in one step: if the command is killed, one of them
    is there, whole. An engine that is damaged is refused and left as it is. Where
    there is nothing to do, nothing is done.

    Most commands bring an engine to the newest format when they open it; this one
    says what it does, and is for engines that are only ever opened read-only.
    Earlier versions of modalhash cannot open it afterwards: make a backup first if
    you may want to go back.

    Exit code: 0; 2 for an error.

    [bold]Examples[/bold]

    modalhash upgrade engine

    modalhash backup engine before.tar && modalhash upgrade engine
    """
    from modalhash.engine import upgrade_engine

    if trust:
        import_from_here()
    with audited("upgrade", engine) as noted:
        result = upgrade_engine(engine, trust=trust)
        noted["done"] = list(result.done)
    if as_json:
        print_json(asdict(result))
        return
    for line in result.done:
        say(f"upgraded: {line}")
    if not result.done:
        say(f"{engine} has the newest format already")
    for line in result.advice:
        say(f"note: {line}")
