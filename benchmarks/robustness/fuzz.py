"""Mutated files, texts and requests by the million: whatever comes, an answer or the promised error.

    python benchmarks/robustness/fuzz.py                               # a million inputs, about 40 minutes
    python benchmarks/robustness/fuzz.py --inputs 20000 --folder /tmp/fuzz --targets filter-text backup
    python benchmarks/robustness/fuzz.py --replay                      # tries again what broke a promise before
    python benchmarks/robustness/fuzz.py --write  # benchmarks/results/fuzz.json, and SECURITY.md

Every target (`fuzzing/texts.py`, `folders.py`, `binary.py`, `requests.py`) begins with inputs that it makes itself.
Mutants of them that run through lines of modalhash in an order that none did before are kept, and mutated further. A
worker process tries them, under limits of memory and processor time, and with an eye on files, programs and connections
that are none of its own; where it ends or hangs, another goes on with the next input. The folder has what was found so
far: the same command goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from fuzzing import binary, folders, page, requests, seeds, texts
from fuzzing.guard import Guard
from fuzzing.target import Target
from fuzzing.worker import State, Trial, note_failure, warm_up, work

from record import RESULTS, commit, environment

TARGETS: dict[str, type[Target]] = {
    kind.name: kind for module in (texts, folders, binary, requests) for kind in module.TARGETS
}
PIECE = 5000
"""Inputs of a target that are noted together; a campaign that is stopped loses at most these."""
HANG_SECONDS = 20.0
"""After which a worker that does not come back from an input is ended."""
TRIES = 3
"""Inputs with the same crash that are given to the public reader as well."""


def shares(kinds: Sequence[type[Target]], total: int) -> dict[str, int]:
    """Return how many inputs each target gets; together the total."""
    weights = sum(kind.weight for kind in kinds)
    found = {kind.name: total * kind.weight // weights for kind in kinds}
    found[kinds[0].name] += total - sum(found.values())
    return found


def run_piece(kind: type[Target], first: int, n: int, folder: Path, seen: Counter[str]) -> dict[str, Any]:
    """Try some inputs of a target; return counts by outcome."""
    outcomes: Counter[str] = Counter()
    seconds, arcs, last = 0.0, 0, first + n
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        scratch = Path(name)
        while first < last:
            state = State(scratch / "state")
            state.begin(first - 1, b"", b"{}")
            command = [sys.executable, __file__, "--work", kind.name, str(first), str(last - first), str(folder), name]
            end = watch(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(scratch / "stderr").open("w")), state
            )
            number, data, facts = state.read()
            outcomes.update(facts.get("outcomes", {}))
            seconds, arcs = seconds + facts.get("seconds", 0.0), max(arcs, facts.get("arcs", 0))
            if number == last:
                break
            if number < first and not data:
                raise RuntimeError(
                    f"{kind.name}: the worker did not begin:\n{(scratch / 'stderr').read_text()[-3000:]}"
                )
            outcomes[judge(kind, end, data, scratch, folder, seen)] += number >= first
            first = max(number, first - 1) + 1
            shutil.rmtree(scratch / "own", ignore_errors=True)
    return {"outcomes": dict(outcomes), "seconds": round(seconds, 1), "arcs": arcs}


def watch(process: subprocess.Popen[bytes], state: State) -> str:
    """Wait for a worker, and end it if it stays at one input; return how it ended."""
    while True:
        try:
            code = process.wait(2.0)
        except subprocess.TimeoutExpired:
            if time.monotonic() - state.began() > HANG_SECONDS:
                process.kill()
                process.wait()
                return "hang"
            continue
        return "" if code == 0 else f"signal {-code}" if code < 0 else f"exit {code}"


def judge(kind: type[Target], end: str, data: bytes, scratch: Path, folder: Path, seen: Counter[str]) -> str:
    """Return the outcome of an input that ended its worker: contained if the public way gives the promised error."""
    fault = scratch / "fault"
    frames = re.findall(r'File ".*?/([^/"]+)", line \d+ in (\S+)', fault.read_text() if fault.exists() else "")
    problem = f"{end} in {' < '.join(f'{file}:{name}' for file, name in frames[:2])}"
    seen[problem] += 1
    if seen[problem] <= TRIES:
        place = scratch / "public"
        place.mkdir(exist_ok=True)
        target = kind.__new__(kind)
        Target.__init__(target, place, folder / "shared")
        wrong = target.contained(data)
        if wrong is not None:
            note_failure(folder, kind.name, f"{problem}: {wrong}", data)
            return "broken"
    return "worker hung, contained" if end == "hang" else "worker crashed, contained"


def campaign(folder: Path, kinds: Sequence[type[Target]], total: int, piece: int = PIECE) -> None:
    """Try inputs until there are ``total`` of them, a piece of each target in turn.

    Pieces that are there are left, and so are those that another process with the same folder is at.
    """
    seeds.prepare(folder / "shared")
    (folder / "pieces").mkdir(exist_ok=True)
    wanted = shares(kinds, total)
    seen: dict[str, Counter[str]] = {kind.name: Counter() for kind in kinds}
    for first in range(0, max(wanted.values()), piece):
        for kind in kinds:
            path = folder / "pieces" / f"{kind.name}-{first}.json"
            n = min(piece, wanted[kind.name] - first)
            if n <= 0:
                continue
            with path.with_suffix(".lock").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                if path.exists():
                    continue
                begin = time.perf_counter()
                facts = {"target": kind.name, "commit": commit(), **run_piece(kind, first, n, folder, seen[kind.name])}
                facts["clock"] = round(time.perf_counter() - begin, 1)
                path.write_text(json.dumps(facts))
            arcs, outcomes = facts["arcs"], facts["outcomes"]
            print(f"{kind.name:16} {first + n:7}  {facts['clock']:6.1f} s  {arcs:5} arcs  {outcomes}", flush=True)


def failures(folder: Path) -> list[dict[str, Any]]:
    """Return the distinct failures that were found, with their inputs."""
    found = []
    for path in sorted((folder / "failures").glob("*/*.json")):
        facts = json.loads(path.read_text())
        found.append({"target": path.parent.name, **facts, "input": path.with_suffix(".input")})
    return found


def replay(folder: Path) -> list[str]:
    """Try again every input that broke a promise; return what still does."""
    still = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        for number, one in enumerate(failures(folder)):
            own = Path(name) / str(number)
            own.mkdir()
            command = [sys.executable, __file__, "--try", one["target"], str(one["input"]), str(folder), str(own)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode:
                still.append(
                    f"{one['target']}: {one['problem']} ({one['n']} times): {done.stdout.strip() or done.stderr[-300:]}"
                )
    return still


def try_one(kind: type[Target], data: bytes, folder: Path, own: Path) -> int:
    """Try one input; return 1 if it breaks a promise."""
    os.chdir(own)
    target = kind(own, folder / "shared")
    warm_up(target, target.seeds())
    outcome, problem, _ = Trial(target, Guard(own, folder / "shared"))(data)
    print(f"{outcome}: {problem}" if problem else outcome, flush=True)
    return int(problem is not None)


def write(folder: Path, before: Path | None) -> None:
    """Put the pieces together to ``benchmarks/results/fuzz.json``, and the table of ``SECURITY.md``.

    ``before`` has a campaign on an earlier state: what it found is tried again on the present one.
    """
    rows, still = [], replay(folder)
    for kind in TARGETS.values():
        own = pieces(folder, kind.name)
        outcomes = sum((Counter(piece["outcomes"]) for piece in own), Counter())
        states: Counter[str] = Counter()
        for piece in own:
            states[piece["commit"]] += sum(piece["outcomes"].values())
        rows.append(
            {
                "target": kind.name,
                "what": str(kind.__doc__).removesuffix("."),
                "room": kind.room,
                "inputs": outcomes.total(),
                "outcomes": dict(sorted(outcomes.items())),
                "arcs": max((piece["arcs"] for piece in own), default=0),
                "corpus": len(list((folder / "corpus" / kind.name).glob("*"))),
                "seconds": round(sum(piece["clock"] for piece in own), 1),
                "failures": {one["problem"]: one["n"] for one in failures(folder) if one["target"] == kind.name},
                "commits": dict(states),
            }
        )
    content = {"benchmark": "fuzz", "environment": environment(), "still broken": still, "rows": rows}
    if before is not None:
        tried = pieces(before, "*")
        content["before"] = {
            "inputs": sum(sum(piece["outcomes"].values()) for piece in tried),
            "targets": len({piece["target"] for piece in tried}),
            "commits": sorted({piece["commit"] for piece in tried}),
            "failures": [f"{one['target']}: {one['problem']}" for one in failures(before)],
            "still broken": replay(before),
        }
    (RESULTS / "fuzz.json").write_text(json.dumps(content, indent=1) + "\n")
    page.PAGE.write_text(page.with_table(page.PAGE.read_text(encoding="utf-8"), content), encoding="utf-8")
    print(page.summary(content))


def pieces(folder: Path, target: str) -> list[dict[str, Any]]:
    """Return what was noted of a target, or of all (``*``)."""
    found = [json.loads(path.read_text()) for path in sorted((folder / "pieces").glob("*.json"))]
    return [piece for piece in found if target in ("*", piece["target"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10**6)
    parser.add_argument("--piece", type=int, default=PIECE)
    parser.add_argument("--targets", nargs="*", choices=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--folder", type=Path, default=Path("results/fuzz"))
    parser.add_argument("--replay", action="store_true", help="try again what broke a promise")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/fuzz.json and SECURITY.md")
    parser.add_argument("--before", type=Path, help="folder of a campaign on an earlier state, for --write")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--try", nargs=4, dest="one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        name, first, n, folder, scratch = args.work
        work(TARGETS[name], int(first), int(n), Path(folder), Path(scratch))
    elif args.one:
        name, path, folder, own = args.one
        sys.exit(try_one(TARGETS[name], Path(path).read_bytes(), Path(folder), Path(own)))
    elif args.replay:
        print("\n".join(replay(args.folder.resolve())) or "every promise is kept")
    elif args.write:
        write(args.folder.resolve(), args.before and args.before.resolve())
    else:
        folder = args.folder.resolve()
        campaign(folder, [TARGETS[name] for name in args.targets or TARGETS], args.inputs, args.piece)
        for one in failures(folder):
            print(f"{one['target']}: {one['problem']} ({one['n']} times): {one['input']}")
        sys.exit(bool(failures(folder)))


if __name__ == "__main__":
    main()
