"""``POST /search`` and what an engine is."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from modalhash.engine import Hit, SearchOptions
from modalhash.serve import openapi, schemas
from modalhash.serve.errors import Refusal, reply
from modalhash.serve.media import check_picture
from modalhash.serve.searcher import Prepared, Stored, Words, hit_of, item_of
from modalhash.serve.service import Service

ABOUT = ("id", "labels", "text", "media")


def install(app: FastAPI, service: Service) -> None:
    """The addresses that search."""

    @app.get("/engine", response_model=schemas.About, responses=openapi.errors(), tags=["search"])
    async def engine() -> Response:
        """What the engine is: how many items of which modalities, codes, limits, examples."""
        return reply(await service.in_thread("items", service.about))

    @app.post(
        "/search",
        response_model=schemas.Found,
        responses=openapi.errors(404, 408, 413, 415, 422),
        openapi_extra=openapi.body(schemas.SearchByPicture, schemas.SearchByText, schemas.SearchByItem),
        tags=["search"],
    )
    async def search(request: Request) -> Response:
        """The nearest items to a text, to an item (JSON), or to a picture (form)."""
        start = time.perf_counter()
        with service.intake.room() as room:
            body, file = await room.read(request, schemas.SearchBody)
            query, prepared = await prepare(service, body, file)
        return reply(await answer(service, body, query, prepared, start))


async def prepare(service: Service, body: schemas.SearchBody, file: bytes | None) -> tuple[dict[str, Any], Prepared]:
    """What was searched for, and its code."""
    searcher = service.searcher
    given = [name for name, value in (("text", body.text), ("id", body.id), ("image", file)) if value is not None]
    if len(given) != 1:
        raise Refusal(422, f"got {' and '.join(given) or 'no query'}; expected one of text, id, image")
    if body.want is not None:
        searcher.check(*body.want)
    service.metrics.searches[given[0]] += 1
    if body.text is not None:
        modality = searcher.modality_for("text", body.modality)
        prepared = await searcher.prepare(Words(body.text, modality))
        return {"kind": "text", "text": body.text}, prepared
    if body.id is not None:
        if body.modality is not None:
            searcher.check(body.modality)
        prepared = await searcher.prepare(Stored(body.id, body.modality))
        query = about_item(prepared)
        if body.asymmetric:
            modality = prepared.modality
            prepared = await service.in_thread("pictures", searcher.prepare_asymmetric, body.id, modality)
        return query, prepared
    assert file is not None
    modality = searcher.modality_for("image", body.modality)

    def encode() -> Prepared:
        check_picture(file, service.limits.pixels)
        return searcher.prepare_picture(file, modality)

    return {"kind": "image"}, await service.in_thread("pictures", encode)


def about_item(prepared: Prepared) -> dict[str, Any]:
    """What is known of an item that is searched by."""
    assert prepared.queries.records is not None
    hit = Hit.from_record(prepared.queries.records[prepared.row], 0)
    return {"kind": "id", **{key: value for key, value in item_of(hit).items() if key in ABOUT}}


async def answer(
    service: Service, body: schemas.SearchBody, query: dict[str, Any], prepared: Prepared, start: float
) -> dict[str, Any]:
    """The answer as JSON."""
    want = None if not body.want else tuple(dict.fromkeys(body.want))
    labels = tuple(dict.fromkeys(body.labels))
    options = SearchOptions(k=body.k, want=want, labels=labels, kind=body.kind, asymmetric=body.asymmetric)
    hits, searched = await service.searcher.answer(prepared.request(options))
    return {
        "query": {**query, "modality": prepared.modality, "code": prepared.code},
        "n_bits": service.engine.n_bits,
        "searched": searched,
        "milliseconds": round(1000 * (time.perf_counter() - start), 3),
        "k": body.k,
        "want": list(want or service.engine.modalities),
        "labels": list(labels),
        "asymmetric": body.asymmetric,
        "warnings": prepared.warnings,
        "hits": [hit_of(hit) for hit in hits],
    }
