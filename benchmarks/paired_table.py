"""The paired comparison: every paired method, AMSH with its ablations, and the controls, on Wiki and IAPR TC-12.

    python benchmarks/paired_table.py [--datasets wiki] [--methods batch amsh:s] [--bits 16 32] [--seeds 3]
    python benchmarks/paired_table.py --markdown docs/paired.md

The first form fits what is not yet in the result file and writes the file after every fit, so a run that was
stopped goes on where it was. The second fits nothing and writes the page. A method's ``--methods`` name stands
for all its rows; ``method:variant`` for one of them. Data are looked for as ``load_dataset`` says.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from modalhash.data import load_dataset
from modalhash.data._files import write_atomically
from modalhash.evaluation import Protocol, evaluate
from modalhash.registry import METHODS, get, info
from paired_page import page

RESULTS = Path(__file__).parent / "results" / "paired.json"
DATASETS: dict[str, dict[str, Any]] = {"wiki": {}, "iapr-tc12": {"text": "de"}}
PROTOCOL = Protocol()
DATABASES = ("learned", "hashed")
KEY = ("method", "variant", "dataset", "bits", "seed")
"""What tells one fit from another; every fit gives a record per database and direction."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a method with the parameters that differ from its defaults."""

    method: str
    variant: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    labels_as_features: bool = False

    @property
    def name(self) -> str:
        """As ``--methods`` takes it."""
        return f"{self.method}:{self.variant}" if self.variant else self.method


VARIANTS = [
    Row("amsh", "s", {"intra": 0}),
    Row("amsh", "t", {"inter": 0}),
    Row("amsh", "k", {"kernel": None}),
    Row("amsh", "m", {"margins": False}),
    Row("smfh", "L", {"variant": "liu"}),
    Row("label-oracle", "queries too", labels_as_features=True),
]


def rows() -> list[Row]:
    """Paired methods by year, AMSH and its ablations, controls."""
    chosen = [m for m in METHODS.values() if m.control or m.pairing == "needed" or m.name == "amsh"]
    chosen.sort(key=lambda m: (m.control, m.name == "amsh", m.year or 0))
    return [row for m in chosen for row in (Row(m.name), *(v for v in VARIANTS if v.method == m.name))]


def select(names: list[str] | None) -> list[Row]:
    if names is None:
        return rows()
    known = {name for row in rows() for name in (row.method, row.name)}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no row is called {', '.join(unknown)}; there are {', '.join(row.name for row in rows())}")
    return [row for row in rows() if row.method in names or row.name in names]


def fit_and_measure(row: Row, parts: Any, bits: int, seed: int) -> list[dict[str, Any]]:
    """One fit; a record for every database and direction."""
    training, query = parts.training, parts.query
    X, Xq = (part.labels if row.labels_as_features else part.features for part in (training, query))
    model = get(row.method)(bits, random_state=seed, **row.parameters)
    fit = {"pairs": "aligned"} if info(row.method).pairing == "needed" else {}
    start = time.process_time()  # CPU seconds: other work on the machine does not count
    model.fit(X, training.labels, **fit)
    seconds = time.process_time() - start
    found = []
    for database in DATABASES:
        result = evaluate(
            model, (Xq, query.relevance), (X, training.relevance), protocol=PROTOCOL.with_database(database)
        )
        found += [
            {
                "database": database,
                "direction": direction.name,
                "map": direction.map,
                "chance": direction.chance,
                "fit_seconds": round(seconds, 3),
            }
            for direction in result.directions.values()
        ]
    return found


def run(options: argparse.Namespace) -> int:
    """Fit what is missing. Returns how many fits failed; these are tried again by the next run."""
    content = read(options.out)
    environment = describe_environment()
    if environment not in content["environments"]:
        content["environments"].append(environment)
    common = {"environment": content["environments"].index(environment)}
    failures = 0
    for dataset in options.datasets:
        parts = None
        for bits in options.bits:
            for row in select(options.methods):
                for seed in range(options.seeds):
                    key = dict(zip(KEY, (row.method, row.variant, dataset, bits, seed), strict=True))
                    if any(is_of(record, key) for record in content["records"]):
                        continue
                    if parts is None:
                        parts = load_parts(dataset, content)
                    print(*key.values(), end=" ", flush=True)
                    content["failures"] = [f for f in content["failures"] if not is_of(f, key)]
                    try:
                        found = fit_and_measure(row, parts, bits, seed)
                    except Exception as error:  # hours of other fits must not be lost; the page shows the reason
                        failures += 1
                        content["failures"].append({**key, "error": f"{type(error).__name__}: {error}"})
                        print("FAILED:", content["failures"][-1]["error"], flush=True)
                    else:
                        content["records"] += [{**key, **record, **common} for record in found]
                        print(*(f"{r['map']:.4f}" for r in found), f"{found[0]['fit_seconds']:.1f} s", flush=True)
                    write(options.out, content)
    return failures


def load_parts(dataset: str, content: dict[str, Any]) -> Any:
    """The official split, and its sizes into the file."""
    loaded = load_dataset(dataset, **DATASETS[dataset])
    parts = loaded.split.apply(loaded)
    content["datasets"][dataset] = {
        "options": DATASETS[dataset],
        "features": {name: int(X.shape[1]) for name, X in parts.training.features.items()},
        "classes": int(next(iter(parts.training.labels.values())).shape[1]),
        "training": int(next(iter(parts.training.labels.values())).shape[0]),
        "queries": int(next(iter(parts.query.labels.values())).shape[0]),
    }
    return parts


def is_of(record: dict[str, Any], key: dict[str, Any]) -> bool:
    return all(record[name] == value for name, value in key.items())


def describe_environment() -> dict[str, Any]:
    """What the seconds, and the last digits, depend on."""
    from threadpoolctl import threadpool_info

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    packages = ("modalhash", "numpy", "scipy", "scikit-learn", "numba")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "machine": f"{cpu}, {os.cpu_count()} cores, {platform.system()}",
        "threads": max((pool["num_threads"] for pool in threadpool_info()), default=1),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "commit": commit.stdout.strip() or None if commit.returncode == 0 else None,
    }


def read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"protocol": str(PROTOCOL), "environments": [], "datasets": {}, "failures": [], "records": []}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content["protocol"] != str(PROTOCOL):
        raise SystemExit(f"{path} was measured by {content['protocol']!r}, not {PROTOCOL}: give another --out")
    return content


def write(path: Path, content: dict[str, Any]) -> None:
    """A line per record, so that a diff of the file can be read."""
    parts = [f"{json.dumps(name)}: {_lines(value)}" for name, value in content.items()]
    write_atomically(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--bits", nargs="+", type=int, default=[16, 32, 64, 128])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="result file (default: %(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="fit nothing; write the page from the results")
    options = parser.parse_args()
    if options.markdown is None:
        return 1 if run(options) else 0
    if not options.out.exists():
        raise SystemExit(f"{options.out} is not there yet: run without --markdown first")
    write_atomically(options.markdown, page(read(options.out), [(row.method, row.variant) for row in rows()]).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
