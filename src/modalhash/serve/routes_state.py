"""What the service is and how it does: facts of the engine, health, metrics."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.responses import Response

from modalhash.serve import schemas
from modalhash.serve.auth import Role, client_of
from modalhash.serve.errors import json_response
from modalhash.serve.limits import MAX_HITS, MAX_TEXT_LENGTH
from modalhash.serve.monitoring import METRICS_CONTENT_TYPE
from modalhash.serve.schemas import error_responses
from modalhash.serve.service import Service

DUPLICATES_PATH = "/duplicates"
N_EXAMPLES = 6
READABLE = re.compile(r"[^\W\d_]{3,24}([ -][^\W\d_]{2,24}){0,2}")
"""A label that reads as words: no number, code or abbreviation."""
MAX_LISTED_LABELS = 200
N_AUDIT_LINES, MAX_AUDIT_LINES = 100, 1000


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes that tell about the service."""

    @app.get("/engine", response_model=schemas.EngineInfo, responses=error_responses(), tags=["state"])
    async def engine(request: Request) -> Response:
        """Return what the engine is: items by modality, codes, limits, examples."""
        duplicates = any(getattr(route, "path", None) == DUPLICATES_PATH for route in app.routes)
        writable = service.settings.writable and client_of(request.scope).role >= Role.write
        return json_response(await service.in_thread("items", _engine_info, service, duplicates, writable))

    @app.get("/healthz", response_model=schemas.Health, responses=error_responses(), tags=["state"])
    async def health() -> Response:
        """Return whether the service is alive; needs no token."""
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
        """Return the last lines of the audit log: who changed what. Needs a token with the role admin."""
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
        "paired": bool(type(engine.model).needs_pairs),
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
    """Return searches to offer: those of the settings, those of the engine's configuration, or frequent labels."""
    configured = service.engine.config.get("examples")
    if service.settings.examples:
        return list(service.settings.examples)
    if isinstance(configured, list) and configured:
        return [str(example) for example in configured]
    return [label for label in labels if READABLE.fullmatch(label)][:N_EXAMPLES]
