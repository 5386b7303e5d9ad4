"""The service as an ASGI app: its state, its middleware and its routes put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

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
from modalhash.serve.seats import ProcessState
from modalhash.serve.service import LeaseMiddleware, Service
from modalhash.serve.settings import Settings

DESCRIPTION = (
    "Search across modalities: a text finds pictures, a picture finds texts, by the Hamming distance of short binary "
    "codes. Errors are JSON: what is wrong and what to do."
)


DIRECT_ROUTES = ("/search",)
"""Routes that most requests go to. FastAPI describes them, and its way to them costs more than the rest of a request.
So they are called without it: their functions take the request and return a response."""


class DirectRoutes:
    """ASGI middleware that calls the function of a route in :data:`DIRECT_ROUTES`, and passes all else on."""

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
    """FastAPI's app with what surrounds every request around it, instead of between its layers."""

    requests: ASGIApp
    """Answers HTTP requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self.requests(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Leave out the layer that answers unforeseen errors: that is what :class:`RequestMiddleware` does."""
        stack = super().build_middleware_stack()
        return stack.app if isinstance(stack, ServerErrorMiddleware) else stack


def make_app(engine: Engine, settings: Settings | None = None, *, seat: ProcessState | None = None) -> ServiceApp:
    """Return an ASGI app that serves an engine; the engine stays the caller's to close.

    If another engine takes its place in its folder, the app opens that, serves it from then on, and closes the old one
    when its last request is answered.

    The access log goes to the standard output and internal errors go to the error output, unless the logger
    ``modalhash.serve`` has a handler already. ``seat`` is for a worker of several.

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
    openapi.describe(app, lambda: service.engine.modalities, settings)
    pages.add_page_routes(app)
    routes_search.add_routes(app, service)
    routes_items.add_routes(app, service)
    routes_duplicates.add_duplicate_routes(app, service)
    routes_state.add_routes(app, service)
    app.requests = RequestMiddleware(
        LeaseMiddleware(DirectRoutes(super(ServiceApp, app).__call__, app.routes), service),
        settings=settings,
        metrics=service.metrics,
        seat=seat,
        make_place=service.body_budget.drop_slowest,
    )
    return app
