"""Collections of codes in Milvus: connecting, writing and searching, with errors that say what to do.

A collection holds the items of a store up to a *revision*, which is recorded in its properties after it was reached.
Its name ends with a random part, so a collection that was dropped is never confused with its successor.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from modalhash.core.codes import n_bytes
from modalhash.core.imports import require
from modalhash.core.typing import Array
from modalhash.index.interface import IndexUnavailableError

URI, TOKEN, DATABASE = "MODALHASH_MILVUS_URI", "MODALHASH_MILVUS_TOKEN", "MODALHASH_MILVUS_DATABASE"
"""Environment variables with the address (``http://host:19530``), ``user:password`` or API key, and database."""
MOST_HITS = 16_384
"""Largest number of hits of one query, and of ids in one filter, that Milvus allows or that is quick."""
SECONDS, WRITE_SECONDS = 10.0, 60.0
"""Time limits of a search and of a write."""
PARTITIONS = 16
LEAST_VERSION = (2, 3)
_NOT_FOUND, _NOT_LOADED = 100, 101


class CollectionGoneError(IndexUnavailableError):
    """The collection does not exist, because it was dropped or not created yet."""


class Milvus:
    """A connection to a Milvus server, opened by the first call."""

    def __init__(self, uri: str | None = None, token: str | None = None, database: str | None = None) -> None:
        self._package = require("pymilvus", extra="milvus", why="search on Milvus")
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # errors are raised, and logged with their traceback
        uri = uri or os.environ.get(URI)
        if not uri:
            raise ValueError(f"set the variable {URI} to the address of Milvus, e.g. http://10.0.0.1:19530")
        self._uri = uri
        self._token = os.environ.get(TOKEN, "") if token is None else token
        self._database = os.environ.get(DATABASE, "") if database is None else database
        self._client: Any = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Milvus at {self._uri.rpartition('@')[2]}"

    def call(self, name: str, *values: Any, seconds: float | None = SECONDS, **options: Any) -> Any:
        """Return the result of a method of ``pymilvus.MilvusClient``; its errors as IndexUnavailableError."""
        try:
            return getattr(self._connected(), name)(*values, timeout=seconds, **options)
        except self._errors as error:
            reason = " ".join(str(getattr(error, "message", error)).split())[:300]
            if getattr(error, "code", None) == _NOT_FOUND or "collection not found" in reason:
                raise CollectionGoneError(f"{self!r} does not have the collection ({reason})") from None
            raise IndexUnavailableError(f"{self!r} does not answer ({reason})") from None

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def now(self) -> int:
        """Return Milvus's own time, with which a search waits for what was written before."""
        try:  # answers to deletions have no time in Milvus 2.3, and MilvusClient has no method for this
            return int(self._connected()._get_connection().alloc_timestamp(timeout=SECONDS))
        except self._errors as error:
            raise IndexUnavailableError(f"{self!r} does not answer ({error})") from None

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        import grpc

        return self._package.MilvusException, grpc.RpcError, grpc.FutureTimeoutError, ConnectionError

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                client = self._package.MilvusClient(
                    uri=self._uri, token=self._token, db_name=self._database, timeout=SECONDS
                )
                version = str(client.get_server_version())
                if _numbers(version) < LEAST_VERSION:
                    client.close()
                    raise IndexUnavailableError(f"{self!r} has version {version}; expected 2.3 or later")
                self._client = client
            return self._client


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.lstrip("v").replace("-", ".").split(".")
    return tuple(int(part) for part in parts[:2] if part.isdigit())


class Reached(NamedTuple):
    """What a collection holds."""

    name: str = ""
    items: int = 0
    """Largest id up to which it has all items."""
    removals: int = 0
    """Number of removals that were applied."""
    timestamp: int = 0
    """Milvus's time after the last write, for which searches wait."""
    groups: Mapping[int, int] = {}
    """Number of items of each group."""


@dataclass
class MilvusCollection:
    """The codes of one engine in Milvus, or with the metric "IP" its int8 vectors.

    Parameters
    ----------
    server : the connection
    prefix : start of the collection's name, which no other engine has
    n_bits : length of the codes, or number of values of the vectors
    facts : properties that say whose codes these are; a collection with others is refused
    """

    server: Milvus
    prefix: str
    n_bits: int
    facts: Mapping[str, str] = field(default_factory=dict)
    metric: str = "HAMMING"

    @property
    def binary(self) -> bool:
        return self.metric == "HAMMING"

    @property
    def farthest(self) -> int:
        """The largest distance that is possible."""
        return self.n_bits if self.binary else 128 * 128 * self.n_bits

    def names(self) -> list[str]:
        return sorted(name for name in self.server.call("list_collections") if name.startswith(f"{self.prefix}_"))

    def find(self) -> Reached:
        """Return the state of the newest collection that is complete; CollectionGoneError without one."""
        states = [state for name in self.names() if (state := self.state(name)) is not None]
        if not states:
            raise CollectionGoneError(f"{self.server!r} has no collection of this engine yet")
        return max(states, key=lambda state: state[1:3])

    def state(self, name: str) -> Reached | None:
        """Return the recorded state of a collection; None if it was not recorded."""
        about = self.server.call("describe_collection", name)["properties"]
        if "modalhash.state" not in about:
            return None
        own = {key: about.get(f"modalhash.{key}") for key in self._facts()}
        if own != self._facts():
            raise IndexUnavailableError(
                f"{self.server!r}: the collection {name} is of another engine ({own}); expected {self._facts()}. Drop "
                "it, or use another database"
            )
        items, removals, timestamp, groups = json.loads(about["modalhash.state"])
        return Reached(name, items, removals, timestamp, {int(group): n for group, n in groups.items()})

    def create(self) -> Reached:
        """Create an empty collection, load it and record its state."""
        types = require("pymilvus", extra="milvus", why="search on Milvus").DataType
        name = f"{self.prefix}_{secrets.token_hex(4)}"
        client = self.server._connected()
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", types.INT64, is_primary=True)
        if self.binary:
            schema.add_field("code", types.BINARY_VECTOR, dim=8 * n_bytes(self.n_bits))
        else:
            schema.add_field("code", types.FLOAT_VECTOR, dim=self.n_bits)
        schema.add_field("group", types.INT64, is_partition_key=True)
        index = client.prepare_index_params()
        index.add_index("code", index_type="BIN_FLAT" if self.binary else "FLAT", metric_type=self.metric)
        properties = {f"modalhash.{key}": value for key, value in self._facts().items()}
        self.server.call(
            "create_collection",
            name,
            seconds=WRITE_SECONDS,
            schema=schema,
            index_params=index,
            num_partitions=PARTITIONS,
            properties=properties,
        )
        return self.record(Reached(name))

    def record(self, state: Reached) -> Reached:
        """Record what the collection holds, after it was written."""
        state = state._replace(timestamp=self.server.now())
        value = json.dumps([state.items, state.removals, state.timestamp, state.groups])
        self.server.call("alter_collection_properties", state.name, {"modalhash.state": value})
        return state

    def load(self, name: str) -> None:
        self.server.call("load_collection", name, seconds=WRITE_SECONDS)

    def drop(self, name: str) -> None:
        self.server.call("drop_collection", name)

    def write(self, name: str, ids: Array, codes: Array, groups: Array) -> None:
        """Add items with new ids ≥ 0; after an error, :meth:`clean` before they are written again.

        It has no time limit, because pymilvus would repeat an insertion whose answer was lost, so that items are there
        twice.
        ``upsert`` cannot be used: Milvus 2.3 writes its rows to other partitions than those that a filter reads.
        """
        rows = [
            {"id": number, "code": code, "group": group}
            for number, code, group in zip(ids.tolist(), self._sent(codes), groups.tolist(), strict=True)
        ]
        if rows:
            self.server.call("insert", name, rows, seconds=None, retry_times=0)

    def delete(self, name: str, ids: Array) -> None:
        for part in parts(ids):
            self.server.call("delete", name, ids=part.tolist(), seconds=WRITE_SECONDS)

    def count(self, name: str, group: int | None = None) -> int:
        """Return the number of items, after all writes."""
        where = "" if group is None else f"group == {group}"
        found = self.server.call(
            "query", name, filter=where, output_fields=["count(*)"], consistency_level="Strong", seconds=WRITE_SECONDS
        )
        return int(found[0]["count(*)"])

    def clean(self, state: Reached) -> None:
        """Delete the items beyond a state, which an unfinished batch left."""
        while found := self._query(state.name, f"id > {state.items}", ["id"], limit=MOST_HITS):
            self.delete(state.name, np.array([row["id"] for row in found], dtype=np.int64))

    def groups(self, state: Reached, ids: Array) -> dict[int, int]:
        """Return the group of those ids that the collection has."""
        found = {}
        for part in parts(ids):
            for row in self._query(state.name, among(part), ["group"], state=state):
                found[int(row["id"])] = int(row["group"])
        return found

    def codes(self, name: str, ids: Array) -> dict[int, tuple[bytes, int]]:
        """Return code (or vector) and group of those ids that a collection has, after all writes."""
        found = {}
        for part in parts(ids):
            for row in self._query(name, among(part), ["code", "group"]):
                code = row["code"][0] if self.binary else np.array(row["code"]).astype(np.int8).tobytes()
                found[int(row["id"])] = code, int(row["group"])
        return found

    def nearest(self, state: Reached, queries: Array, limit: int, where: str = "") -> list[tuple[Array, Array]]:
        """Return ids and distances (or negative inner products) of the nearest of each query, ties in any order."""
        answers = self.server.call(
            "search",
            state.name,
            self._sent(queries),
            anns_field="code",
            limit=limit,
            filter=where,
            search_params={"metric_type": self.metric},
            **_consistency(state),
        )
        sign = 1 if self.binary else -1
        return [
            (np.array(hits.ids, dtype=np.int64), sign * np.rint(np.array(hits.distances)).astype(np.int32))
            for hits in answers
        ]

    def _query(
        self, name: str, where: str, fields: list[str], *, state: Reached | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        how = {"consistency_level": "Strong"} if state is None else _consistency(state)
        return list(self.server.call("query", name, filter=where, output_fields=fields, **how, **more))

    def _sent(self, codes: Array) -> list[Any]:
        return [code.tobytes() for code in codes] if self.binary else list(codes.astype(np.float32))

    def _facts(self) -> dict[str, str]:
        return {**self.facts, "bits": str(self.n_bits)}


def _consistency(state: Reached) -> dict[str, Any]:
    """Return options by which a search sees all that was written up to a state, on every replica."""
    return {"consistency_level": "Customized", "guarantee_timestamp": state.timestamp}


def parts(ids: Array) -> Iterator[Array]:
    return (ids[start : start + MOST_HITS] for start in range(0, len(ids), MOST_HITS))


def among(ids: Array) -> str:
    return f"id in {ids.tolist()}"
