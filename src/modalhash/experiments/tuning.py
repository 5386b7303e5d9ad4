"""Search for the parameters of one method with Optuna's TPE, in a study file that can be resumed.

The score of a trial is the mAP in cross-validation over the training items; queries and database of the data set are
never used. The first trial has the method's defaults, so the result is never worse on the folds.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.core.files import write_atomically
from modalhash.core.imports import require
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array
from modalhash.core.validation import check_choice, check_int
from modalhash.data import Dataset, SplitData, with_split
from modalhash.evaluation import Protocol, evaluate_databases
from modalhash.experiments.comparison import SCENARIOS, check_measurable, make_model, prepared, split_by
from modalhash.experiments.config import check_parameters
from modalhash.experiments.provenance import digest_of
from modalhash.experiments.timing import describe_work, time_small_fits
from modalhash.methods import registry

if TYPE_CHECKING:
    import optuna

KINDS = ("log", "linear", "int", "logint", "choice")
STUDY = "modalhash tune"


@dataclass(frozen=True)
class Dimension:
    """The values of one parameter; ``parse`` reads what ``str`` prints.

    ``log:1e-4:10`` and ``linear:0:1`` are numbers between two bounds, uniform in their logarithm or value;
    ``int:1:20`` and ``logint:64:4096`` integers; ``choice:rbf|none`` one of several values.

    Examples
    --------
    >>> print(Dimension.parse("log:1e-4:10"))
    log:0.0001:10.0
    >>> Dimension.parse("choice:rbf|none|0.5").choices
    ('rbf', None, 0.5)
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Dimension:
        expected = "expected e.g. log:1e-4:10, linear:0:1, int:1:20, logint:64:4096 or choice:rbf|none"
        kind, _, rest = text.partition(":")
        if kind not in KINDS or not rest:
            raise ValueError(f"{text!r}: {expected}")
        if kind == "choice":
            choices = tuple(_value(word) for word in rest.split("|"))
            if len(choices) < 2 or "" in choices:
                raise ValueError(f"{text!r}: expected two choices or more, e.g. choice:rbf|none")
            return cls(kind, choices=choices)
        try:
            low, high = map(float, rest.split(":"))
        except ValueError:
            raise ValueError(f"{text!r}: {expected}") from None
        whole = kind.endswith("int")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"{text!r}: the bounds are {low:g} and {high:g}; expected the smaller one first")
        if kind.startswith("log") and low <= 0:
            raise ValueError(f"{text!r}: the lower bound is {low:g}; a logarithm needs one above 0")
        if whole and (low != int(low) or high != int(high)):
            raise ValueError(f"{text!r}: expected whole numbers as bounds")
        return cls(kind, low, high)

    def __str__(self) -> str:
        if self.kind == "choice":
            return "choice:" + "|".join("none" if one is None else str(one) for one in self.choices)
        low, high = (int(self.low), int(self.high)) if self.kind.endswith("int") else (self.low, self.high)
        return f"{self.kind}:{low}:{high}"

    def distribution(self) -> optuna.distributions.BaseDistribution:
        from optuna import distributions

        if self.kind == "choice":
            return distributions.CategoricalDistribution(self.choices)
        log = self.kind.startswith("log")
        if self.kind.endswith("int"):
            return distributions.IntDistribution(int(self.low), int(self.high), log=log)
        return distributions.FloatDistribution(self.low, self.high, log=log)


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def search_space(
    method: str, changes: Mapping[str, str] | None = None, fixed: Mapping[str, Any] | None = None
) -> dict[str, Dimension]:
    """Return the search space of a method, with changes and additions, without fixed parameters.

    Examples
    --------
    >>> {name: str(one) for name, one in search_space("scm", {"solver": "choice:sequential|orthogonal"}).items()}
    {'ridge': 'log:1e-08:100.0', 'solver': 'choice:sequential|orthogonal'}
    """
    fixed = dict(fixed or {})
    texts = {name: text for name, text in registry.info(method).space.items() if name not in fixed}
    check_parameters(method, changes or {})
    if both := sorted(set(changes or {}) & set(fixed)):
        raise ValueError(f"{method}: {both[0]} is both fixed and searched; remove one of them")
    space = {}
    for name, text in (texts | dict(changes or {})).items():
        try:
            space[name] = Dimension.parse(text)
        except ValueError as error:
            raise ValueError(f"{method}: the space of {name} is {error}") from None
    if not space:
        raise ValueError(
            f"{method} names nothing to search; add a space, e.g. --space {method}.ridge=log:1e-4:10. It has the "
            f"parameters {', '.join(registry.method(method)().get_params(deep=False))}"
        )
    return space


@dataclass(frozen=True)
class Tuned:
    """The results of a study so far."""

    method: str
    parameters: dict[str, Any]
    """The best ones, fixed and searched; without the searched ones if the defaults were best."""
    score: float
    """Mean mAP over folds and directions."""
    default_score: float
    """The same with the defaults and the fixed parameters."""
    trials: int
    """Number of finished trials, including failed ones."""
    failed: int
    settings: Mapping[str, Any] = field(repr=False)

    def notes(self) -> list[str]:
        """Describe how the parameters were found, for the file of parameters."""
        known = self.settings
        return [
            f"Found by `modalhash tune {known['dataset']} --method {self.method}`: {self.trials} trials"
            + (f", {self.failed} of which failed." if self.failed else "."),
            f"{known['protocol']}, {known['bits']} bits, {known['scenario']}; {known['folds']} folds of the training "
            f"items alone, seed {known['seed']}.",
            f"Mean over the folds: {self.score:.4f}; with the defaults {self.default_score:.4f}. Chosen by these "
            "folds, so the first is optimistic: `modalhash evaluate` measures on queries that were not used.",
        ]


class Tuning:
    """A search for the parameters of a method, in a study file.

    Parameters
    ----------
    dataset : with features and labels; only its training items are used
    method : name as for :func:`modalhash.methods.registry.get`
    study : path of the study file (Optuna's journal, lines of JSON); an existing one is continued if its data and
        settings are the same
    space : additions to or changes of the method's own space, e.g. ``{"ridge": "log:1e-4:10"}``
    fixed : parameters that are not searched
    n_bits : length of the codes
    folds : number of folds of the training items
    seed : of the folds, the method and the search
    scenario : as for :func:`modalhash.experiments.compare_methods`
    protocol : how to measure
    database : with ``"unseen"`` the held-out items search each other, as new items would; with ``"hashed"`` and
        ``"learned"`` they search the items learned from
    test_share : fraction of the items reserved as queries if the data have no split; by default the data set's own
        number of queries, or 0.2

    Examples
    --------
    >>> from modalhash.data import generate
    >>> data = generate(n_items=60, n_queries=20, seed=0).dataset()
    >>> tuning = Tuning(data, "scm", "a.journal", n_bits=8)  # doctest: +SKIP
    >>> tuning.run(20).parameters  # doctest: +SKIP
    {'ridge': 0.01}
    """

    def __init__(
        self,
        dataset: Dataset,
        method: str,
        study: str | Path,
        *,
        space: Mapping[str, str] | None = None,
        fixed: Mapping[str, Any] | None = None,
        n_bits: int = 32,
        folds: int = 3,
        seed: int = 0,
        scenario: str | None = None,
        protocol: Protocol | str = "",
        database: str = "unseen",
        test_share: float | None = None,
    ) -> None:
        self._cls = registry.method(method)
        self._fixed = check_parameters(method, fixed or {})
        self._space = search_space(method, space, self._fixed)
        check_measurable(dataset)
        folds = check_int(folds, "folds", at_least=2)
        scenario = ("paired" if self._cls.needs_pairs else "unpaired") if scenario is None else scenario
        check_choice(scenario, "scenario", SCENARIOS)
        rules = Protocol.parse(protocol) if isinstance(protocol, str) else protocol
        self._protocol = rules.with_database(database)
        split = with_split(dataset, seed=seed, share=test_share).split
        assert split is not None
        self._training = dataset.take(split.training)  # before principal components, which every fold fits itself
        ids = np.unique(np.concatenate(list(self._training.ids.values())))
        self._folds = np.array_split(np.random.default_rng([seed, 1]).permutation(ids), folds)
        self.method = method
        self.settings: dict[str, Any] = {
            "method": method,
            "dataset": dataset.name,
            "training": digest_of(self._training),
            "space": {name: str(dimension) for name, dimension in self._space.items()},
            "fixed": json.loads(json.dumps(self._fixed)),
            "bits": check_int(n_bits, "n_bits", at_least=1),
            "folds": folds,
            "seed": seed,
            "scenario": scenario,
            "protocol": str(self._protocol),
        }
        self._study = _open_study(Path(study), self.settings)

    def describe_work(self, budget: int) -> str | None:
        """Return the number of remaining fits and their time, from small fits; None if no trial is left."""
        n_fits = (budget - len(self._ended())) * len(self._folds)
        if n_fits <= 0:
            return None
        bits = self.settings["bits"]
        seconds = time_small_fits(
            lambda sample: (self._model({}), *self._apply_scenario(sample)),
            self._held_out(self._folds[0]), method=self.method, bits=bits, n_fits=n_fits,
        )  # fmt: skip
        return describe_work(n_fits, n_fits * (seconds or 0.0), {self.method: seconds})

    def run(self, budget: int, callback: Callback | None = None) -> Tuned:
        """Continue until ``budget`` trials have ended, including those of earlier runs, and return the result.

        An interrupt loses only the current trial. A trial whose parameters the method rejects counts as failed; an
        error with the defaults is raised.
        """
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState, create_trial

        check_int(budget, "budget", at_least=1)
        report = Reporter(callback)
        distributions = {name: dimension.distribution() for name, dimension in self._space.items()}
        if not self._ended():
            score = self._score({})
            self._study.add_trial(create_trial(value=score, user_attrs={"defaults": True}))
        while (done := len(self._ended())) < budget:
            report("trials", done, budget, self._study.best_value)
            # seeded by the finished trials, so that a resumed study continues identically
            self._study.sampler = TPESampler(seed=self.settings["seed"] * 1_000_003 + done, constant_liar=False)
            trial = self._study.ask(distributions)
            try:
                score = self._score(trial.params)
            except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
                trial.set_user_attr("error", f"{type(error).__name__}: {error}")
                self._study.tell(trial, state=TrialState.FAIL)
                continue
            except BaseException:
                self._study.tell(trial, state=TrialState.FAIL)  # without an error, so that it does not count
                raise
            self._study.tell(trial, score)
        report("trials", done, budget, self._study.best_value)
        return self.found()

    def found(self) -> Tuned:
        ended = self._ended()
        if not ended:
            raise ValueError("no trial has finished yet")
        best = self._study.best_trial
        default = next(trial.value for trial in ended if trial.user_attrs.get("defaults"))
        failed = sum("error" in trial.user_attrs for trial in ended)
        assert best.value is not None
        assert default is not None
        return Tuned(
            self.method, {**self._fixed, **best.params}, best.value, default, len(ended), failed, self.settings
        )

    def _ended(self) -> list[optuna.trial.FrozenTrial]:
        from optuna.trial import TrialState

        return [
            trial
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state == TrialState.COMPLETE or "error" in trial.user_attrs
        ]

    def _score(self, parameters: Mapping[str, Any]) -> float:
        scores = []
        model = self._model(parameters)
        for ids in self._folds:
            parts, pairs = self._apply_scenario(self._held_out(ids))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # repeated in every trial; evaluate and train show them
                model.fit(parts.training.features, parts.training.labels, pairs=pairs)
            kind = self._protocol.database
            scores.append(evaluate_databases(model, parts, protocol=self._protocol, databases=[kind])[kind].map)
        return float(np.mean(scores))

    def _model(self, parameters: Mapping[str, Any]) -> Any:
        return make_model(self._cls, self.settings["bits"], self.settings["seed"], {**self._fixed, **parameters})

    def _held_out(self, ids: Array) -> Dataset:
        return replace(self._training, split=split_by(self._training, ids))

    def _apply_scenario(self, dataset: Dataset) -> tuple[SplitData, Any]:
        return prepared(dataset, self.settings["scenario"], self.settings["seed"])


def _open_study(path: Path, settings: Mapping[str, Any]) -> optuna.Study:
    optuna = require("optuna", extra="tune", why="modalhash tune")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_cut_line(path)
    lock = JournalFileOpenLock(str(path)) if os.name == "nt" else None  # symbolic links need a privilege on Windows
    try:
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        study = optuna.create_study(storage=storage, study_name=STUDY, direction="maximize", load_if_exists=True)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged, or not a study of modalhash ({error}); use another --study") from error
    before = study.user_attrs.get("settings")
    if before is None:
        study.set_user_attr("settings", dict(settings))
    elif before != settings:
        known, asked = dict(before), dict(settings)
        different = [name for name in asked if known.get(name) != asked[name]]
        shown = "; ".join(f"{name} is {asked[name]}, in the file {known.get(name)}" for name in different)
        raise ValueError(f"{path} is a study with other settings: {shown}. Use another --study, or remove the file")
    return study


def _drop_cut_line(path: Path) -> None:
    """Remove an incomplete last line of a study file, left by a process killed while writing it."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content.startswith(b'{"op_code"') and not content.endswith(b"\n"):
        write_atomically(path, content[: content.rfind(b"\n") + 1])
