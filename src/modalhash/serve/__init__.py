"""The service: an engine over HTTP, with a page to search by. Needs the extra ``serve``.

Names are imported when first used, so that the error names a missing extra.
"""

from typing import Any

import lazy_loader

_REQUIRED = ("fastapi", "uvicorn", "python_multipart", "PIL", "prometheus_client", "cachetools", "httptools", "orjson")

_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from modalhash.core.imports import require

        for package in _REQUIRED:
            require(package, extra="serve", why="the service")
    return _get(name)
