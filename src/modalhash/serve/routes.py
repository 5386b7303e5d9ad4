"""Routes for searching, and for the state of the service: engine, health, metrics and audit log."""

from __future__ import annotations

import re
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from modalhash.engine import Query, SearchOptions
from modalhash.serve import schemas
from modalhash.serve.auth import Role, client_of
from modalhash.serve.errors import HTTPError
from modalhash.serve.limits import MAX_HITS, MAX_TEXT_LENGTH
from modalhash.serve.media import check_picture
from modalhash.serve.monitoring import METRICS_CONTENT_TYPE
from modalhash.serve.openapi import Operation
from modalhash.serve.searcher import Answer
from modalhash.serve.service import Service

ITEM_FIELDS = ("id", "labels", "labels_truncated", "text", "text_truncated", "media", "extra", "extra_truncated")
"""Fields of the query item that the response repeats."""
N_EXAMPLES = 6
READABLE = re.compile(r"[^\W\d_]{3,24}([ -][^\W\d_]{2,24}){0,2}")
"""Labels that are words, not numbers or codes."""
MAX_LISTED_LABELS = 200


def search_operations(service: Service) -> list[Operation]:
    async def search(request: Request) -> Response:
        """Find the nearest items to a text or to an item (JSON), or to a picture (form)."""
        start = time.perf_counter()
        with service.body_budget.reader(client_of(request.scope).address) as reader:
            body, file = await reader.read(request, schemas.SearchBody)
            options = body.options()
            kind, (query, hits, searched) = await _find(service, body, options, file)
        return schemas.list_response(
            {
                "query": _query_json(kind, query, body.text),
                "n_bits": service.engine.n_bits,
                "model": service.engine.model_digest,
                "searched": searched,
                "milliseconds": round(1000 * (time.perf_counter() - start), 3),
                **schemas.options_json(options),
                "want": list(options.want or service.engine.modalities),
                "known": None if query.known is None else round(query.known, 4),
                "read_as": query.read_as,
                "message": query.message,
                "warnings": [] if query.message is None else [query.message],
                "hits": [schemas.hit_json(hit) for hit in hits],
            }
        )

    return [
        Operation(
            "POST",
            "/search",
            search,
            schemas.SearchResponse,
            tag="search",
            errors=(404, 408, 413, 415),
            json=(schemas.SearchByText, schemas.SearchByItem),
            form=schemas.SearchByPicture,
        ),
    ]


async def _find(
    service: Service, body: schemas.SearchBody, options: SearchOptions, file: bytes | None
) -> tuple[str, Answer]:
    """Return the kind of the query, and its answer."""
    searcher = service.searcher
    given = [name for name, value in (("text", body.text), ("id", body.id), ("image", file)) if value is not None]
    if not given or given[-2:] == ["id", "image"]:
        raise HTTPError(422, f"got {' and '.join(given) or 'no query'}; expected text, id or image, or text with one")
    if options.filter is None:
        searcher.check_options(options)
    else:  # reads the labels of the store
        await service.in_thread("scans", searcher.check_options, options, body.check_labels)
    service.metrics.count_search(given[-1])
    if given == ["text"]:
        modality = searcher.modality_for("text", body.modality)
        return "text", await service.search(str(body.text), options, modality)
    if given == ["id"] and not options.asymmetric:
        return "id", await _search_item(service, body, options)
    query = await (_encode_item(service, body, options) if file is None else _encode_picture(service, body, file))
    if body.text is not None:
        words, *_ = await service.search(body.text, None, searcher.modality_for("text", None))
        query = query.with_words(words)
    return given[-1], await service.search(query, options)


async def _search_item(service: Service, body: schemas.SearchBody, options: SearchOptions | None) -> Answer:
    if body.modality is not None:
        service.searcher.check_modalities(body.modality)
    return await service.search(str(body.id), options, body.modality, by_id=True)


async def _encode_item(service: Service, body: schemas.SearchBody, options: SearchOptions) -> Query:
    searcher = service.searcher
    query, *_ = await _search_item(service, body, None)
    if not options.asymmetric:
        return query
    return await service.in_thread("pictures", searcher.encode_item_content, body.id, query.modality)


async def _encode_picture(service: Service, body: schemas.SearchBody, file: bytes) -> Query:
    searcher = service.searcher
    modality = searcher.modality_for("image", body.modality)

    def encode() -> Query:
        check_picture(file, service.limits.pixels)
        return searcher.encode_picture(file, modality)

    return await service.in_thread("pictures", encode)


def _query_json(kind: str, query: Query, text: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": kind, "modality": query.modality, "code": bytes(query.code).hex()}
    if query.item is not None:
        item = schemas.item_json(query.item)
        fields |= {name: item[name] for name in ITEM_FIELDS if name in item}
    return fields if text is None else {**fields, "text": text}


def state_operations(service: Service) -> list[Operation]:
    async def engine(request: Request) -> Response:
        """Return facts about the engine: items by modality, codes, limits, examples."""
        writable = service.settings.writable and client_of(request.scope).role >= Role.write
        return schemas.json_response(await service.in_thread("items", _engine_info, service, writable))

    async def live(request: Request) -> Response:
        """Return whether the process is alive, whatever its store does; no token is needed."""
        return schemas.json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        """Return whether the store answers and the index is at its revision, else 503; no token is needed."""
        await service.check_ready()
        return schemas.json_response({"status": "ok"})

    async def metrics(request: Request) -> Response:
        """Return metrics in Prometheus's text format."""
        sizes = await service.in_thread("items", service.engine.sizes)
        return Response(service.metrics.text(sizes), headers={"Content-Type": METRICS_CONTENT_TYPE})

    async def audit(request: Request) -> Response:
        """Return the last lines of the audit log. Needs a token with the role admin."""
        asked = schemas.AuditParameters.of(request)
        return schemas.json_response({"lines": await service.in_thread("items", service.audit.tail, asked.limit)})

    return [
        Operation("GET", "/engine", engine, schemas.EngineInfo, tag="state"),
        Operation("GET", "/livez", live, schemas.Health, tag="state"),
        Operation("GET", "/readyz", ready, schemas.Health, tag="state"),
        Operation("GET", "/healthz", ready, schemas.Health, tag="state"),
        Operation("GET", "/metrics", metrics, ("text/plain",), tag="state"),
        Operation("GET", "/audit", audit, schemas.AuditResponse, tag="state", parameters=schemas.AuditParameters),
    ]


def _engine_info(service: Service, writable: bool) -> dict[str, Any]:
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
        "duplicates": True,
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
