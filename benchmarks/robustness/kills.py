"""Kill a process at every system call by which it changes an engine, and see what is left.

    python benchmarks/robustness/kills.py                        # every operation, every call; about half an hour
    python benchmarks/robustness/kills.py --only remove --every 10

An operation (``modalhash add``, ``remove``, ``train --overwrite`` …) is run once under strace, which lists its system
calls. For every call that changes files, or locks them, the engine is put back as it was, and the operation is run
again and killed (SIGKILL) just before that call; for calls that write, also with an error there instead of a kill,
once or from there on: a full disk, or a disk that fails. It is killed, too, in the middle of writing, when a file
reaches one of many sizes (RLIMIT_FSIZE). Then, every time:

- the engine is opened as any user would: it opens, and its contents are exactly the old ones or exactly the new ones;
  an operation in portions may be between two of them, but never behind what it had acknowledged;
- nothing of the killed process is left in it or beside it after that, or after ``modalhash verify --repair``, which
  finds no damage;
- an export or a backup is there whole, or not there;
- an engine whose snapshot was being written answers as it does without any;
- the same operation, run once more and left alone, ends with the new contents.

Starting Python costs a second, so operations run in forks of this process, which has loaded everything and has done
the computing of a training once; strace attaches to a fork before it begins. Linux only, needs strace.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from modalhash import Engine
from modalhash.cli import app
from modalhash.cli.common import user_errors
from modalhash.core import files as _files
from modalhash.engine import backup_engine, restore_engine, verify_engine
from modalhash.engine.storage import ingest
from modalhash.engine.training import corpus, train as training
from record import RESULTS, commit, write

CHANGING = (
    *("write", "pwrite64", "writev", "pwritev", "sendfile", "copy_file_range", "ftruncate", "truncate", "fallocate"),
    *("fsync", "fdatasync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat"),
    *("link", "linkat", "symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "utimensat", "open", "openat", "creat"),
    *("fcntl", "flock", "close"),
)
"""Calls that change files, or who has them: SQLite's shared memory changes between its locks, without a call."""
ERRORS = {
    **dict.fromkeys(("write", "pwrite64", "sendfile", "ftruncate", "fallocate", "openat", "mkdir", "link"), "ENOSPC"),
    **dict.fromkeys(("fsync", "fdatasync", "rename", "unlink", "renameat2", "rmdir"), "EIO"),
}
KINDS = ("kill", "cut", "error", "errors")
"""A kill; a kill when a file reaches a size; an error once; errors from there on."""
CUTS = [int(1.3**n) + random.Random(n).randrange(64) for n in range(18, 50)]
"""Sizes of files, in bytes: from 100 to 500,000."""
COMMANDS = typer.main.get_command(app)
SECONDS = 60  # after which an operation hangs


# -- operations


@dataclass(frozen=True)
class Place:
    """Folders of a run: ``work`` is made anew for every case, ``source`` never changes."""

    base: Path

    @property
    def work(self) -> Path:
        return self.base / "work"

    @property
    def engine(self) -> Path:
        return self.work / "engine"

    @property
    def source(self) -> Path:
        return self.base / "source"


Run = Callable[[Place, Callable[[], None]], None]
"""Does something to the engine of a place; calls its second argument after every portion that is acknowledged."""


@dataclass(frozen=True)
class Operation:
    """Something that changes an engine, or writes it into a file."""

    name: str
    run: Run
    again: Run | None = None
    """Does it when a part may be done already; by default the same."""
    begin: str = "engine"
    """What is there before: an ``"engine"``, ``"nothing"``, an engine that has ``"grown"`` since it was trained, one
    with a ``"snapshot"`` of its index and changes since, or one with ``"leftovers"`` of killed processes."""
    output: str | None = None
    """The file that it writes beside the engine."""
    errors: bool = True
    """Whether calls fail too; not where another operation makes the same ones."""
    snapshot: bool = False
    """Whether it writes a snapshot of the index, and changes nothing else."""
    items: str = "second"
    """Whose items it trains with: results of computing are kept for each."""


def command(*arguments: str, codes: tuple[int, ...] = (0,)) -> Run:
    """Run ``modalhash`` as its console script does; ``{work}`` and ``{source}`` are the folders."""

    def run(place: Place, acknowledge: Callable[[], None]) -> None:
        @contextlib.contextmanager
        def tell_portions() -> Iterator[Any]:
            yield lambda progress: acknowledge() if progress.stage == "add" else None

        sys.modules["modalhash.cli.items"].progress_bars = tell_portions  # type: ignore[attr-defined]
        filled = [argument.format(work=place.work, source=place.source) for argument in arguments]
        try:
            COMMANDS.main(filled, prog_name="modalhash")
        except SystemExit as end:
            if end.code not in codes:
                raise

    return run


def upload(name: str, *, replace: bool) -> Run:
    """Add pictures as bytes, one after the other, as the service does for its clients."""

    def run(place: Place, acknowledge: Callable[[], None]) -> None:
        with user_errors(), Engine.open(place.engine) as engine:
            for path in sorted((place.source / "uploads").iterdir()):
                item = {"id": f"{name}/{path.stem}", "data": path.read_bytes(), "labels": ["new"]}
                engine.add([item], keep=True, replace=replace, workers=1, on_problem=lambda problem: None)
                acknowledge()

    return run


def write_snapshot(place: Place, acknowledge: Callable[[], None]) -> None:
    """Write a snapshot of the index, as engines of 50,000 items and more do by themselves; a warning if that fails."""
    with user_errors(), warnings.catch_warnings(), Engine.open(place.engine) as engine:
        warnings.simplefilter("ignore")
        engine.save_snapshot()


def without_exchange(run: Run) -> Run:
    """Run on a file system that cannot exchange two names."""

    def renaming(place: Place, acknowledge: Callable[[], None]) -> None:
        call, _files._exchange_call = _files._exchange_call, lambda: None
        try:
            run(place, acknowledge)
        finally:
            _files._exchange_call = call

    return renaming


ADD = ("add", "{work}/engine", "{source}/new.jsonl", "--workers", "1")
REMOVE = ("remove", "{work}/engine", "kept/0", "kept/1", "text/0", "text/1", "text/2")
TRAIN = command(
    "train", "{source}/second.jsonl", "-o", "{work}/engine", "--bits", "16", "--overwrite", "--workers", "1"
)
RETRAIN = command("retrain", "{work}/engine", "--workers", "1")
RESTORE = command("restore", "{source}/second.tar", "{work}/engine", "--overwrite")
OPERATIONS = (
    Operation("add", command(*ADD), command(*ADD, codes=(0, 1))),  # 1: some are there already
    Operation("add pictures as bytes", upload("new", replace=False)),
    Operation("replace", command("add", "{work}/engine", "{source}/other.jsonl", "--replace", "--workers", "1")),
    Operation("replace pictures as bytes", upload("kept", replace=True)),
    Operation("remove", command(*REMOVE), command(*REMOVE, "--missing-ok")),
    Operation("relabel", command("relabel", "{work}/engine", "{source}/labels.jsonl", "--workers", "1")),
    Operation("train", TRAIN, begin="nothing"),
    Operation("train --overwrite", TRAIN),
    Operation("train --overwrite, by renames", without_exchange(TRAIN), errors=False),
    Operation("retrain", RETRAIN, begin="grown", items="grown"),
    Operation("restore", RESTORE, begin="nothing"),
    Operation("restore --overwrite", RESTORE),
    Operation("restore --overwrite, by renames", without_exchange(RESTORE), errors=False),
    Operation("export", command("export", "{work}/engine", "-o", "{work}/items.jsonl"), output="items.jsonl"),
    Operation("backup", command("backup", "{work}/engine", "{work}/engine.tar"), output="engine.tar"),
    Operation(
        "backup, compressed", command("backup", "{work}/engine", "{work}/copy.tgz"), output="copy.tgz", errors=False
    ),
    Operation("snapshot", write_snapshot, snapshot=True),
    Operation("snapshot in the place of an old one", write_snapshot, begin="snapshot", snapshot=True),
    Operation("verify --repair", command("verify", "{work}/engine", "--repair"), begin="leftovers"),
)
LEFTOVERS = (
    ".engine.abcdefgh.mh-part/new/items.sqlite",
    ".engine.tar.abcdefgh.mh-part/new/items.sqlite",
    ".items.jsonl.abcdefgh.mh-part",
    "engine/.config.json.abcdefgh.mh-part",
    f"engine/media/{'0' * 32}.png",
)


def prepare(base: Path) -> Place:
    """Make the engine that every case begins with, and what is added to it, trained anew and restored."""
    place = Place(base)
    pictures, uploads = place.source / "pictures", place.source / "uploads"
    for number in range(24):
        save_picture(pictures / f"{number}.png", number)
    for number in range(3):
        save_picture(uploads / f"{number}.png", number + 100)

    def texts(start: int, stop: int, words: str) -> list[dict[str, Any]]:
        colours = ("red", "green", "blue")
        return [
            {"id": f"text/{n}", "text": f"{colours[n % 3]} {words} {n}", "labels": [colours[n % 3]]}
            for n in range(start, stop)
        ]

    def images(start: int, stop: int) -> list[dict[str, Any]]:
        colours = ("red", "green", "blue")
        return [
            {"id": f"image/{n}", "path": f"pictures/{n}.png", "labels": [colours[n % 3]]} for n in range(start, stop)
        ]

    def manifest(name: str, lines: list[dict[str, Any]]) -> Path:
        path = place.source / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    first = manifest("first.jsonl", [*texts(0, 20, "ball"), *images(0, 20)])
    manifest("new.jsonl", [*texts(20, 26, "ball"), *images(20, 24)])
    relabelled = [{"id": f"{kind}/{n}", "labels": ["blue", "box"]} for kind in ("text", "image") for n in range(4)]
    manifest("labels.jsonl", [*relabelled, {"id": "image/5", "labels": []}, {"id": "kept/1", "labels": ["red"]}])
    manifest("other.jsonl", [*texts(0, 4, "box"), *texts(20, 22, "box")])
    second = manifest("second.jsonl", [*texts(0, 18, "house"), *images(0, 18)])
    kept = [
        {"id": f"kept/{n}", "data": (pictures / f"{n}.png").read_bytes(), "labels": ["red", "kept"]} for n in range(3)
    ]
    with Engine.train(second, base / "second", n_bits=16, workers=1) as engine:
        engine.add(kept[:1], keep=True)
    backup_engine(base / "second", place.source / "second.tar")
    (base / "begin-nothing").mkdir()
    with Engine.train(first, base / "begin-engine" / "engine", n_bits=16, workers=1) as engine:
        engine.add(kept, keep=True)
    shutil.copytree(base / "begin-engine", base / "begin-grown")
    with Engine.open(base / "begin-grown" / "engine") as engine:
        engine.add(place.source / "new.jsonl", workers=1)
        engine.relabel(place.source / "labels.jsonl")
    shutil.copytree(base / "begin-engine", base / "begin-snapshot")
    with Engine.open(base / "begin-snapshot" / "engine") as engine:
        engine.save_snapshot()
        engine.add(place.source / "new.jsonl", workers=1)
        engine.remove(["text/3", "kept/2"])
    shutil.copytree(base / "begin-engine", base / "begin-leftovers")
    for name in LEFTOVERS:
        path = base / "begin-leftovers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    return place


def save_picture(path: Path, number: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    colour = [40 + number % 7, 40 + number % 5, 40 + number % 3]
    colour[number % 3] = 200
    Image.new("RGB", (24, 24), tuple(colour)).save(path)


def compute_once() -> None:
    """Let trainings of this process compute once for the items they have; nothing of that touches the disk."""
    corpus.choose_encoders = remembered(corpus.choose_encoders)
    for name in ("_encode", "learn"):
        setattr(training, name, remembered(getattr(training, name)))


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    results: dict[str, Any] = {}

    def once(*arguments: Any, **options: Any) -> Any:
        if TRAINED[0] not in results:
            results[TRAINED[0]] = function(*arguments, **options)
        return results[TRAINED[0]]

    return once


TRAINED = ["second"]
"""Whose items the operation under way trains with."""


# -- what is in an engine


def contents(folder: Path, *, read_only: bool = False) -> str | None:
    """Return a digest of all that an engine holds and finds; None if there is none."""
    if not folder.exists() and not read_only:
        _files.recover_folder(folder)
    if not folder.exists():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what was swept or put back
        engine = Engine.open(folder, read_only=read_only)
    with engine:
        lines = []
        for line in engine.export():
            path = Path(line.pop("path", ""))
            if path.is_relative_to(folder):
                line["picture"] = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(json.dumps(line, sort_keys=True))
        found = {
            record.id
            for record in engine.store.records(engine.store.search_text("ball box house", limit=1000)).values()
        }
        if len(engine.index) != len(lines):
            raise AssertionError(f"the index has {len(engine.index)} items, the store {len(lines)}")
        facts = [sorted(lines), sorted(found), engine.labels(), engine.config["model"]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def answers(folder: Path, *, with_snapshot: bool) -> list[Any]:
    """Return what an engine finds, by its snapshot if it has one, or from its store alone."""
    if not with_snapshot:
        copy = folder.parent / "without"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("index.snapshot"))
        try:
            return answers(copy, with_snapshot=True)
        finally:
            shutil.rmtree(copy)
    with Engine.open(folder, read_only=True) as engine:
        queries = ({"text": "red ball"}, {"text": "blue"}, {"id": "image/4"})
        found = [engine.search(**query, k=100) for query in queries]
    return [[(hit.modality, hit.id, hit.distance, hit.score) for hit in hits] for hits in found]


def has_new_snapshot(folder: Path) -> bool:
    with Engine.open(folder, read_only=True) as engine:
        snapshot = engine.info()["snapshot"]
    return snapshot is not None and snapshot["changes_since"] == 0


# -- system calls


@dataclass(frozen=True)
class Point:
    """A system call of an operation, by its name and its number among those of this name."""

    name: str
    number: int
    target: str
    """What it is done to, without what differs from run to run."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit code, or minus the signal that ended it."""
    acknowledged: int
    said: str
    last: Point | None = None


def trace(place: Place, run: Run, inject: str | None) -> tuple[Ended, list[Point]]:
    """Run in a fork under strace, with a kill or an error injected; return how it ended, and its changing calls."""
    log = place.base / "strace"
    child, go = fork(place, run)
    command = ["strace", "-f", "-y", "-s", "0", "-o", str(log), "-p", str(child)]
    command += ["-e", f"trace={','.join(f'?{name}' for name in CHANGING)}"]
    tracer = subprocess.Popen(
        [*command, *(() if inject is None else ("-e", f"inject={inject}"))], stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    if "attached" not in (line := tracer.stderr.readline()):
        os.kill(child, signal.SIGKILL)
        raise RuntimeError(f"strace cannot attach: {line.strip()}")
    ended = finish(place, child, go)
    tracer.communicate(timeout=SECONDS)
    points, last = read_log(log, place.work)
    return Ended(ended.code, ended.acknowledged, ended.said, last), points


def fork(place: Place, run: Run) -> tuple[int, int]:
    """Start a fork that waits for a byte before it runs; return its id, and where the byte goes."""
    waiting, go = os.pipe()
    prepared, ready = os.pipe()
    child = os.fork()
    if child:
        os.close(waiting)
        os.close(ready)
        os.read(prepared, 1)  # a tracer that attaches earlier would count the calls by which it prepares itself
        os.close(prepared)
        return child, go
    code = 3
    try:
        gc.disable()  # it closes files at any time, and the number of a call must be the same in every run
        os.close(go)
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(place.base / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.close(prepared)
        os.write(ready, b".")
        os.read(waiting, 1)
        run(place, lambda: print(end=".", flush=True))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except typer.Exit as end:
        code = end.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def finish(place: Place, child: int, go: int) -> Ended:
    """Let a fork run, and wait for its end."""
    os.write(go, b".")
    os.close(go)
    end = time.monotonic() + SECONDS
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise RuntimeError(f"it does not end within {SECONDS} s")
        time.sleep(0.001)
    out, err = ((place.base / name).read_text(errors="replace") for name in ("out", "err"))
    return Ended(os.waitstatus_to_exitcode(status), out.count("."), err)


def read_log(log: Path, work: Path) -> tuple[list[Point], Point | None]:
    """Return the calls that change something below a folder, and the last one of all."""
    counts: Counter[tuple[str, str]] = Counter()
    points, last = [], None
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"(\d+) +(\w+)\((.*)", line)
        if match is None:
            continue
        thread, name, arguments = match[1], match[2], match[3].partition(") = ")[0]
        counts[thread, name] += 1
        target = " ".join(re.findall(rf"{re.escape(str(work))}[^\">,]*", arguments)).replace(str(work), "")
        target = re.sub(r"\b[a-z0-9_]{8}\.mh-part|[0-9a-f]{32}", "*", target)
        last = Point(name, counts[thread, name], target)
        if not target or (name in ("open", "openat") and not re.search("O_CREAT|O_TRUNC", arguments)):
            continue
        if name == "fcntl" and "LK" not in arguments:
            continue
        points.append(last)
    return points, last


# -- cases


@dataclass
class Result:
    """What happened in all cases of an operation at calls of one name."""

    operation: str
    call: str
    injected: str
    points: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    leftovers: int = 0
    """Cases after which something was left to sweep, or to put back."""
    astray: int = 0
    """Cases in which the call was another one, or was not reached."""
    failures: list[str] = field(default_factory=list)
    commit: str = field(default_factory=commit)


@dataclass(frozen=True)
class Recorded:
    """What an operation does if nobody disturbs it."""

    states: list[str | None]
    """The contents before it, after every portion, and after it."""
    output: bytes | None
    points: list[Point]


def renew(place: Place, operation: Operation) -> None:
    shutil.rmtree(place.work, ignore_errors=True)
    shutil.copytree(place.base / f"begin-{operation.begin}", place.work)


def record(place: Place, operation: Operation) -> Recorded:
    """Do an operation undisturbed: here, which loads whatever it needs, and in a fork, which lists its calls."""
    TRAINED[0] = operation.items
    renew(place, operation)
    states = [contents(place.engine, read_only=True)]
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        operation.run(place, lambda: states.append(contents(place.engine, read_only=True)))
    states.append(contents(place.engine, read_only=True))
    output = None if operation.output is None else (place.work / operation.output).read_bytes()
    renew(place, operation)
    gc.collect()
    ended, points = trace(place, operation.run, None)
    if ended.code:
        raise RuntimeError(f"{operation.name} fails undisturbed: {ended.said}")
    return Recorded(states, output, points)


def judge(place: Place, operation: Operation, recorded: Recorded, ended: Ended, result: Result) -> None:
    """See what a disturbed operation left; every promise is an assertion."""
    copy = Place(place.base / "copy")
    shutil.rmtree(copy.base, ignore_errors=True)
    shutil.copytree(place.work, copy.work, symlinks=True)
    acknowledged = recorded.states[-1 if ended.code == 0 else ended.acknowledged]
    state = contents(place.engine)
    assert state in recorded.states, "the contents are neither the old ones nor the new ones"
    last = len(recorded.states) - 1 - recorded.states[::-1].index(state)
    assert last >= recorded.states.index(acknowledged), "what was acknowledged is not there"
    outcome = "new" if last == len(recorded.states) - 1 else "part" if last else "old"
    check_output(place, operation, recorded)
    if operation.output is not None:
        outcome = "new" if (place.work / operation.output).exists() else "old"
    if operation.snapshot:
        check_answers(place)
        outcome = "new" if has_new_snapshot(place.engine) else "old"
    result.outcomes[outcome] += 1
    if state is not None:
        left = [finding for finding in verify_engine(place.engine) if not is_beside(finding.path, place)]
        assert not left, f"left after a start: {left[0]}"
        found = verify_engine(copy.engine)
        damage = [finding for finding in found if finding.kind == "damage"]
        assert not damage, f"damage: {damage[0]}"
        result.leftovers += bool(found)
        repaired = verify_engine(copy.engine, repair=True)
        assert all(finding.repaired for finding in repaired), f"not repaired: {repaired}"
        assert not verify_engine(copy.engine), "something is found after a repair"
        assert contents(copy.engine) == state, "a repair changed the contents"
        check_names(copy, operation)
    else:
        result.leftovers += bool(list(place.work.iterdir()))
    child, go = fork(place, operation.again or operation.run)
    again = finish(place, child, go)
    assert again.code == 0, f"done once more, it fails: {again.said.strip()}"
    assert contents(place.engine) == recorded.states[-1], "done once more, it does not end with the new contents"
    check_output(place, operation, recorded)
    check_names(place, operation)
    if operation.snapshot:
        assert has_new_snapshot(place.engine), "done once more, it does not write the snapshot"
        check_answers(place)


def check_answers(place: Place) -> None:
    """A snapshot changes nothing of what is found."""
    by_snapshot = answers(place.engine, with_snapshot=True)
    assert by_snapshot == answers(place.engine, with_snapshot=False), "by its snapshot the engine answers otherwise"


def is_beside(path: str, place: Place) -> bool:
    """Tell whether this is a temporary export or backup, which lies beside an engine and is not of it."""
    return Path(path).parent == place.work and not re.fullmatch(r"\.engine\.\w{8}\.mh-part", Path(path).name)


def check_names(place: Place, operation: Operation) -> None:
    """Nothing but the engine, its audit log and what was asked for is left."""
    left = {path.name for path in place.work.iterdir()} - {"engine", "engine.audit.jsonl", operation.output}
    assert not left, f"left behind: {sorted(left)}"
    hidden = list(place.engine.rglob(".*"))
    assert not hidden, f"left behind: {hidden}"


def check_output(place: Place, operation: Operation, recorded: Recorded) -> None:
    """The file that was asked for is there whole, or not there."""
    if operation.output is None or not (path := place.work / operation.output).exists():
        return
    if path.suffix == ".jsonl":
        assert path.read_bytes() == recorded.output, f"{path.name} is not whole"
        return
    restored = place.base / "restored"
    restore_engine(path, restored, overwrite=True)
    assert contents(restored) == recorded.states[-1], f"{path.name} holds something else"


def try_points(
    place: Place,
    operation: Operation,
    *,
    every: int = 1,
    kinds: Sequence[str] = KINDS,
    say: Callable[[str], None] = print,
) -> list[Result]:
    """Disturb an operation at its system calls, at all of them or at every few."""
    recorded = record(place, operation)
    results: dict[tuple[str, str], Result] = {}
    begin = time.monotonic()
    for kind in kinds if operation.errors else [kind for kind in kinds if kind in ("kill", "cut")]:
        points = [Point("size", size, "") for size in CUTS] if kind == "cut" else recorded.points
        for point in points[::every]:
            if not can_fail(kind, point.name):
                continue
            result = results.setdefault((kind, point.name), Result(operation.name, point.name, kind))
            result.points += 1
            renew(place, operation)
            try:
                ended = disturb(place, operation, kind, point)
                result.astray += kind == "kill" and (ended.code != -signal.SIGKILL or ended.last != point)
                assert ended.code != 3, f"it fails with a traceback: {ended.said.strip()[-600:]}"
                said = re.search(r"^error: |findings?; ", ended.said, re.MULTILINE)  # the latter by verify
                assert ended.code <= 0 or said, f"it fails without a word: {ended.said}"
                judge(place, operation, recorded, ended, result)
            except Exception as error:
                result.failures.append(f"{kind} at {point.name} {point.number} of {point.target}: {error}")
                say(f"  {result.failures[-1]}")
    n = sum(result.points for result in results.values())
    say(f"{operation.name}: {len(recorded.points)} calls, {n} cases in {time.monotonic() - begin:.0f} s")
    return list(results.values())


def can_fail(kind: str, call: str) -> bool:
    return kind in ("kill", "cut") or call in (ERRORS if kind == "error" else ("pwrite64", "fsync", "fdatasync"))


def disturb(place: Place, operation: Operation, kind: str, point: Point) -> Ended:
    """Run an operation with a kill or an error at a point of it."""
    if kind == "cut":
        child, go = fork(place, limited(operation.run, point.number))
        return finish(place, child, go)
    if kind == "kill":
        inject = f"{point.name}:signal=KILL:when={point.number}"
    else:
        inject = f"{point.name}:error={ERRORS[point.name]}:when={point.number}{'' if kind == 'error' else '+'}"
    return trace(place, operation.run, inject)[0]


def limited(run: Run, size: int) -> Run:
    """Run until a file would grow beyond a size; what fits of the last write is written."""

    def until_then(place: Place, acknowledge: Callable[[], None]) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        run(place, acknowledge)

    return until_then


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table: one for each operation, system calls together."""
    lines = [
        "| operation | killed at calls | then old, part, new | killed at sizes | then old, part, new "
        "| calls that failed | then old, part, new | broken promises |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for operation in dict.fromkeys(row["operation"] for row in rows):
        own = [row for row in rows if row["operation"] == operation]
        cells = []
        for kinds in (("kill",), ("cut",), ("error", "errors")):
            some = [row for row in own if row["injected"] in kinds]
            outcomes = [sum(row["outcomes"].get(name, 0) for row in some) for name in ("old", "part", "new")]
            cells += [f"{sum(row['points'] for row in some):,}", ", ".join(f"{n:,}" for n in outcomes)]
        lines.append(f"| {operation} | {' | '.join(cells)} | {sum(len(row['failures']) for row in own)} |")
    return lines


def save(results: Sequence[Result]) -> None:
    """Write what was found; what was found before about other operations, or with other disturbances, stays."""
    path = RESULTS / "kills.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    new = {(result.operation, result.injected) for result in results}
    rows = [row for row in rows if (row["operation"], row["injected"]) not in new] + [vars(one) for one in results]
    names = [operation.name for operation in OPERATIONS]
    write("kills", sorted(rows, key=lambda row: (names.index(row["operation"]), KINDS.index(row["injected"]))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="an operation; may be repeated")
    parser.add_argument("--kind", action="append", choices=KINDS, help="a disturbance; may be repeated")
    parser.add_argument("--every", type=int, default=1, help="take every n-th call")
    parser.add_argument("--table", action="store_true", help="print the results of the last full run as a table")
    parser.add_argument("--folder", type=Path, help="where to work; by default in memory, where a sync takes no time")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table(json.loads((RESULTS / "kills.json").read_text())["rows"])))
        return 0
    chosen = [operation for operation in OPERATIONS if args.only is None or operation.name in args.only]
    results = []
    with set_up(args.folder) as place:
        for operation in chosen:
            results += try_points(place, operation, every=args.every, kinds=args.kind or KINDS)
            if args.every == 1:
                save(results)
    failures = sum(len(result.failures) for result in results)
    print(
        f"{sum(result.points for result in results)} cases, {failures} failures, "
        f"{sum(result.astray for result in results)} astray"
    )
    return 1 if failures else 0


@contextlib.contextmanager
def set_up(folder: Path | None = None) -> Iterator[Place]:
    """Prepare a folder to work in, and this process: small portions, and computing done once."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=folder or (memory if memory.is_dir() else None)) as base:
        ingest.BATCH_SIZE = 3
        place = prepare(Path(base))
        compute_once()
        yield place


if __name__ == "__main__":
    sys.exit(main())
