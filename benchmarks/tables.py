"""Comparisons of methods as result files: fit what is missing, one record per database and direction.

A comparison says which rows it has; running it writes its JSON file after every fit, so that a run that was stopped
goes on where it was. Pages are made from the file alone (``pages.py``).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from modalhash._files import write_atomically
from modalhash.data import Dataset, Parts, load_dataset, paired, semi_paired, unpaired
from modalhash.evaluation import Protocol, evaluate
from modalhash.registry import get, info

FOLDER = Path(__file__).parent / "results"
PROTOCOL = Protocol()
DATABASES = ("learned", "hashed")
KEY = ("method", "variant", "dataset", "bits", "seed")
"""What tells one fit from another; every fit gives a record per database and direction."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a method with the parameters that differ from its defaults, and what it knows of pairs."""

    method: str
    variant: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    labels_as_features: bool = False
    paired: float = 1.0
    """Share of the training items that keep their pairing; the others are shuffled, each modality on its own."""

    @property
    def name(self) -> str:
        """As ``--methods`` takes it."""
        return f"{self.method}:{self.variant}" if self.variant else self.method


@dataclass(frozen=True)
class Comparison:
    """What is compared, on what, and where the results are kept."""

    name: str
    rows: Callable[[], list[Row]]
    datasets: dict[str, dict[str, Any]]
    """Options of ``load_dataset`` by name."""
    bits: tuple[int, ...] = (16, 32, 64, 128)
    intra: bool = False
    """Measure each modality against itself, too."""

    @property
    def results(self) -> Path:
        """The result file."""
        return FOLDER / f"{self.name}.json"

    def select(self, names: list[str] | None) -> list[Row]:
        """The rows called so: a method's name stands for all its rows, ``method:variant`` for one."""
        rows = self.rows()
        if names is None:
            return rows
        known = {name for row in rows for name in (row.method, row.name)}
        if unknown := [name for name in names if name not in known]:
            raise SystemExit(f"no row is called {', '.join(unknown)}; there are {', '.join(row.name for row in rows)}")
        return [row for row in rows if row.method in names or row.name in names]

    def run(self, rows: list[Row], datasets: Iterable[str], bits: Iterable[int], seeds: int, out: Path) -> int:
        """Fit what is missing. Returns how many fits failed; these are tried again by the next run."""
        content = read(out)
        environment = describe_environment()
        if environment not in content["environments"]:
            content["environments"].append(environment)
        common = {"environment": content["environments"].index(environment)}
        failures = 0
        for name in datasets:
            dataset = None
            for row, key in fits(rows, name, bits, seeds):
                if any(is_of(record, key) for record in content["records"]):
                    continue
                if dataset is None:
                    dataset = load_dataset(name, **self.datasets[name])
                    content["datasets"][name] = describe_dataset(dataset, self.datasets[name])
                print(*key.values(), end=" ", flush=True)
                content["failures"] = [f for f in content["failures"] if not is_of(f, key)]
                try:
                    found = fit_and_measure(row, dataset, key["bits"], key["seed"], intra=self.intra)
                except Exception as error:  # hours of other fits must not be lost; the page shows the reason
                    failures += 1
                    content["failures"].append({**key, "error": f"{type(error).__name__}: {error}"})
                    print("FAILED:", content["failures"][-1]["error"], flush=True)
                else:
                    content["records"] += [{**key, **record, **common} for record in found]
                    print(*(f"{r['map']:.4f}" for r in found[:4]), f"{found[0]['fit_seconds']:.1f} s", flush=True)
                write(out, content)
        return failures


def fits(rows: list[Row], dataset: str, bits: Iterable[int], seeds: int) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Every fit on a data set: the row, and the key of its records."""
    for b, row, seed in product(bits, rows, range(seeds)):
        yield row, dict(zip(KEY, (row.method, row.variant, dataset, b, seed), strict=True))


def is_of(record: dict[str, Any], key: dict[str, Any]) -> bool:
    return all(record[name] == value for name, value in key.items())


def prepare(row: Row, dataset: Dataset, seed: int) -> tuple[Parts, dict[str, Any]]:
    """The data as the row sees them, and what ``fit`` is told about pairs."""
    uses_pairs = info(row.method).pairing != "none"
    if row.paired == 0:
        return unpaired(dataset, seed=seed).parts(), {}
    if row.paired == 1:
        return paired(dataset).parts(), {"pairs": "aligned"} if uses_pairs else {}
    mixed, pairs = semi_paired(dataset, row.paired, seed=seed)
    return mixed.parts(), {"pairs": pairs} if uses_pairs else {}


def fit_and_measure(row: Row, dataset: Dataset, bits: int, seed: int, *, intra: bool = False) -> list[dict[str, Any]]:
    """One fit; a record for every database and direction."""
    (training, query, _), fit = prepare(row, dataset, seed)
    X, Xq = (part.labels if row.labels_as_features else part.features for part in (training, query))
    model = get(row.method)(bits, random_state=seed, **row.parameters)
    start = time.process_time()  # CPU seconds: other work on the machine does not count
    model.fit(X, training.labels, **fit)
    seconds = time.process_time() - start
    found = []
    for database in DATABASES:
        protocol = PROTOCOL.with_database(database)
        result = evaluate(model, (Xq, query.relevance), (X, training.relevance), protocol=protocol, intra=intra)
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


def describe_dataset(dataset: Dataset, options: dict[str, Any]) -> dict[str, Any]:
    """What the tables' head says of the data."""
    training, query, _ = dataset.parts()
    return {
        "options": options,
        "features": {name: int(X.shape[1]) for name, X in training.features.items()},
        "classes": len(dataset.class_names),
        "training": next(iter(training.sizes.values())),
        "queries": next(iter(query.sizes.values())),
    }


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
    """The content of a result file; of one that is not there yet, an empty one."""
    if not path.exists():
        return {"protocol": str(PROTOCOL), "environments": [], "datasets": {}, "failures": [], "records": []}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content["protocol"] != str(PROTOCOL):
        raise SystemExit(f"{path} was measured by {content['protocol']!r}, not {PROTOCOL}: take another file")
    return content


def write(path: Path, content: dict[str, Any]) -> None:
    """A line per record, so that a diff of the file can be read."""
    parts = [f"{json.dumps(name)}: {_lines(value)}" for name, value in content.items()]
    write_atomically(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n]"
