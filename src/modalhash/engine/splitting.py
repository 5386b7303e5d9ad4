"""One engine made into several, each with a share of its items: the shards that several machines serve."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from modalhash.engine.confidence import FILE as CONFIDENCE
from modalhash.engine.folder import ENCODERS, ITEMS, MEDIA, MODEL, new_folder, new_generation, write_config
from modalhash.engine.item_files import HOME, ItemFiles
from modalhash.engine.refinement import FILE as REFINEMENT
from modalhash.store import Record, SqliteStore

if TYPE_CHECKING:
    from modalhash.engine.engine import Engine

_BATCH = 10_000  # items that are stored together


def split_engine(engine: Engine, folders: Sequence[str | Path]) -> list[int]:
    """Make shards of an engine, which stays as it is, and return how many items each of them has.

    Every shard has the engine's model and encoders. The first has the items that were added first, the next one those
    that follow: searched together, in this order, shards give the hits of the engine, ties included
    (:class:`modalhash.client.ShardedClient`). Items that others add or remove meanwhile may be left out.

    Parameters
    ----------
    engine : the engine
    folders : to be made, one for each shard; each appears when it is whole. Pictures saved in the engine go along;
        other files stay where they are, and the shards find them there
    """
    targets = [Path(folder) for folder in folders]
    if not targets or len({folder.absolute() for folder in targets}) < len(targets):
        raise ValueError(f"folders are {', '.join(map(str, targets)) or 'none'}; expected some, each once")
    items = engine.store.scan()
    bounds = [len(engine) * number // len(targets) for number in range(len(targets) + 1)]
    sizes = []
    for target, (start, stop) in zip(targets, pairwise(bounds), strict=True):
        with new_folder(target, overwrite=False) as fresh:
            files = ItemFiles(target.resolve())
            _copy_parts(engine, fresh, files)
            fields = engine.config["searched_fields"]
            with SqliteStore(fresh / ITEMS, n_bits=engine.n_bits, searched_fields=fields) as store:
                left = stop - start
                while left and (batch := list(islice(items, min(left, _BATCH)))):
                    store.add(_moved(record, engine, fresh, files) for record in batch)
                    left -= len(batch)
                sizes.append(len(store))
    return sizes


def _copy_parts(engine: Engine, fresh: Path, files: ItemFiles) -> None:
    """Copy all of an engine but its items; the generation is new, since these items are others."""
    for name in (MODEL, ENCODERS):
        shutil.copytree(engine.path / name, fresh / name)
    for name in (REFINEMENT, CONFIDENCE):
        if (engine.path / name).exists():
            shutil.copy2(engine.path / name, fresh / name)
    config = {name: value for name, value in engine.config.items() if name != "store"}  # a shard has a file of its own
    write_config(fresh, {**config, HOME: str(files.folder), "generation": new_generation()})


def _moved(record: Record, engine: Engine, fresh: Path, files: ItemFiles) -> Record:
    """Return an item of a shard: a picture that was saved in the engine is copied, any other file stays."""
    parts = PurePosixPath(record.uri or "").parts
    if len(parts) == 2 and parts[0] == MEDIA:
        if engine.path.joinpath(*parts).is_file():
            (fresh / MEDIA).mkdir(exist_ok=True)
            shutil.copy2(engine.path.joinpath(*parts), fresh.joinpath(*parts))
        return record
    file = engine.path_of(record)
    return record if file is None else replace(record, uri=files.uri(str(file)))
