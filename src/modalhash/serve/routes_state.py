"""How the service is: alive, and what it has done."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response

from modalhash.serve import openapi, schemas
from modalhash.serve.errors import reply
from modalhash.serve.monitoring import TYPE
from modalhash.serve.service import Service


def install(app: FastAPI, service: Service) -> None:
    """The addresses that machines watch."""

    @app.get("/healthz", response_model=schemas.Health, responses=openapi.errors(), tags=["state"])
    async def health() -> Response:
        """Whether the service is alive; needs no token."""
        return reply({"status": "ok"})

    @app.get(
        "/metrics",
        response_class=Response,
        responses={**openapi.errors(), 200: {"description": "Counters.", "content": {"text/plain": {}}}},
        tags=["state"],
    )
    async def metrics() -> Response:
        """Counters in Prometheus's text format."""
        sizes = await service.in_thread("items", service.engine.sizes)
        return Response(service.metrics.text(sizes), headers={"Content-Type": TYPE})
