"""Targets that are texts: manifests, filters, grids, protocols, tokens, the audit log, configuration files."""

from __future__ import annotations

import json
from pathlib import Path

from fuzzing import seeds
from fuzzing.target import BrokenPromise, Target
from modalhash.core.files import config_bytes, read_config
from modalhash.data import ReadError, ReadLimits, read
from modalhash.engine.items.item import Problem
from modalhash.engine.items.sources import read_batches
from modalhash.engine.storage.audit import AuditLog
from modalhash.engine.storage.folder import EngineError
from modalhash.evaluation import Protocol
from modalhash.experiments import KEYS, load_grid
from modalhash.store import Filter, FilterError, SqliteStore

FIELDS = [f'"{name}"'.encode() for name in ("id", "text", "path", "labels", "split", "modality", "data", "extra")]
READS = {"text": "text", "image": "image"}


class _Manifest(Target):
    weight = 5
    promised = (ReadError,)

    def run(self, data: bytes) -> str | None:
        path = self.folder / f"items{self.suffix}"
        path.write_bytes(data)
        for reason in self._lenient(path):
            if not reason:
                raise BrokenPromise("a problem without a reason")
        try:
            read(path, limits=ReadLimits(memory="50MB"))
        except ReadError as error:
            if not str(error).startswith(str(path)) or not error.reason:
                raise BrokenPromise("the error does not begin with the file", error) from error
            raise
        return None

    def _lenient(self, path: Path) -> list[str]:
        """Read it as ``train`` and ``add`` do: bad lines are reported, the others go on."""
        problems: list[Problem] = []
        try:
            for batch in read_batches([path], READS, problems.append, size=3):
                if not batch.items:
                    raise BrokenPromise("a batch without items")
        except ValueError:  # the columns of a table, as a whole
            if self.suffix == ".jsonl":
                raise
        return [problem.reason for problem in problems]


class JsonLines(_Manifest):
    """A JSONL manifest: `read`, and line by line as `train` and `add`."""

    name = "manifest-jsonl"
    suffix = ".jsonl"
    is_json = True
    tokens = (
        *FIELDS, b'"train"', b'"image"', b'{"id":', b"null", b"true", b"[" * 2000, b"\\ud800", b"\\u0000", b"~",
        b"~x/", b"://",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return [
            seeds.manifest_lines().encode(),
            b'{"id": 1, "path": "0.png", "text": "b", "labels": null}\n',
            b"\xef\xbb\xbf{}\n",
        ]


class CommaSeparated(_Manifest):
    """A CSV manifest, the same."""

    name = "manifest-csv"
    suffix = ".csv"
    tokens = (b"id", b"text", b"path", b"labels", b"split", b"modality", b'""', b";", b"|", b",,", b"train", b"image")

    def seeds(self) -> list[bytes]:
        rows = ["id,text,path,labels,split,year"]
        rows += [f'i{k},"täxt, {k}",,a;b,{["train", "test"][k % 2]},{k}' for k in range(4)]
        return ["\r\n".join(rows).encode(), b"path,labels\n0.png,a|b\n", b'text,modality\n"a\nb",text\n']


class TabSeparated(CommaSeparated):
    """A TSV manifest, the same."""

    name = "manifest-tsv"
    suffix = ".tsv"
    weight = 2

    def seeds(self) -> list[bytes]:
        return [seed.replace(b",", b"\t") for seed in super().seeds()]


class _Filter(Target):
    weight = 16
    promised = (FilterError,)

    def __init__(self, folder: Path, shared: Path) -> None:
        super().__init__(folder, shared)
        self.store = SqliteStore(shared / "engine" / "items.sqlite", read_only=True)

    def run(self, data: bytes) -> str | None:
        found = Filter.parse(data.decode("utf-8", "surrogateescape"))
        if str(Filter.parse(str(found))) != str(found):
            raise BrokenPromise("printed and parsed it is another filter", found)
        if str(Filter.from_json(json.loads(json.dumps(found.to_json())))) != str(found):
            raise BrokenPromise("its JSON form is another filter")
        numbers = self.store.matching(found)
        if set(self.store.records(range(1, 81), where=found)) != set(numbers.tolist()):
            raise BrokenPromise("a few items are filtered otherwise than all")
        return None

    def close(self) -> None:
        self.store.close()


class FilterText(_Filter):
    """A filter as text: parsed, printed, parsed again, and run against a store."""

    name = "filter-text"
    tokens = (
        b"label", b"kind", b"modality", b"id", b"text", b"year", b" and ", b" or ", b" not ", b" in ", b"(", b")",
        b"!=", b"<=", b">=", b"<", b">", b"true", b"false", b'"a b"', b"\\\\", b"extra.", b"1.5", b"-3",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return [
            b'label = red and (year >= 1995 or not title != "a") and kind in (learned, hashed)',
            b"label = hot air balloon",
            b'not (not label in (red, "blue") or id > "text 3")',
            b"year < 2000.5 and flag = true",
            b'"x y" = -1',
            b"modality = text",
        ]


class FilterJson(_Filter):
    """A filter as JSON, the same."""

    name = "filter-json"
    is_json = True
    tokens = (b'"and"', b'"or"', b'"not"', b'"in"', b'"label"', b'"extra.and"', b'">="', b'"!="', b'{"x":', b"[" * 200)

    def seeds(self) -> list[bytes]:
        return [
            b'{"label": "red", "year": {">=": 1995, "<": 2005}}',
            b'{"or": [{"label": ["red", "blue"]}, {"not": {"kind": "learned"}}]}',
            b'{"and": [{"id": {"in": ["text 1", "x"]}}, {"flag": true}, {"x": 1.5}, {"extra.and": "y"}]}',
        ]


class ProtocolText(Target):
    """The text of an evaluation protocol, which is printed and parsed again."""

    name = "protocol"
    weight = 10
    promised = (ValueError,)
    tokens = (
        b"amsh", b"bmc", b"fsh", b"mAP@", b"mAP@all", b"ties=", b"stable", b"database=hashed", b"count_from=",
        b"cutoff=", b"empty=skip", b"normaliser=relevant",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return [b"mAP@50 ties=stable", b"bmc mAP@all database=hashed", b"fsh count_from=3 empty=skip", b""]

    def run(self, data: bytes) -> str | None:
        found = Protocol.parse(data.decode("utf-8", "surrogateescape"))
        if Protocol.parse(str(found)) != found:
            raise BrokenPromise("printed and parsed it is another protocol", found)
        return None


class GridFile(Target):
    """A TOML file of an experiment: `load_grid`."""

    name = "grid"
    weight = 6
    promised = (ValueError,)
    tokens = (
        *(f"{key} = ".encode() for key in KEYS), b"label = ", b"method = ", b"parameters = ", b"features = ",
        b"name = ", b"values = ", b"symbols = ", b"fixed = ", b"file = ", b"twin = ", b"generated = ", b"options = ",
        b"[[rows]]\n", b"[[sweeps]]\n",
        b"[quick]\n", b"[full.wiki]\n", b'"amsh"', b"{}", b"[]", b"3", b"1979-05-27", b'"""',
        b"inf", b"\n",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        return [
            b'title = "t"\ndatasets = ["wiki", {name = "g", generated = {n_items = 40}}]\nbits = [16, 32]\nseeds = 3\n'
            b'scenario = "semi_paired:0.25+noisy_labels:0.1"\n[[rows]]\nlabel = "A"\nmethod = "amsh"\n'
            b'parameters = {n_anchors = 30}\n[[rows]]\nlabel = "E"\nmethod = "edmh"\n'
            b'scenarios = ["paired", "unpaired"]\n'
            b"[quick]\nwiki = {bits = [16], seeds = 1}\n",
            b'datasets = ["wiki"]\nbits = [16]\nprotocol = "mAP@50"\n'
            b'[[rows]]\nlabel = "A"\nmethod = "amsh"\n'
            b'[[sweeps]]\nname = "s"\ntitle = "T"\nvalues = {lam = [0.1, 1.0]}\nsymbols = {lam = "L"}\n'
            b"[full.wiki]\nrows = []\n",
        ]

    def run(self, data: bytes) -> str | None:
        path = self.folder / "grid.toml"
        path.write_bytes(data)
        try:
            load_grid(path)
        except ValueError as error:
            if not str(error).startswith(str(path)):
                raise BrokenPromise("the error does not begin with the file", error) from error
            raise
        return None


class TokenFile(Target):
    """A file of tokens: read strictly, and by a service that runs."""

    name = "tokens"
    weight = 5
    tokens = (
        b"admin", b"write", b"read", b"sha256:", b"a" * 64, b"#", b"2027-01-31T00:00:00+00:00", b"2027-01-31",
        b"9999-12-31", b"0001-01-01T00:00:00+23:59", b"\n", b"\x0b", b"\x1c",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        line = b"alice write sha256:" + b"9f86d081884c7d65" * 4
        return [
            b"# c\n" + line + b" 2027-01-31T00:00:00+00:00\n" + line.replace(b"alice", b"bob.b@x") + b"\n",
            line + b" 20270131T000000Z",
        ]

    def run(self, data: bytes) -> str | None:
        from modalhash.serve.auth import Tokens, parse_tokens, read_tokens, write_tokens

        path = self.folder / "tokens"
        path.write_bytes(b"")
        running = Tokens(None, path)
        path.write_bytes(data)
        running._seen = None
        found, problems = parse_tokens(data.decode("utf-8", "replace"))
        if {token.name for token in running.valid()} - {token.name for token in found} or running.find(b"x" * 40):
            raise BrokenPromise("the service lets in whom the file does not name")
        try:
            read_tokens(path)
        except ValueError:
            if not problems:
                raise BrokenPromise("read strictly it has a mistake, else none") from None
            return "refused"
        write_tokens(path, found)
        if problems or [one.digest for one in read_tokens(path)] != [one.digest for one in found]:
            raise BrokenPromise("written again, it is another file")
        return None


class AuditLines(Target):
    """An audit log: its tail is read, and a line appended."""

    name = "audit-log"
    weight = 7
    is_json = True
    tokens = (b'{"state": "done"}', b"\n", b"{", b"[" * 2000, b"\xff", b"9" * 5000)

    def seeds(self) -> list[bytes]:
        line = {
            "time": "2026-01-01T00:00:00.000+00:00",
            "change": "ab",
            "what": "add",
            "who": "x",
            "state": "begun",
            "ids": ["a"],
        }
        return [(json.dumps(line) + "\n").encode() * 3, json.dumps({**line, "state": "done"}).encode()]

    def run(self, data: bytes) -> str | None:
        log = AuditLog(self.folder / "engine.audit.jsonl")
        log.path.write_bytes(data)
        before = log.tail(50)
        with log.change("remove", {"who": "x"}) as result:
            result["n"] = 1
        if [line["state"] for line in log.tail(2)] != ["begun", "done"]:
            raise BrokenPromise("what was appended is not there")
        return "taken" if before else "nothing in it"


class ConfigFile(Target):
    """A configuration file of an engine, with and without its digest."""

    name = "config"
    weight = 12
    is_json = True
    promised = (EngineError,)
    tokens = (
        b'"kind"', b'"format"', b'"digest_of_this"', b'"modalhash engine"', b'"modalhash model"', b"9" * 5000,
        b"[" * 2000, b"NaN",
    )  # fmt: skip

    def seeds(self) -> list[bytes]:
        plain = {"kind": "modalhash engine", "format": 1, "n_bits": 16, "x": {"y": [1.5, "ü"]}}
        return [config_bytes(plain), json.dumps(plain).encode()]

    def run(self, data: bytes) -> str | None:
        path = self.folder / "config.json"
        path.write_bytes(data)
        config = read_config(path, kind="modalhash engine", format=1, required=("n_bits",), error=EngineError)
        if data.count(b"[") + data.count(b"{") > 300:
            return "taken, not written again"  # indentation grows with the square of the depth
        path.write_bytes(config_bytes(config))
        if repr(read_config(path, kind="modalhash engine", format=1, required=(), error=EngineError)) != repr(config):
            raise BrokenPromise("written again, it is another configuration")
        return None


class TrecIds(Target):
    """Ids written as TREC run and qrels files, which are split again at spaces."""

    name = "trec"
    weight = 2
    promised = (ValueError,)
    tokens = (b"\n", b"\xc2\xa0", b"\x1c", b"\xe2\x80\xa8", b"\xe3\x80\x80", b" ")

    def seeds(self) -> list[bytes]:
        return [b"q1\nq2\na\nb\nc", "ü\n2\nx\ny\nz".encode()]

    def run(self, data: bytes) -> str | None:
        import numpy as np

        from modalhash.evaluation import rank, write_qrels, write_run

        ids = data.decode("utf-8", "surrogatepass" if data.isascii() else "replace").split("\n")[:5]
        if len(ids) < 5:
            return "too few"
        codes = np.array([[1], [3], [7], [15], [31]], dtype=np.uint8)
        labels = np.eye(2, dtype=bool)[[0, 1, 0, 1, 1]]
        ranking = rank(codes[:2], labels[:2], codes[2:], labels[2:])
        for write, n in ((write_run, 6), (write_qrels, 3)):
            path = self.folder / "out.txt"
            write(path, ranking, query_ids=ids[:2], database_ids=ids[2:])
            rows = [line.split() for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
            if len(rows) != n or any(row[0] not in ids[:2] or row[2] not in ids[2:] for row in rows):
                raise BrokenPromise("the ids are not those that were written", rows)
        return None


TARGETS = [
    JsonLines, CommaSeparated, TabSeparated, FilterText, FilterJson, ProtocolText, GridFile, TokenFile, AuditLines,
    ConfigFile, TrecIds,
]  # fmt: skip
