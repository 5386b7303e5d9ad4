"""The commands info, verify, backup, restore, clone and sync."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from modalhash.cli.common import (
    EXIT_INCOMPLETE,
    MAX_PROBLEMS,
    AsJson,
    EngineFolder,
    audited,
    console,
    describe_codes,
    describe_labels,
    describe_named_labels,
    describe_overlap,
    import_from_here,
    list_problems,
    open_engine,
    print_json,
    printable,
    problems_as_json,
    progress_bars,
    say,
)
from modalhash.cli.options import ReportOptions, with_option_groups
from modalhash.engine.settings import ReadOnly, ReadText, StorePlace, StoreVariable, Trust, Workers

if TYPE_CHECKING:
    from modalhash.engine import Engine, FolderSync, Synced, SyncPlan


@with_option_groups
def info(
    engine: EngineFolder,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="[FILE]",
            help="Write an HTML report: items, labels, quality on held-out items, confidence, codes, good and bad "
            "searches. Without a name, ENGINE-report.html in the current folder.",
        ),
    ] = None,
    trust: Trust = False,
    read_only: ReadOnly = False,
    as_json: AsJson = False,
) -> None:
    """Show what an engine contains, how it was trained, and its expected quality.

    [bold]Examples[/bold]

    modalhash info engine --json

    modalhash info engine --report

    modalhash info engine --report pages/engine.html
    """
    from modalhash.engine import engine_info

    if trust:
        import_from_here()
    if report is None:
        facts = engine_info(engine, trust=trust, read_only=read_only)
    else:
        with open_engine(engine, trust=trust, read_only=read_only, compiled=None) as opened:
            facts = opened.info()
            report = _write_report(opened, report)
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if report is not None:
        say(f"Report written to {report}; open it in a browser")


class InfoCommand(TyperCommand):
    """Command whose option ``--report`` may be given without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace ``--report`` without a file by ``--report .``."""
        for place in reversed([row for row, word in enumerate(args) if word == "--report"]):
            if place + 1 == len(args) or args[place + 1].startswith("-"):
                args[place : place + 1] = ["--report", "."]
        return super().parse_args(ctx, args)


def _write_report(engine: Engine, path: Path) -> Path:
    """Write the report, by default named after the engine; return its path."""
    from modalhash.core.files import write_atomically
    from modalhash.engine import report_page

    if path.is_dir():
        path = path / f"{engine.path.resolve().name}-report.html"
    write_atomically(path, report_page(engine).encode())
    return path


def _describe_snapshot(one: dict[str, Any]) -> str:
    age = f"{one['age'] / 3600:,.1f} hours" if one["age"] >= 5400 else f"{one['age'] / 60:,.0f} minutes"
    return (
        f"snapshot of the index: {one['items']:,} items, {one['bytes'] / 1e6:,.1f} MB, {age} old; "
        f"{one['changes_since']:,} changes since, which are read from the store"
    )


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table

    from modalhash.engine import describe_expected

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
    for line in (*describe_named_labels(facts), *describe_overlap(facts)):
        out.print(line)
    out.print(describe_expected(facts["expected"], codes=facts["codes"]))
    if facts["labels"] == "none" and facts["why_no_confidence"] is not None:
        out.print("trained without labels: hits have no confidence, which is the probability of sharing a label")
    if facts["snapshot"] is not None:
        out.print(_describe_snapshot(facts["snapshot"]))
    megabytes = facts["bytes"] / 1e6
    out.print(
        f"made {facts['created']} by modalhash {facts['modalhash']}, format {facts['format']}; {megabytes:.1f} MB"
    )


@with_option_groups
def verify(
    engine: EngineFolder,
    repair: Annotated[bool, typer.Option("--repair", help="Remove leftover files of killed processes.")] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Check an engine for damage and leftover files.

    Checks the digests of all parts, the pages of the store, the checksum of
    every item, stored pictures that are missing or unused, and files that killed
    processes left in or next to the folder. The engine may be in use. Damage
    cannot be repaired: restore a backup.

    Exit code: 0 if the engine is sound, also after --repair; 1 if not; 2 for an
    error.

    [bold]Examples[/bold]

    modalhash verify engine

    modalhash verify engine --repair
    """
    from modalhash.engine import verify_engine

    if trust:
        import_from_here()
    if not engine.parent.is_dir():
        raise FileNotFoundError(f"{engine}: no such folder")
    noting: AbstractContextManager[dict[str, Any]] = audited("repair", engine) if repair else nullcontext({})
    with noting as noted:
        found = verify_engine(engine, repair=repair, trust=trust)
        noted["repaired"] = sum(finding.repaired for finding in found)
    left = [finding for finding in found if not finding.repaired]
    if as_json:
        print_json({"sound": not left, "findings": [asdict(finding) for finding in found]})
    else:
        for finding in found[:MAX_PROBLEMS]:
            say(f"{finding.kind}{' (repaired)' if finding.repaired else ''}: {printable(str(finding))}")
        if len(found) > MAX_PROBLEMS:
            say(f"… and {len(found) - MAX_PROBLEMS:,} more; --json lists them all")
        say(f"{engine} is sound" if not left else _advice(len(left), any(one.kind == "damage" for one in left)))
    if left:
        raise typer.Exit(EXIT_INCOMPLETE)


def _advice(n: int, damaged: bool) -> str:
    remedy = "restore a backup (modalhash restore)" if damaged else "--repair removes leftovers"
    return f"{'one finding' if n == 1 else f'{n:,} findings'}; {remedy}"


def backup(
    engine: EngineFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Archive to write; compressed if it ends in .gz or .tgz.")
    ],
) -> None:
    """Write a consistent snapshot of an engine to one archive, also while it is in use.

    The archive contains the model, encoders, items, and the pictures stored in
    the engine, but not pictures stored elsewhere. [b]modalhash restore[/b]
    restores it.

    [bold]Examples[/bold]

    modalhash backup engine engine.tar

    modalhash backup engine backups/monday.tar.gz
    """
    from modalhash.engine import backup_engine

    backup_engine(engine, file)
    say(f"{engine} written to {file} ({file.stat().st_size / 1e6:,.1f} MB)")


@with_option_groups
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive written by modalhash backup.")],
    engine: EngineFolder,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing engine.")] = False,
    store: StorePlace = None,
    store_variable: StoreVariable = None,
) -> None:
    """Restore an engine from a backup, atomically.

    A service that serves the replaced engine switches to the new one.

    [bold]Examples[/bold]

    modalhash restore engine.tar engine

    modalhash restore backups/monday.tar.gz engine --overwrite

    modalhash restore engine.tar engine --store postgresql
    """
    from modalhash.engine import restore_engine

    with audited("restore", engine, sources=[str(file)]):
        restore_engine(file, engine, overwrite=overwrite, store=store, store_variable=store_variable)
    say(f"{engine} restored from {file}")


def clone(
    source: Annotated[
        str, typer.Argument(metavar="DATABASE", help="[b]postgresql[/b] for the database in the variable, or its URL.")
    ],
    engine: EngineFolder,
    schema: Annotated[str | None, typer.Option(help="Schema of the engine, if the database has several.")] = None,
    store_variable: StoreVariable = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing engine.")] = False,
) -> None:
    """Fetch an engine from the PostgreSQL database of its items.

    One more machine can then serve it. A service fetches the engine by itself
    after a retraining on any machine, and other commands when they open it.

    [bold]Examples[/bold]

    modalhash clone postgresql engine

    modalhash clone postgresql engine --schema modalhash_0123456789abcdef
    """
    from modalhash.engine import clone_engine

    clone_engine(source, engine, schema=schema, store_variable=store_variable, overwrite=overwrite)
    say(f"{engine} fetched from the database")


@dataclass(frozen=True)
class SyncOptions:
    """What synchronising changes, and how often."""

    watch: Annotated[bool, typer.Option("--watch", help="Keep watching the folder until Ctrl-C.")] = False
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between scans.")] = 5.0
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without changes.")] = False
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Remove all items of a folder that is missing or has no pictures.")
    ] = False


@with_option_groups
def sync(
    *,
    engine: EngineFolder,
    photos: Annotated[Path, typer.Argument(metavar="PHOTOS", help="Folder of photos.", show_default=False)],
    options: SyncOptions,
    read_text: ReadText = False,
    workers: Workers = None,
    trust: Trust = False,
    report: ReportOptions,
) -> None:
    """Update an engine to match a folder of photos.

    New photos are added, changed photos are replaced, and items whose photo was
    deleted are removed. Other items stay, and photos are never changed. Subfolders
    are labels, as for [b]add[/b]; a changed photo keeps its labels.

    Only photos that are new, or whose size or modification time has changed, are
    read, so a second run takes seconds. The first run assumes that photos which
    are already in the engine have not changed.

    If the folder is missing or empty but the engine has items from it, sync
    stops, because a disk may not be mounted.

    With [b]--watch[/b], a photo is added once two scans find it unchanged, because it
    may still be being copied.

    Exit code: 0; 1 if photos were skipped, each with the reason; 2 for an error.

    [bold]Examples[/bold]

    modalhash sync engine photos/

    modalhash sync engine photos/ --dry-run

    modalhash sync engine photos/ --watch --interval 10

    modalhash sync engine photos/ --read-text
    """
    if options.watch and options.dry_run:
        raise ValueError("--watch and --dry-run exclude each other")
    reading = {"workers": workers, "read_text": read_text}
    opened = open_engine(engine, trust=trust, read_only=options.dry_run)
    if options.watch:
        _watch(opened, photos, options, reading, as_json=report.as_json)
        return
    with opened:
        compared = opened.folder_sync(photos, allow_empty=options.allow_empty)
        plan = compared.look()
        done = plan.expected() if options.dry_run else _apply(opened, compared, plan, reading)
    if options.dry_run:
        for what in () if report.as_json else ("added", "changed", "moved", "gone"):
            for id in getattr(done, what):
                typer.echo(f"{what}\t{id}")
    _tell(photos, done, as_json=report.as_json)
    if options.dry_run and not report.as_json:
        say("Dry run: nothing was changed")
    if done.problems:
        raise typer.Exit(EXIT_INCOMPLETE)


def _apply(engine: Engine, compared: FolderSync, plan: SyncPlan, reading: dict[str, Any]) -> Synced:
    """Apply a plan; record it in the audit log if it changes items."""

    def apply() -> Synced:
        with progress_bars() as callback:  # problems are shown at the end, below the bars
            return compared.apply(plan, callback=callback, on_problem=lambda problem: None, **reading)

    if not plan.changes_items:
        return apply()
    with audited("sync", engine.path, photos=str(compared.folder)) as noted:
        done = apply()
        noted |= {name: len(getattr(done, name)) for name in ("added", "changed", "moved", "gone")}
    return done


def _watch(engine: Engine, photos: Path, options: SyncOptions, reading: dict[str, Any], *, as_json: bool) -> None:
    """Scan repeatedly until Ctrl-C; print a temporary failure, such as an unmounted disk, only once."""
    from modalhash.engine import EmptyFolderError, EngineReplacedError, PictureTextReader
    from modalhash.store import StoreError

    if reading["read_text"]:
        reading = {**reading, "read_text": PictureTextReader()}  # takes seconds to load
    compared, told, first = engine.folder_sync(photos, allow_empty=options.allow_empty, settle=True), "", True
    say(f"watching {photos} every {options.interval:g} s; stop with Ctrl-C")
    try:
        while True:
            try:
                if engine.replaced:
                    engine, old = engine.reopen(), engine
                    old.close()
                    compared = engine.folder_sync(photos, allow_empty=options.allow_empty, settle=True)
                plan = compared.look()
                if (done := _apply(engine, compared, plan, reading)) or first:
                    _tell(photos, done, as_json=as_json)
                told, first = "", False
            except EngineReplacedError:
                continue
            except (EmptyFolderError, StoreError, OSError) as error:
                if first:
                    raise
                if str(error) != told:
                    say(f"waiting: {error}", colour="yellow")
                told = str(error)
            time.sleep(options.interval)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        engine.close()


def _tell(photos: Path, done: Synced, *, as_json: bool) -> None:
    if as_json:
        names = ("added", "changed", "moved", "gone", "unchanged", "waiting")
        print_json({**{name: getattr(done, name) for name in names}, "problems": problems_as_json(done.problems)})
        return
    say(f"{photos}: {done}{':' if done.problems else ''}")
    list_problems(done.problems)
