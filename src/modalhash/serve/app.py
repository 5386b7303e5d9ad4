"""The service as an ASGI app: what is at which address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from modalhash import __version__
from modalhash.engine import Engine
from modalhash.serve import errors, openapi, pages, routes_changes, routes_items, routes_search, routes_state
from modalhash.serve.http import Door
from modalhash.serve.service import Service
from modalhash.serve.settings import Settings
from modalhash.serve.watch import Watch

DESCRIPTION = (
    "Search across modalities: a text finds pictures, a picture finds texts, by the Hamming distance of short binary "
    "codes. Errors are JSON: what is wrong and what to do."
)


def make_app(engine: Engine, settings: Settings | None = None) -> FastAPI:
    """An app that serves an engine; the engine stays the caller's to close."""
    service = Service(engine, settings or Settings())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="modalhash",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_middleware(
        Watch, door=Door(service.settings), limits=service.limits, log=service.log, metrics=service.metrics
    )
    errors.install(app)
    openapi.install(app, engine, service.settings)
    pages.install(app, service)
    routes_search.install(app, service)
    routes_items.install(app, service)
    routes_changes.install(app, service)
    routes_state.install(app, service)
    return app
