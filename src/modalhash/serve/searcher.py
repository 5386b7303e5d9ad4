"""Searches of many clients at once: encoded together, and one walk over the index for all that wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import quote

from modalhash.engine import Engine, Hit, QueryBatch, SearchOptions, SearchRequest
from modalhash.serve.batching import Gatherer
from modalhash.serve.errors import Refusal
from modalhash.serve.settings import Limits

UNKNOWN = "nothing in the query is known to the engine, so what it finds says nothing; use other words"


class Words(NamedTuple):
    """A text to be encoded."""

    text: str
    modality: str


class Stored(NamedTuple):
    """An item to be looked up."""

    id: str
    modality: str | None


class Answer(NamedTuple):
    """What a search found, among how many items."""

    hits: list[Hit]
    searched: int


class Prepared(NamedTuple):
    """A query with its code: one row of several that were encoded together."""

    queries: QueryBatch
    row: int

    @property
    def code(self) -> str:
        return bytes(self.queries.codes[self.row]).hex()

    @property
    def modality(self) -> str:
        if self.queries.records is not None:
            return self.queries.records[self.row].modality
        return str(self.queries.modality)

    @property
    def warnings(self) -> list[str]:
        unknown = self.queries.unknown
        return [UNKNOWN] if unknown is not None and unknown[self.row] else []

    def request(self, options: SearchOptions) -> SearchRequest:
        """The search for it."""
        return self.queries.request(self.row, options)


class Searcher:
    """An engine behind threads: one encodes texts, one walks over the index, others read pictures and items."""

    def __init__(self, engine: Engine, limits: Limits, on_batch: Callable[[str, int], None] | None = None) -> None:
        self.engine, self.limits = engine, limits
        self.pools = {
            name: ThreadPoolExecutor(n, thread_name_prefix=name)
            for name, n in (("prepare", 1), ("search", 1), ("pictures", limits.pictures), ("items", 2), ("changes", 1))
        }

        def tell(stage: str) -> Callable[[int], None] | None:
            return None if on_batch is None else lambda n: on_batch(stage, n)

        bounds = {"most": limits.batch, "waiting": limits.requests}
        self.prepare: Gatherer[Words | Stored, Prepared] = Gatherer(
            self._prepare, self.pools["prepare"], on_batch=tell("prepare"), **bounds
        )
        self.answer: Gatherer[SearchRequest, Answer] = Gatherer(
            self._answer, self.pools["search"], on_batch=tell("search"), **bounds
        )

    def close(self) -> None:
        """End the threads when what they do is done."""
        for pool in self.pools.values():
            pool.shutdown(wait=True, cancel_futures=True)

    def modality_for(self, reads: str, name: str | None) -> str:
        """The modality of a text (``reads`` is "text") or a picture ("image"): the one named, or the usual one."""
        kinds = self.engine.reads
        what = "texts" if reads == "text" else "pictures"
        can = [modality for modality in self.engine.modalities if kinds.get(modality) == reads]
        if name is not None:
            self.check(name)
            if name not in can:
                raise Refusal(422, f"modality: {name!r} does not take {what}; {_or(can)}")
            return name
        usual = "text" if reads == "text" else "image"
        if not can:
            raise Refusal(422, f"this engine cannot encode {what}: it was trained on given features. Search by id")
        return usual if usual in can else can[0]

    def check(self, *names: str) -> None:
        """Refuse a modality that the engine does not have."""
        try:
            self.engine.check_modalities(names)
        except ValueError as error:
            raise Refusal(422, str(error)) from None

    def prepare_asymmetric(self, id: str, modality: str | None) -> Prepared:
        """A stored item as a query, with projections from its content."""
        try:
            return Prepared(self.engine.prepare(id=[id], modality=modality, asymmetric=True), 0)
        except ValueError:  # whose message may name a file of this machine
            text = f"the content of {id!r} cannot be read, so there is nothing to rank by; leave out 'asymmetric'"
            raise Refusal(422, text) from None

    def prepare_picture(self, data: bytes, modality: str) -> Prepared:
        """A picture as a query."""
        try:
            return Prepared(self.engine.prepare(image=[data], modality=modality, asymmetric=True), 0)
        except ValueError as error:
            raise Refusal(415, f"image: {error}") from None

    def _answer(self, requests: list[SearchRequest]) -> list[Answer]:
        found = self.engine.answer(requests)
        sizes = self.engine.sizes()
        searched = (sum(sizes[name] for name in request.options.want or sizes) for request in requests)
        return [Answer(*one) for one in zip(found, searched, strict=True)]

    def _prepare(self, jobs: list[Words | Stored]) -> list[Prepared | Exception]:
        done: dict[int, Prepared | Exception] = {}
        together: dict[tuple[type, str | None], list[int]] = {}
        for place, job in enumerate(jobs):
            together.setdefault((type(job), job.modality), []).append(place)
        for (kind, modality), places in together.items():
            contents = [jobs[place][0] for place in places]
            some = self._texts(contents, str(modality)) if kind is Words else self._stored(contents, modality)
            done.update(zip(places, some, strict=True))
        return [done[place] for place in range(len(jobs))]

    def _texts(self, texts: list[str], modality: str) -> list[Prepared | Exception]:
        try:
            queries = self.engine.prepare(text=texts, modality=modality, asymmetric=True)
        except ValueError as error:
            if len(texts) == 1:
                return [Refusal(422, f"text: {error}")]
            return [self._texts([text], modality)[0] for text in texts]  # one of them is bad: find out which
        return [Prepared(queries, row) for row in range(len(texts))]

    def _stored(self, ids: list[str], modality: str | None) -> list[Prepared | Exception]:
        try:
            queries = self.engine.prepare(id=ids, modality=modality)
        except (KeyError, ValueError) as error:
            if len(ids) == 1:
                return [unknown(error)]
            return [self._stored([id], modality)[0] for id in ids]
        return [Prepared(queries, row) for row in range(len(ids))]


def unknown(error: KeyError | ValueError) -> Refusal:
    """There is no such item, or there are several."""
    if isinstance(error, KeyError):
        return Refusal(404, f"{error.args[0]}; it may have been removed")
    return Refusal(422, str(error).replace("modality=…", "'modality'"))


def item_of(hit: Hit) -> dict[str, object]:
    """An item as JSON."""
    found: dict[str, object] = {
        "id": hit.id,
        "modality": hit.modality,
        "code": hit.code,
        "kind": hit.kind,
        "labels": hit.labels,
    }
    if hit.text is not None:
        found["text"] = hit.text
    if hit.uri is not None:
        found["media"] = media_of(hit.id, hit.modality)
    if hit.extra:
        found["extra"] = hit.extra
    return found


def hit_of(hit: Hit) -> dict[str, object]:
    """A hit as JSON."""
    found = {**item_of(hit), "distance": hit.distance}
    if hit.score is not None:
        found["score"] = hit.score
    return found


def media_of(id: str, modality: str) -> str:
    """Where the picture of an item is."""
    return f"/media/{quote(id, safe='')}?modality={quote(modality, safe='')}"


def _or(names: list[str]) -> str:
    return f"expected {' or '.join(map(repr, names))}" if names else "no modality of this engine does; search by id"
