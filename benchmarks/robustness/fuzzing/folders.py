"""Targets that are files of a folder that modalhash wrote: models, encoders, engines, stores, results, backups.

Digests are put right after the mutation, where a target says so: whoever changes a file can change its digest too.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import shutil
import tarfile
from pathlib import Path
from typing import Any

from fuzzing.target import BrokenPromise, Target
from modalhash.encoders import EncoderFileError, load_encoder
from modalhash.engine import restore_engine
from modalhash.engine.search.confidence import ConfidenceError, load_confidence
from modalhash.engine.search.refinement import RefinementError, load_refinement
from modalhash.engine.storage.folder import EngineError, read_parts
from modalhash.experiments import Results, pack, unpack
from modalhash.methods.fitted import ModelFileError, load
from modalhash.store import SqliteStore, StoreError

JSON_TOKENS = [
    b'"array"', b'"dict"', b'"map"', b'"value"', b'"state"', b'"parameters"', b'"AnchorKernel"', b'"method"', b"null",
    b"{}", b"[]", b"[" * 1500,
]  # fmt: skip
TENSOR_TOKENS = [
    b'"dtype"', b'"shape"', b'"data_offsets"', b'"F32"', b'"F64"', b'"BF16"', b'"I64"', b'"U8"', b'"BOOL"', b"[0,0]",
    b"[0,99999999999]", b'"__metadata__"', b"\0\0\0\0\0\0\0\xff",
]  # fmt: skip


def without_digest(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(path.read_bytes())
    config.pop("digest_of_this")
    return config


class _Copy(Target):
    """A target with a copy of the engine's folder of its own."""

    def __init__(self, folder: Path, shared: Path) -> None:
        super().__init__(folder, shared)
        self.engine = folder / "engine"
        if not self.engine.exists():
            shutil.copytree(shared / "engine", self.engine)
        self.model = self.engine / "model"


class ModelConfig(_Copy):
    """`config.json` of a model, whose digest is left out."""

    name = "model-config"
    weight = 3
    promised = (ModelFileError,)
    is_json, tokens = True, JSON_TOKENS

    def seeds(self) -> list[bytes]:
        return [json.dumps(without_digest(self.shared / "engine" / "model" / "config.json")).encode()]

    def run(self, data: bytes) -> str | None:
        (self.model / "config.json").write_bytes(data)
        repr(load(self.model))
        return None


class ModelTensors(_Copy):
    """`model.safetensors`, with the digest that fits it."""

    name = "model-tensors"
    weight = 3
    promised = (ModelFileError,)
    tokens = TENSOR_TOKENS

    def seeds(self) -> list[bytes]:
        self.config = without_digest(self.shared / "engine" / "model" / "config.json")
        return [(self.shared / "engine" / "model" / "model.safetensors").read_bytes()]

    def run(self, data: bytes) -> str | None:
        self.config["sha256"] = hashlib.sha256(data).hexdigest()
        (self.model / "config.json").write_text(json.dumps(self.config))
        (self.model / "model.safetensors").write_bytes(data)
        load(self.model)
        return None


class EncoderConfig(_Copy):
    """`encoder.json` of a text or picture encoder, whose digest is left out."""

    name = "encoder"
    weight = 4
    promised = (EncoderFileError,)
    is_json = True
    tokens = (
        b'"tfidf"', b'"image"', b'"hashing"', b'"precomputed"', b'"config"', b'"dim"', b'"digest"', b"null", b"{}",
        b"[]",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        folders = sorted((self.shared / "engine" / "encoders").iterdir())
        found = [json.dumps(without_digest(folder / "encoder.json")).encode() for folder in folders]
        return [*found, json.dumps({**json.loads(found[0]), "encoder": "precomputed", "config": {"dim": 3}}).encode()]

    def run(self, data: bytes) -> str | None:
        for folder in sorted((self.engine / "encoders").iterdir()):
            (folder / "encoder.json").write_bytes(data)
            load_encoder(folder)
        return None


class RefinementFile(_Copy):
    """`refinement.safetensors` of an engine, with the digest that fits it."""

    name = "refinement"
    weight = 3
    promised = (RefinementError,)
    tokens = TENSOR_TOKENS

    def seeds(self) -> list[bytes]:
        self.fitted = load(self.shared / "engine" / "model")
        self.config = json.loads((self.shared / "engine" / "config.json").read_bytes())["refinement"]
        return [(self.shared / "engine" / "refinement.safetensors").read_bytes()]

    def run(self, data: bytes) -> str | None:
        (self.engine / "refinement.safetensors").write_bytes(data)
        load_refinement(self.engine, {**self.config, "sha256": hashlib.sha256(data).hexdigest()}, self.fitted, {})
        return None


class ConfidenceFile(_Copy):
    """What an engine learned of its confidence, with the digest that fits it."""

    name = "confidence"
    weight = 3
    promised = (ConfidenceError,)
    is_json = True
    tokens = (
        b'"curves"', b'"usual"', b'"mean"', b'"weights"', b'"reliability"', b"null", b"NaN", b"1e999", b"{}", b"[]",
        b"[" * 1500,
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        from modalhash.engine.search.confidence import FILE

        self.file = self.engine / FILE
        content = {
            "curves": [
                {
                    "query": "text",
                    "hit": "image",
                    "kind": "learned",
                    "weights": [1.0, 2.0, 0.5],
                    "chance": 0.3,
                    "reliability": [[0.1, 0.2, 3]],
                }
            ],
            "usual": {"text": {"mean": [0.0, 1.0], "scale": [1.0, 1.0], "most": 2.0, "last": 3.0}},
            "unknown_words": {"text": 0.5},
        }
        own = self.shared / "engine" / FILE
        return [json.dumps(content).encode(), *([own.read_bytes()] if own.exists() else [])]

    def run(self, data: bytes) -> str | None:
        self.file.write_bytes(data)
        load_confidence(self.engine, {"sha256": hashlib.sha256(data).hexdigest()})
        return None


class EngineConfig(_Copy):
    """`config.json` of an engine, whose digest is left out: all parts are read."""

    name = "engine-config"
    weight = 3
    promised = (EngineError,)
    is_json = True
    tokens = (
        b'"modalities"',
        b'"model"',
        b'"n_bits"',
        b'"refinement"',
        b'"confidence"',
        b'"state"',
        b"null",
        b"{}",
        b"[]",
    )

    def seeds(self) -> list[bytes]:
        return [json.dumps(without_digest(self.shared / "engine" / "config.json")).encode()]

    def run(self, data: bytes) -> str | None:
        (self.engine / "config.json").write_bytes(data)
        read_parts(self.engine)
        return None


class StoreFile(Target):
    """`items.sqlite`: opened, counted, read, searched, checked."""

    name = "store"
    weight = 2
    promised = (StoreError,)
    tokens = (
        b"SQLite format 3\0", b"CREATE TABLE", b"CREATE VIEW", b"item", b"modality", b"\0\0\0\0", b"\x10\0", b"hashed",
        b"[1e999]", b"{}",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        import numpy as np

        from modalhash.store import Record

        path = self.folder / "seed.sqlite"
        path.unlink(missing_ok=True)
        with SqliteStore(path, n_bits=16) as store:
            store.add(
                Record(
                    f"item {k}",
                    ("image", "text")[k % 2],
                    bytes([k, 255 - k]),
                    text=f"a red boat {k}",
                    labels=("sea", k),
                    extra={"title": "t"},
                    refinement=np.int8([1, k]).tobytes(),
                )
                for k in range(6)
            )
            store.remove([("image", "item 0")])
        return [path.read_bytes()]

    def run(self, data: bytes) -> str | None:
        path = self.folder / "items.sqlite"
        for ending in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        path.write_bytes(data)
        for read_only in (True, False):
            with SqliteStore(path, read_only=read_only, timeout=1.0) as store:
                store.count(), store.labels(), store.modalities(), store.damage()
                list(store.codes()), list(store.refinements()), store.search_text("red boat")
                for record in store.scan():
                    try:
                        store.get(record.id, modality=record.modality)
                    except KeyError:
                        if not store.damage():
                            raise BrokenPromise("an item is there and is not found, and no damage is told") from None
                        return "taken, damage told"
        return None


class PackedResults(Target):
    """Packed results of experiments: the text is mutated, then compressed; read and unpacked."""

    name = "results"
    weight = 3
    promised = (ValueError,)
    tokens = (
        b"cells/a/b.json\t", b"datasets/", b"\t{", b'"format":2', b'"configuration":', b"../", b"\n", b"\0",
        b"[" * 2000, b"9" * 5000, b"cells/../../x\t{}",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return [self.text().encode(), b'datasets/x.json\t{"format":2,"name":"x"}']

    @staticmethod
    def text() -> str:
        names = ("dataset", "digest", "scenario", "method", "features", "bits", "seed", "protocol", "intra")
        cell = {"format": 2, "configuration": dict.fromkeys(names, "x") | {"parameters": {}}, "started": 1.0}
        return f'cells/a/b.json\t{json.dumps(cell)}\ndatasets/x.json\t{{"format":2,"name":"x"}}'

    def packed(self, data: bytes) -> bytes:
        return lzma.compress(data, preset=0)

    def run(self, data: bytes) -> str | None:
        path, content = self.folder / "results.json.xz", self.packed(data)
        path.write_bytes(content)
        out = self.folder / "unpacked"
        shutil.rmtree(out, ignore_errors=True)
        with contextlib.suppress(ValueError, OSError):  # a name that is none
            unpack(content, out)
        if out.exists() and {entry.name for entry in out.iterdir()} - {"cells", "datasets"}:
            raise BrokenPromise("more than cells and data sets was written")
        results = Results(path)
        list(results.everything()), results.datasets()
        return None


class PackedBytes(PackedResults):
    """The compressed bytes of packed results."""

    name = "results-xz"
    weight = 2

    def seeds(self) -> list[bytes]:
        (self.folder / "made" / "cells" / "a").mkdir(parents=True, exist_ok=True)
        (self.folder / "made" / "cells" / "a" / "b.json").write_text('{"format":2}')
        return [lzma.compress(self.text().encode(), preset=0), pack(self.folder / "made")]

    def packed(self, data: bytes) -> bytes:
        return data


class BackupFile(Target):
    """The bytes of a backup, plain and compressed: `restore_engine`."""

    name = "backup"
    weight = 2
    promised = (EngineError,)
    tokens = (
        b"ustar\x0000", b"backup.json", b"media/", b"../../x", b"/etc/x", b"0000000", b"77777777777",
        b"\x80\0\0\0\0\0\0\0\0\0\0\xff", b"\0" * 512, b"30 path=../../x\n", b"x", b"L", b"2", b"g",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        import gzip

        members = [["config.json", self.config()], ["media/a.png", "xyz"], ["model/config.json", "{}"]]
        small = make_backup(members)
        return [small, gzip.compress(small, mtime=0), lzma.compress(small), make_backup(members, pax=True)]

    def config(self) -> str:
        return (self.shared / "engine" / "config.json").read_text(encoding="utf-8")

    def run(self, data: bytes) -> str | None:
        return self.restore(data)

    def restore(self, data: bytes) -> str | None:
        place = self.folder / "restored"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        file = place / "backup.tar"
        file.write_bytes(data)
        try:
            restore_engine(file, place / "engine")
        except EngineError:
            if {entry.name for entry in place.iterdir()} - {"backup.tar", ".engine.lock"}:
                raise BrokenPromise("something is left behind", sorted(place.iterdir())) from None
            raise
        return None


def make_backup(members: list[Any], contents: Any = None, *, pax: bool = False) -> bytes:
    """Return an archive of members: name, content, perhaps type and link. The list fits them, if none is given."""
    rows = [[*row, None, None][:4] if isinstance(row, list) and row else [None] * 4 for row in members]
    parts = [(str(name), str(content).encode("utf-8", "replace"), kind, link) for name, content, kind, link in rows]
    if contents is None:
        files = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data, _, _ in parts}
        contents = {"kind": "modalhash backup", "format": 1, "files": files}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT) as archive:
        first = json.dumps(contents).encode()
        for name, data, kind, link in [("backup.json", first, None, None), *parts]:
            member = tarfile.TarInfo(name[:5000])
            member.size, member.linkname = len(data), str(link or "")[:5000]
            member.type = kind[0].encode("latin-1", "replace") if isinstance(kind, str) and kind else tarfile.REGTYPE
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


class BackupMembers(BackupFile):
    """The members of a backup: names, types and links, with the digests that fit them."""

    name = "backup-members"
    weight = 2
    is_json = stays_json = True
    tokens = (
        b'"media/x"', b'"config.json"', b'"../x"', b'"/x"', b'"."', b'"media"', b'"2"', b'"1"', b'"5"', b'"x"',
        b'"media/../../x"',
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        config = self.config()
        one = {
            "members": [["config.json", config], ["media/a.png", "xyz"], ["media/b", "", "2", "../../x"]],
            "pax": False,
        }
        files = {"config.json": {"bytes": len(config.encode()), "sha256": hashlib.sha256(config.encode()).hexdigest()}}
        listed = {"kind": "modalhash backup", "format": 1, "files": files}
        two = {"members": [["config.json", config]], "contents": listed, "pax": True}
        return [json.dumps(one).encode(), json.dumps(two).encode()]

    def run(self, data: bytes) -> str | None:
        try:
            wanted = json.loads(data)
            made = make_backup(list(wanted["members"]), wanted.get("contents"), pax=bool(wanted.get("pax")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, tarfile.TarError):
            return "no archive"
        return self.restore(made)


TARGETS = [
    ModelConfig, ModelTensors, EncoderConfig, RefinementFile, ConfidenceFile, EngineConfig, StoreFile, PackedResults,
    PackedBytes, BackupFile, BackupMembers,
]  # fmt: skip
