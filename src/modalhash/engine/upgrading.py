"""An engine of an earlier format brought to the present one, in its place, while others search it.

The new engine is made in a folder beside the old one and takes its place in one step, as in a training: a process that
is killed leaves the old engine or the new one, and who has the old one open goes on searching. Nobody can write to the
old one meanwhile. Items in a database are brought to the present format there, in one transaction.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modalhash import __version__
from modalhash._files import link_tree
from modalhash.engine.confidence import FILE as CONFIDENCE
from modalhash.engine.folder import (
    ENCODERS,
    ITEMS,
    MODEL,
    Generation,
    Parts,
    new_folder,
    new_generation,
    read_parts,
    recover_engine,
    write_config,
)
from modalhash.engine.place import SQLITE, Place
from modalhash.engine.refinement import FILE as REFINEMENT
from modalhash.store import STORE_FORMAT, SqliteStore


@dataclass(frozen=True)
class Upgraded:
    """What :func:`upgrade_engine` did."""

    done: tuple[str, ...]
    """What was brought to the present format; empty where everything was."""
    advice: tuple[str, ...]
    """What an engine of this version has and this one does not, because only a training makes it."""


def upgrade_engine(folder: str | Path, *, trust: bool = False, database: str | None = None) -> Upgraded:
    """Bring an engine and the store of its items to the newest format; done twice, the second time does nothing.

    Parameters
    ----------
    folder : of the engine
    trust : import encoders of other packages if the engine names some; that runs their code
    database : the URL of its database, if its items are in one, instead of that of the variable which it names

    Notes
    -----
    An earlier version of modalhash cannot open the engine any more. Before anything is changed, the digests of all
    parts and the checksums of all items are compared: a damaged engine is refused, and stays as it is.
    """
    folder = Path(folder)
    recover_engine(folder)
    parts, generation = read_parts(folder, trust=trust), Generation(folder)
    place = Place.of(parts.config, database=database)
    done = []
    config: dict[str, Any] = {**parts.config, "modalhash": __version__}
    if "generation" not in config:
        done.append("config.json: an id, by which others notice when another engine takes the place of this one")
        config["generation"] = new_generation()
    if place.kind == SQLITE and (found := SqliteStore.format_of(folder / ITEMS)) < STORE_FORMAT:
        done.append(f"{ITEMS}: from format {found} to {STORE_FORMAT}")
        _exchange(folder, config, generation)
    else:
        if place.kind != SQLITE:
            place.open(folder).close()  # which migrates an earlier format, in one transaction
        if done:
            write_config(folder, config)
    return Upgraded(tuple(done), tuple(_advice(parts)))


def _exchange(folder: Path, config: dict[str, Any], generation: Generation) -> None:
    """Make the engine anew with a store of the present format, and let that take its place."""
    with ExitStack() as held, new_folder(folder, overwrite=True) as fresh:
        for name in (MODEL, ENCODERS):
            link_tree(folder / name, fresh / name)
        for name in (REFINEMENT, CONFIDENCE):
            if (folder / name).exists():
                shutil.copy2(folder / name, fresh / name)
        held.enter_context(SqliteStore.upgraded_copy(folder / ITEMS, fresh / ITEMS))
        generation.check()
        write_config(fresh, {**config, "generation": new_generation()})


def _advice(parts: Parts) -> list[str]:
    told = []
    if parts.refinement is None:
        told.append("it was trained before hits were ordered by refinement vectors; modalhash retrain makes them")
    elif parts.confidence is None and type(parts.model).supervised and parts.config.get("labels") != "none":
        told.append("its hits have no confidence; modalhash retrain may make it, from enough items with labels")
    return told
