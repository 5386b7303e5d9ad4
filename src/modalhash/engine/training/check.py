"""Sources looked at before anything is learned from them: what would be left out, what deserves a look, what it costs.

Everything that :meth:`Engine.train` reads is read, by the same functions, and every picture is decoded. Nothing is
learned and nothing is written.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from modalhash.core.progress import Callback
from modalhash.core.validation import check_choice
from modalhash.data import TableFormat, is_manifest, table_format
from modalhash.engine.items.item import ItemBatch, Problem, ProblemCode, ReadOptions, group_problems
from modalhash.engine.search.confidence import HELD_OUT, MIN_HELD_OUT
from modalhash.engine.training.code_length import (
    AUTO,
    LENGTH_WITHOUT_LABELS,
    LENGTHS,
    check_n_bits,
    lengths_to_try,
    longest_below,
)
from modalhash.engine.training.label_check import (
    MAX_EXAMPLES,
    RARE,
    LabelCheck,
    NoSharedLabelError,
    describe_alike,
    describe_label_overlap,
)
from modalhash.engine.training.train import (
    LABELS,
    ReadItems,
    check_learnable,
    fit_encoder_to,
    read_training_items,
    training_rows,
)

if TYPE_CHECKING:
    from modalhash.encoders import Encoder
    from modalhash.methods.base import CrossModalHasher


# -- What training takes, about: a simple model of the cost of the default method, scaled to this machine.
#
# With n items and m anchors (at most 1,500) of a modality, learning sums n·m² for the Gram matrix and factors it in
# m³; what it does besides hardly depends on the collection. The constants were fitted to processor seconds on IAPR
# TC-12 (300 to 20,000 photos, and as many German captions). :func:`machine_slowness` repeats a small piece of such
# work, so that the estimate is one for the machine as it is now.

METHOD = "rlh"
"""The method whose cost is known."""
ANCHORS = 1500
STAGES = {  # seconds: once, per 1e9 of n·m², per 1e9 of m³, per 1,000 items
    "learn": (1.5, 0.112, 0.159, 0.0),
    "refine": (0.2, 0.126, 0.158, 0.0),
    "confidence": (1.1, 0.296, 0.479, 0.0),
    "store": (0.0, 0.0, 0.0, 0.19),
}
ENOUGH_FOR_CONFIDENCE = HELD_OUT * MIN_HELD_OUT
"""Items to learn from, of each modality, from which on confidence is learned."""
BASE_BYTES, BYTES_PER_ANCHORS, BYTES_PER_ITEM = 230e6, 125, 24e3
"""Of memory: of the process, per m², per item."""
DISK_BASE, DISK_PER_ITEM = 2e6, 1.5e3
REFERENCE_SECONDS = 0.0138
"""What :func:`machine_slowness` takes on the machine that the constants are of, with one thread."""


class Cost(NamedTuple):
    """What training takes besides encoding, about."""

    seconds: dict[str, float] | None
    """By stage; None for a method whose cost is not known."""
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
    """Return the cost of a training, about.

    Parameters
    ----------
    method : its name
    sizes : items by modality
    training : items that are learned from, by modality
    dims : features by modality
    slowness : how many times longer this machine takes than the one that was measured
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


def machine_slowness(repeats: int = 3) -> float:
    """Return how many times longer a piece of linear algebra takes than on the machine that was measured."""
    rows = np.ones((600, 600))

    def once() -> float:
        begin = time.perf_counter()
        np.linalg.cholesky(rows.T @ rows + len(rows) * np.eye(len(rows)))
        return time.perf_counter() - begin

    with threadpool_limits(1):
        once()  # what is loaded at the first time
        return sorted(once() for _ in range(repeats))[repeats // 2] / REFERENCE_SECONDS


SAMPLE = 48
"""Items of a modality that are encoded to see how long all of them take."""
WARM_UP = 4
"""Of these, those that are encoded first: they pay for what is loaded or compiled once."""
ALL_WITHIN = 20.0
"""Seconds: texts that take no longer are all encoded, so that those which no encoder takes are found."""
TRIAL_SECONDS = 3.0
"""After which no larger sample is tried."""
MANY_RARE, MANY_UNSHARED = 0.5, 0.5
"""Shares of the labels from which on rare and unshared ones deserve a look; some are in any collection."""


@dataclass(frozen=True)
class SourceFile:
    """One of the sources."""

    path: str
    kind: str
    """``"pictures"`` (a folder), ``"manifest"`` or ``"dataset"``."""
    encoding: str | None = None
    """Of a text file, as it was found or given."""
    separator: str | None = None
    """Of the columns of a table."""
    sheet: str | None = None
    """Of an Excel file."""
    description: str | None = None
    """How a manifest is read, in words."""


@dataclass(frozen=True)
class ModalityCheck:
    """What there is of one modality, without what would be left out."""

    items: int
    training: int
    """Items that would be learned from."""
    labelled: int
    labels: int
    """Different labels."""
    left_out: int
    """Items of which it is known that they are of this modality, and that would be left out."""


@dataclass(frozen=True)
class Remark:
    """Something about the sources that a person may want to know before training."""

    code: str
    """For programs: warning, note, lost_modality, one_label, several_in_one, alike_labels, rare_labels,
    unshared_labels, short_codes, unlabelled, no_confidence, sampled."""
    text: str
    count: int
    attention: bool
    """Whether it deserves a look; else it is good to know."""


@dataclass(frozen=True)
class EncoderPlan:
    """The encoder of a modality, and what it takes."""

    encoder: str
    per_second: float
    """Items that one core encoded in a second, of a sample of these sources."""
    seconds: float
    """About, for all items."""


@dataclass(frozen=True)
class TrainingPlan:
    """What training would do."""

    method: str
    n_bits: int
    """The length of the codes: as asked for, or the most probable one."""
    lengths: tuple[int, ...]
    """Lengths that are fitted to find that."""
    why_bits: str
    encoders: Mapping[str, EncoderPlan]
    seconds: Mapping[str, float] | None
    """About, by stage; None where nothing is known of the method's cost."""
    memory: int | None
    """Bytes, about, at most."""
    disk: int
    """Bytes of the engine, about."""


@dataclass(frozen=True)
class SourceCheck:
    """What :func:`check_sources` found."""

    sources: tuple[SourceFile, ...] = ()
    modalities: Mapping[str, ModalityCheck] = field(default_factory=dict)
    labels: LabelCheck | None = None
    """The labels to learn from; None where none are."""
    label_sets: int | None = None
    """Different sets of labels of an item."""
    problems: tuple[Problem, ...] = ()
    """Items that would be left out, and why."""
    remarks: tuple[Remark, ...] = ()
    plan: TrainingPlan | None = None
    """None if no engine can be made."""
    error: str | None = None
    """Why no engine can be made."""
    details: str | None = None
    """Lines that belong to the error."""

    @property
    def exit_code(self) -> int:
        """0 if nothing is wrong, 1 if something is left out or deserves a look, 2 if no engine can be made."""
        if self.error is not None:
            return 2
        return int(bool(self.problems) or any(remark.attention for remark in self.remarks))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON values. The keys stay; there may be more of them in later versions."""
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
    """Return estimates without the digits that mean nothing."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 2) if isinstance(value, float) else value


def check_sources(
    source: Any,
    *,
    n_bits: int | str = AUTO,
    encoders: Mapping[str, Any] | None = None,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    labels: str = "given",
    fields: Mapping[str, str] | None = None,
    learn_from: str = "training",
    quality: str | None = None,
    download: bool = False,
    workers: int | None = None,
    callback: Callback | None = None,
    table: TableFormat | None = None,
) -> SourceCheck:
    """Read what :meth:`Engine.train` would read, and say what it would do; nothing is learned or written.

    The parameters are those of :meth:`Engine.train`. What is wrong with the sources is in the result, also where no
    engine can be made (:attr:`SourceCheck.error`); wrong parameters raise.

    Examples
    --------
    >>> texts = [{"text": f"a {colour} boat", "labels": [colour]} for colour in ("red", "blue") for _ in range(6)]
    >>> found = check_sources([{"id": str(number), **text} for number, text in enumerate(texts)])
    >>> found.exit_code, found.modalities["text"].labels, found.plan.method
    (0, 2, 'rlh')
    """
    n_bits = check_n_bits(n_bits)
    check_choice(learn_from, "learn_from", ("training", "all"))
    check_choice(labels, "labels", LABELS)
    parameters = dict(parameters or {})
    problems: list[Problem] = []
    notes: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            read = read_training_items(
                source,
                method,
                parameters,
                problems.append,
                ReadOptions(fields, table, labels == "folders", exif=False, note=notes.append),
                encoders=encoders,
                labels=labels,
                learn_from=learn_from,
                quality=quality,
                download=download,
            )
    except (ValueError, OSError, ImportError) as unreadable:
        error, details = _said(unreadable)
        return SourceCheck(_files(source, table), problems=tuple(problems), error=error, details=details)

    hasher = read.hasher
    warned = dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning)
    doubts = [Remark("warning", text, 1, True) for text in warned] + [Remark("note", text, 1, False) for text in notes]

    def refusal(read: ReadItems) -> Exception | None:
        try:
            check_learnable(n_bits, parameters, read, problems)
        except ValueError as error:
            return error
        return None

    refused = refusal(read)
    trials = {}
    for number, batch in enumerate(read.batches):
        try:
            trial = _try_encoder(batch, read.encoders[batch.modality], hasher, workers=workers, callback=callback)
        except (ValueError, OSError, ImportError) as failed:  # the encoder, not an item
            refused = refused or failed
            continue
        trials[batch.modality] = trial
        problems += [batch.items[row].problem(ProblemCode.UNREADABLE, reason) for row, reason in trial.failures.items()]
        usable = [row for row in range(len(batch.items)) if row not in trial.failures]
        read.batches[number] = ItemBatch(
            batch.modality, [batch.items[row] for row in usable], batch.contents_of(usable)
        )
    if refused is None and problems:
        refused = refusal(_without_empty(read))  # once more, without those that cannot be encoded
    return _result(
        read,
        n_bits,
        problems,
        trials,
        refused,
        doubts,
        _files(source, table, read.source),
        workers,
    )


def _said(error: Exception) -> tuple[str, str | None]:
    """Return the message of an error, and the lines that belong to it."""
    return str(error), "\n".join(getattr(error, "__notes__", ())) or None


def _files(source: Any, table: TableFormat | None, opened: Any = None) -> tuple[SourceFile, ...]:
    """Return the sources that are files or folders, or the data set; ``opened`` is what became of them."""
    given = source if isinstance(source, list | tuple) else [source]
    items = opened is None or isinstance(opened, list)  # else a data set
    return tuple(_file(str(one), table, items=items) for one in given if isinstance(one, str | Path))


def _file(name: str, table: TableFormat | None, *, items: bool) -> SourceFile:
    path = Path(name)
    if not is_manifest(path):
        return SourceFile(name, "pictures" if items and path.exists() else "dataset")
    try:
        found = table_format(path, table)
    except (ValueError, OSError, ImportError):  # which reading it says
        return SourceFile(name, "manifest")
    return SourceFile(name, "manifest", found.encoding, found.separator, found.sheet, str(found))


def _without_empty(read: ReadItems) -> ReadItems:
    return read._replace(batches=[batch for batch in read.batches if batch.items])


# -- encoders


@dataclass(frozen=True)
class _Trial:
    """What was seen of an encoder on a sample of its items, or on all of them."""

    failures: Mapping[int, str]
    """The rows of items that cannot be encoded, and why."""
    seconds_each: float
    fit_seconds: float
    """Of all training items."""
    dim: int
    sampled: int | None
    """How many were looked at, where the others were neither encoded nor decoded."""


def _try_encoder(
    batch: ItemBatch, encoder: Encoder, hasher: CrossModalHasher, *, workers: int | None, callback: Callback | None
) -> _Trial:
    """Find the items of a batch that its encoder cannot take, and how long it takes."""
    from modalhash.encoders import PictureReader, encode_items

    n = len(batch.items)
    failures: dict[int, str] = {}
    if encoder.reads == "image":
        limit = getattr(encoder, "max_pixels", None)
        reader: Any = PictureReader() if limit is None else PictureReader(max_pixels=limit)
        decoded = encode_items(
            reader, batch.contents, workers=workers, progress=callback, stage=f"decode: {batch.modality}"
        )
        failures = {failure.row: failure.reason for failure in decoded.failures}
    good = [row for row in range(n) if row not in failures]
    if not good:
        return _Trial(failures, 0.0, 0.0, 0, None)
    size, spent = SAMPLE, 0.0
    while True:  # a larger sample, if what a small one takes would be too much for all: most may be the start
        rows = [good[at] for at in np.unique(np.linspace(0, len(good) - 1, size).astype(int))]
        own = deepcopy(encoder)  # fitted here to a sample, and not the one that somebody gave
        if encoder.reads == "image":
            fit_encoder_to(
                own, _part(batch, rows), supervised=False
            )  # what is made once per process is no cost of each item
        begin = time.perf_counter()
        fit_encoder_to(own, _part(batch, rows), supervised=type(hasher).supervised)
        fit_seconds = (time.perf_counter() - begin) * n / len(rows)
        encode_items(own, batch.contents_of(rows[:WARM_UP]), workers=1)
        started = time.perf_counter()
        tried = encode_items(own, batch.contents_of(rows), workers=1)
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
    fit_encoder_to(own, batch, supervised=type(hasher).supervised)
    fitted = time.perf_counter()
    encoded = encode_items(own, batch.contents, workers=1, progress=callback, stage=f"encode: {batch.modality}")
    failures = {failure.row: failure.reason for failure in encoded.failures}
    return _Trial(failures, (time.perf_counter() - fitted) / n, fitted - begin, own.dim, None)


def _part(batch: ItemBatch, rows: list[int]) -> ItemBatch:
    """Return some rows of a batch, all of them to be learned from."""
    return ItemBatch(
        batch.modality, [replace(batch.items[row], training=True) for row in rows], batch.contents_of(rows)
    )


# -- the result


def _result(
    read: ReadItems,
    n_bits: int | str,
    problems: list[Problem],
    trials: Mapping[str, _Trial],
    refused: Exception | None,
    doubts: list[Remark],
    sources: tuple[SourceFile, ...],
    workers: int | None,
) -> SourceCheck:
    method, hasher = read.method, read.hasher
    supervised = type(hasher).supervised
    present = _without_empty(read)
    rows = training_rows(hasher, read.by_modality)
    labels = present.label_check() if supervised else None
    modalities = {}
    for modality, batch in read.by_modality.items():
        own = [item.training_labels for item in batch.items if item.training and item.training_labels]
        modalities[modality] = ModalityCheck(
            items=len(batch.items),
            training=len(rows[modality]),
            labelled=sum(bool(item.labels) for item in batch.items),
            labels=len({label for some in own for label in some}),
            left_out=sum(problem.modality == modality for problem in problems),
        )
    sets = {
        frozenset(batch.items[row].training_labels)
        for modality, batch in read.by_modality.items()
        for row in rows[modality].tolist()
    }
    n_sets = len(sets) if supervised else None
    plan = None
    if refused is None:
        plan = _plan(present, method, n_bits, rows, n_sets, trials, workers)
    error, details = (None, None) if refused is None else _said(refused)
    return SourceCheck(
        sources=sources,
        modalities=modalities,
        labels=labels,
        label_sets=n_sets,
        problems=tuple(problems),
        remarks=tuple(
            remark
            for remark in doubts + _remarks(modalities, labels, n_sets, n_bits, plan, trials)
            if remark.code != "alike_labels" or not isinstance(refused, NoSharedLabelError)  # which names them
        ),
        plan=plan,
        error=error,
        details=details,
    )


def _plan(
    read: ReadItems,
    method: str,
    n_bits: int | str,
    rows: Mapping[str, Any],
    label_sets: int | None,
    trials: Mapping[str, _Trial],
    workers: int | None,
) -> TrainingPlan:
    """Say what training would do with these items."""
    from modalhash.encoders import encoding_seconds

    sizes = {batch.modality: len(batch.items) for batch in read.batches}
    training = {modality: len(rows[modality]) for modality in sizes}
    length, lengths, why = _length(n_bits, min(training.values()), label_sets)
    encoders = {
        modality: EncoderPlan(
            read.encoders[modality].name,
            1 / trials[modality].seconds_each if trials[modality].seconds_each else 0.0,
            trials[modality].fit_seconds
            + encoding_seconds(read.encoders[modality], n, trials[modality].seconds_each, workers=workers),
        )
        for modality, n in sizes.items()
    }
    cost = estimate_cost(
        method, sizes, training, {name: trials[name].dim for name in sizes}, slowness=machine_slowness()
    )
    encoding = sum(one.seconds for one in encoders.values())
    seconds = None if cost.seconds is None else {"encode": encoding, **cost.seconds}
    return TrainingPlan(method, length, lengths, why, encoders, seconds, cost.memory, cost.disk)


def _length(n_bits: int | str, n_items: int, label_sets: int | None) -> tuple[int, tuple[int, ...], str]:
    """Return the probable length of codes, all that are fitted for it, and why."""
    if isinstance(n_bits, int):
        return n_bits, (n_bits,), "as asked for"
    if label_sets is None:
        length = min(LENGTH_WITHOUT_LABELS, longest_below(n_items))
        return length, (length,), "auto: without labels to keep apart"
    first, *more = lengths_to_try(label_sets, n_items)
    if first[0] < LENGTHS[0]:
        return first[0], first, f"auto: codes have to be shorter than the {n_items} items of a modality"
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
    """Say what deserves a look, and then what is good to know."""
    found = []
    for modality, one in modalities.items():
        if not one.items and len(modalities) > 1:
            found.append(Remark("lost_modality", f"every item of {modality} would be left out", one.left_out, True))
    if labels is not None:
        found += _label_remarks(labels)
        if isinstance(n_bits, int) and label_sets is not None and plan is not None and label_sets > 2 * n_bits:
            text = (
                f"{n_bits} bits for {label_sets:,} label sets are few: items that are labelled otherwise may get the "
                "same code; --bits auto takes enough"
            )
            found.append(Remark("short_codes", text, label_sets, True))
        for modality, one in modalities.items():
            if without := one.items - one.labelled:
                text = f"{without:,} of {one.items:,} {modality} items have no label: found, but not learned from"
                found.append(Remark("unlabelled", text, without, False))
        if plan is not None and plan.seconds is not None and "confidence" not in plan.seconds:
            fewest = min(modalities, key=lambda name: modalities[name].training)
            text = (
                f"hits will have no confidence: {modalities[fewest].training:,} {fewest} items to learn from are fewer "
                f"than the {ENOUGH_FOR_CONFIDENCE} that it takes"
            )
            found.append(Remark("no_confidence", text, modalities[fewest].training, False))
    for modality, trial in trials.items():
        if trial.sampled is not None:
            text = f"of {modality} only {trial.sampled:,} items were encoded; train may leave out others"
            found.append(Remark("sampled", text, trial.sampled, False))
    return sorted(found, key=lambda remark: not remark.attention)


def _label_remarks(labels: LabelCheck) -> list[Remark]:
    found = []
    if several := labels.several_in_one:
        text = f"labels that look like several in one: {_examples(several)}. Between labels of a table stands ';'"
        found.append(Remark("several_in_one", text, len(several), True))
    if alike := labels.alike:
        text = f"probably one label, typed in several ways: {describe_alike(alike)}"
        found.append(Remark("alike_labels", text, len(alike), True))
    n = len(labels.items)
    if n == 1:
        text = f"there is one label, {next(iter(labels.items))!r}, and nothing to tell apart by it"
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
    """Show the first labels with their numbers of items."""
    shown = ", ".join(f"{label!r} ({n:,})" for label, n in list(counts.items())[:MAX_EXAMPLES])
    return shown + (", …" if len(counts) > MAX_EXAMPLES else "")
