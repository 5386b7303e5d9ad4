"""Open the folder of an engine, and describe an engine without loading all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from modalhash.engine.storage.folder import (
    EngineError,
    Generation,
    built_in_reads,
    describe_engine,
    read_config,
    read_config_with_items,
    read_parts,
    recover_engine,
)
from modalhash.engine.storage.index_snapshot import SnapshotKeeper
from modalhash.engine.storage.location import StoreLocation, follow, sweep_unfinished
from modalhash.store import Store, StoreError

T = TypeVar("T")


def open_folder(
    folder: Path, read: Callable[[], T], *, read_only: bool, database: str | None
) -> tuple[Generation, T, StoreLocation, Store]:
    """Read one generation of the engine and open its store; retry if it is replaced meanwhile."""
    if not read_only:
        recover_engine(folder)
        if not folder.exists():
            sweep_unfinished(folder, StoreLocation(database=database))
    while True:
        generation = Generation(folder)
        try:
            if not read_only and follow(folder, database=database):
                continue
            parts, config = read(), read_config(folder)
            place = StoreLocation.of(config, database=database)
            fields, model = config["searched_fields"], str(config["model"])
            store = place.open(folder, searched_fields=fields, read_only=read_only, model=model)
        except (EngineError, StoreError, OSError):
            if generation.is_current():
                raise
            continue
        if generation.is_current():
            return generation, parts, place, store
        store.close()


def engine_info(path: str | Path, *, trust: bool = False, read_only: bool = False) -> dict[str, Any]:
    """Return the same as :meth:`Engine.info`, in less time because model, encoders and index are not loaded.

    Use :func:`verify_engine` to find out whether they are intact. They are loaded if one is of another package.

    Parameters
    ----------
    path, trust, read_only : as for :meth:`Engine.open`
    """
    folder = Path(path)
    read = partial(read_config_with_items, folder)
    _, config, _, store = open_folder(folder, read, read_only=read_only, database=None)
    with store:
        reads = None if ":" in config["method"] else built_in_reads(folder, config)
        return describe(folder, config, store, read_parts(folder, trust=trust).reads if reads is None else reads)


def describe(folder: Path, config: Mapping[str, Any], store: Store, reads: Mapping[str, str]) -> dict[str, Any]:
    return {
        **describe_engine(folder, config, store.counts(), reads),
        "snapshot": SnapshotKeeper(folder, store, read_only=True).describe(),
    }
