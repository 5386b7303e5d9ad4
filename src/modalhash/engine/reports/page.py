"""The report page of an engine: its items, quality, confidence, codes and example searches.

One HTML file without scripts and external resources. Text of items is escaped; pictures are embedded as thumbnails.
"""

from __future__ import annotations

import base64
import io
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modalhash.core.imports import MissingExtraError
from modalhash.core.typing import Array, Codes
from modalhash.engine.reports.expected_quality import EXAMPLE_HITS, N_BAD, N_GOOD, cross_modal_rows, describe_expected
from modalhash.engine.search.reliability import calibration_error, pooled, reliability_svg

if TYPE_CHECKING:
    from modalhash.engine.engine import Engine
    from modalhash.store import Record, Store


MAX_CODES = 100_000
"""Codes that are sampled, evenly spaced."""


@dataclass(frozen=True, eq=False)
class CodeStatistics:
    """How the codes of some items use their bits."""

    n: int
    """Number of codes."""
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
    """Return the code statistics of each modality that has items."""
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
MAX_LABELS, MAX_NAMED = 20, 40
"""Labels with a bar, and labels named in a sentence."""
RARE = 5
"""Number of items below which a label is rare."""
MAX_PICTURES, MAX_PICTURE_BYTES, PICTURE_SIDE = 160, 1_500_000, 128
"""Largest number of pictures, their total bytes, and the longest side of each in pixels."""
MAX_TEXT, MAX_HIT_TEXT = 180, 90
"""Characters shown of a query's text and of a hit's."""
N_ASKED = 40
"""Stored items of each modality used as queries if no held-out searches are stored."""
N_HITS = 10

_DATABASES = {
    "learned": "training items, with codes from their labels",
    "hashed": "the same items, with codes from their features alone",
    "unseen": "new items, with codes from their features alone",
}
_KINDS = {"good": "Good searches", "typical": "Typical searches", "bad": "Bad searches", "": "Some searches"}


def report_page(engine: Engine) -> str:
    """Return the report of an engine as HTML; works on a read-only engine too."""
    facts = engine.info()
    labels = LabelCounts.of(engine)
    sections = {
        "Items": _items(facts, labels),
        "Labels": _labels(labels, facts),
        "Quality on new items": _quality(facts),
        "Confidence": _confidence(engine),
        "Codes": _codes(engine, facts),
        "Searches": _searches(engine, facts, labels),
    }
    name = engine.path.resolve().name
    anchors = {title: title.lower().replace(" ", "-") for title in sections}
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for title, anchor in anchors.items())
    body = "".join(
        f'<section id="{anchors[title]}"><h2>{escape(title)}</h2>{html}</section>' for title, html in sections.items()
    )
    when = str(facts["created"] or "at an unknown time").replace("T", " ").replace("+00:00", " UTC")
    made = f"made {when} by modalhash {facts['modalhash']}"
    learned = "without labels" if facts["labels"] == "none" else f"from {facts['classes']:,} labels"
    summary = (
        f"{facts['items']:,} items, codes of {facts['n_bits']} bits by {facts['method']}, learned {learned}; {made}"
    )
    line = describe_expected(facts["expected"], codes=facts["codes"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(name)}: report</title><style>{_STYLE}</style></head><body>"
        f"<header><h1>{escape(name)}</h1><p>{escape(summary)}.</p><p class=key>{escape(line)}.</p><nav>{links}</nav>"
        f"</header><main>{body}</main></body></html>\n"
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


def _items(facts: Mapping[str, Any], labels: LabelCounts) -> str:
    rows = []
    for name, one in facts["modalities"].items():
        kinds, encoder = one["items"], one["encoder"]
        total = sum(kinds.values())
        without = f"{labels.unlabelled[name]:,}" if labels.counted == facts["items"] else "–"
        numbers = [f"{total:,}", f"{kinds['learned']:,}", f"{kinds['hashed']:,}", without]
        rows.append([name, *numbers, f"{one['trained_on'] or 0:,}", f"{encoder['name']} ({encoder['dim']:,} features)"])
    head = ["modality", "items", "coded by labels", "coded by features", "without labels", "learned from", "encoder"]
    text = (
        "The code of a training item is made from its labels; that of an item without labels, or added later, from its "
        "features."
    )
    return _table(head, rows, n_words=1) + f"<p class=note>{text} {facts['bytes'] / 1e6:,.1f} MB on disk.</p>"


def _labels(labels: LabelCounts, facts: Mapping[str, Any]) -> str:
    total = labels.total
    if not total:
        return "<p>No item has a label.</p>"
    names = [name for name, own in labels.by_modality.items() if own]
    parts = [f"<p>{len(total):,} labels, on {labels.counted - labels.unlabelled.total():,} items."]
    if labels.counted < facts["items"]:
        parts.append(f" Counted over the first {labels.counted:,} of {facts['items']:,} items.")
    if len(names) > 1:
        shared = set.intersection(*(set(labels.by_modality[name]) for name in names))
        parts.append(f" {len(shared):,} of them are in every modality; items without any of these find nothing across.")
    parts.append("</p>")
    most = max(total.values())
    rows = []
    for label, _ in total.most_common(MAX_LABELS):
        cells = [escape(label)]
        for name in names:
            n = labels.by_modality[name][label]
            cells.append(f'<span class=bar style="--v:{100 * n / most:.1f}%"></span><span class=n>{n:,}</span>')
        rows.append(cells)
    parts.append(_table(["label", *names], rows, n_words=1, escaped=True))
    if len(total) > MAX_LABELS:
        parts.append(f"<p class=note>The {MAX_LABELS} most frequent of {len(total):,}.</p>")
    if len(names) > 1:
        for name in names:
            others = set().union(*(labels.by_modality[other] for other in names if other != name))
            only = {label: n for label, n in labels.by_modality[name].most_common() if label not in others}
            if only:
                parts.append(f"<p>Only on {escape(name)} items: {len(only):,} ({_named(only)}).</p>")
    if rare := {label: n for label, n in reversed(total.most_common()) if n < RARE}:
        parts.append(
            f"<p>Rare, on fewer than {RARE} items: {len(rare):,} of {len(total):,} ({_named(rare)}). They are "
            "hard to learn.</p>"
        )
    return "".join(parts)


def _named(counts: Mapping[str, int]) -> str:
    shown = [f"{escape(label)}&nbsp;{n:,}" for label, n in islice(counts.items(), MAX_NAMED)]
    return ", ".join([*shown, *(["…"] if len(counts) > MAX_NAMED else [])])


def _quality(facts: Mapping[str, Any]) -> str:
    expected = facts["expected"]
    if "reason" in expected:
        return f"<p>{escape(describe_expected(expected))}.</p>"
    held, asked = (
        " and ".join(f"{n:,} {name}" for name, n in expected[key].items()) for key in ("held_out", "queries")
    )
    parts = [
        f"<p>Measured when it was trained: {escape(held)} items were held out, the same method was trained on the "
        f"others, and {escape(asked)} of the held-out items were queries. A hit is right if it shares a label with the "
        "query. The engine itself learned from all items, and is a little better.</p>"
    ]
    legend = "".join(f"<li><b>{kind}</b>: {what}</li>" for kind, what in _DATABASES.items())
    parts.append(f"<p>The searched items are</p><ul>{legend}</ul>")
    order = [*cross_modal_rows(expected, "learned"), *expected["directions"]]
    rows: list[list[str]] = []
    for source, target in dict.fromkeys((row["query"], row["hit"]) for row in order):
        rows.append([f"{escape(source)} → {escape(target)}"])
        for row in expected["directions"]:
            if (row["query"], row["hit"]) != (source, target) or row["database"] not in _DATABASES:
                continue
            first = row["first_hits"]
            hits = ["–", "–"] if first is None else [f"{10 * first['10']:.1f}", f"{first['1']:.0%}".replace("%", " %")]
            bar = f'<span class="bar mark" style="--v:{100 * row["map"]:.1f}%;--c:{100 * row["chance"]:.1f}%"></span>'
            rows.append(
                [
                    row["database"],
                    f"{row['items']:,}",
                    hits[0],
                    f"{10 * row['share_right']:.1f}",
                    hits[1],
                    f"{bar}{row['map']:.3f}",
                    f"{row['chance']:.3f}",
                ]
            )
    head = ["searched", "items", "right of first 10", "by chance", "first hit right", "mAP", "by chance"]
    parts.append(_table(head, rows, n_words=1, escaped=True))
    protocol = escape(expected["protocols"]["learned"].partition(" database=")[0])
    parts.append(
        "<p class=note>The first 10 hits and the first hit are those of a search, in the engine's order. mAP is that "
        "of codes alone; 1 if every query finds all items that share a label with it before any other. The mark on "
        f"the bar is a random order. Protocol: {protocol}.</p>"
    )
    return "".join(parts)


def _confidence(engine: Engine) -> str:
    if engine.confidence is None:
        return f"<p>Hits have no confidence: {escape(engine.why_no_confidence or '')}.</p>"
    tables = {pair: bins for pair, bins in engine.confidence.reliability.items() if bins}
    if not tables:
        return "<p>The reliability of confidence was not measured when this engine was trained.</p>"
    drawn = [("all", pooled(tables.values()))]
    drawn += [(f"{pair.query} → {pair.hit}, {pair.kind} codes", bins) for pair, bins in tables.items()]
    figures = []
    for name, bins in drawn:
        error = f"expected calibration error {calibration_error(bins):.3f}"
        cells = [[f"{one.start:.2f}", f"{one.hits:,}", f"{one.confidence:.3f}", f"{one.right:.3f}"] for one in bins]
        table = _table(["from", "hits", "confidence", "right"], cells, n_words=0)
        figures.append(
            f"<figure>{reliability_svg(bins, name)}<figcaption>{escape(name)}: {error}"
            f"<details><summary>numbers</summary>{table}</details></figcaption></figure>"
        )
    return (
        "<p>Confidence is the probability that a hit shares a label with the query, here compared with the first hits "
        "of held-out queries. A circle on the diagonal is a correct confidence; its area is the number of "
        f"hits.</p><div class=figures>{''.join(figures)}</div>"
    )


def _codes(engine: Engine, facts: Mapping[str, Any]) -> str:
    uses = code_statistics_by_modality(engine.store)
    if not uses:
        return "<p>There are no items.</p>"
    rows = [
        [
            name,
            f"{use.n:,}",
            f"{use.distinct:,}",
            f"{use.largest:,}",
            f"{use.entropy.mean():.2f}",
            f"{use.n_constant:,}",
            f"{use.effective_bits:.0f} of {facts['n_bits']}",
        ]
        for name, use in uses.items()
    ]
    head = ["modality", "codes", "distinct", "most items of one", "entropy per bit", "constant bits", "effective bits"]
    figures = "".join(
        f"<figure>{_bits_svg(use, name)}{_correlations(use)}<figcaption>{escape(name)}: the share of codes that have "
        "each bit set, ideally half of them, and the absolute correlation of bits, from 0 (clear) to 1 (full "
        "colour).</figcaption></figure>"
        for name, use in uses.items()
    )
    looked = "" if sum(use.n for use in uses.values()) == facts["items"] else " A sample, evenly spread over all items."
    return (
        f"{_table(head, rows, n_words=1)}<p class=note>Entropy: 1 for a bit that half of the codes have set, 0 for a "
        "constant one. Effective bits: the number of uncorrelated bits of equal spread; correlated labels make "
        f"correlated bits.{looked}</p><div class=figures>{figures}</div>{_collisions(facts)}"
    )


def _collisions(facts: Mapping[str, Any]) -> str:
    shared = facts["collisions"]
    if shared is None:
        return ""
    rows = [
        ["different label sets", f"{facts['label_sets']:,}"],
        ["codes made from them", f"{shared['codes']:,}"],
        ["pairs of label sets with the same code", f"{shared['pairs']:,}"],
        ["of these, with less than half of their labels in common", f"{shared['conflicting']:,}"],
        ["of these, without a common label", f"{shared['disjoint']:,}"],
        ["items with the code of items whose labels conflict", f"{shared['misplaced']:,} of {shared['items']:,}"],
    ]
    return f"<h3>Label sets that share a code</h3>{_table(['of the items it learned from', ''], rows, n_words=1)}"


def _bits_svg(use: CodeStatistics, name: str) -> str:
    """Draw the fraction of ones of every bit, as bars around one half."""
    n, height = len(use.ones), 120
    step = 400 / n
    bars = "".join(
        f'<rect x="{i * step:.2f}" y="{height * (1 - max(p, 0.5)):.1f}" width="{0.8 * step:.2f}" '
        f'height="{max(height * abs(p - 0.5), 0.5):.1f}"/>'
        for i, p in enumerate(use.ones.tolist())
    )
    return (
        f'<svg viewBox="-30 -6 436 {height + 12}" role="img" font-size="12" font-family="sans-serif">'
        f"<title>{escape(name)}: share of codes that have each of {n} bits set</title>"
        f'<g class="ink">{bars}</g><line x1="0" y1="{height / 2}" x2="400" y2="{height / 2}" stroke="#999"/>'
        f'<text x="-4" y="8" text-anchor="end">1</text><text x="-4" y="{height / 2 + 4}" text-anchor="end">½</text>'
        f'<text x="-4" y="{height}" text-anchor="end">0</text></svg>'
    )


def _correlations(use: CodeStatistics) -> str:
    """Draw the correlations of bits; the opacity of a pixel is the absolute correlation."""
    alpha = np.rint(255 * np.minimum(np.abs(use.correlation), 1)).astype(np.uint8)
    data = base64.b64encode(_png(alpha, (31, 95, 168))).decode("ascii")
    return f'<img class="matrix" alt="correlations of {len(alpha)} bits" src="data:image/png;base64,{data}">'


def _png(alpha: Array, colour: tuple[int, int, int]) -> bytes:
    """Return a PNG of one colour with an opacity per pixel, for light and dark pages."""
    height, width = alpha.shape
    pixels = np.empty((height, width, 4), dtype=np.uint8)
    pixels[..., :3], pixels[..., 3] = colour, alpha
    rows = np.hstack([np.zeros((height, 1), dtype=np.uint8), pixels.reshape(height, -1)])

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    whole = zlib.compress(rows.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", whole) + chunk(b"IEND", b"")


class Example(NamedTuple):
    """A search to show."""

    kind: str
    query: Record
    hits: list[Record]
    right: float | None
    """Fraction of right hits among the first; None without labels."""
    chance: float | None
    """Fraction of right items among all, if known."""


def _searches(engine: Engine, facts: Mapping[str, Any], labels: LabelCounts) -> str:
    examples = list(_held_out_examples(engine, facts["expected"].get("examples", ())))
    said = "These queries were held out; the hits are those of the model that was trained without them."
    if not examples:
        examples = _stored_examples(engine, judged=bool(labels.total))
        said = "These queries are items of the engine, which finds more for training items than for new ones."
    if not examples:
        return "<p>There is nothing to search with.</p>"
    pictures = Pictures(engine)
    parts = [f"<p>{said}</p>"]
    for kind, title in _KINDS.items():
        own = [example for example in examples if example.kind == kind]
        if own:
            parts.append(f"<h3>{title}</h3>{''.join(_example(example, pictures) for example in own)}")
    if pictures.left_out:
        parts.append(f"<p class=note>{pictures.left_out:,} pictures are not shown: {escape(pictures.why)}.</p>")
    return "".join(parts)


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
    """Return an item's text or the path of its picture as a query; None if it is missing."""
    if engine.reads.get(record.modality) == "text":
        return record.text
    path = engine.path_of(record)
    return path if path is not None and path.is_file() else None


def _shared(one: Record, other: Record) -> list[str]:
    theirs = set(map(str, other.labels))
    return [label for label in map(str, one.labels) if label in theirs]


def _example(example: Example, pictures: Pictures) -> str:
    query = example.query
    said = ""
    if example.right is not None:
        chance = "" if example.chance is None else f", {10 * example.chance:.1f} by chance"
        said = f"<p class=note>{10 * example.right:.0f} of the first 10 hits share a label with it{chance}</p>"
    cards = [f"<li>{_card(hit, pictures, query if example.right is not None else None)}</li>" for hit in example.hits]
    return (
        f"<article><div class=query>{_card(query, pictures, None)}{said}</div>"
        f"<ol class=hits>{''.join(cards)}</ol></article>"
    )


def _card(record: Record, pictures: Pictures, query: Record | None) -> str:
    """Show an item, and for a hit the labels it shares with the query."""
    text = escape(_short(record.text or record.id, MAX_TEXT if query is None else MAX_HIT_TEXT))
    if (picture := pictures.of(record)) is not None:
        shown = f'<img alt="{text}" title="{escape(record.id)}" src="{picture}">'
    else:
        shown = f"<blockquote>{text}</blockquote>"
    names = [str(label) for label in record.labels]
    if query is None:
        return f"{shown}<p class=labels>{escape(_short(' · '.join(names)))}</p>"
    common = _shared(query, record)
    mark, title = ("✓", "yes") if common else ("✗", "no")
    words = escape(_short(" · ".join(common))) if common else "no label in common"
    return f'{shown}<p class="labels {title}">{mark} {words}</p>'


def _short(text: str, most: int = MAX_TEXT) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


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
            data = io.BytesIO()
            picture.save(data, "JPEG", quality=72)
        except (ItemError, MissingExtraError) as error:
            self._leave_out(error.reason if isinstance(error, ItemError) else str(error))
            return None
        self._bytes += data.tell()
        return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"

    def _leave_out(self, why: str) -> None:
        self.left_out += 1
        self.why = self.why or why


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, n_words: int, escaped: bool = False) -> str:
    """Return a table; the first ``n_words`` columns and encoders are left-aligned, a row of one cell is a title."""
    clean = (lambda text: text) if escaped else escape

    def row(cells: Sequence[str], tag: str, clean: Any) -> str:
        if len(cells) < len(head):
            return f'<th class="w title" colspan={len(head)}>{clean(cells[0])}</th>'
        kinds = [" class=w" if n < n_words or head[n] == "encoder" else "" for n in range(len(cells))]
        return "".join(f"<{tag}{kind}>{clean(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))

    lines = "".join(f"<tr>{row(cells, 'td', clean)}</tr>" for cells in rows)
    top = f"<thead><tr>{row(head, 'th', escape)}</tr></thead>"
    return f"<div class=scroll><table>{top}<tbody>{lines}</tbody></table></div>"


_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;--blue:#1f5fa8;
--yes:#1a6b34;--no:#a3261f}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--paper:#14171b;--soft:#9aa4af;--line:#353c44;--card:#1d2227;
--blue:#6ea8e6;--yes:#69c183;--no:#f0867e}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:66rem;padding:1rem 1rem 4rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper);overflow-wrap:anywhere}
h1{margin:.5rem 0 0;font-size:1.7rem}h2{margin:2.5rem 0 .5rem;font-size:1.3rem;border-bottom:1px solid var(--line)}
h3{margin:1.5rem 0 .5rem;font-size:1.05rem}p{margin:.5rem 0}a{color:var(--blue)}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1rem}
.key{padding:.6rem .8rem;background:var(--card);border-left:4px solid var(--blue);border-radius:4px}
.note,figcaption,.labels{color:var(--soft);font-size:.875rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;vertical-align:top;border-bottom:1px solid var(--line);overflow-wrap:normal}
td{white-space:nowrap}.title{padding-top:.9rem;font-size:1rem}ul{margin:.3rem 0;padding-left:1.3rem}
th{font-weight:600;font-size:.875rem;vertical-align:bottom}.w{text-align:left}th:first-child,td:first-child{padding-left:0}
.n{display:inline-block;min-width:2.8em}
.bar{display:inline-block;position:relative;width:6rem;height:.75em;margin-right:.5em;border-radius:2px;
background:linear-gradient(to right,var(--blue) var(--v),var(--card) var(--v));border:1px solid var(--line)}
.mark::after{content:"";position:absolute;left:var(--c);top:-3px;bottom:-3px;width:2px;background:var(--ink)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,18rem),1fr));gap:1.5rem}
figure{margin:0}svg{display:block;width:100%;height:auto}svg text{fill:currentColor}svg .paper{fill:none}
svg circle,svg .ink{fill:var(--blue)}
.matrix{display:block;width:100%;max-width:16rem;margin:.5rem auto;image-rendering:pixelated;
border:1px solid var(--line)}
article{display:grid;grid-template-columns:minmax(9rem,12rem) 1fr;gap:1rem;padding:.8rem;margin:.8rem 0;
background:var(--card);border:1px solid var(--line);border-radius:6px}
.hits{display:grid;grid-template-columns:repeat(auto-fill,minmax(7.5rem,1fr));gap:.8rem;margin:0;padding:0;list-style:none}
article img{display:block;max-width:100%;height:auto;border-radius:4px;background:#fff}
blockquote{margin:0;font-size:.875rem}.query blockquote{font-size:1rem;font-weight:600}.labels{margin:.2rem 0 0}
.yes{color:var(--yes)}.no{color:var(--no)}
@media(max-width:40rem){article{grid-template-columns:1fr}.query img{max-height:8rem;width:auto}
.bar{width:3.5rem}body{padding:.75rem .75rem 3rem}th,td{padding:.25rem .3rem;font-size:.85rem}}
@media print{nav{display:none}article{break-inside:avoid}}
"""
