"""Parquet files of codes, which ``modalhash encode`` writes and ``modalhash add`` reads.

A file has one row per input, in order:

====================  ========================================================================
``id``, ``modality``  key of the item; the modality of an invalid line is null
``code``              packed bits, ``ceil(n_bits / 8)`` bytes; null if there is a problem
``refinement``        refinement vector, int8 values as bytes
``text``, ``uri``     the text itself, or the location of the file
``labels``            list of strings
``extra``             other fields as a JSON object; null if empty
``problem``           reason for a missing code, else null; ``problem_code`` is its code
``source``, ``line``  position of the input in a manifest or list
====================  ========================================================================

The schema's metadata identifies the model; an engine rejects codes of other models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modalhash.core.codes import n_bytes
from modalhash.core.imports import require
from modalhash.core.typing import Array, Codes
from modalhash.data import ReadError
from modalhash.engine.items.item import Item, OnProblem, Problem, ProblemCode
from modalhash.engine.items.urls import EXTRA, expand, is_remote, opened
from modalhash.store import MAX_REFINEMENT, Record

SUFFIX = ".parquet"
FORMAT = 1
KEY = b"modalhash"
ROWS = 8192
Identity = dict[str, Any]
"""Digests of the model, the encoders and the refinement of an engine, and its code length."""


def engine_identity(config: Mapping[str, Any]) -> Identity:
    """Return what determines the codes of an engine; copies have the same identity."""
    return {
        "n_bits": int(config["n_bits"]),
        "model": config["model"],
        "encoders": {modality: one["digest"] for modality, one in config["modalities"].items()},
        "refinement": config["refinement"]["sha256"],
    }


@dataclass(frozen=True)
class CodeRow:
    """An item with its code or a problem; or a problem without an item."""

    item: Item | None
    problem: Problem | None = None
    code: Codes | None = None
    refinement: Array | None = None


def codes_as_bytes(rows: Sequence[CodeRow], identity: Identity) -> bytes:
    pyarrow = require("pyarrow", extra=EXTRA, why="writing codes")
    parquet = require("pyarrow.parquet", extra=EXTRA, why="writing codes")
    described = {"format": FORMAT, "engine": identity}
    schema = _schema(pyarrow, identity["n_bits"]).with_metadata({KEY: json.dumps(described, sort_keys=True)})
    values = [_row_values(row) for row in rows]
    columns = [[row[name] for row in values] for name in schema.names]
    arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def code_files(source: Any) -> list[str] | None:
    """Return the locations of the Parquet files of codes in a source; None if it is something else.

    A Parquet file without codes is a table of items. Only the first of several files is inspected here.
    """
    given = [source] if isinstance(source, str | Path) else source
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, str | Path) for one in given):
        return None
    codes = [str(one).lower().endswith(SUFFIX) for one in given]
    if any(codes) and not all(codes):
        other = given[codes.index(False)]
        raise ValueError(f"{other} is not a Parquet file with codes, and others are; add them separately")
    if not any(codes):
        return None
    files = [where for one in given for where in expand(str(one))]
    if not files or is_remote(files[0]):
        return files
    with _parquet(files[0]) as file:
        return files if KEY in (file.schema_arrow.metadata or {}) else None


def count_rows(files: Sequence[str], identity: Identity) -> int:
    """Return the number of rows of some files; ReadError if one does not have codes of this engine."""
    total = 0
    for where in files:
        with _parquet(where) as file:
            _check_codes_of(file, where, identity)
            total += file.metadata.num_rows
    return total


def read_codes(files: Sequence[str], identity: Identity, report: OnProblem) -> Iterator[tuple[int, list[Record]]]:
    """Yield portions of the items of some files, each with its number of rows; report invalid rows."""
    n_rows, records = 0, []
    for where in files:
        for batch in _batches(where, identity):
            n_rows += batch.num_rows
            records += _records(batch, where, identity, report)
            if n_rows >= ROWS:
                yield n_rows, records
                n_rows, records = 0, []
    if n_rows:
        yield n_rows, records


def _batches(where: str, identity: Identity) -> Iterator[Any]:
    with _parquet(where) as file:
        _check_codes_of(file, where, identity)
        batches = file.iter_batches(batch_size=ROWS)
        while True:
            try:
                batch = next(batches, None)
            except (OSError, ValueError) as error:
                raise ReadError(where, f"damaged ({error}); encode it again") from error
            if batch is None:
                return
            yield batch


def _schema(pyarrow: Any, n_bits: int) -> Any:
    text = pyarrow.string()
    return pyarrow.schema(
        [
            ("id", text),
            ("modality", text),
            ("code", pyarrow.binary(n_bytes(n_bits))),
            ("refinement", pyarrow.binary()),
            ("text", text),
            ("uri", text),
            ("labels", pyarrow.list_(text)),
            ("extra", text),
            ("problem", text),
            ("problem_code", text),
            ("source", text),
            ("line", pyarrow.int64()),
        ]
    )


def _row_values(row: CodeRow) -> dict[str, Any]:
    item, problem = row.item, row.problem
    values: dict[str, Any] = dict.fromkeys(("code", "refinement", "text", "uri", "extra", "problem", "problem_code"))
    if item is not None:
        record = item.to_record(b"", "hashed")
        values |= {"id": item.id, "modality": item.modality, "text": record.text, "uri": record.uri}
        values |= {"labels": list(item.labels), "source": item.source, "line": item.line}
        values["extra"] = json.dumps(dict(item.extra), ensure_ascii=False) if item.extra else None
    if row.code is not None:
        values["code"] = row.code.tobytes()
        values["refinement"] = None if row.refinement is None else row.refinement.tobytes()
    if problem is not None:
        values |= {"problem": problem.reason, "problem_code": problem.code.value}
        if item is None:
            own = problem.id if problem.id is not None else f"{problem.source or 'line'}:{problem.line}"
            values |= {"id": own, "modality": problem.modality, "uri": problem.path, "labels": []}
            values |= {"source": problem.source, "line": problem.line}
        # The problem may be a lone surrogate, which cannot be encoded.
        values = {
            name: value.encode(errors="replace").decode() if isinstance(value, str) else value
            for name, value in values.items()
        }
    return values


@contextmanager
def _parquet(where: str) -> Iterator[Any]:
    parquet = require("pyarrow.parquet", extra=EXTRA, why="reading Parquet files")
    try:
        with opened(where) as file:
            try:
                table = parquet.ParquetFile(file)
            except (OSError, ValueError) as error:
                raise ReadError(where, f"not a complete Parquet file ({error})") from error
            with table:
                yield table
    except FileNotFoundError:
        raise FileNotFoundError(f"{where}: no such file") from None


def _check_codes_of(file: Any, where: str, identity: Identity) -> None:
    """Raise ReadError for a file without codes of this engine."""
    pyarrow = require("pyarrow", extra=EXTRA, why="reading codes")
    try:
        described = json.loads((file.schema_arrow.metadata or {})[KEY])
        made_by, version = dict(described["engine"]), int(described["format"])
    except (KeyError, TypeError, ValueError):
        raise ReadError(
            where, "it has no codes; create such files with `modalhash encode ENGINE SOURCE --out …`"
        ) from None
    if version != FORMAT:
        raise ReadError(where, f"format {version}; this version reads {FORMAT}. Encode it again, or upgrade modalhash")
    if made_by != identity:
        raise ReadError(
            where,
            f"made by another engine ({difference(made_by, identity)}): its codes are not valid here. "
            "Encode the source with this engine",
        )
    if not file.schema_arrow.equals(_schema(pyarrow, identity["n_bits"])):
        raise ReadError(where, "its columns are not those of codes; encode it again")


def difference(one: Identity, other: Identity) -> str:
    if one.get("n_bits") != other.get("n_bits"):
        return f"its codes have {one.get('n_bits')} bits, not {other.get('n_bits')}"
    names = [key for key in ("model", "encoders", "refinement") if one.get(key) != other.get(key)]
    return f"another {' and other '.join(names)}" if names else "its description differs"


def _records(batch: Any, where: str, identity: Identity, report: OnProblem) -> list[Record]:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    known = identity["encoders"]
    records = []
    for id, modality, code, refinement, text, uri, labels, extra, reason, kind, source, line in zip(
        *columns.values(), strict=True
    ):
        if reason is not None:
            code_ = ProblemCode(kind) if kind in set(ProblemCode) else ProblemCode.UNREADABLE
            report(Problem(reason, line, source, modality, id, uri, code_))
            continue
        if code is None or id is None or modality not in known:
            raise ReadError(where, f"the row of {id!r} has no code of a modality of this engine; encode it again")
        if refinement is not None and not 1 <= len(refinement) <= MAX_REFINEMENT:
            raise ReadError(where, f"the row of {id!r} has a refinement vector of {len(refinement)} bytes")
        fields = _parse_fields(extra, id, where) if extra is not None else {}
        records.append(Record(id, modality, code, "hashed", text, uri, tuple(labels or ()), fields, refinement))
    return records


def _parse_fields(text: str, id: str, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ReadError(where, f"the row of {id!r} has fields that are not a JSON object; encode it again")
    return fields
