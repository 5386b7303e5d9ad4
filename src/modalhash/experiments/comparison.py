"""Comparison of several methods on one data set in this process, with significance tests.

For resumable grids over data sets in worker processes, see :mod:`modalhash.experiments.run`.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from modalhash.experiments.config import LABEL_CHANGES, Point, Scenario, check_parameters
from modalhash.experiments.measure import apply_scenario
from modalhash.experiments.measured import DRAWN, Measured, Result, marked
from modalhash.experiments.timing import Prepared, describe_work, nearest_to_mean, time_small_fits
from modalhash.methods import registry

Place = tuple[str, int, str, str]
"""Method, bits, direction and database."""
SCENARIOS = ("paired", "unpaired", "unequal", "semi_paired", "noisy_labels", "missing_labels")
"""Changes of the training items, which are functions of :mod:`modalhash.data`."""


@dataclass(frozen=True)
class SignificanceTest(PairedTest):
    """A method compared with the reference at one code length, in one direction and database."""

    method: str
    reference: str
    bits: int
    direction: str
    database: str


@dataclass(frozen=True, eq=False)
class MethodComparison(Measured):
    """The results of :func:`compare_methods`, from which tables are made."""

    dataset: str
    scenario: str
    protocol: Protocol
    parameters: Mapping[str, Mapping[str, Any]]
    """Non-default parameters of each method, in the order given."""
    found: Mapping[Point, Result]
    reference: str
    drawn_split: bool = False
    """Whether each seed drew its own queries because the data have no split."""
    kind: str = "not stated"
    """See :attr:`modalhash.data.Dataset.kind`."""

    @cached_property
    def methods(self) -> list[str]:
        """Methods with any result, in the order given."""
        measured = {point.label for point in self.results}
        return [method for method in self.parameters if method in measured]

    @cached_property
    def bits(self) -> list[int]:
        """Code lengths in the order given."""
        return list(dict.fromkeys(point.bits for point in self.results))

    @cached_property
    def _places(self) -> list[Place]:
        rows = dict.fromkeys((point.label, point.bits) for point in self.results)
        return [
            (method, bits, direction, database)
            for (method, bits), database, direction in product(rows, self.databases, self.directions)
            if self.spread(method, bits, direction, database) is not None
        ]

    @cached_property
    def _tests(self) -> dict[Place, PairedTest]:
        differences = {
            place: self.difference(self.of(*place[:2]), self.of(self.reference, place[1]), place[3], place[2])
            for place in self._places
            if place[0] != self.reference
        }
        return paired_tests({place: values for place, values in differences.items() if values is not None})

    @cached_property
    def tests(self) -> list[SignificanceTest]:
        """Tests of every other method against the reference, where both were measured with the same seeds.

        If all seeds have the same queries, a query counts once with its mean over the seeds.
        """
        return [
            SignificanceTest(**vars(test), method=method, reference=self.reference, bits=bits, direction=direction,
                             database=database)
            for (method, bits, direction, database), test in self._tests.items()
        ]  # fmt: skip

    def table(self) -> Table:
        """Return a table with a row per code length, direction and method, and a column per database."""
        kinds, several = CHOICES["database"], len(self.methods) > 1
        rows = []
        for bits, direction, method in product(self.bits, self.directions, self.methods):
            spreads = [self._marked((method, bits, direction, kind)) for kind in kinds]
            if any(spread is not None for spread in spreads):
                chances = [self.chance(direction, kind, bits) for kind in ("learned", "unseen")]
                rows.append([str(bits), direction, *([method] if several else []), *spreads, *chances])
        columns = ["bits", "direction", *(["method"] if several else []), *kinds, "chance", "chance (unseen)"]
        data = f"{self.dataset} (data: {self.kind})"
        title = f"{', '.join(self.methods)} on {data}, {self.scenario}: {self.protocol.measure}"
        return Table(title, columns, rows, self._notes())

    def _marked(self, place: Place) -> Spread | None:
        method, bits, direction, database = place
        spread = self.spread(method, bits, direction, database)
        return None if spread is None else marked(spread, self._tests.get(place))

    def to_figure(self, kind: str = "svg") -> bytes:
        """Return precision over recall as an svg, png or pdf file; needs the extra ``plot``."""
        title = f"Precision over recall on {self.dataset} (data: {self.kind}), {self.scenario}"
        caption = "\n".join([f"Mean over {self._seeds()}. The thick line is {self.reference}.", *self._settings(DRAWN)])
        curves = self.curves_of({(method, "", ""): method for method in self.methods})
        return render_curves(curves, title=title, caption=caption, bold=self.reference, kind=kind)

    def _notes(self) -> list[str]:
        notes = self._settings(CHOICES["database"])
        notes.append(f"{self._seeds()}: mean ± sample standard deviation. Chance: a random ranking, exactly.")
        if self.tests:
            notes.append(describe_tests(self.reference, len(self.tests)))
        return notes

    def _seeds(self) -> str:
        return f"{len(self.seeds)} seed(s)"

    def _settings(self, databases: Sequence[str]) -> list[str]:
        notes = [f"Protocol: {self.protocol.with_database(kind)}" for kind in databases]
        direction = self.directions[0]
        for kind in ("learned", "unseen"):
            entries = self.entries(self.results.values(), kind, direction)
            size = f"{entries[0]['n_queries']} queries, {entries[0]['n_items']} items ({direction})" if entries else ""
            notes.append(f"{kind}: {size or f'not measured; fewer items than the cut-off of {self.protocol.cutoff}'}")
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
            "runs": [
                _run_to_json(point, result, database, direction, entry, per_query=per_query)
                for point, result in self.results.items()
                for database, directions in result["databases"].items()
                for direction, entry in directions.items()
            ],
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
        for place in self._places:
            method, bits, direction, database = place
            runs, test = self.of(method, bits), self._tests.get(place)
            entries = self.entries(runs.values(), database, direction)
            spread = Spread.of([entry["map"] for entry in entries])
            chance = float(np.mean([entry["chance"] for entry in entries]))
            seconds = float(np.mean([result["seconds"]["fit"] for result in runs.values()]))
            tested = ["", "", "", ""] if test is None else [self.reference, test.difference, test.p, test.p_holm]
            sd = "" if spread.sd is None else spread.sd
            lines.writerow([self.dataset, self.scenario, *place, spread.mean, sd, spread.n, chance, seconds, *tested])
        return out.getvalue()


def _run_to_json(
    point: Point, result: Result, database: str, direction: str, entry: Mapping[str, Any], *, per_query: bool
) -> dict[str, Any]:
    """Return plain values of one direction; ``per_query`` adds rounded average precisions and the curve."""
    values = {
        **{"method": point.label, "bits": point.bits, "seed": point.seed, "direction": direction, "database": database},
        **{name: entry[name] for name in ("map", "chance", "n_queries", "n_items")},
        "fit_seconds": result["seconds"]["fit"],
    }
    if per_query:
        precisions = entry["average_precision"]
        values["average_precision"] = [None if np.isnan(x) else round(float(x), 4) for x in precisions]
        values["curve"] = [round(float(x), 5) for x in entry["curve"]]
    return values


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
    needing = [name for name in given if registry.method(name).needs_pairs]
    scenario = how.scenario or ("paired" if needing else "unpaired")
    reference = how.reference or next(iter(given))
    if reference not in given:
        raise ValueError(f"the reference {reference!r} is not among the methods {', '.join(given)}")
    work = _Work(dataset, parameters, scenario, protocol, how.test_share)
    found: dict[Point, Result] = {}

    def measured() -> MethodComparison:
        drawn = dataset.split is None
        return MethodComparison(dataset.name, scenario, protocol, parameters, found, reference, drawn, dataset.kind)

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
                    point = Point(name, scenario, "", n_bits, seed)
                    found[point], line = work.measure(point, parts, pairs)
                    if report is not None:
                        report(line)
    except BaseException:
        if found and partial is not None:
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
        return make_model(registry.method(name), n_bits, seed, self.parameters[name])

    def measure(self, point: Point, parts: SplitData, pairs: Any) -> tuple[Result, str]:
        """Fit a method and search the databases; return the result and a summary line."""
        name = point.label
        model = self.model(name, point.bits, point.seed)
        start = time.perf_counter()
        try:
            model.fit(parts.training.features, parts.training.labels, pairs=pairs)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        seconds = time.perf_counter() - start
        kinds = large_enough(parts, self.protocol)
        results = evaluate_databases(model, parts, protocol=self.protocol, databases=kinds)
        databases = {
            kind: {
                d.name: {"map": d.map, "chance": d.chance, "n_queries": d.n_queries, "n_items": d.n_items,
                         "average_precision": d.average_precision, "curve": d.by_rank.on_recall_grid(RECALL_STEP)[1]}
                for d in result.directions.values()
            }
            for kind, result in results.items()
        }  # fmt: skip
        maps = ", ".join(f"{kind} {result.map:.4f}" for kind, result in results.items())
        line = f"{name}, {point.bits} bits, seed {point.seed}: fitted in {seconds:.1f} s; {maps}"
        queries = point.seed if self.dataset.split is None else 0  # each seed draws its own, or all have the same
        return {"seconds": {"fit": seconds}, "queries": queries, "databases": databases}, line

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


def check_measurable(dataset: Dataset) -> None:
    if not dataset.features:
        raise ValueError(
            "there are no features, only texts or paths of pictures; `modalhash train` makes an engine from such a file"
        )
    if not dataset.labels:
        raise ValueError("there are no labels, and without them nothing is relevant to a query")


def prepared(dataset: Dataset, scenario: str, seed: int, *, test_share: float | None = None) -> tuple[SplitData, Any]:
    """Return the parts of a data set under a scenario, and the pairs for ``fit``."""
    dataset, pairs = with_split(dataset, seed=seed, share=test_share), None
    if scenario in LABEL_CHANGES:  # pairs stay as they are, and each keeps one label row
        dataset = getattr(scenarios, scenario)(dataset, seed=seed, shared=dataset.parts().training.paired)
    else:
        dataset, pairs = apply_scenario(Scenario.parse(scenario), dataset, seed)
    parts = dataset.parts()
    if pairs is None and parts.training.paired:
        pairs = "aligned"  # by their ids
    return parts, pairs


def split_by(dataset: Dataset, query_ids: Array) -> Split:
    masks = {name: np.isin(ids, query_ids) for name, ids in dataset.ids.items()}
    return Split(
        {name: ids[~masks[name]] for name, ids in dataset.ids.items()},
        {name: ids[masks[name]] for name, ids in dataset.ids.items()},
    )


def large_enough(parts: SplitData, protocol: Protocol) -> list[str]:
    """Return the databases that are at least as large as the cut-off of the protocol."""
    unseen, same_id = unseen_items(parts)
    sizes = {kind: min(parts.training.sizes.values()) for kind in CHOICES["database"]}
    sizes["unseen"] = min(unseen.sizes.values()) - (same_id == "exclude")
    kinds = [kind for kind in CHOICES["database"] if sizes[kind] >= (protocol.cutoff or 1)]
    if not kinds:
        raise ValueError(f"the cut-off is {protocol.cutoff}; the databases have only {sizes} items")
    return kinds
