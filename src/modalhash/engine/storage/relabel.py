"""Change the labels of stored items, and the codes learned from them.

If a method computes codes from label sets (:meth:`~modalhash.methods.base.CrossModalHasher.label_codes`), any set of
known labels has a code. With other methods, a label set has the most frequent code of the items with exactly these
labels. If there is no such code, the item gets a hashed code from its features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalhash.core.label_names import LabelNames, label_key
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array
from modalhash.data import is_manifest, label_matrix, manifest_columns, manifest_lines, parse_labels
from modalhash.engine.items.item import Item, OnProblem, Problem, ProblemCode, unknown_modality
from modalhash.engine.storage.ingest import BATCH_SIZE, ItemCoder
from modalhash.store import And, Comparison, Key, Record, Store, check_storable

if TYPE_CHECKING:
    from modalhash.engine.search.refinement import Refinement
    from modalhash.methods.base import CrossModalHasher

FIELDS = ("id", "labels", "modality")
LOOKED_AT = 1000


@dataclass(frozen=True)
class Relabelled:
    """Result of :meth:`modalhash.engine.Engine.relabel`."""

    changed: int
    """Items with new labels or a new code."""
    unchanged: int
    """Items that had these labels and their code."""
    learned: int
    """Changed items with a code from their labels."""
    hashed: int
    """Changed items with a code from their features."""
    without_code: int
    """Hashed items with known labels, in a set without a code."""
    unknown_labels: Mapping[str, int]
    """Number of items by label that the model did not learn from. These labels are stored and can be filtered by; they
    affect codes after :meth:`modalhash.engine.Engine.retrain`."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class LabelCoder:
    """Computes codes and refinement vectors of items from their labels."""

    model: CrossModalHasher
    class_names: Sequence[str]
    refinement: Refinement
    store: Store
    """For methods without ``label_codes``, whose codes are looked up."""
    _found: dict[tuple[str, frozenset[str]], bytes | None] = field(default_factory=dict)

    def known(self, labels: Iterable[str | int]) -> list[str]:
        """Return the labels that the model learned from, in its order."""
        columns = {self._columns[key] for key in map(label_key, labels) if key in self._columns}
        return [self.class_names[column] for column in sorted(columns)]

    @cached_property
    def _columns(self) -> dict[str, int]:
        columns: dict[str, int] = {}
        for column, name in enumerate(self.class_names):
            columns.setdefault(label_key(name), column)
        return columns

    def codes(self, modality: str, label_sets: Sequence[Sequence[str]]) -> list[bytes | None]:
        """Return the codes of sets of known labels; None for a set without one."""
        rows = [row for row, labels in enumerate(label_sets) if labels]
        found: list[bytes | None] = [None] * len(label_sets)
        if not rows:
            return found
        packed = self.model.label_codes(label_matrix([label_sets[row] for row in rows], self.class_names))
        for place, row in enumerate(rows):
            found[row] = self._look_up(modality, label_sets[row]) if packed is None else packed[place].tobytes()
        return found

    def learn(self, records: Sequence[Record], codes: Sequence[bytes], before: Sequence[Record]) -> list[Record]:
        """Return records with codes and vectors of their labels; ``before`` are the previous records."""
        learned = [replace(one, code=code, kind="learned") for one, code in zip(records, codes, strict=True)]
        rows = [row for row, record in enumerate(records) if record.refinement is not None]
        by_width: dict[int, list[int]] = {}
        for row in rows:
            by_width.setdefault(len(records[row].refinement or b""), []).append(row)
        for some in by_width.values():  # modalities have vectors of different widths
            vectors = np.stack([np.frombuffer(records[row].refinement or b"", dtype=np.int8) for row in some])
            learned_before = np.array([before[row].kind == "learned" for row in some])
            changed = self.refinement.relabelled(
                vectors, self._matrix(records, some), self._matrix(before, some), learned_before
            )
            for row, vector in zip(some, changed, strict=True):
                learned[row] = replace(learned[row], refinement=vector.tobytes())
        return learned

    def _matrix(self, records: Sequence[Record], rows: Iterable[int]) -> Array:
        return label_matrix([self.known(records[row].labels) for row in rows], self.class_names)

    def _look_up(self, modality: str, labels: Sequence[str]) -> bytes | None:
        key = modality, frozenset(labels)
        if key not in self._found:
            own = (Comparison("label", "=", label) for label in labels)
            where = And((*own, Comparison("modality", "=", modality), Comparison("kind", "=", "learned")))
            self._found[key] = self._most_frequent(key[1], self.store.matching(where))
        return self._found[key]

    def _most_frequent(self, labels: frozenset[str], numbers: Array) -> bytes | None:
        for start in range(0, len(numbers), LOOKED_AT):
            records = self.store.records(numbers[start : start + LOOKED_AT]).values()
            codes = Counter(bytes(one.code) for one in records if frozenset(self.known(one.labels)) == labels)
            if codes:
                return max(codes, key=lambda code: (codes[code], code))
        return None


@dataclass(frozen=True)
class _Line:
    """New labels of the items with one id."""

    id: str
    modality: str | None
    labels: tuple[str, ...]
    number: int | None = None
    source: str | None = None

    def problem(self, code: ProblemCode, reason: str) -> Problem:
        return Problem(reason, self.number, self.source, self.modality, self.id, code=code)


@dataclass
class Relabeller:
    """Changes the labels and codes of stored items."""

    store: Store
    modalities: Sequence[str]
    labels: LabelCoder
    features: ItemCoder
    names: LabelNames
    content_of: Callable[[Record], Any]
    """Returns the encoder input of an item, which is its text or the path of its file."""
    follows: bool
    """False if codes of this engine do not depend on labels, so that only labels change."""
    report: OnProblem
    check_current: Callable[[], None] = lambda: None
    _counts: Counter[str] = field(default_factory=Counter)
    _unknown: Counter[str] = field(default_factory=Counter)

    def relabel(self, source: Any, *, fields: Mapping[str, str] | None, callback: Callback | None) -> Relabelled:
        """Give items the labels of a source, in batches, one transaction each."""
        lines, progress, done = self._once(_read_lines(source, self.report, fields or {})), Reporter(callback), 0
        while batch := list(islice(lines, BATCH_SIZE)):
            self._relabel_batch(batch)
            done += len(batch)
            progress("relabel", done, done)
        counts = self._counts
        return Relabelled(
            counts["learned"] + counts["hashed"],
            counts["unchanged"],
            counts["learned"],
            counts["hashed"],
            counts["without_code"],
            dict(self._unknown.most_common()),
        )

    def _once(self, lines: Iterator[_Line]) -> Iterator[_Line]:
        """Yield the first line for every item; report duplicates and unknown modalities."""
        seen: dict[tuple[str | None, str], int | None] = {}
        for line in lines:
            if line.modality is not None and line.modality not in self.modalities:
                reason = unknown_modality(line.modality, dict.fromkeys(self.modalities, ""))
                self.report(line.problem(ProblemCode.UNKNOWN_MODALITY, reason))
                continue
            named = [(name, line.id) for name in self._names(line)]
            if twice := [key for key in named if key in seen]:
                number = seen[twice[0]]
                before = "twice" if number is None else f"in line {number} already"
                reason = f"the id {line.id!r} is given {before}; the first one is used"
                self.report(line.problem(ProblemCode.DUPLICATE, reason))
                continue
            seen.update(dict.fromkeys(named, line.number))
            yield replace(line, labels=self.names.of(line.labels))

    def _names(self, line: _Line) -> Sequence[str]:
        return self.modalities if line.modality is None else (line.modality,)

    def _relabel_batch(self, lines: list[_Line]) -> None:
        """Change the items of some lines; repeat for items that another process changed meanwhile."""
        wanted: dict[Key, _Line] = {(name, line.id): line for line in lines for name in self._names(line)}
        numbers = self.store.row_ids(wanted)
        there = {id for _, id in numbers}
        for line in lines:
            if line.id not in there:
                where = "" if line.modality is None else f" in {line.modality!r}"
                self.report(line.problem(ProblemCode.UNKNOWN_ID, f"no item has the id {line.id!r}{where}"))
        while numbers:
            by_number = self.store.records(list(numbers.values()))
            changes, outcome = self._changes(by_number, wanted)
            replaced = set(self.store.update(changes).tolist()) if changes else set()
            self.check_current()
            for number, name in outcome.items():
                if name == "unchanged" or number in replaced:
                    record = by_number[number]
                    self._counts[name.removesuffix(" without code")] += 1
                    self._counts["without_code"] += name.endswith(" without code")
                    learned_from = self.labels.known(wanted[record.key].labels)
                    if self.labels.class_names and name != "unchanged":
                        self._unknown.update(set(wanted[record.key].labels) - set(learned_from))
            lost = [by_number[number].key for number in changes if number not in replaced]
            numbers = self.store.row_ids(lost) if lost else {}

    def _changes(
        self, records: Mapping[int, Record], wanted: Mapping[Key, _Line]
    ) -> tuple[dict[int, Record], dict[int, str]]:
        """Return new records and outcomes by row id, without writing."""
        changes: dict[int, Record] = {}
        outcome: dict[int, str] = {}
        to_hash: list[int] = []
        by_modality: dict[str, list[int]] = {}
        for number, record in records.items():
            by_modality.setdefault(record.modality, []).append(number)
        for modality, numbers in by_modality.items():
            new = {number: replace(records[number], labels=wanted[records[number].key].labels) for number in numbers}
            same = {number: set(map(str, records[number].labels)) == set(new[number].labels) for number in numbers}
            if not self.follows:
                for number in numbers:
                    outcome[number] = "unchanged" if same[number] else records[number].kind
                    if not same[number]:
                        changes[number] = new[number]
                continue
            known = [self.labels.known(new[number].labels) for number in numbers]
            codes = dict(zip(numbers, self.labels.codes(modality, known), strict=True))
            learned: list[int] = []
            for number, own in zip(numbers, known, strict=True):
                kind = "hashed" if codes[number] is None else "learned"
                if same[number] and kind == records[number].kind:
                    outcome[number] = "unchanged"
                    continue
                outcome[number] = f"{kind} without code" if own and kind == "hashed" else kind
                if kind == "learned":
                    learned.append(number)
                else:
                    changes[number] = new[number]
                    if records[number].kind == "learned":  # else its code is from its features already
                        to_hash.append(number)
            made = self.labels.learn(
                [new[number] for number in learned],
                [codes[number] or b"" for number in learned],
                [records[number] for number in learned],
            )
            changes.update(zip(learned, made, strict=True))
        self._hash(changes, to_hash, outcome)
        return changes, outcome

    def _hash(self, changes: dict[int, Record], numbers: Sequence[int], outcome: dict[int, str]) -> None:
        """Compute codes from features; keep records whose content cannot be read."""
        by_modality: dict[str, dict[str, int]] = {}
        for number in numbers:
            by_modality.setdefault(changes[number].modality, {})[changes[number].id] = number
        for modality, own in by_modality.items():
            contents = {id: self.content_of(changes[number]) for id, number in own.items()}
            items = [Item(modality, id) for id in own if contents[id] is not None]
            for id in (id for id in own if contents[id] is None):
                self._leave(changes, outcome, own[id], "it has neither a text nor a file to encode")
            failed: list[Problem] = []
            coder = replace(self.features, report=failed.append)
            coded = coder.hash(modality, items, [contents[item.id] for item in items]) if items else None
            for problem in failed:
                self._leave(changes, outcome, own[str(problem.id)], problem.reason)
            for made in () if coded is None else coded.records("hashed"):
                number = own[made.id]
                changes[number] = replace(changes[number], code=made.code, kind="hashed", refinement=made.refinement)

    def _leave(self, changes: dict[int, Record], outcome: dict[int, str], number: int, reason: str) -> None:
        record = changes.pop(number)
        del outcome[number]
        text = f"none of its new labels has a code, and a code cannot be computed from its features: {reason}"
        self.report(Item(*record.key).problem(ProblemCode.UNREADABLE, text))


def _read_lines(source: Any, report: OnProblem, fields: Mapping[str, str]) -> Iterator[_Line]:
    if unknown := [name for name in fields if name not in FIELDS]:
        raise ValueError(f"fields has {unknown[0]!r}; expected only {', '.join(FIELDS)}")
    names = {name: fields.get(name, name) for name in FIELDS}
    if isinstance(source, str | Path):
        source = [source]
    for one in source:
        if isinstance(one, str | Path):
            path = Path(one)
            lines = _manifest(path, names, report)
            yield from _parse(lines, names, report, path.name)
        elif isinstance(one, Mapping):
            yield from _parse([(None, one)], names, report, None)
        else:
            raise TypeError(
                f"got {type(one).__name__}; expected manifests, or dicts such as {{'id': 'boat', 'labels': ['sea']}}"
            )


def _manifest(path: Path, names: Mapping[str, str], report: OnProblem) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if not path.is_file() or not is_manifest(path):
        raise FileNotFoundError(
            f"{path}: {'no such file' if not path.exists() else 'not a manifest'}; expected one (.jsonl, .csv or .tsv) "
            "with the fields id and labels"
        )
    columns = manifest_columns(path)
    if columns is not None and not {names["id"], names["labels"]} <= set(columns):
        raise ValueError(
            f"{path}: the columns are {', '.join(columns) or 'none'}; expected {names['id']} and {names['labels']}. "
            "Name them, e.g. --field id=photo --field labels=keywords (fields={...})"
        )
    return manifest_lines(path, lambda number, reason: report(Problem(reason, number, path.name)))


def _parse(
    lines: Iterable[tuple[int | None, Mapping[str, Any]]],
    names: Mapping[str, str],
    report: OnProblem,
    source: str | None,
) -> Iterator[_Line]:
    for number, line in lines:
        id, modality = (line.get(names[name]) for name in ("id", "modality"))
        if id is None or id == "":
            report(Problem(f"{names['id']!r} is empty, so the item is unknown", number, source))
            continue
        if names["labels"] not in line:
            reason = f"there is no field {names['labels']!r}; an empty one removes all labels"
            report(Problem(reason, number, source, id=str(id)))
            continue
        try:
            labels = parse_labels(line[names["labels"]])
            check_storable(Record(str(id), "any", b"", labels=labels))
        except (TypeError, ValueError) as error:
            report(Problem(str(error), number, source, id=str(id)))
            continue
        yield _Line(str(id), None if modality in (None, "") else str(modality), labels, number, source)
