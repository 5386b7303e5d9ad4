"""HTTP service for an engine, with a search page. Needs the extra ``serve``.

Names are imported on first use, so that the error can name the missing extra.
"""

from typing import Any

import lazy_loader

_REQUIRED = (
    "starlette",
    "pydantic",
    "uvicorn",
    "python_multipart",
    "PIL",
    "prometheus_client",
    "cachetools",
    "httptools",
    "orjson",
)

_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from modalhash.core.imports import require

        for package in _REQUIRED:
            require(package, extra="serve", why="the service")
    return _get(name)
