"""Items of a manifest: a bad line is reported with its number, and the rest goes on.

The lines are read by :func:`modalhash.data.manifest_lines`; here they become items for the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from modalhash.data import is_manifest as is_manifest
from modalhash.data import manifest_columns, manifest_lines
from modalhash.engine.raw_items import OWN, Item, Problem, Report, items_of


def read_items(
    manifest: Path, reads: Mapping[str, str], report: Report, *, fields: Mapping[str, str] | None = None
) -> Iterator[Item]:
    """Yield the usable items of a JSONL, CSV or TSV manifest; see :func:`modalhash.engine.raw_items.items_of`.

    Paths in it are relative to its folder.
    """
    if not manifest.is_file():
        raise FileNotFoundError(f"{manifest}: no such file; expected a manifest (.jsonl, .csv or .tsv)")
    _check_columns(manifest, fields or {})
    lines = manifest_lines(manifest, lambda number, reason: report(Problem(reason, number, manifest.name)))
    yield from items_of(lines, reads, report, base=manifest.parent, fields=fields, source=manifest.name)


def count_lines(manifest: Path) -> int:
    """Count the lines of a file for a progress bar; a missing file has none."""
    if not manifest.is_file():
        return 0
    with manifest.open("rb") as file:
        return sum(1 for _ in file)


def _check_columns(path: Path, fields: Mapping[str, str]) -> None:
    """Refuse a table without the columns that matter, which would give a problem in every line."""
    columns = manifest_columns(path)
    if columns is None:
        return
    wanted = [value for key, value in fields.items() if key not in OWN] or ["path", "text"]
    own = [value for key, value in fields.items() if key in OWN]
    if not set(wanted) & set(columns) or not set(own) <= set(columns):
        raise ValueError(
            f"{path}: the columns are {', '.join(columns) or 'none'}; expected {' or '.join(wanted)}"
            f"{''.join(f' and {name}' for name in own)}. "
            "Say which holds what, e.g. --field text=caption --field image=file (fields={...})"
        )
