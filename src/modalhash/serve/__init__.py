"""The service: an engine over HTTP, with a page to search by. Needs the extra ``serve``.

Nothing is imported until it is used, so that a missing extra is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.serve.access_tokens import Token as Token
    from modalhash.serve.access_tokens import make_token as make_token
    from modalhash.serve.access_tokens import read_tokens as read_tokens
    from modalhash.serve.access_tokens import rotate as rotate
    from modalhash.serve.access_tokens import write_tokens as write_tokens
    from modalhash.serve.app import make_app as make_app
    from modalhash.serve.server import bind as bind
    from modalhash.serve.server import check_exposure as check_exposure
    from modalhash.serve.server import page_url as page_url
    from modalhash.serve.server import run as run
    from modalhash.serve.settings import Limits as Limits
    from modalhash.serve.settings import Settings as Settings
    from modalhash.serve.workers import run_workers as run_workers

_REQUIRED = ("fastapi", "uvicorn", "python_multipart", "PIL", "prometheus_client", "cachetools", "httptools", "orjson")

_get, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "app": ["make_app"],
        "server": ["bind", "check_exposure", "page_url", "run"],
        "settings": ["Limits", "Settings"],
        "workers": ["run_workers"],
        "access_tokens": ["Token", "make_token", "read_tokens", "rotate", "write_tokens"],
    },
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from modalhash._imports import require

        for package in _REQUIRED:
            require(package, extra="serve", why="the service")
    return _get(name)
