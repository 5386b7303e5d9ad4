"""Routes for searching, and for the state of the service: engine, health, metrics and audit log."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.responses import Response

from modalhash.engine import SearchOptions
from modalhash.serve import schemas
from modalhash.serve.auth import Role, client_of
from modalhash.serve.errors import HTTPError, json_response
from modalhash.serve.limits import MAX_HITS, MAX_TEXT_LENGTH
from modalhash.serve.media import check_picture
from modalhash.serve.monitoring import METRICS_CONTENT_TYPE
from modalhash.serve.schemas import error_responses, request_body
from modalhash.serve.searcher import EncodedQuery, ItemQuery, SearchJob, SearchResult, TextQuery
from modalhash.serve.service import Service

ITEM_FIELDS = ("id", "labels", "text", "media", "extra")
"""Fields of the query item that the response repeats."""
DUPLICATES_PATH = "/duplicates"
N_EXAMPLES = 6
READABLE = re.compile(r"[^\W\d_]{3,24}([ -][^\W\d_]{2,24}){0,2}")
"""Labels that are words, not numbers or codes."""
MAX_LISTED_LABELS = 200
N_AUDIT_LINES, MAX_AUDIT_LINES = 100, 1000


def add_search_routes(app: FastAPI, service: Service) -> None:
    @app.post(
        "/search",
        response_model=schemas.SearchResponse,
        responses=error_responses(404, 408, 413, 415, 422),
        openapi_extra=request_body(schemas.SearchByPicture, schemas.SearchByText, schemas.SearchByItem),
        tags=["search"],
    )
    async def search(request: Request) -> Response:
        """Find the nearest items to a text or to an item (JSON), or to a picture (form)."""
        start = time.perf_counter()
        with service.body_budget.reader(client_of(request.scope).address) as reader:
            body, file = await reader.read(request, schemas.SearchBody)
            options = body.options()
            query, result = await _begin(service, body, None if _is_checked(options) else options, file)
        if result.hits is None:
            if _is_checked(options):
                await service.in_thread("items", service.searcher.check_options, options, body.check_labels)
            result = await service.searcher.search(SearchJob(result.query, options))
        encoded, hits, searched = result
        return json_response(
            {
                "query": {**query, "modality": encoded.modality, "code": encoded.code},
                "n_bits": service.engine.n_bits,
                "model": service.engine.model_digest,
                "searched": searched,
                "milliseconds": round(1000 * (time.perf_counter() - start), 3),
                "k": options.k,
                **({} if options.radius is None else {"radius": options.radius}),
                "want": list(options.want or service.engine.modalities),
                "labels": list(options.labels),
                **({} if options.where is None else {"where": str(options.where)}),
                "refine": options.refine,
                "hybrid": options.hybrid,
                "asymmetric": options.asymmetric,
                **({} if options.min_confidence is None else {"min_confidence": options.min_confidence}),
                "unique": options.unique,
                "known": encoded.known,
                "read_as": encoded.read_as,
                "message": encoded.message,
                "warnings": [] if encoded.message is None else [encoded.message],
                "hits": [schemas.hit_json(hit) for hit in hits or ()],
            }
        )


def _is_checked(options: SearchOptions) -> bool:
    """Return whether the options may name unknown labels, which are checked after the query is encoded."""
    return options.filter is not None or options.min_confidence is not None


async def _begin(
    service: Service, body: schemas.SearchBody, wanted: SearchOptions | None, file: bytes | None
) -> tuple[dict[str, Any], SearchResult]:
    """Return the query for the response and its code; also its hits if the options are ``wanted``."""
    searcher = service.searcher
    given = [name for name, value in (("text", body.text), ("id", body.id), ("image", file)) if value is not None]
    if not given or given[-2:] == ["id", "image"]:
        raise HTTPError(422, f"got {' and '.join(given) or 'no query'}; expected text, id or image, or text with one")
    searcher.check_modalities(*body.wanted)
    if body.text is not None and len(given) == 2:
        alone = body.model_copy(update={"text": None})
        query, picture = await _begin(service, alone, None, file)
        words = await searcher.search(SearchJob(TextQuery(body.text, searcher.modality_for("text", None))))
        return {**query, "text": body.text}, SearchResult(picture.query._replace(words=words.query))
    service.metrics.count_search(given[0])
    if body.text is not None:
        modality = searcher.modality_for("text", body.modality)
        return {"kind": "text", "text": body.text}, await searcher.search(
            SearchJob(TextQuery(body.text, modality), wanted)
        )
    if body.id is not None:
        if body.modality is not None:
            searcher.check_modalities(body.modality)
        job = SearchJob(ItemQuery(body.id, body.modality), None if body.asymmetric else wanted)
        result = await searcher.search(job)
        item = schemas.item_json(result.query.item)
        query = {"kind": "id", **{name: value for name, value in item.items() if name in ITEM_FIELDS}}
        if body.asymmetric:
            modality = result.query.modality
            result = SearchResult(await service.in_thread("pictures", searcher.encode_item_content, body.id, modality))
        return query, result
    assert file is not None
    modality = searcher.modality_for("image", body.modality)

    def encode_picture() -> EncodedQuery:
        check_picture(file, service.limits.pixels)
        return searcher.encode_picture(file, modality)

    return {"kind": "image"}, SearchResult(await service.in_thread("pictures", encode_picture))


def add_state_routes(app: FastAPI, service: Service) -> None:
    @app.get("/engine", response_model=schemas.EngineInfo, responses=error_responses(), tags=["state"])
    async def engine(request: Request) -> Response:
        """Return facts about the engine: items by modality, codes, limits, examples."""
        duplicates = any(getattr(route, "path", None) == DUPLICATES_PATH for route in app.routes)
        writable = service.settings.writable and client_of(request.scope).role >= Role.write
        return json_response(await service.in_thread("items", _engine_info, service, duplicates, writable))

    @app.get("/healthz", response_model=schemas.Health, responses=error_responses(), tags=["state"])
    async def health() -> Response:
        """Return whether the service is alive; no token is needed."""
        return json_response({"status": "ok"})

    @app.get(
        "/metrics",
        response_class=Response,
        responses={**error_responses(), 200: {"description": "Metrics.", "content": {"text/plain": {}}}},
        tags=["state"],
    )
    async def metrics() -> Response:
        """Return metrics in Prometheus's text format."""
        sizes = await service.in_thread("items", service.engine.sizes)
        return Response(service.metrics.text(sizes), headers={"Content-Type": METRICS_CONTENT_TYPE})

    @app.get("/audit", response_model=schemas.AuditResponse, responses=error_responses(), tags=["state"])
    async def audit(
        limit: Annotated[int, Query(ge=1, le=MAX_AUDIT_LINES, description="The number of lines.")] = N_AUDIT_LINES,
    ) -> Response:
        """Return the last lines of the audit log. Needs a token with the role admin."""
        return json_response({"lines": await service.in_thread("items", service.audit.tail, limit)})


def _engine_info(service: Service, duplicates: bool, writable: bool) -> dict[str, Any]:
    engine, limits = service.engine, service.limits
    engine.refresh()
    labels = list(engine.labels())
    sizes, reads = engine.sizes(), engine.reads
    return {
        "name": service.settings.name or engine.path.resolve().name,
        "n_bits": engine.n_bits,
        "model": engine.model_digest,
        "items": sum(sizes.values()),
        "method": engine.config["method"],
        "codes": engine.config["codes"],
        "paired": engine.method.pairing == "needed",
        "modalities": {
            name: {"items": sizes.get(name, 0), "query": own != "array", "reads": own} for name, own in reads.items()
        },
        "labels": labels[:MAX_LISTED_LABELS],
        "examples": _examples(service, labels),
        "options": [
            name
            for name in schemas.SearchFields.model_fields
            if name != "min_confidence" or engine.confidence is not None
        ],
        "duplicates": duplicates,
        "writable": writable,
        "limits": {"k": MAX_HITS, "text": MAX_TEXT_LENGTH, "bytes": limits.bytes, "pixels": limits.pixels},
    }


def _examples(service: Service, labels: list[str]) -> list[str]:
    """Return example searches: from the settings, the engine's configuration, or frequent labels."""
    configured = service.engine.config.get("examples")
    if service.settings.examples:
        return list(service.settings.examples)
    if isinstance(configured, list) and configured:
        return [str(example) for example in configured]
    return [label for label in labels if READABLE.fullmatch(label)][:N_EXAMPLES]
