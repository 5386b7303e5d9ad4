"""The page, its files, and the viewer of the OpenAPI description: files of this package, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

from modalhash.serve.errors import HTTPError

CONTENT_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_PACKAGE = Path(__file__).parent


def add_page_routes(app: FastAPI) -> None:
    """Add the routes that people open in a browser."""

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
    """Return a file of this package. The name is looked up in the listing, and never becomes part of a path."""
    for path in (_PACKAGE / folder).glob("*"):
        if path.name == name and path.suffix in CONTENT_TYPES:
            headers = {"Cache-Control": "no-cache"}
            return Response(path.read_bytes(), media_type=CONTENT_TYPES[path.suffix], headers=headers)
    raise HTTPError(404, "there is no such file; the page is at /")
