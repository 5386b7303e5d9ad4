"""Optional dependencies: loaded when needed, named when missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingExtraError(ImportError):
    """A feature needs a package that is not installed; the message carries the install line."""


def require(module: str, *, extra: str, why: str) -> Any:
    """Import ``module``, or say which extra brings it.

    Examples
    --------
    >>> require("json", extra="data", why="reading JSON").__name__
    'json'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the package is there but broken: its own error says more
        raise MissingExtraError(
            f"{why} needs the package '{module.partition('.')[0]}', which is not installed. "
            f"Install the extra '{extra}': pip install 'modalhash[{extra}]'",
            name=error.name,
        ) from error
