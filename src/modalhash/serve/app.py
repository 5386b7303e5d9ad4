"""Build the ASGI app of the service from its state, middleware and routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from modalhash import __version__
from modalhash.engine import Engine
from modalhash.serve import errors, monitoring, routes, routes_items, schemas
from modalhash.serve.errors import HTTPError
from modalhash.serve.http import RequestMiddleware
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


def add_page_routes(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _package_file("static", "index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _package_file("static", name)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _package_file("viewer", "docs.html")

    @app.get("/docs/{name}", include_in_schema=False)
    async def viewer(name: str) -> Response:
        return _package_file("viewer", name)


def _package_file(folder: str, name: str) -> Response:
    """Return a file of this package; `name` is matched against the listing, never joined to a path."""
    for path in (_PACKAGE / folder).glob("*"):
        if path.name == name and path.suffix in CONTENT_TYPES:
            headers = {"Cache-Control": "no-cache"}
            return Response(path.read_bytes(), media_type=CONTENT_TYPES[path.suffix], headers=headers)
    raise HTTPError(404, "there is no such file; the page is at /")


DESCRIPTION = (
    "Search across modalities: a text finds pictures, a picture finds texts, by the Hamming distance of short binary "
    "codes. Errors are JSON: what is wrong and what to do."
)


DIRECT_ROUTES = ("/search",)
"""Routes called without FastAPI's dispatch, which costs more than the rest of a request. Their functions take the
request and return a response."""


class DirectRoutes:
    """ASGI middleware that calls the functions of :data:`DIRECT_ROUTES` directly."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, APIRoute) and route.path in DIRECT_ROUTES
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        response: Response = await route.endpoint(Request(scope, receive))
        await response(scope, receive, send)


class ServiceApp(FastAPI):
    """FastAPI app whose middleware is outside FastAPI's own stack."""

    requests: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self.requests(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Remove Starlette's error layer, because :class:`RequestMiddleware` handles errors."""
        stack = super().build_middleware_stack()
        return stack.app if isinstance(stack, ServerErrorMiddleware) else stack


def make_app(engine: Engine, settings: Settings | None = None, *, seat: ProcessState | None = None) -> ServiceApp:
    """Return an ASGI app that serves an engine; the caller closes the engine.

    If the engine in the folder is replaced, the app opens and serves the new one, and closes the old one after its
    last request. Requests are logged to stdout and internal errors to stderr, unless the logger ``modalhash.serve``
    has a handler. ``seat`` is the state of one of several workers.

    Examples
    --------
    >>> app = make_app(Engine.open("engine"), Settings(writable=True))  # doctest: +SKIP
    """
    settings = settings or Settings()
    seat = seat or ProcessState()
    service = Service(engine, settings, seat)
    monitoring.configure_logging()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()
        monitoring.flush_logs()

    app = ServiceApp(
        title="modalhash",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    errors.add_handlers(app)
    schemas.describe(app, lambda: service.engine.modalities, settings)
    add_page_routes(app)
    routes.add_search_routes(app, service)
    routes_items.add_routes(app, service)
    routes_items.add_duplicate_routes(app, service)
    routes.add_state_routes(app, service)
    app.requests = RequestMiddleware(
        LeaseMiddleware(DirectRoutes(super(ServiceApp, app).__call__, app.routes), service),
        settings=settings,
        metrics=service.metrics,
        seat=seat,
        make_place=service.body_budget.drop_slowest,
    )
    return app
