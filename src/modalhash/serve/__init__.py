"""The service: an engine over HTTP, with a page to search by. Needs the extra ``serve``.

Nothing is imported until it is used, so that a missing extra is named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalhash.serve.app import make_app as make_app
    from modalhash.serve.settings import Limits as Limits
    from modalhash.serve.settings import Settings as Settings

_WHERE = {"make_app": "app", "Limits": "settings", "Settings": "settings"}
_NEEDED = ("fastapi", "uvicorn", "python_multipart", "PIL")
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from modalhash._extras import require

    for package in _NEEDED:
        require(package, extra="serve", why="the service")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
