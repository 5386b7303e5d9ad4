"""Comparison of several methods on one data set in this process, with significance tests.

For resumable grids over data sets in worker processes, see :mod:`modalhash.experiments.run`.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Annotated, Any, TypedDict, Unpack

import numpy as np

from modalhash.core.option import Option, Options
from modalhash.core.typing import Array
from modalhash.data import Dataset, Split, SplitData, scenarios, with_split
from modalhash.evaluation import (
    CHOICES,
    RECALL_STEP,
    PairedTest,
    Protocol,
    Spread,
    Table,
    describe_tests,
    evaluate_databases,
    paired_tests,
    render_curves,
    unseen_items,
)
from modalhash.experiments.config import check_parameters
from modalhash.experiments.timing import Prepared, describe_work, nearest_to_mean, time_small_fits
from modalhash.methods import registry

SCENARIOS = ("paired", "unpaired", "unequal", "semi_paired", "noisy_labels", "missing_labels")
"""Changes of the training items, which are functions of :mod:`modalhash.data`."""
DRAWN = ("learned", "unseen")
"""Databases with curves."""
Curves = dict[tuple[str, str, int], dict[str, Array]]
"""(database, direction, bits) → method → precision at recall 0, 0.02, …"""


@dataclass(frozen=True, eq=False)
class Run:
    """The mAP of one direction in one database, measured once."""

    method: str
    bits: int
    seed: int
    direction: str
    database: str
    map: float
    chance: float
    n_queries: int
    n_items: int
    fit_seconds: float
    average_precision: Array = field(repr=False)
    """Per query; NaN if the protocol excludes it."""
    curve: Array | None = field(repr=False, default=None)
    """Precision at recall 0, 0.02, 0.04, …"""

    def to_json(self, *, per_query: bool = False) -> dict[str, Any]:
        """Return plain values; ``per_query`` adds rounded average precisions and the curve."""
        values = dict(vars(self))
        precisions, curve = values.pop("average_precision"), values.pop("curve")
        if per_query:
            values["average_precision"] = [None if np.isnan(x) else round(float(x), 4) for x in precisions]
            values["curve"] = None if curve is None else [round(float(x), 5) for x in curve]
        return values


@dataclass(frozen=True)
class SignificanceTest(PairedTest):
    """A method compared with the reference at one code length, in one direction and database."""

    method: str
    reference: str
    bits: int
    direction: str
    database: str


@dataclass(frozen=True)
class MarkedSpread(Spread):
    """A spread over seeds with an arrow if it differs from the reference."""

    arrow: str = ""
    p_holm: float | None = None

    def __str__(self) -> str:
        return f"{super().__str__()} {self.arrow}".rstrip()


@dataclass(frozen=True, eq=False)
class MethodComparison:
    """The results of :func:`compare_methods`, from which tables are made."""

    dataset: str
    scenario: str
    protocol: Protocol
    parameters: Mapping[str, Mapping[str, Any]]
    """Non-default parameters of each method, in the order given."""
    runs: Sequence[Run]
    reference: str
    drawn_split: bool = False
    """Whether each seed drew its own queries because the data have no split."""
    kind: str = "not stated"
    """See :attr:`modalhash.data.Dataset.kind`."""

    @cached_property
    def methods(self) -> list[str]:
        """Methods with any run, in the order given."""
        measured = {run.method for run in self.runs}
        return [method for method in self.parameters if method in measured]

    @cached_property
    def _by_place(self) -> dict[tuple[str, int, str, str], dict[int, Run]]:
        found: dict[tuple[str, int, str, str], dict[int, Run]] = {}
        for run in self.runs:
            found.setdefault((run.method, run.bits, run.direction, run.database), {})[run.seed] = run
        return found

    @cached_property
    def tests(self) -> list[SignificanceTest]:
        """Tests of every other method against the reference, where both were measured with the same seeds.

        If all seeds have the same queries, a query counts once with its mean over the seeds; otherwise the queries of
        the seeds are concatenated.
        """
        differences: dict[tuple[str, int, str, str], Array] = {}
        for place, runs in self._by_place.items():
            others = self._by_place.get((self.reference, *place[1:]), {})
            seeds = sorted(runs.keys() & others.keys())
            if place[0] == self.reference or not seeds:
                continue
            each = [runs[seed].average_precision - others[seed].average_precision for seed in seeds]
            joined = np.concatenate(each) if self.drawn_split else np.mean(each, axis=0)
            differences[place] = np.asarray(joined, dtype=np.float64)
        return [
            SignificanceTest(**vars(test), method=method, reference=self.reference, bits=bits, direction=direction,
                             database=database)
            for (method, bits, direction, database), test in paired_tests(differences).items()
        ]  # fmt: skip

    def spread(self, method: str, bits: int, direction: str, database: str) -> MarkedSpread | None:
        """Return mean and deviation of the mAP over the seeds, with the arrow of its test; None if not measured."""
        runs = self._by_place.get((method, bits, direction, database))
        if not runs:
            return None
        test = self._tests_by_place.get((method, bits, direction, database))
        found = Spread.of([run.map for run in runs.values()])
        return MarkedSpread(found.mean, found.sd, found.n, test.arrow if test else "", test.p_holm if test else None)

    @cached_property
    def _tests_by_place(self) -> dict[tuple[str, int, str, str], SignificanceTest]:
        return {(test.method, test.bits, test.direction, test.database): test for test in self.tests}

    def table(self) -> Table:
        """Return a table with a row per code length, direction and method, and a column per database."""
        kinds, several = CHOICES["database"], len(self.methods) > 1
        rows = []
        for bits, direction in dict.fromkeys((run.bits, run.direction) for run in self.runs):
            for method in self.methods:
                spreads = [self.spread(method, bits, direction, kind) for kind in kinds]
                if any(spread is not None for spread in spreads):
                    chances = [self._chance(bits, direction, kind) for kind in ("learned", "unseen")]
                    rows.append([str(bits), direction, *([method] if several else []), *spreads, *chances])
        columns = ["bits", "direction", *(["method"] if several else []), *kinds, "chance", "chance (unseen)"]
        data = f"{self.dataset} (data: {self.kind})"
        title = f"{', '.join(self.methods)} on {data}, {self.scenario}: {self.protocol.measure}"
        return Table(title, columns, rows, self._notes())

    def _chance(self, bits: int, direction: str, kind: str) -> float | None:
        found = [run.chance for run in self.runs if (run.bits, run.direction, run.database) == (bits, direction, kind)]
        return float(np.mean(found)) if found else None

    def curves(self) -> Curves:
        found: Curves = {}
        directions = dict.fromkeys(run.direction for run in self.runs)
        lengths = dict.fromkeys(run.bits for run in self.runs)
        for database, direction, bits, method in product(DRAWN, directions, lengths, self.methods):
            runs = self._by_place.get((method, bits, direction, database), {}).values()
            if kept := [run.curve for run in runs if run.curve is not None]:
                found.setdefault((database, direction, bits), {})[method] = mean_curve(kept)
        return found

    def to_figure(self, kind: str = "svg") -> bytes:
        """Return precision over recall as an svg, png or pdf file; needs the extra ``plot``."""
        title = f"Precision over recall on {self.dataset} (data: {self.kind}), {self.scenario}"
        caption = "\n".join([f"Mean over {self._seeds()}. The thick line is {self.reference}.", *self._settings(DRAWN)])
        return render_curves(self.curves(), title=title, caption=caption, bold=self.reference, kind=kind)

    def _notes(self) -> list[str]:
        notes = self._settings(CHOICES["database"])
        notes.append(f"{self._seeds()}: mean ± sample standard deviation. Chance: a random ranking, exactly.")
        if self.tests:
            notes.append(describe_tests(self.reference, len(self.tests)))
        return notes

    def _seeds(self) -> str:
        return f"{len({run.seed for run in self.runs})} seed(s)"

    def _settings(self, databases: Sequence[str]) -> list[str]:
        sizes = {run.database: run for run in reversed(self.runs)}
        notes = [f"Protocol: {self.protocol.with_database(kind)}" for kind in databases]
        notes += [
            f"{kind}: {sizes[kind].n_queries} queries, {sizes[kind].n_items} items ({sizes[kind].direction})"
            if kind in sizes
            else f"{kind}: not measured; fewer items than the cut-off of {self.protocol.cutoff}"
            for kind in ("learned", "unseen")
        ]
        for method, given in self.parameters.items():
            if given and method in self.methods:
                notes.append(f"{method}: {', '.join(f'{name}={value}' for name, value in given.items())}")
        if self.drawn_split:
            notes.append("The data come without a split: each seed drew its own queries at random.")
        return notes

    def to_json(self, *, per_query: bool = False) -> str:
        """Return the table, every run and every test; ``per_query`` adds average precisions and curves."""
        content = {
            **json.loads(self.table().to_json()),
            "dataset": self.dataset,
            "kind": self.kind,
            "scenario": self.scenario,
            "protocol": str(self.protocol),
            "parameters": {method: dict(given) for method, given in self.parameters.items()},
            "reference": self.reference,
            "tests": [vars(test) for test in self.tests],
            "runs": [run.to_json(per_query=per_query) for run in self.runs],
        }
        return json.dumps(content, indent=2, ensure_ascii=False)

    def to_csv(self) -> str:
        """Return a line per method, code length, direction and database; untested columns are empty."""
        out = io.StringIO()
        columns = [
            *("dataset", "scenario", "method", "bits", "direction", "database", "map", "sd", "seeds", "chance"),
            *("fit_seconds", "reference", "difference", "p", "p_holm"),
        ]
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(columns)
        for place, runs in self._by_place.items():
            spread = Spread.of([run.map for run in runs.values()])
            chance, seconds = (
                float(np.mean([getattr(run, name) for run in runs.values()])) for name in ("chance", "fit_seconds")
            )
            test = self._tests_by_place.get(place)
            tested = ["", "", "", ""] if test is None else [test.reference, test.difference, test.p, test.p_holm]
            sd = "" if spread.sd is None else spread.sd
            lines.writerow([self.dataset, self.scenario, *place, spread.mean, sd, spread.n, chance, seconds, *tested])
        return out.getvalue()


class ComparisonOptionValues(TypedDict, total=False):
    """The options of a comparison as keyword arguments; see :class:`ComparisonOptions`."""

    bits: Sequence[int]
    seeds: Sequence[int]
    scenario: str | None
    protocol: Protocol | str
    reference: str | None
    test_share: float | None


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Options):
    """What is compared, and how it is measured."""

    bits: Annotated[Sequence[int], Option("Code lengths.")] = (16, 32, 64)
    seeds: Annotated[Sequence[int], Option("Seeds, each of which determines split, scenario and method.")] = (0, 1, 2)
    scenario: Annotated[
        str | None,
        Option(
            "How training items are changed.",
            by_default="``paired`` if a method needs pairs, else ``unpaired``",
            choices=SCENARIOS,
        ),
    ] = None
    protocol: Annotated[Protocol | str, Option("How to measure, for all three databases.")] = ""
    reference: Annotated[
        str | None, Option("The method that the others are tested against.", by_default="the first")
    ] = None
    test_share: Annotated[
        float | None,
        Option(
            "Fraction of the items drawn as queries if the data have no split.",
            by_default="the data set's own number of queries, or 0.2",
        ),
    ] = None


def compare_methods(
    dataset: Dataset,
    methods: Mapping[str, Mapping[str, Any]] | Sequence[str],
    *,
    report: Callable[[str], Any] | None = None,
    partial: Callable[[MethodComparison], Any] | None = None,
    **options: Unpack[ComparisonOptionValues],
) -> MethodComparison:
    """Fit methods for every code length and seed, and measure each with learned, hashed and unseen databases.

    Parameters
    ----------
    dataset : with features and labels
    methods : names as for :func:`modalhash.methods.registry.get`, or a dict from them to parameters
    report : called with the number of fits and their time estimated from small fits, then with a line after every fit
    partial : called with the results so far if an exception, including an interrupt, ends the work
    options : by name, e.g. ``bits=[16], seeds=[0]``: see :class:`ComparisonOptions`

    Examples
    --------
    >>> from modalhash.data import generate
    >>> data = generate(n_items=80, n_queries=20, seed=0).dataset()
    >>> found = compare_methods(data, ["chance", "edmh"], bits=[8], seeds=[0])
    >>> [test.method for test in found.tests if test.arrow == "↑" and test.database == "learned"]
    ['edmh', 'edmh']
    """
    given = dict(methods) if isinstance(methods, Mapping) else {name: {} for name in methods}
    if not given:
        raise ValueError("no method is named; see `modalhash methods`")
    if not isinstance(methods, Mapping) and len(given) < len(methods):
        raise ValueError(f"a method is named twice among {', '.join(methods)}; name each once")
    parameters = {name: check_parameters(name, values) for name, values in given.items()}
    how = ComparisonOptions(**options)
    protocol = Protocol.parse(how.protocol) if isinstance(how.protocol, str) else how.protocol
    check_measurable(dataset)
    needing = [name for name in given if registry.get(name).needs_pairs]
    scenario = how.scenario or ("paired" if needing else "unpaired")
    reference = how.reference or next(iter(given))
    if reference not in given:
        raise ValueError(f"the reference {reference!r} is not among the methods {', '.join(given)}")
    work = _Work(dataset, parameters, scenario, protocol, how.test_share)
    runs: list[Run] = []

    def measured() -> MethodComparison:
        drawn = dataset.split is None
        return MethodComparison(dataset.name, scenario, protocol, parameters, runs, reference, drawn, dataset.kind)

    if report is not None and how.bits and how.seeds and (line := work.describe(how.bits, how.seeds)):
        report(line)
    try:
        for n_bits in how.bits:
            for seed in how.seeds:
                parts, pairs = prepared(dataset, scenario, seed, test_share=how.test_share)
                if pairs is None and needing:
                    raise ValueError(
                        f"{needing[0]} learns from pairs, which the scenario {scenario!r} removes; "
                        "choose the scenario paired or semi_paired, or an unpaired method such as amsh"
                    )
                # all methods before the next seed, so that an invalid value is found early
                for name in given:
                    found, line = work.measure(name, n_bits, seed, parts, pairs)
                    runs += found
                    if report is not None:
                        report(line)
    except BaseException:
        if runs and partial is not None:
            partial(measured())
        raise
    return measured()


@dataclass(frozen=True, eq=False)
class _Work:
    """The fits of a comparison."""

    dataset: Dataset
    parameters: Mapping[str, Mapping[str, Any]]
    scenario: str
    protocol: Protocol
    test_share: float | None

    def model(self, name: str, n_bits: int, seed: int) -> Any:
        return make_model(registry.get(name), n_bits, seed, self.parameters[name])

    def measure(self, name: str, n_bits: int, seed: int, parts: SplitData, pairs: Any) -> tuple[list[Run], str]:
        model = self.model(name, n_bits, seed)
        start = time.perf_counter()
        try:
            model.fit(parts.training.features, parts.training.labels, pairs=pairs)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        seconds = time.perf_counter() - start
        kinds = large_enough(parts, self.protocol)
        results = evaluate_databases(model, parts, protocol=self.protocol, databases=kinds)
        runs = [
            Run(name, n_bits, seed, d.name, kind, d.map, d.chance, d.n_queries, d.n_items, seconds, d.average_precision,
                d.by_rank.on_recall_grid(RECALL_STEP)[1])
            for kind, result in results.items()
            for d in result.directions.values()
        ]  # fmt: skip
        maps = ", ".join(f"{kind} {result.map:.4f}" for kind, result in results.items())
        return runs, f"{name}, {n_bits} bits, seed {seed}: fitted in {seconds:.1f} s; {maps}"

    def describe(self, bits: Sequence[int], seeds: Sequence[int]) -> str | None:
        """Return the number of fits and their time, from small fits of the mean length; None if all failed."""
        split = with_split(self.dataset, seed=seeds[0], share=self.test_share)
        length = nearest_to_mean(bits)
        n_fits = len(bits) * len(seeds)

        def seconds(name: str) -> float | None:
            def prepare(sample: Dataset) -> Prepared:
                return self.model(name, length, seeds[0]), *prepared(sample, self.scenario, seeds[0])

            return time_small_fits(
                prepare, split, method=name, bits=length, n_fits=n_fits, n_methods=len(self.parameters)
            )

        each = {name: seconds(name) for name in self.parameters}
        if not any(each.values()):
            return None
        return describe_work(n_fits * len(each), n_fits * sum(one or 0.0 for one in each.values()), each)


def make_model(cls: type[Any], n_bits: int, seed: int, parameters: Mapping[str, Any]) -> Any:
    model = cls()
    known = model.get_params(deep=False)
    usual = {"n_bits": n_bits, "random_state": seed, "unlabelled": "allow"}
    return model.set_params(**{name: value for name, value in usual.items() if name in known} | dict(parameters))


def mean_curve(curves: Sequence[Any]) -> Array:
    """Return the mean of curves, up to the end of the shortest."""
    n = min(map(len, curves))
    return np.mean([curve[:n] for curve in curves], axis=0)


def check_measurable(dataset: Dataset) -> None:
    if not dataset.features:
        raise ValueError(
            "there are no features, only texts or paths of pictures; `modalhash train` makes an engine from such a file"
        )
    if not dataset.labels:
        raise ValueError("there are no labels, and without them nothing is relevant to a query")


def prepared(dataset: Dataset, scenario: str, seed: int, *, test_share: float | None = None) -> tuple[SplitData, Any]:
    """Return the parts of a data set under a scenario, and the pairs for ``fit``."""
    changed, pairs = apply_to_training(with_split(dataset, seed=seed, share=test_share), scenario, seed)
    parts = changed.parts()
    if pairs is None and parts.training.paired:
        pairs = "aligned"  # by their ids
    return parts, pairs


def split_by(dataset: Dataset, query_ids: Array) -> Split:
    masks = {name: np.isin(ids, query_ids) for name, ids in dataset.ids.items()}
    return Split(
        {name: ids[~masks[name]] for name, ids in dataset.ids.items()},
        {name: ids[masks[name]] for name, ids in dataset.ids.items()},
    )


def apply_to_training(dataset: Dataset, scenario: str, seed: int) -> tuple[Dataset, Any]:
    if scenario == "paired":
        return scenarios.paired(dataset), None
    if scenario == "semi_paired":
        return scenarios.semi_paired(dataset, seed=seed)
    change: Callable[..., Dataset] = getattr(scenarios, scenario)
    if scenario in ("noisy_labels", "missing_labels"):  # a pair keeps one label row
        return change(dataset, seed=seed, shared=dataset.parts().training.paired), None
    return change(dataset, seed=seed), None


def large_enough(parts: SplitData, protocol: Protocol) -> list[str]:
    """Return the databases that are at least as large as the cut-off of the protocol."""
    unseen, same_id = unseen_items(parts)
    sizes = {kind: min(parts.training.sizes.values()) for kind in CHOICES["database"]}
    sizes["unseen"] = min(unseen.sizes.values()) - (same_id == "exclude")
    kinds = [kind for kind in CHOICES["database"] if sizes[kind] >= (protocol.cutoff or 1)]
    if not kinds:
        raise ValueError(f"the cut-off is {protocol.cutoff}; the databases have only {sizes} items")
    return kinds
