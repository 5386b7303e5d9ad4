"""``modalhash sync``: an engine that agrees with a folder of photos, once or as it changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli.common import (
    EXIT_INCOMPLETE,
    MAX_PROBLEMS,
    AsJson,
    EngineFolder,
    Quiet,
    ReadText,
    Trust,
    Workers,
    audited,
    describe_problem,
    open_engine,
    print_json,
    problems_as_json,
    progress_bars,
    say,
)

if TYPE_CHECKING:
    from modalhash.engine import Engine, FolderSync, Synced, SyncPlan


def sync(
    engine: EngineFolder,
    photos: Annotated[Path, typer.Argument(metavar="PHOTOS", help="Folder of photos.", show_default=False)],
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and follow what changes, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds from one look to the next.")] = 5.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Drop all items of a folder that is missing or has no pictures.")
    ] = False,
    read_text: ReadText = False,
    workers: Workers = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make an engine agree with a folder of photos.

    What is new is added, what changed is replaced, and items whose photo is gone
    are dropped. Other items stay, and no photo is ever changed. Subfolders are
    labels, as for [b]add[/b]; a photo that changed keeps the labels it has.

    A photo is read if it is new, or if its size or the time of its last change is
    another than at the last sync, so a second run takes seconds. The first run
    takes items whose photo exists to be as they were.

    A folder that is missing or empty is refused if the engine has items from it:
    a disk may not be mounted.

    With [b]--watch[/b] a photo is taken when it is the same in two looks: it may
    still be copied at the first.

    Exit code: 0; 1 if photos were left out, each with the reason; 2 for an error.

    [bold]Examples[/bold]

    modalhash sync engine photos/

    modalhash sync engine photos/ --dry-run

    modalhash sync engine photos/ --watch --interval 10

    modalhash sync engine photos/ --read-text
    """
    if watch and dry_run:
        raise ValueError("--watch and --dry-run exclude each other")
    options = {"workers": workers, "read_text": read_text}
    opened = open_engine(engine, trust=trust, read_only=dry_run)
    if watch:
        _watch(opened, photos, options, interval=interval, allow_empty=allow_empty, as_json=as_json)
        return
    with opened:
        compared = opened.folder_sync(photos, allow_empty=allow_empty)
        plan = compared.look()
        done = plan.expected() if dry_run else _apply(opened, compared, plan, options)
    if dry_run:
        _list_changes(done, as_json=as_json)
    _tell(photos, done, as_json=as_json)
    if dry_run and not as_json:
        say("Nothing was changed: this is what sync would do")
    if done.problems:
        raise typer.Exit(EXIT_INCOMPLETE)


def _apply(engine: Engine, compared: FolderSync, plan: SyncPlan, options: dict[str, Any]) -> Synced:
    """Do what there is to do; it is a change for the audit log if it changes items."""

    def apply() -> Synced:
        with progress_bars() as callback:  # problems are shown at the end, below the bars
            return compared.apply(plan, callback=callback, on_problem=lambda problem: None, **options)

    if not plan.changes_items:
        return apply()
    with audited("sync", engine.path, photos=str(compared.folder)) as noted:
        done = apply()
        noted |= {name: len(getattr(done, name)) for name in ("added", "changed", "moved", "gone")}
    return done


def _watch(
    engine: Engine, photos: Path, options: dict[str, Any], *, interval: float, allow_empty: bool, as_json: bool
) -> None:
    """Look again and again until Ctrl-C; what fails for a while, such as a disk that is not mounted, is told once."""
    from modalhash.engine import EmptyFolderError, EngineReplacedError, PictureTextReader
    from modalhash.store import StoreError

    if options["read_text"]:
        options = {**options, "read_text": PictureTextReader()}  # which takes seconds to load, once
    compared, told, first = engine.folder_sync(photos, allow_empty=allow_empty, settle=True), "", True
    say(f"watching {photos} every {interval:g} s; Ctrl-C ends it")
    try:
        while True:
            try:
                if engine.replaced:
                    engine, old = engine.reopen(), engine
                    old.close()
                    compared = engine.folder_sync(photos, allow_empty=allow_empty, settle=True)
                plan = compared.look()
                if (done := _apply(engine, compared, plan, options)) or first:
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
            time.sleep(interval)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        engine.close()


def _list_changes(done: Synced, *, as_json: bool) -> None:
    """Print what would be done, a line for each item."""
    if as_json:
        return
    for what in ("added", "changed", "moved", "gone"):
        for id in getattr(done, what):
            typer.echo(f"{what}\t{id}")


def _tell(photos: Path, done: Synced, *, as_json: bool) -> None:
    """Say what was done, and what was left out."""
    if as_json:
        names = ("added", "changed", "moved", "gone", "unchanged", "waiting")
        print_json({**{name: getattr(done, name) for name in names}, "problems": problems_as_json(done.problems)})
        return
    say(f"{photos}: {done}{':' if done.problems else ''}")
    for problem in done.problems[:MAX_PROBLEMS]:
        say(f"  {describe_problem(problem)}")
    if len(done.problems) > MAX_PROBLEMS:
        say(f"  … and {len(done.problems) - MAX_PROBLEMS:,} more; --json lists them all")
