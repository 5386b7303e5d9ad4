"""Cache of picture features in the engine's folder, so that retraining does not encode pictures again.

A row is identified by the path, size and modification time of the file and by the encoder. The cache may be deleted.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.core.archives import ArchiveMember
from modalhash.core.typing import Array
from modalhash.encoders import Encoded, Failure, encode_items

if TYPE_CHECKING:
    from modalhash.core.progress import Callback
    from modalhash.encoders import Encoder

FILE = "features.sqlite"
KEYS_PER_QUERY = 500


class FeatureCache:
    """Feature vectors by file and encoder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        """Return the cached rows; none if the file is missing or damaged."""
        found: dict[str, Array] = {}
        if not self._path.is_file():
            return found
        try:
            with self._open() as database:
                for start in range(0, len(keys), KEYS_PER_QUERY):
                    some = keys[start : start + KEYS_PER_QUERY]
                    marks = ",".join("?" * len(some))
                    rows = database.execute(f"SELECT key, row FROM feature WHERE key IN ({marks})", some)
                    found.update((key, np.frombuffer(row, np.float32)) for key, row in rows)
        except sqlite3.Error:
            return {}
        return found

    def put(self, keys: Sequence[str], rows: Array) -> None:
        """Store rows; write errors are ignored."""
        data = ((key, row.tobytes()) for key, row in zip(keys, rows.astype(np.float32, copy=False), strict=True))
        try:
            with self._open() as database:
                database.executemany("INSERT OR REPLACE INTO feature VALUES (?, ?)", data)
        except sqlite3.Error:
            return

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=10)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS feature (key TEXT PRIMARY KEY, row BLOB)")
            yield database


def encode_cached(
    encoder: Encoder,
    contents: Sequence[Any],
    known: FeatureCache | None,
    kept: FeatureCache | None,
    *,
    workers: int | None = None,
    progress: Callback | None = None,
    stage: str | None = None,
) -> Encoded:
    """Encode items like :func:`modalhash.encoders.encode_items`, except pictures in ``known``; add rows to ``kept``."""
    keys = [_key(encoder, content) for content in contents] if encoder.reads == "image" else []
    own = [key for key in keys if key is not None]
    if not own or (known is None and kept is None):
        return encode_items(encoder, contents, workers=workers, progress=progress, stage=stage)
    found = {} if known is None else known.get(own)
    found = {key: row for key, row in found.items() if len(row) == encoder.dim}
    missing = [row for row, key in enumerate(keys) if key is None or key not in found]
    fresh = encode_items(encoder, [contents[row] for row in missing], workers=workers, progress=progress, stage=stage)
    failures = [Failure(missing[one.row], one.where, one.reason) for one in fresh.failures]
    rows = dict(zip((missing[row] for row in fresh.ok_rows.tolist()), np.asarray(fresh.features), strict=True))
    rows.update((row, found[key]) for row, key in enumerate(keys) if key is not None and key in found)
    ok = sorted(rows)
    features = np.array([rows[row] for row in ok], dtype=np.float32).reshape(len(ok), encoder.dim)
    if kept is not None:
        new = set(missing) if kept is known else set(ok)
        lasting = [place for place, row in enumerate(ok) if row in new and keys[row] is not None]
        kept.put([str(keys[ok[place]]) for place in lasting], features[lasting])
    return Encoded(features, np.array(ok, dtype=np.int64), failures)


def _key(encoder: Encoder, content: Any) -> str | None:
    """Return the cache key of a picture in a file; None for other contents."""
    file = content.archive if isinstance(content, ArchiveMember) else content
    if not isinstance(file, Path):
        return None
    try:
        status = os.stat(file)
    except OSError:
        return None
    digest = getattr(encoder, "feature_digest", encoder.digest)
    named = f"{digest}\0{os.path.abspath(file)}\0{getattr(content, 'name', '') if file is not content else ''}"
    return sha256(f"{named}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape")).hexdigest()
