"""Workers lost in the middle of a fit on Dask: the result must be that of an undisturbed fit, after a short pause.

    python benchmarks/robustness/dask_faults.py            # 100,000 items, AMSH and RLH; about a quarter of an hour
    python benchmarks/robustness/dask_faults.py --methods RLH --only "step 2"    # some; the other rows stay as they are
    python benchmarks/robustness/dask_faults.py --items 20000 --only features    # a quick look; nothing is written

Each case starts a scheduler and two workers of one thread. A worker is killed with SIGKILL while features are made,
while the Gram matrix is summed and in step 2, some tenths of a second after the fit was last heard of; a fresh worker
takes its place, as a nanny would see to. To cut a host off, the second worker lives in a network namespace and its
cable is made to lose every packet (root and iproute2 needed): no connection is closed, nobody is told. The pause is
the longest time in which nothing is heard of the fit, whatever it has to make anew included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from modalhash.distributed import ClusterError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))

from dask_cluster import SETTINGS, Cluster
from dask_fit import METHODS, WIDTHS, opened, write_shards
from record import RESULTS, write

MOMENTS = {  # by method: stage and step last heard of, and seconds after it
    "AMSH": {
        "features": ("codes", 15, 0.8),
        "Gram matrix": ("features", 1, 0.3),
        "step 2": ("functions: text", 4, 0.3),
    },
    "RLH": {  # which solves for its posteriors, modality by modality, before it learns codes
        "features": ("posteriors", 1, 0.8),
        "Gram matrix": ("features", 1, 0.3),
        "step 2": ("functions: image", 1, 0.1),  # the first modality: its step 2 is short
    },
}
PAUSE = 45.0
HOST, GUEST, SPACE, CABLE = "10.213.77.1", "10.213.77.2", "modalhash-test", "mh-test"


class Watch:
    """A callback that acts once, some time after a moment of the fit, and notes when it was called."""

    def __init__(self, method: str, moment: str, act: Callable[[], None]) -> None:
        self._stage, self._step, self._delay = MOMENTS[method][moment]
        self._act, self._timer = act, None
        self.acted: list[float] = []  # when, after the fit began
        self.heard = [time.monotonic()]

    def __call__(self, progress: Any) -> None:
        self.heard.append(time.monotonic())
        if self._timer is None and progress.stage.startswith(self._stage) and progress.step >= self._step:
            self._timer = threading.Timer(self._delay, self._disturb)
            self._timer.start()

    def _disturb(self) -> None:
        self._act()
        self.acted.append(time.monotonic() - self.heard[0])

    def pause(self) -> float:
        return float(max(np.diff([*self.heard, time.monotonic()])))


def fitted(method: str, folder: Path, callback: Callable[[Any], None] | None = None) -> Any:
    return METHODS[method](64, n_anchors=1500, random_state=0).fit(*opened(folder), callback=callback)


def equal(model: Any, expected: Any) -> bool:
    return all(
        np.array_equal(np.asarray(model.codes_[name]), expected.codes_[name])
        and np.array_equal(model.functions_[name], expected.functions_[name])
        for name in WIDTHS
    )


def killed(method: str, folder: Path, expected: Any, moment: str) -> dict[str, Any]:
    with Cluster(2, memory_limit="4GB") as cluster:

        def kill() -> None:
            cluster.workers[0].kill()
            cluster.add_worker()

        return disturbed(method, folder, expected, moment, kill, f"kill -9 of one of two workers: {moment}")


def cut_off(method: str, folder: Path, expected: Any, moment: str) -> dict[str, Any]:
    with namespace() as cut, Cluster(1, memory_limit="4GB", host=HOST) as cluster:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.address, "--host", GUEST]
        options = ["--nworkers", "1", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "4GB"]
        where = ["--local-directory", str(cluster.folder)]
        inside = ["ip", "netns", "exec", SPACE]
        guest = subprocess.Popen(
            [*inside, *command, *options, *where], env={**os.environ, **SETTINGS}, stderr=subprocess.DEVNULL
        )
        try:
            cluster.client().wait_for_workers(2, timeout=60)
            return disturbed(method, folder, expected, moment, cut, f"host of one of two workers cut off: {moment}")
        finally:
            guest.kill()
            guest.wait()


@contextmanager
def namespace() -> Iterator[Callable[[], None]]:
    """A network namespace at the end of a cable; yields what makes the cable lose everything."""

    def ip(*arguments: str, check: bool = True) -> None:
        subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)

    def cut() -> None:
        # the guest's own addresses go: it answers nothing and reaches nobody, and no connection is closed
        ip("-n", SPACE, "addr", "flush", "dev", f"{CABLE}1")

    ip("netns", "del", SPACE, check=False)
    ip("netns", "add", SPACE)
    try:
        ip("link", "add", f"{CABLE}0", "type", "veth", "peer", "name", f"{CABLE}1")
        ip("link", "set", f"{CABLE}1", "netns", SPACE)
        ip("addr", "add", f"{HOST}/30", "dev", f"{CABLE}0")
        ip("link", "set", f"{CABLE}0", "up")
        ip("-n", SPACE, "addr", "add", f"{GUEST}/30", "dev", f"{CABLE}1")
        ip("-n", SPACE, "link", "set", f"{CABLE}1", "up")
        ip("-n", SPACE, "link", "set", "lo", "up")
        yield cut
    finally:
        ip("link", "del", f"{CABLE}0", check=False)
        ip("netns", "del", SPACE, check=False)


def disturbed(
    method: str, folder: Path, expected: Any, moment: str, act: Callable[[], None], what: str
) -> dict[str, Any]:
    watch = Watch(method, moment, act)
    begin = time.monotonic()
    model = fitted(method, folder, watch)
    seconds, pause = time.monotonic() - begin, watch.pause()
    same, disturbed_at = equal(model, expected), watch.acted[0]  # fails if the fit was over before
    return {"method": method, "case": what, "disturbed at": round(disturbed_at, 1), "seconds": round(seconds, 1),
            "pause": round(pause, 1), "result equal": same,
            "met": same and pause <= PAUSE and disturbed_at < seconds}  # fmt: skip


def undisturbed(method: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    with Cluster(2, memory_limit="4GB"):
        watch = Watch(method, "features", lambda: None)
        begin = time.monotonic()
        model = fitted(method, folder, watch)
        seconds = round(time.monotonic() - begin, 1)
        row = {"method": method, "case": "undisturbed", "seconds": seconds, "pause": round(watch.pause(), 1)}
        model.codes_ = {name: codes.compute() for name, codes in model.codes_.items()}
    return model, row


def all_dead(method: str, folder: Path, moment: str) -> dict[str, Any]:
    with Cluster(2, memory_limit="4GB") as cluster:
        died: list[float] = []

        def kill() -> None:
            for worker in cluster.workers:
                worker.kill()
            died.append(time.monotonic())

        try:
            fitted(method, folder, Watch(method, moment, kill))
        except ClusterError as error:
            seconds, message = time.monotonic() - died[0], str(error).replace(cluster.address, "tcp://…")
            return {"method": method, "case": f"all workers killed: {moment}",
                    "seconds until the error": round(seconds, 1), "error": message, "met": True}  # fmt: skip
        return {"method": method, "case": "all workers killed", "met": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--only", nargs="+", help="words of the cases to try")
    args = parser.parse_args()
    cases: dict[str, Callable[[str, Path, Any], dict[str, Any]]] = {
        **{f"kill {moment}": partial(killed, moment=moment) for moment in MOMENTS["AMSH"]},
        **{f"cut off {moment}": partial(cut_off, moment=moment) for moment in ("features", "step 2")},
        "all workers": lambda method, folder, _: all_dead(method, folder, "step 2"),
    }
    chosen = [name for name in cases if args.only is None or any(word in name for word in args.only)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder) / "data", args.items)
        for method in args.methods:
            expected, row = undisturbed(method, Path(folder) / "data")
            rows.append(row)
            print(row, flush=True)
            for name in chosen:
                rows.append(cases[name](method, Path(folder) / "data", expected))
                print(rows[-1], flush=True)
    if args.items == 100_000:
        tried = {(row["method"], row["case"]) for row in rows}
        before = json.loads(file.read_text())["rows"] if (file := RESULTS / "dask_faults.json").exists() else []
        rows = [*(row for row in before if (row.get("method"), row["case"]) not in tried), *rows]
        write("dask_faults", sorted(rows, key=itemgetter("method")))
    sys.exit(0 if all(row.get("met", True) for row in rows) else 1)


if __name__ == "__main__":
    main()
