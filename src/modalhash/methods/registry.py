"""Lookup of methods by name: those of the package, of installed packages, and any class as ``module:Class``.

A method of the package is a module in ``methods/`` and a row in ``methods.toml``. A method outside the package is a
class derived from :class:`modalhash.methods.base.CrossModalHasher`. Its package can register a short name::

    [project.entry-points."modalhash.methods"]
    mine = "mypackage.module:Mine"
"""

from __future__ import annotations

import sys
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modalhash.core.deprecation import deprecated
from modalhash.core.imports import import_class

if TYPE_CHECKING:
    from modalhash.methods.base import CrossModalHasher

ENTRY_POINTS = "modalhash.methods"
"""Group of the entry points that register methods."""
INTERFACE = (
    *("supervised", "needs_pairs", "max_modalities"),
    *("fit", "transform", "decision_function", "get_params", "set_params", "save"),
)
"""Attributes that a class outside the package must have; CrossModalHasher has all of them."""


@dataclass(frozen=True)
class Method:
    """Properties of a method. Those of the package are known without importing it."""

    name: str
    path: str
    """``module:Class``."""
    title: str
    year: int | None
    citation: str
    supervised: bool
    pairing: str
    """``"none"`` (not used), ``"optional"`` or ``"needed"``."""
    modalities: str
    """``"1+"``, ``"2+"``, ``"2"`` or, outside the package, ``"1 to 3"``."""
    equations: str
    """Source of the equations: the authors' code, the paper, or "re-implementation: …" for a reconstruction."""
    codes: str = "unknown"
    """``"discrete"`` (±1 in every step), ``"relaxed"`` (real numbers, signs at the end) or ``"random"``."""
    kernel: str = "unknown"
    """``"anchors"`` or ``"none"``; both, the default first, if a parameter chooses."""
    growth: str = "unknown"
    """How the time of a fit grows with the number n of training items."""
    best_at: str = "not yet measured"
    """Strength according to the tables in docs/measurements (rlh.md, paired.md and unpaired.md)."""
    extra: str = ""
    """Extra of the package that fitting requires, e.g. ``"torch"``, or an empty text."""
    control: bool = False
    """Whether it is a level to compare with rather than a method to use."""
    space: Mapping[str, str] = field(default_factory=dict)
    """Search space of ``modalhash tune``, e.g. ``{"ridge": "log:1e-4:10"}``; ``search_space`` of an outside class."""

    @property
    def reimplementation(self) -> bool:
        """Whether it was written without the authors' code or full text."""
        return self.equations.startswith("re-implementation")


def read_rows(text: str) -> dict[str, Method]:
    known = [key.name for key in fields(Method)[1:]]  # the first one is the name
    needed = [key.name for key in fields(Method)[1:] if key.default is key.default_factory is MISSING]
    rows = {}
    for name, given in tomllib.loads(text).items():
        row = {"year": None, **given}  # TOML has no null
        if unknown := [key for key in row if key not in known]:
            raise ValueError(f"methods.toml, [{name}]: unknown key {unknown[0]!r}; known: {', '.join(known)}")
        if missing := [key for key in needed if key not in row]:
            raise ValueError(f"methods.toml, [{name}]: missing {', '.join(map(repr, missing))}")
        rows[name] = Method(name=name, **row)
    return rows


METHODS = read_rows(Path(__file__).with_name("methods.toml").read_text(encoding="utf-8"))
"""The methods of the package, by name."""


def info(name: str) -> Method:
    """Return the row of a method, named as for :func:`method`; a class outside the package is imported."""
    if own := METHODS.get(name.lower()):
        return own
    path = _path_outside(name)
    return _describe(name, path, _import_method(name, path))


def method(name: str) -> type[CrossModalHasher]:
    """Return the class of a method.

    Parameters
    ----------
    name : str
        A name in :data:`METHODS`, a name that an installed package registers, or ``"module:Class"``.

    Examples
    --------
    >>> method("amsh").__name__
    'AMSH'
    >>> method("modalhash.methods.amsh:AMSH").__name__
    'AMSH'
    >>> method("batch")(n_bits=32)
    BATCH(n_bits=32)
    """
    own = METHODS.get(name.lower())
    return _import_method(name, own.path if own else _path_outside(name))


@deprecated("1.0", instead="modalhash.method")
def get(name: str) -> type[CrossModalHasher]:
    """Return the class of a method."""
    return method(name)


def name_of(cls: type) -> str:
    """Return the name by which :func:`get` finds a class, which saved models store."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    for method in METHODS.values():
        if method.path == path:
            return method.name
    _check_method(path, cls)
    for name, registered in installed().items():
        if registered == path or (_same_package(registered, path) and _find(registered) is cls):
            return name
    if _find(path) is not cls:
        raise ValueError(
            f"{path} cannot be imported by that name, so a model saved under it could not be loaded; "
            "define the class at the top level of a module"
        )
    return path


def installed() -> dict[str, str]:
    """Return the methods that installed packages register, as name to ``module:Class``, without importing them.

    If a name is already taken, the method is skipped with a warning; its ``module:Class`` still works.
    """
    from importlib.metadata import entry_points

    taken = {name: method.path for name, method in METHODS.items()}
    paths: dict[str, str] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        path = entry.value.partition("[")[0].strip()
        if entry.name.lower() not in taken:
            paths[entry.name] = taken[entry.name.lower()] = path
        elif taken[entry.name.lower()] != path:
            package = entry.dist.name if entry.dist else "a package"
            warnings.warn(
                f"the method {entry.name!r} of {package} is skipped because the name means "
                f"{taken[entry.name.lower()]}. Use it as {path}",
                UserWarning,
                stacklevel=2,
            )
    return paths


def outside() -> list[Method]:
    """Return the rows of the methods that installed packages register; a broken one is skipped with a warning."""
    rows = []
    for name, path in installed().items():
        try:
            rows.append(_describe(name, path, _import_method(name, path)))
        except Exception as error:  # third-party code must not hide the other methods
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"the method {name!r} ({path}) is skipped: {why}", UserWarning, stacklevel=2)
    return rows


def _path_outside(name: str) -> str:
    if ":" in name:
        return name
    paths = installed()
    for known, path in paths.items():
        if known.lower() == name.lower():
            return path
    raise ValueError(
        f"unknown method {name!r}; known: {', '.join([*METHODS, *paths])}. Pass your own class as 'module:Class'"
    )


def _import_method(name: str, path: str) -> type[CrossModalHasher]:
    return _check_method(name, import_class(path, f"method {name!r}"))


def _find(path: str) -> Any:
    """Return the object that ``module:Class`` names in the loaded modules, or None."""
    module, _, attribute = path.partition(":")
    value: Any = sys.modules.get(module)
    for part in attribute.split("."):
        value = getattr(value, part, None)
    return value


def _same_package(path: str, other: str) -> bool:
    return path.partition(":")[0].partition(".")[0] == other.partition(":")[0].partition(".")[0]


def _check_method(name: str, cls: Any) -> type[CrossModalHasher]:
    missing = [part for part in INTERFACE if not hasattr(cls, part)]
    missing += sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise TypeError(
            f"method {name!r}: the class lacks {', '.join(missing)}; derive it from modalhash.methods.CrossModalHasher"
        )
    return cls


def _describe(name: str, path: str, cls: type[CrossModalHasher]) -> Method:
    """Return the row of a method outside the package, from the attributes of its class."""
    title = (cls.__doc__ or cls.__name__).strip().partition("\n")[0]
    most = cls.max_modalities
    least = 2 if cls.needs_pairs else 1
    return Method(
        name=name,
        path=path,
        title=title,
        year=None,
        citation=title,
        supervised=cls.supervised,
        pairing="needed" if cls.needs_pairs else "optional",  # no attribute declares that they are ignored
        modalities=f"{least}+" if most is None else str(most) if most == 2 else f"{least} to {most}",
        equations=f"outside modalhash: {path}",
        space=dict(getattr(cls, "search_space", {})),
    )
