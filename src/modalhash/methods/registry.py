"""Methods by name: those of the package, those of other installed packages, and any class as ``module:Class``.

A method of the package is a module in ``methods/`` and a row in ``methods.toml``. A method outside needs neither: a
class derived from :class:`modalhash.methods.base.CrossModalHasher` is found by ``"module:Class"``, and under a short
name if its package registers it as an entry point::

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

from modalhash.core.imports import import_class

if TYPE_CHECKING:
    from modalhash.methods.base import CrossModalHasher

ENTRY_POINTS = "modalhash.methods"
"""The group of entry points by which a package registers methods."""
INTERFACE = (
    *("supervised", "needs_pairs", "max_modalities"),
    *("fit", "transform", "decision_function", "get_params", "set_params", "save"),
)
"""What a class outside the package must have; CrossModalHasher brings all of it."""


@dataclass(frozen=True)
class Method:
    """What is known of a method; of those in :data:`METHODS`, without importing them."""

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
    """Where they come from: authors' code, paper, a reconstruction (then a re-implementation), or outside."""
    codes: str = "unknown"
    """``"discrete"`` (±1 in every step), ``"relaxed"`` (real numbers, signs at the end) or ``"random"``."""
    kernel: str = "unknown"
    """``"anchors"`` (similarities to them), ``"none"``; or what a parameter chooses, the default first."""
    growth: str = "unknown"
    """How the time of a fit grows with the number n of training items."""
    best_at: str = "not yet measured"
    """What the measured tables (rlh.md, paired.md and unpaired.md in docs/measurements) say for it."""
    extra: str = ""
    """The extra that learning needs, e.g. ``"torch"``; empty where the package alone will do."""
    control: bool = False
    """Not a method to use but a level to compare with."""
    space: Mapping[str, str] = field(default_factory=dict)
    """What ``modalhash tune`` searches: parameter to values, e.g. ``"log:1e-4:10"``. A class outside the package has
    an attribute ``search_space`` instead."""

    @property
    def reimplementation(self) -> bool:
        """Neither code nor full text of the authors was at hand."""
        return self.equations.startswith("re-implementation")


def read_rows(text: str) -> dict[str, Method]:
    """Return the rows of ``methods.toml`` by name; ValueError if a key is unknown or missing."""
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
    """Return the row of a method, named as for :func:`get`; one outside the package is imported to describe it."""
    if own := METHODS.get(name.lower()):
        return own
    path = _path_outside(name)
    return _describe(name, path, _import_method(name, path))


def get(name: str) -> type[CrossModalHasher]:
    """Return the class of a method.

    Parameters
    ----------
    name : str
        One of :data:`METHODS`; the name under which an installed package registers a method, see :func:`installed`;
        or ``"module:Class"``, which is imported.

    Examples
    --------
    >>> get("amsh").__name__
    'AMSH'
    >>> get("modalhash.methods.amsh:AMSH").__name__
    'AMSH'
    >>> get("batch")(n_bits=32)
    BATCH(n_bits=32)
    """
    own = METHODS.get(name.lower())
    return _import_method(name, own.path if own else _path_outside(name))


method = get
"""What ``modalhash.method`` is: ``modalhash.method("batch")(n_bits=32)``."""


def name_of(cls: type) -> str:
    """Return the name under which :func:`get` finds a class: what a saved model remembers of its method.

    Examples
    --------
    >>> name_of(get("amsh"))
    'amsh'
    """
    path = f"{cls.__module__}:{cls.__qualname__}"
    for method in METHODS.values():
        module, _, name = method.path.partition(":")
        if name == cls.__qualname__ and f"{cls.__module__}.".startswith(f"{module}."):  # a module, or inside a package
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
    """Return the methods that installed packages register: name to ``module:Class``; nothing is imported.

    A package registers a method by an entry point of the group ``modalhash.methods``. A name that is taken, first of
    all by modalhash, is left out with a warning; the method can still be had by its ``module:Class``.
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
                f"the method {entry.name!r} of {package} is left out: the name means {taken[entry.name.lower()]}. "
                f"Use it as {path}",
                UserWarning,
                stacklevel=2,
            )
    return paths


def outside() -> list[Method]:
    """Return the rows of the methods that installed packages register; a broken one is left out with a warning."""
    rows = []
    for name, path in installed().items():
        try:
            rows.append(_describe(name, path, _import_method(name, path)))
        except Exception as error:  # code of others: whatever it raises must not hide the other methods
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"the method {name!r} ({path}) is left out: {why}", UserWarning, stacklevel=2)
    return rows


def _path_outside(name: str) -> str:
    if ":" in name:
        return name
    paths = installed()
    for known, path in paths.items():
        if known.lower() == name.lower():
            return path
    raise ValueError(
        f"unknown method {name!r}; known: {', '.join([*METHODS, *paths])}. One of your own is given as 'module:Class'"
    )


def _import_method(name: str, path: str) -> type[CrossModalHasher]:
    """Import the class at ``module:Class``, or say why that is no method."""
    return _check_method(name, import_class(path, f"method {name!r}"))


def _find(path: str) -> Any:
    """Return what ``module:Class`` names in the modules that are loaded, or None."""
    module, _, attribute = path.partition(":")
    value: Any = sys.modules.get(module)
    for part in attribute.split("."):
        value = getattr(value, part, None)
    return value


def _same_package(path: str, other: str) -> bool:
    return path.partition(":")[0].partition(".")[0] == other.partition(":")[0].partition(".")[0]


def _check_method(name: str, cls: Any) -> type[CrossModalHasher]:
    lacking = [part for part in INTERFACE if not hasattr(cls, part)]
    lacking += sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        raise TypeError(
            f"method {name!r}: the class lacks {', '.join(lacking)}; derive it from modalhash.methods.CrossModalHasher"
        )
    return cls


def _describe(name: str, path: str, cls: type[CrossModalHasher]) -> Method:
    """Return the row of a method outside the package, from what its class says of itself."""
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
        pairing="needed" if cls.needs_pairs else "optional",  # a class cannot say that it ignores them
        modalities=f"{least}+" if most is None else str(most) if most == 2 else f"{least} to {most}",
        equations=f"outside modalhash: {path}",
        space=dict(getattr(cls, "search_space", {})),
    )
