"""Sources to encode, and what became of them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from little_world import make_world


def make_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def make_source(folder: Path, n: int = 40) -> Path:
    """Pictures and texts in ``photos/`` and ``items.csv``, some of them broken."""
    make_world(folder, n)
    (folder / "photos" / "broken.png").write_bytes(b"no picture")
    with (folder / "items.csv").open("a", encoding="utf-8") as file:
        file.write("photos/nosuch.png,,red\n,...,red\n,a red ball,red,too many columns\n")
    return folder / "items.csv"


def rows_of(folder: Path) -> list[dict]:
    """All rows of the files of a folder."""
    import pyarrow.parquet as parquet

    return [row for file in sorted(folder.glob("*.parquet")) for row in parquet.ParquetFile(file).read().to_pylist()]


def items_of(engine) -> list[tuple]:
    """All that an engine stores, in an order that does not depend on when it was added."""
    return sorted(
        (
            one.key,
            bytes(one.code),
            one.kind,
            one.refinement,
            one.text or "",
            one.uri or "",
            one.labels,
            json.dumps(dict(one.extra)),
        )
        for one in engine.items()
    )
