"""Public names of a package that are imported when first used, so that importing the package stays quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package's ``__init__``.

    Parameters
    ----------
    package : str
        The package's ``__name__``.
    modules : mapping
        Submodule → the public names it holds. Type checkers do not see these: repeat them under ``TYPE_CHECKING``.

    Examples
    --------
    >>> getattr_, dir_, names = lazy_exports("json", {"decoder": ["JSONDecoder"]})
    >>> getattr_("JSONDecoder").__name__, names
    ('JSONDecoder', ['JSONDecoder'])
    """
    home = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(f"{package}.{home[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted(home), sorted(home)
