"""The process that tries inputs on one target; the campaign starts it, watches it, and goes on where it ended."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.arcs import SOURCE, Arcs
from fuzzing.guard import Guard
from fuzzing.mutation import MAX_BYTES, Mutator
from fuzzing.target import BrokenPromise, Target

HEAD, COUNTS_AT, INPUT_AT = struct.Struct("<qqqd"), 64, 2**16
MAX_CORPUS = 3000
FOLLOWED, FOLLOWED_LATER = 5000, 4
"""The first inputs of a target are followed through the code, and then one of some."""


class Overtime(BaseException):
    """An input took more processor time than it may."""


class State:
    """What the campaign knows of a worker, even of one that was killed: counts, and the input that it is at."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(INPUT_AT + MAX_BYTES)
            self._map = mmap.mmap(file.fileno(), INPUT_AT + MAX_BYTES)

    def begin(self, number: int, data: bytes, counts: bytes) -> None:
        """Say which input comes now, and what came of those before."""
        self._map[COUNTS_AT : COUNTS_AT + len(counts)] = counts
        self._map[INPUT_AT : INPUT_AT + len(data)] = data
        self._map[: HEAD.size] = HEAD.pack(number, len(data), len(counts), time.monotonic())

    def began(self) -> float:
        """Return when the last input began; safe to ask while the worker writes, as :meth:`read` is not."""
        return float(HEAD.unpack(self._map[: HEAD.size])[3])

    def read(self) -> tuple[int, bytes, dict[str, Any]]:
        """Return the number and bytes of the last input, and the counts before it, of a worker that has ended."""
        number, n_data, n_counts, _ = HEAD.unpack(self._map[: HEAD.size])
        counts = json.loads(self._map[COUNTS_AT : COUNTS_AT + n_counts] or b"{}")
        return number, self._map[INPUT_AT : INPUT_AT + n_data], counts


class Trial:
    """Tries inputs on a target, and says what came of each."""

    def __init__(self, target: Target, guard: Guard) -> None:
        self.target, self.guard, self.arcs = target, guard, Arcs()
        self.arcs.follow_threads()
        signal.signal(signal.SIGPROF, self._overtime)

    def _overtime(self, number: int, frame: object) -> None:
        raise Overtime

    def __call__(self, data: bytes, *, follow: bool = True) -> tuple[str, str | None, int]:
        """Return the outcome, what is wrong with it if something is, and the number of arcs that are new.

        Following an input makes it twice as slow.
        """
        self.guard.violations.clear()
        raised: BaseException | None = None
        signal.setitimer(signal.ITIMER_PROF, self.target.seconds)
        if follow:
            self.arcs.start()
        self.guard.on = True
        try:
            outcome = self.target.run(data) or "taken"
        except self.target.promised as error:
            outcome, raised = "refused", error if not str(error).strip() else None
        except Overtime as error:
            outcome, raised = "too slow", error
        except MemoryError as error:
            outcome, raised = "too large", error
        except BaseException as error:
            outcome, raised = "broken", error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.guard.on = False
            new = self.arcs.stop() if follow else 0
        if self.guard.violations:
            return "elsewhere", self.guard.violations[0], new
        if raised is None:
            return outcome, None, new
        return outcome if outcome != "refused" else "broken", signature(raised), new


def signature(error: BaseException) -> str:
    """Return the kind of an error and the last functions of modalhash it came through: one text for one defect."""
    frames = [
        f"{frame.filename.removeprefix(SOURCE).lstrip('/')}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(SOURCE)
    ]
    what = error.what if isinstance(error, BrokenPromise) else type(error).__name__
    return f"{what} in {' > '.join(frames[-2:])}" if frames else what


def limit_memory(megabytes: int) -> None:
    """Bound the address space to what the process has and some more."""
    with open("/proc/self/statm", encoding="ascii") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + megabytes * 2**20, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(kind: type[Target], first: int, n: int, folder: Path, scratch: Path) -> None:
    """Try ``n`` inputs, the first of this number; what is found lies in ``folder``, the state in ``scratch``."""
    warnings.simplefilter("ignore")
    faulthandler.enable((scratch / "fault").open("w"))
    state, own = State(scratch / "state"), scratch / "own"
    own.mkdir(exist_ok=True)
    os.chdir(own)
    with contextlib.suppress(ImportError):
        import PIL.Image

        PIL.Image.init()
    target = kind(own, folder / "shared")
    corpus = [seed[:MAX_BYTES] for seed in target.seeds()]
    kept = folder / "corpus" / kind.name
    kept.mkdir(parents=True, exist_ok=True)
    found = sorted(kept.iterdir(), key=lambda path: int(path.name))
    corpus += [path.read_bytes() for path in found]
    warm_up(target, corpus[: len(corpus) - len(found)])
    trial = Trial(target, Guard(own, folder / "shared"))
    counts: Counter[str] = Counter()
    limit_memory(kind.megabytes)
    begin = time.perf_counter()

    def told() -> bytes:
        facts = {"seconds": time.perf_counter() - begin, "arcs": len(trial.arcs.seen), "outcomes": counts}
        return json.dumps(facts).encode()

    state.begin(first - 1, b"", told())
    for data in corpus:  # what was reached before is nothing new
        state.begin(first - 1, data, told())
        trial(data)
    mutate = Mutator(kind.tokens, is_json=kind.is_json, stays_json=kind.stays_json)
    for number in range(first, first + n):
        data = mutate(Random(f"{kind.name} {number}"), corpus)
        state.begin(number, data, told())
        outcome, problem, new = trial(data, follow=number < FOLLOWED or number % FOLLOWED_LATER == 0)
        counts[outcome] += 1
        if problem is not None:
            note_failure(folder, kind.name, problem, data)
        elif new and len(corpus) < MAX_CORPUS:
            corpus.append(data)
            (kept / str(number)).write_bytes(data)
    state.begin(first + n, b"", told())
    sys.stdout.flush()
    os._exit(0)  # threads of a service that was sent nonsense have nothing more to do


def warm_up(target: Target, inputs: Sequence[bytes]) -> None:
    """Let load and compile what is loaded and compiled at first, which is none of an input's doing."""
    for data in inputs:
        with contextlib.suppress(Exception):
            target.run(data)


def note_failure(folder: Path, target: str, problem: str, data: bytes) -> None:
    """Keep an input whose outcome breaks a promise: the first of each kind, and the shortest since."""
    import hashlib

    place = folder / "failures" / target
    place.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(problem.encode()).hexdigest()[:12]
    facts, content = place / f"{name}.json", place / f"{name}.input"
    known = json.loads(facts.read_text()) if facts.exists() else {"problem": problem, "n": 0}
    if not content.exists() or len(data) < content.stat().st_size:
        content.write_bytes(data)
    facts.write_text(json.dumps({**known, "n": known["n"] + 1}))
