"""The service as an ASGI app: its state, its middleware and its routes put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from modalhash import __version__
from modalhash.engine import Engine
from modalhash.serve import (
    errors,
    monitoring,
    openapi,
    pages,
    routes_duplicates,
    routes_items,
    routes_search,
    routes_state,
)
from modalhash.serve.http import RequestMiddleware
from modalhash.serve.service import LeaseMiddleware, Service
from modalhash.serve.settings import Settings

DESCRIPTION = (
    "Search across modalities: a text finds pictures, a picture finds texts, by the Hamming distance of short binary "
    "codes. Errors are JSON: what is wrong and what to do."
)


def make_app(engine: Engine, settings: Settings | None = None) -> FastAPI:
    """Return an ASGI app that serves an engine; the engine stays the caller's to close.

    If another engine takes its place in its folder, the app opens that, serves it from then on, and closes the old one
    when its last request is answered.

    The access log goes to the standard output and internal errors go to the error output, unless the logger
    ``modalhash.serve`` has a handler already.

    Examples
    --------
    >>> app = make_app(Engine.open("engine"), Settings(writable=True))  # doctest: +SKIP
    """
    settings = settings or Settings()
    service = Service(engine, settings)
    monitoring.configure_logging()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()
        monitoring.flush_logs()

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
    app.add_middleware(LeaseMiddleware, service=service)
    app.add_middleware(
        RequestMiddleware, settings=settings, metrics=service.metrics, make_place=service.body_budget.drop_slowest
    )
    errors.add_handlers(app)
    openapi.describe(app, lambda: service.engine.modalities, settings)
    pages.add_routes(app)
    routes_search.add_routes(app, service)
    routes_items.add_routes(app, service)
    routes_duplicates.add_routes(app, service)
    routes_state.add_routes(app, service)
    return app
