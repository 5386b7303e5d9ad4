"""Build the ASGI app of the service from its state, middleware and routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from modalhash.engine import Engine
from modalhash.serve import monitoring, openapi, routes, routes_items, schemas, telemetry
from modalhash.serve.auth import TrustedProxies
from modalhash.serve.errors import HTTPError, routing_error
from modalhash.serve.http import AccessControl, RequestMiddleware
from modalhash.serve.limits import Settings
from modalhash.serve.service import LeaseMiddleware, Service
from modalhash.serve.worker_state import ProcessState

CONTENT_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_PACKAGE = Path(__file__).parent


async def page(request: Request) -> Response:
    return _package_file("static", request.path_params.get("name", "index.html"))


async def viewer(request: Request) -> Response:
    return _package_file("viewer", request.path_params.get("name", "docs.html"))


PAGES = [Route("/", page), Route("/static/{name}", page), Route("/docs", viewer), Route("/docs/{name}", viewer)]


def _package_file(folder: str, name: str) -> Response:
    """Return a file of this package; `name` is matched against the listing, never joined to a path."""
    for path in (_PACKAGE / folder).glob("*"):
        if path.name == name and path.suffix in CONTENT_TYPES:
            headers = {"Cache-Control": "no-cache"}
            return Response(path.read_bytes(), media_type=CONTENT_TYPES[path.suffix], headers=headers)
    raise HTTPError(404, "there is no such file; the page is at /")


def description_route(service: Service, operations: list[openapi.Operation]) -> Route:
    """Return the route of the OpenAPI document, which names the modalities of the engine served at the time."""

    @lru_cache(1)
    def document(*modalities: str) -> dict[str, Any]:
        return openapi.document(operations, modalities, needs_token=service.settings.needs_token)

    async def description(request: Request) -> Response:
        return schemas.json_response(document(*service.engine.modalities))

    return Route("/openapi.json", description)


def make_app(engine: Engine, settings: Settings | None = None, *, seat: ProcessState | None = None) -> Starlette:
    """Return an ASGI app that serves an engine; the caller closes the engine.

    If the engine in the folder is replaced, the app opens and serves the new one, and closes the old one after its
    last request. Requests are logged to stdout and internal errors to stderr, unless the logger ``modalhash.serve``
    has a handler. ``seat`` is the state of one of several workers.

    Examples
    --------
    >>> app = make_app(Engine.open("engine"), Settings(writable=True))  # doctest: +SKIP
    """
    settings = settings or Settings()
    service = Service(engine, settings, seat or ProcessState())
    monitoring.configure_logging()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        telemetry.start(service.metrics.registry.collect)
        following = asyncio.create_task(service.follow_machines())
        yield
        following.cancel()
        service.close()
        monitoring.flush_logs()

    proxies = TrustedProxies(settings.trusted_proxies)
    operations = [
        *routes.search_operations(service),
        *routes_items.item_operations(service),
        *routes_items.change_operations(service),
        *routes_items.duplicate_operations(service),
        *routes.state_operations(service),
    ]
    app = Starlette(
        routes=[*operations, *PAGES, description_route(service, operations)],
        middleware=[
            Middleware(ProxyHeadersMiddleware, trusted_hosts=[str(one) for one in proxies.networks]),
            Middleware(RequestMiddleware, service=service, access=AccessControl(settings, service.seat)),
            Middleware(LeaseMiddleware, service=service),
        ],
        exception_handlers={HTTPException: routing_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app
