"""Check sources before training: items left out, doubtful labels, and the estimated cost.

Sources are read by the same functions as in :meth:`Engine.train`, and every picture is decoded. Nothing is learned or
written.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from threadpoolctl import threadpool_limits

from modalhash.core.progress import Callback
from modalhash.data import TableFormat, is_manifest, table_format
from modalhash.engine.items.item import Problem, ProblemCode, group_problems
from modalhash.engine.search.confidence import HELD_OUT, MIN_HELD_OUT
from modalhash.engine.settings import TrainOptionValues, TrainSettings
from modalhash.engine.training.corpus import (
    MAX_EXAMPLES,
    RARE,
    Corpus,
    LabelCheck,
    NoSharedLabelError,
    TrainingInput,
    check_learnable,
    describe_alike,
    describe_label_overlap,
    read_training_input,
)
from modalhash.engine.training.learn import LENGTH_WITHOUT_LABELS, LENGTHS, lengths_to_try, longest_below

if TYPE_CHECKING:
    from modalhash.encoders import Encoder


METHOD = "rlh"
ANCHORS = 1500
STAGES = {  # seconds: once, per 1e9 of n·m², per 1e9 of m³, per 1,000 items
    "learn": (1.5, 0.112, 0.159, 0.0),
    "refine": (0.2, 0.126, 0.158, 0.0),
    "confidence": (1.1, 0.296, 0.479, 0.0),
    "store": (0.0, 0.0, 0.0, 0.19),
}
"""Processor seconds by stage, fitted on IAPR TC-12 (300 to 20,000 photos, and one German caption for each).

With n items and m anchors per modality, learning sums the Gram matrix in n·m² and factors it in m³."""
ENOUGH_FOR_CONFIDENCE = HELD_OUT * MIN_HELD_OUT
"""Training items per modality needed to learn confidence."""
BASE_BYTES, BYTES_PER_ANCHORS, BYTES_PER_ITEM = 230e6, 125, 24e3
"""Memory in bytes: of the process, per m², per item."""
DISK_BASE, DISK_PER_ITEM = 2e6, 1.5e3
REFERENCE_SECONDS = 0.0138
"""Time of one repetition in :func:`machine_slowness` on the machine of the constants, with one thread."""


class Cost(NamedTuple):
    """Estimated cost of training without encoding."""

    seconds: dict[str, float] | None
    """By stage; None if the method is not :data:`METHOD`."""
    memory: int | None
    disk: int


def estimate_cost(
    method: str,
    sizes: Mapping[str, int],
    training: Mapping[str, int],
    dims: Mapping[str, int],
    *,
    slowness: float = 1.0,
) -> Cost:
    """Estimate the cost of training.

    ``sizes`` and ``training`` are numbers of items, ``dims`` numbers of features by modality; ``slowness`` is the time
    on this machine divided by that on the reference machine.
    """
    anchors = {modality: min(n, ANCHORS) for modality, n in training.items()}
    grams = sum(training[modality] * m**2 for modality, m in anchors.items()) / 1e9
    factors = sum(m**3 for m in anchors.values()) / 1e9
    items = sum(sizes.values())
    disk = DISK_BASE + DISK_PER_ITEM * items + 4 * sum(m * dims[modality] for modality, m in anchors.items())
    if method != METHOD:
        return Cost(None, None, int(disk))
    stages = dict(STAGES)
    if min(training.values()) < ENOUGH_FOR_CONFIDENCE:
        del stages["confidence"]
    seconds = {
        stage: slowness * (once + by_gram * grams + by_factor * factors + by_item * items / 1000)
        for stage, (once, by_gram, by_factor, by_item) in stages.items()
    }
    memory = BASE_BYTES + BYTES_PER_ANCHORS * sum(m**2 for m in anchors.values()) + BYTES_PER_ITEM * items
    return Cost(seconds, int(memory), int(disk))


def machine_slowness() -> float:
    """Return the time of a small Cholesky factorization relative to the reference machine."""
    rows = np.ones((600, 600))

    def once() -> float:
        begin = time.perf_counter()
        np.linalg.cholesky(rows.T @ rows + len(rows) * np.eye(len(rows)))
        return time.perf_counter() - begin

    with threadpool_limits(1):
        once()  # the first call also loads libraries
        return sorted(once() for _ in range(3))[1] / REFERENCE_SECONDS


SAMPLE = 48
"""Items per modality that are encoded to estimate the time for all."""
WARM_UP = 4
"""Items encoded before the clock starts, because the first ones load or compile code."""
ALL_WITHIN = 20.0
"""Seconds; texts that take less are all encoded, so that every unusable one is found."""
TRIAL_SECONDS = 3.0
"""Seconds after which no larger sample is tried."""
MANY_RARE, MANY_UNSHARED = 0.5, 0.5
"""Fractions of the labels above which rare and unshared labels need attention."""


@dataclass(frozen=True)
class SourceFile:
    """A source file, folder or data set."""

    path: str
    kind: str
    """``"pictures"`` (a folder), ``"manifest"`` or ``"dataset"``."""
    encoding: str | None = None
    separator: str | None = None
    sheet: str | None = None
    description: str | None = None
    """How a manifest is read, in words."""


@dataclass(frozen=True)
class ModalityCheck:
    """Number of items and labels of one modality, without items that would be left out."""

    items: int
    training: int
    labelled: int
    labels: int
    """Number of distinct labels."""
    left_out: int
    """Items known to belong to this modality that would be left out."""


@dataclass(frozen=True)
class Remark:
    """A remark about the sources, to read before training."""

    code: str
    """One of warning, note, lost_modality, one_label, several_in_one, alike_labels, rare_labels, unshared_labels,
    short_codes, unlabelled, no_confidence, sampled."""
    text: str
    count: int
    attention: bool
    """True for a probable problem, False for information."""


@dataclass(frozen=True)
class EncoderPlan:
    """The encoder of a modality and its estimated time."""

    encoder: str
    per_second: float
    """Items per second on one core, measured on a sample."""
    seconds: float


@dataclass(frozen=True)
class TrainingPlan:
    """Settings that training would use, and its estimated cost."""

    method: str
    n_bits: int
    """Code length: the requested one, or the most probable one."""
    lengths: tuple[int, ...]
    """Code lengths that are fitted to choose ``n_bits``."""
    why_bits: str
    encoders: Mapping[str, EncoderPlan]
    seconds: Mapping[str, float] | None
    """Estimate by stage; None if the cost of the method is unknown."""
    memory: int | None
    """Estimated peak in bytes."""
    disk: int
    """Estimated size of the engine in bytes."""


@dataclass(frozen=True)
class SourceCheck:
    """Result of :func:`check_sources`."""

    sources: tuple[SourceFile, ...] = ()
    modalities: Mapping[str, ModalityCheck] = field(default_factory=dict)
    labels: LabelCheck | None = None
    """Training labels; None if the method does not learn from labels."""
    label_sets: int | None = None
    """Number of distinct label sets."""
    problems: tuple[Problem, ...] = ()
    remarks: tuple[Remark, ...] = ()
    plan: TrainingPlan | None = None
    """None if no engine can be trained."""
    error: str | None = None
    details: str | None = None
    """Additional lines of the error."""

    @property
    def exit_code(self) -> int:
        """0 if nothing is wrong, 1 if an item is left out or a remark needs attention, 2 on error."""
        if self.error is not None:
            return 2
        return int(bool(self.problems) or any(remark.attention for remark in self.remarks))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values. Keys are stable; later versions may add some."""
        groups = group_problems(self.problems)
        labels = self.labels
        return {
            "exit_code": self.exit_code,
            "error": self.error,
            "details": self.details,
            "sources": [asdict(one) for one in self.sources],
            "modalities": {name: asdict(one) for name, one in self.modalities.items()},
            "labels": None
            if labels is None
            else {
                **labels.to_config(),
                "label_sets": self.label_sets,
                "rare_below": RARE,
                "rare": labels.rare,
                "several_in_one": labels.several_in_one,
                "alike": [list(group) for group in labels.alike],
            },
            "left_out": [
                {"what": what, "code": group[0].code.value, "count": len(group), "examples": list(map(str, group[:3]))}
                for what, group in groups.items()
            ],
            "remarks": [asdict(remark) for remark in self.remarks],
            "plan": None if self.plan is None else _rounded(asdict(self.plan)),
        }


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 2) if isinstance(value, float) else value


def check_sources(
    source: Any,
    *,
    callback: Callback | None = None,
    **settings: Unpack[TrainOptionValues],
) -> SourceCheck:
    """Read what :meth:`Engine.train` would read and report what it would do, without learning or writing.

    ``settings`` are those of :meth:`Engine.train`; see :class:`TrainSettings`. Invalid sources are reported in the
    result (:attr:`SourceCheck.error` if no engine can be trained); invalid settings raise.

    Examples
    --------
    >>> texts = [{"text": f"a {colour} boat", "labels": [colour]} for colour in ("red", "blue") for _ in range(6)]
    >>> found = check_sources([{"id": str(number), **text} for number, text in enumerate(texts)])
    >>> found.exit_code, found.modalities["text"].labels, found.plan.method
    (0, 2, 'rlh')
    """
    wanted = replace(TrainSettings(**settings), exif=False)  # which takes time, and nothing is stored
    problems: list[Problem] = []
    notes: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            given = read_training_input(source, wanted, problems.append, notes.append)
    except (ValueError, OSError, ImportError) as unreadable:
        error, details = _said(unreadable)
        return SourceCheck(_files(source, wanted.table), problems=tuple(problems), error=error, details=details)

    warned = dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning)
    doubts = [Remark("warning", text, 1, True) for text in warned] + [Remark("note", text, 1, False) for text in notes]

    def refusal(given: TrainingInput) -> Exception | None:
        try:
            check_learnable(wanted, given, problems)
        except ValueError as error:
            return error
        return None

    refused = refusal(given)
    trials, usable = {}, {}
    for modality, items in given.corpus.items.items():
        usable[modality] = np.arange(len(items))
        try:
            trial = _try_encoder(given.corpus, modality, given.encoders[modality], wanted.workers, callback)
        except (ValueError, OSError, ImportError) as failed:  # the encoder, not an item
            refused = refused or failed
            continue
        trials[modality] = trial
        problems += [items[row].problem(ProblemCode.UNREADABLE, reason) for row, reason in trial.failures.items()]
        usable[modality] = np.setdiff1d(usable[modality], list(trial.failures))
    given = given._replace(corpus=given.corpus.take(usable))
    if refused is None and problems:
        refused = refusal(_without_empty(given))  # again, without the items that cannot be encoded
    files = _files(source, wanted.table, given.source)
    return _result(given, wanted, files, problems, trials, refused, doubts)


def _said(error: Exception) -> tuple[str, str | None]:
    return str(error), "\n".join(getattr(error, "__notes__", ())) or None


def _files(source: Any, table: TableFormat | None, opened: Any = None) -> tuple[SourceFile, ...]:
    """Describe the sources that are paths; ``opened`` is a data set, or a list of paths."""
    given = source if isinstance(source, list | tuple) else [source]
    items = opened is None or isinstance(opened, list)  # else a data set
    return tuple(_file(str(one), table, items=items) for one in given if isinstance(one, str | Path))


def _file(name: str, table: TableFormat | None, *, items: bool) -> SourceFile:
    path = Path(name)
    if not is_manifest(path):
        return SourceFile(name, "pictures" if items and path.exists() else "dataset")
    try:
        found = table_format(path, table)
    except (ValueError, OSError, ImportError):  # reading reports the error
        return SourceFile(name, "manifest")
    return SourceFile(name, "manifest", found.encoding, found.separator, found.sheet, str(found))


def _without_empty(given: TrainingInput) -> TrainingInput:
    rows = {modality: np.arange(len(items)) for modality, items in given.corpus.items.items() if items}
    return given._replace(corpus=given.corpus.take(rows))


@dataclass(frozen=True)
class _Trial:
    failures: Mapping[int, str]
    """Reasons by row of the items that cannot be encoded."""
    seconds_each: float
    fit_seconds: float
    """For all training items."""
    dim: int
    sampled: int | None
    """Size of the sample; None if all items were encoded or decoded."""


def _try_encoder(
    corpus: Corpus, modality: str, encoder: Encoder, workers: int | None, callback: Callback | None
) -> _Trial:
    """Find the items that an encoder cannot encode, and estimate its time."""
    from modalhash.encoders import PictureReader, encode_items

    contents = corpus.contents[modality]
    n = len(corpus.items[modality])
    failures: dict[int, str] = {}
    if encoder.reads == "image":
        limit = getattr(encoder, "max_pixels", None)
        reader: Any = PictureReader() if limit is None else PictureReader(max_pixels=limit)
        decoded = encode_items(reader, contents, workers=workers, progress=callback, stage=f"decode: {modality}")
        failures = {failure.row: failure.reason for failure in decoded.failures}
    good = [row for row in range(n) if row not in failures]
    if not good:
        return _Trial(failures, 0.0, 0.0, 0, None)
    size, spent = SAMPLE, 0.0
    while True:  # a larger sample, because start-up may dominate the time of a small one
        rows = [good[at] for at in np.unique(np.linspace(0, len(good) - 1, size).astype(int))]
        sample = _sample(corpus, modality, rows)
        own = deepcopy(encoder)  # the caller's encoder is not fitted to a sample
        if encoder.reads == "image":
            # Initialize what is created once per process, so that it is not timed.
            replace(sample, labels=None).fit_encoder(own, modality)
        begin = time.perf_counter()
        sample.fit_encoder(own, modality)
        fit_seconds = (time.perf_counter() - begin) * n / len(rows)
        encode_items(own, sample.contents[modality][:WARM_UP], workers=1)
        started = time.perf_counter()
        tried = encode_items(own, sample.contents[modality], workers=1)
        each = (time.perf_counter() - started) / len(rows)
        spent += time.perf_counter() - begin
        short = fit_seconds + n * each <= ALL_WITHIN
        if encoder.reads == "image" or short or len(rows) == len(good) or spent > TRIAL_SECONDS:
            break
        size *= 4
    if encoder.reads == "image" or not short:
        failures |= {rows[failure.row]: failure.reason for failure in tried.failures}
        sampled = None if encoder.reads == "image" or len(rows) == n else len(rows)
        return _Trial(failures, each, fit_seconds, own.dim, sampled)
    own = deepcopy(encoder)
    begin = time.perf_counter()
    corpus.fit_encoder(own, modality)
    fitted = time.perf_counter()
    encoded = encode_items(own, contents, workers=1, progress=callback, stage=f"encode: {modality}")
    failures = {failure.row: failure.reason for failure in encoded.failures}
    return _Trial(failures, (time.perf_counter() - fitted) / n, fitted - begin, own.dim, None)


def _sample(corpus: Corpus, modality: str, rows: list[int]) -> Corpus:
    """Return some rows of a modality as training items."""
    sample = corpus.take({modality: np.array(rows)})
    return replace(sample, items={modality: [replace(item, training=True) for item in sample.items[modality]]})


def _result(
    given: TrainingInput,
    settings: TrainSettings,
    sources: tuple[SourceFile, ...],
    problems: list[Problem],
    trials: Mapping[str, _Trial],
    refused: Exception | None,
    doubts: list[Remark],
) -> SourceCheck:
    corpus, present = given.corpus, _without_empty(given)
    rows = corpus.training_rows()
    labels = None if corpus.labels is None else present.corpus.label_check()
    modalities = {}
    for modality, items in corpus.items.items():
        own = [item.training_labels for item in items if item.training and item.training_labels]
        modalities[modality] = ModalityCheck(
            items=len(items),
            training=len(rows[modality]),
            labelled=sum(bool(item.labels) for item in items),
            labels=len({label for some in own for label in some}),
            left_out=sum(problem.modality == modality for problem in problems),
        )
    sets = {
        frozenset(items[row].training_labels)
        for modality, items in corpus.items.items()
        for row in rows[modality].tolist()
    }
    n_sets = None if corpus.labels is None else len(sets)
    plan = None
    if refused is None:
        plan = _plan(present, settings, rows, n_sets, trials)
    error, details = (None, None) if refused is None else _said(refused)
    return SourceCheck(
        sources=sources,
        modalities=modalities,
        labels=labels,
        label_sets=n_sets,
        problems=tuple(problems),
        remarks=tuple(
            remark
            for remark in doubts + _remarks(modalities, labels, n_sets, settings.n_bits, plan, trials)
            if remark.code != "alike_labels" or not isinstance(refused, NoSharedLabelError)  # the error names them
        ),
        plan=plan,
        error=error,
        details=details,
    )


def _plan(
    given: TrainingInput,
    settings: TrainSettings,
    rows: Mapping[str, Any],
    label_sets: int | None,
    trials: Mapping[str, _Trial],
) -> TrainingPlan:
    from modalhash.encoders import encoding_seconds

    sizes = {modality: len(items) for modality, items in given.corpus.items.items()}
    training = {modality: len(rows[modality]) for modality in sizes}
    length, lengths, why = _length(settings.n_bits, min(training.values()), label_sets)
    encoders = {
        modality: EncoderPlan(
            given.encoders[modality].name,
            1 / trials[modality].seconds_each if trials[modality].seconds_each else 0.0,
            trials[modality].fit_seconds
            + encoding_seconds(given.encoders[modality], n, trials[modality].seconds_each, workers=settings.workers),
        )
        for modality, n in sizes.items()
    }
    cost = estimate_cost(
        given.method, sizes, training, {name: trials[name].dim for name in sizes}, slowness=machine_slowness()
    )
    encoding = sum(one.seconds for one in encoders.values())
    seconds = None if cost.seconds is None else {"encode": encoding, **cost.seconds}
    return TrainingPlan(given.method, length, lengths, why, encoders, seconds, cost.memory, cost.disk)


def _length(n_bits: int | str, n_items: int, label_sets: int | None) -> tuple[int, tuple[int, ...], str]:
    """Return the probable code length, all lengths that are fitted, and the reason."""
    if isinstance(n_bits, int):
        return n_bits, (n_bits,), "as requested"
    if label_sets is None:
        length = min(LENGTH_WITHOUT_LABELS, longest_below(n_items))
        return length, (length,), "auto: default without labels"
    first, *more = lengths_to_try(label_sets, n_items)
    if first[0] < LENGTHS[0]:
        return first[0], first, f"auto: codes must be shorter than the {n_items} items of a modality"
    longer = sorted({*first[1:], *(length for some in more for length in some)})
    why = f"auto: probably the first of {', '.join(map(str, LENGTHS))} that keeps {label_sets:,} label sets apart"
    return first[0], first, f"{why}; else {' or '.join(map(str, longer))}" if longer else why


def _remarks(
    modalities: Mapping[str, ModalityCheck],
    labels: LabelCheck | None,
    label_sets: int | None,
    n_bits: int | str,
    plan: TrainingPlan | None,
    trials: Mapping[str, _Trial],
) -> list[Remark]:
    found = []
    for modality, one in modalities.items():
        if not one.items and len(modalities) > 1:
            found.append(Remark("lost_modality", f"every item of {modality} would be left out", one.left_out, True))
    if labels is not None:
        found += _label_remarks(labels)
        if isinstance(n_bits, int) and label_sets is not None and plan is not None and label_sets > 2 * n_bits:
            text = (
                f"{n_bits} bits for {label_sets:,} label sets are few: items with different labels may get the "
                "same code; --bits auto chooses enough"
            )
            found.append(Remark("short_codes", text, label_sets, True))
        for modality, one in modalities.items():
            if without := one.items - one.labelled:
                text = (
                    f"{without:,} of {one.items:,} {modality} items have no label; they are found, but not learned from"
                )
                found.append(Remark("unlabelled", text, without, False))
        if plan is not None and plan.seconds is not None and "confidence" not in plan.seconds:
            fewest = min(modalities, key=lambda name: modalities[name].training)
            text = (
                f"hits will have no confidence: {modalities[fewest].training:,} {fewest} training items are fewer "
                f"than the {ENOUGH_FOR_CONFIDENCE} required"
            )
            found.append(Remark("no_confidence", text, modalities[fewest].training, False))
    for modality, trial in trials.items():
        if trial.sampled is not None:
            text = f"only {trial.sampled:,} {modality} items were encoded; training may leave out others"
            found.append(Remark("sampled", text, trial.sampled, False))
    return sorted(found, key=lambda remark: not remark.attention)


def _label_remarks(labels: LabelCheck) -> list[Remark]:
    found = []
    if several := labels.several_in_one:
        text = f"labels that look like several in one: {_examples(several)}. In a table, ';' separates labels"
        found.append(Remark("several_in_one", text, len(several), True))
    if groups := labels.alike:
        text = f"probably one label, typed in several ways: {describe_alike(groups)}"
        found.append(Remark("alike_labels", text, len(groups), True))
    n = len(labels.items)
    if n == 1:
        text = f"there is only one label, {next(iter(labels.items))!r}, which distinguishes nothing"
        found.append(Remark("one_label", text, 1, True))
    if rare := labels.rare:
        text = f"{len(rare):,} of {n:,} labels are rare (fewer than {RARE} items): {_examples(rare)}"
        found.append(Remark("rare_labels", text, len(rare), len(rare) > MANY_RARE * n))
    if len(labels.counts) > 1 and 0 < len(labels.shared) < n:
        unshared = n - len(labels.shared)
        text = describe_label_overlap(labels.to_config())
        found.append(Remark("unshared_labels", text, unshared, unshared > MANY_UNSHARED * n))
    return found


def _examples(counts: Mapping[str, int]) -> str:
    shown = ", ".join(f"{label!r} ({n:,})" for label, n in list(counts.items())[:MAX_EXAMPLES])
    return shown + (", …" if len(counts) > MAX_EXAMPLES else "")
