"""The page, its files, and the viewer of the OpenAPI description: files of this package, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

from modalhash.serve.errors import Refusal
from modalhash.serve.service import Service

HERE = Path(__file__).parent
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


def install(app: FastAPI, service: Service) -> None:
    """The addresses that people open."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return own_file("static", "index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return own_file("static", name)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return own_file("viewer", "docs.html")

    @app.get("/docs/{name}", include_in_schema=False)
    async def viewer(name: str) -> Response:
        return own_file("viewer", name)


def own_file(folder: str, name: str) -> Response:
    """A file of this package. The name is looked up among those that are there, and never becomes part of a path."""
    for path in (HERE / folder).glob("*"):
        if path.name == name and path.suffix in TYPES:
            return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})
    raise Refusal(404, "there is no such file; the page is at /")
