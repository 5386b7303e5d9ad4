"""The report page of an engine: its items, quality, confidence, codes and example searches.

One HTML file without scripts and external resources. Text of items is escaped; pictures are embedded as thumbnails.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from modalhash.core.imports import MissingExtraError
from modalhash.core.label_names import label_key
from modalhash.core.typing import Array, Codes
from modalhash.engine.search.reliability import Bin, calibration_error, pooled, reliability_svg
from modalhash.engine.training.expected_quality import (
    EXAMPLE_HITS,
    N_BAD,
    N_GOOD,
    Expected,
    cross_modal_rows,
    describe_expected,
)

if TYPE_CHECKING:
    from modalhash.engine.engine import Engine
    from modalhash.store import Record, Store


MAX_CODES = 100_000
"""Codes that are sampled, evenly spaced."""


@dataclass(frozen=True, eq=False)
class CodeStatistics:
    """How the codes of some items use their bits."""

    n: int
    ones: Array
    """Fraction of codes that have each bit set."""
    correlation: Array
    """Correlation of each pair of bits; 0 for constant bits."""
    distinct: int
    """Number of distinct codes."""
    largest: int
    """Largest number of items that share a code."""

    @property
    def entropy(self) -> Array:
        """Entropy of each bit: 1 if half of the codes have it set, 0 if it is constant."""
        p = np.clip(self.ones, 1e-12, 1 - 1e-12)
        return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))

    @property
    def n_constant(self) -> int:
        return int(((self.ones == 0) | (self.ones == 1)).sum())

    @property
    def effective_bits(self) -> float:
        """Participation ratio of the correlations: the number of uncorrelated bits of equal spread."""
        total = float((self.correlation**2).sum())
        return float(np.trace(self.correlation)) ** 2 / total if total else 0.0


def code_statistics(codes: Codes, n_bits: int) -> CodeStatistics:
    """Return the statistics of packed codes, at least one.

    Examples
    --------
    >>> codes = np.array([[0b0110_0000], [0b1010_0000], [0b0010_0000], [0b1110_0000]], dtype=np.uint8)
    >>> used = code_statistics(codes, 3)
    >>> used.ones.tolist(), used.distinct, used.n_constant, used.effective_bits
    ([0.5, 0.5, 1.0], 4, 1, 2.0)
    """
    bits = np.unpackbits(codes, axis=1, count=n_bits).astype(np.float32)
    ones = bits.mean(axis=0, dtype=np.float64)
    spread = np.sqrt(ones * (1 - ones))
    standard = (bits - ones.astype(np.float32)) / np.where(spread > 0, spread, 1).astype(np.float32)
    correlation = np.asarray(standard.T @ standard, dtype=np.float64) / len(codes)
    rows = np.ascontiguousarray(codes).view(np.dtype((np.void, codes.shape[1])))
    counts = np.unique(rows, return_counts=True)[1]
    return CodeStatistics(len(codes), ones, np.round(correlation, 6), len(counts), int(counts.max()))


def code_statistics_by_modality(store: Store, *, max_codes: int = MAX_CODES) -> dict[str, CodeStatistics]:
    every = max(1, -(-store.count() // max_codes))
    parts: dict[int, list[Codes]] = {}
    seen = 0
    for _, modalities, codes in store.codes():
        chosen = slice(-seen % every, None, every)
        seen += len(codes)
        for number in np.unique(modalities[chosen]).tolist():
            parts.setdefault(number, []).append(codes[chosen][modalities[chosen] == number])
    names = {number: name for name, number in store.modalities().items()}
    return {names[number]: code_statistics(np.concatenate(some), store.n_bits) for number, some in parts.items()}


MAX_COUNTED = 200_000
"""Items whose labels are counted, in the order of adding."""
MAX_PICTURES, MAX_PICTURE_BYTES, PICTURE_SIDE = 160, 2_000_000, 128
"""Largest number of pictures, their total bytes in base64, and the longest side of each in pixels."""
N_ASKED = 40
"""Stored items of each modality used as queries if no held-out searches are stored."""
N_HITS = 10


def report_page(engine: Engine) -> str:
    """Return the report of an engine as HTML; works on a read-only engine too."""
    facts = engine.info()
    labels = LabelCounts.of(engine)
    held_out = list(_held_out_examples(engine, facts["expected"].get("examples", ())))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = "{:,}".format
    return environment.get_template("report.html.j2").render(
        name=engine.path.resolve().name,
        facts=facts,
        expected_line=describe_expected(facts["expected"], codes=facts["codes"]),
        labels=labels,
        directions=_directions(facts["expected"]),
        why_no_confidence=engine.why_no_confidence if engine.confidence is None else None,
        reliability=_reliability(engine),
        calibration_error=calibration_error,
        reliability_svg=reliability_svg,
        uses=code_statistics_by_modality(engine.store),
        correlation_picture=_correlation_picture,
        held_out=held_out,
        examples=held_out or _stored_examples(engine, judged=bool(labels.total)),
        pictures=Pictures(engine),
        shared_labels=_shared,
    )


class LabelCounts(NamedTuple):
    """Numbers of items by label."""

    by_modality: dict[str, Counter[str]]
    unlabelled: Counter[str]
    """Items without labels, by modality."""
    counted: int

    @classmethod
    def of(cls, engine: Engine) -> LabelCounts:
        counts: dict[str, Counter[str]] = {name: Counter() for name in engine.modalities}
        unlabelled: Counter[str] = Counter()
        counted = 0
        for record in islice(engine.items(), MAX_COUNTED):
            counts.setdefault(record.modality, Counter()).update(set(map(str, record.labels)))
            unlabelled[record.modality] += not record.labels
            counted += 1
        return cls(counts, unlabelled, counted)

    @property
    def total(self) -> Counter[str]:
        return sum(self.by_modality.values(), Counter())

    @property
    def names(self) -> list[str]:
        """Modalities that have labels."""
        return [name for name, own in self.by_modality.items() if own]

    def in_all(self) -> set[str]:
        return set.intersection(*(set(self.by_modality[name]) for name in self.names))

    def only_in(self, name: str) -> list[tuple[str, int]]:
        """Return the labels that only one modality has, with their numbers of items, most frequent first."""
        others = set().union(*(own for other, own in self.by_modality.items() if other != name))
        return [(label, n) for label, n in self.by_modality[name].most_common() if label not in others]


def _directions(expected: Expected) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return the rows of expected quality by query and hit modality, those across modalities first."""
    if "reason" in expected:
        return {}
    order = [*cross_modal_rows(expected, "learned"), *expected["directions"]]
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {(row["query"], row["hit"]): [] for row in order}
    for row in expected["directions"]:
        rows[row["query"], row["hit"]].append(row)
    return rows


def _reliability(engine: Engine) -> dict[str, Sequence[Bin]]:
    """Return the reliability tables by title, that of all hits first."""
    tables = {pair: bins for pair, bins in engine.confidence.reliability.items() if bins} if engine.confidence else {}
    named = {f"{pair.query} → {pair.hit}, {pair.kind} codes": bins for pair, bins in tables.items()}
    return {"all": pooled(tables.values()), **named} if tables else {}


def _correlation_picture(use: CodeStatistics) -> str | None:
    """Draw the correlations of bits; the opacity of a pixel is the absolute correlation. None without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return None
    opacity = np.rint(255 * np.minimum(np.abs(use.correlation), 1)).astype(np.uint8)
    picture = Image.new("RGB", opacity.shape, (31, 95, 168))
    picture.putalpha(Image.fromarray(opacity))
    return _data_url(picture, "png")


def _data_url(picture: Any, format: str, **options: Any) -> str:
    data = io.BytesIO()
    picture.save(data, format, **options)
    return f"data:image/{format};base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


class Example(NamedTuple):
    """A search to show."""

    kind: str
    query: Record
    hits: list[Record]
    right: float | None
    """Fraction of right hits among the first; None without labels."""
    chance: float | None
    """Fraction of right items among all, if known."""


def _held_out_examples(engine: Engine, examples: Iterable[Mapping[str, Any]]) -> Iterable[Example]:
    """Yield the searches stored with the engine whose items still exist."""
    examples = list(examples)
    keys = [(key[0], key[1]) for one in examples for key in (one["query"], *one["hits"])]
    numbers = engine.store.row_ids(dict.fromkeys(keys))
    records = {record.key: record for record in engine.store.records(list(numbers.values())).values()}
    for one in examples:
        query = records.get((one["query"][0], one["query"][1]))
        hits = [record for key in one["hits"] if (record := records.get((key[0], key[1]))) is not None]
        if query is not None and hits:
            yield Example(one["kind"], query, hits, one["right"], one["share_right"])


def _stored_examples(engine: Engine, *, judged: bool) -> list[Example]:
    """Search with some stored items; return the best and the worst, or the first few without labels."""
    examples: list[Example] = []
    sizes = engine.sizes()
    for name in (name for name, n in sizes.items() if n):
        if engine.reads[name] == "array":
            continue
        targets = [other for other in sizes if other != name and sizes[other]] or [name]
        every = max(1, sizes[name] // N_ASKED)
        stored = islice(engine.store.scan(modality=name), 0, every * N_ASKED, every)
        asking = [record for record in stored if (record.labels or not judged) and _content(engine, record) is not None]
        for target in targets:
            found = [_search(engine, record, target, judged=judged) for record in asking]
            some = [example for example in found if example is not None and example.hits]
            if not judged:
                examples += some[:N_GOOD]
                continue
            some.sort(key=lambda example: -(example.right or 0))
            good = [example._replace(kind="good") for example in some[:N_GOOD] if example.right]
            bad = [example._replace(kind="bad") for example in some[len(good) :][-N_BAD:] if (example.right or 0) < 1]
            examples += [*good, *reversed(bad)]
    return examples


def _search(engine: Engine, record: Record, target: str, *, judged: bool) -> Example | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about unknown words
            content = [_content(engine, record)]
            hits = engine.search_many(content, modality=record.modality, want=target, k=N_HITS + 1)[0]
    except (ValueError, OSError, ImportError):  # e.g. a missing or damaged picture
        return None
    found = engine.store.records(list(engine.store.row_ids((hit.modality, hit.id) for hit in hits).values()))
    by_key = {one.key: one for one in found.values()}
    keys = [(hit.modality, hit.id) for hit in hits if (hit.modality, hit.id) != record.key]
    records = [by_key[key] for key in keys[:N_HITS] if key in by_key]
    right = None
    if judged and records:
        right = float(np.mean([bool(_shared(record, hit)) for hit in records]))
    return Example("", record, records[:EXAMPLE_HITS], right, None)


def _content(engine: Engine, record: Record) -> Any:
    if engine.reads.get(record.modality) == "text":
        return record.text
    path = engine.path_of(record)
    return path if path is not None and path.is_file() else None


def _shared(one: Record, other: Record) -> list[str]:
    theirs = set(map(label_key, other.labels))
    return [label for label in map(str, one.labels) if label_key(label) in theirs]


class Pictures:
    """Thumbnails of items as data URLs, up to MAX_PICTURES."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made: dict[tuple[str, str], str | None] = {}
        self._bytes = 0
        self.left_out = 0
        self.why = ""

    def of(self, record: Record) -> str | None:
        """Return the picture of an item; None if it has none that can be shown."""
        path = self._engine.path_of(record)
        if path is None or self._engine.reads.get(record.modality) != "image":
            return None
        if record.key not in self._made:
            self._made[record.key] = self._make(str(path))
        return self._made[record.key]

    def _make(self, path: str) -> str | None:
        from modalhash.encoders import ItemError, read_whole_picture

        if len(self._made) >= MAX_PICTURES or self._bytes > MAX_PICTURE_BYTES:
            self._leave_out("they would make the page too large")
            return None
        try:
            picture = read_whole_picture(path, at_least=2 * PICTURE_SIDE)
            picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
            shown = _data_url(picture, "jpeg", quality=72)
        except (ItemError, MissingExtraError) as error:
            self._leave_out(error.reason if isinstance(error, ItemError) else str(error))
            return None
        self._bytes += len(shown)
        return shown

    def _leave_out(self, why: str) -> None:
        self.left_out += 1
        self.why = self.why or why
