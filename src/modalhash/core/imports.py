"""Imports that may fail: optional dependencies, and classes that a user names."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class MissingExtraError(ImportError):
    """A feature needs a package that is not installed; the message has the install command."""


def require(module: str, *, extra: str, why: str) -> Any:
    """Import ``module``, or raise an error that names the extra to install.

    Examples
    --------
    >>> require("json", extra="data", why="reading JSON").__name__
    'json'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the package is broken, and its own error says more
        raise _missing(module, extra, why) from error


def require_installed(module: str, *, extra: str, why: str) -> None:
    """Raise as :func:`require` if ``module`` is not installed, without importing it."""
    if find_spec(module) is None:
        raise _missing(module, extra, why)


def _missing(module: str, extra: str, why: str) -> MissingExtraError:
    package = module.partition(".")[0]
    return MissingExtraError(
        f"{why} needs the package '{package}', which is not installed. Install the extra '{extra}': "
        f"{install_line(extra)}",
        name=package,
    )


def install_line(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    pip records the source of a package that was not installed from an index. An existing checkout or wheel is named as
    it was installed; if it is gone, the packages of the extra are listed.
    """
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        installed = distribution("modalhash")
    except PackageNotFoundError:  # run from its sources
        return f"pip install '.[{extra}]', in the folder of its sources"
    recorded = installed.read_text("direct_url.json")
    if recorded is None:
        return f"pip install 'modalhash[{extra}]'"
    origin = json.loads(recorded)
    path = Path(url2pathname(urlsplit(origin["url"]).path))
    if not origin["url"].startswith("file:"):
        return f"pip install 'modalhash[{extra}] @ {origin['url']}'"
    if path.exists():
        option = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {option}'{path}[{extra}]'"
    marks = (f'extra == "{extra}"', f"extra == '{extra}'")
    packages = [text.partition(";")[0].strip() for text in installed.requires or () if text.endswith(marks)]
    return "pip install " + " ".join(f"'{package}'" for package in packages)


def import_class(path: str, what: str) -> type[Any]:
    """Import the class at ``module:Class``; errors name it as ``what``, e.g. ``"encoder 'mine'"``.

    Examples
    --------
    >>> import_class("json:JSONDecoder", "decoder").__name__
    'JSONDecoder'
    """
    module, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in f"{module}.{attribute}".split(".")):
        raise ValueError(f"{what}: expected 'module:Class', e.g. 'mypackage.module:Mine'")
    try:
        value: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise  # the module exists and lacks a dependency
        raise ValueError(f"{what}: there is no module {module!r} to import") from error
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if value is None:
        raise ValueError(f"{what}: the module {module!r} has no {attribute!r}")
    if not isinstance(value, type):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a class")
    return value
