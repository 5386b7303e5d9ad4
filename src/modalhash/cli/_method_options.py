"""Methods and their parameters as several commands take them: ``--method a,b --param a.x=1 --params FILE``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from modalhash.cli._common import import_from_here, key_any

Params = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="A file of parameters, TOML or JSON, as [b]modalhash tune[/b] writes it; what --param says counts more. "
        "May be repeated.",
        show_default=False,
    ),
]


def names_in(text: str) -> list[str]:
    """Parse names of methods that are separated by commas; modules in the current folder may be imported then."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"--method {text!r}: expected names separated by commas, e.g. amsh,rlh")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"--method {text!r}: {twice[0]} is named twice; name each once")
    if any(":" in name for name in names):
        import_from_here()
    return names


def method_parameters(
    methods: Sequence[str], param: Iterable[str] | None, files: Iterable[Path] | None
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each method, those of files first; what no method has is an error."""
    from modalhash.experiments import check_parameters, read_parameters

    found: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for file in files or ():
        given = read_parameters(file)
        if not given.keys() & found.keys():
            raise ValueError(
                f"{file} has parameters of {', '.join(given) or 'no method'}; asked for are {', '.join(methods)}"
            )
        for method in given.keys() & found.keys():
            found[method] |= given[method]
    for method, values in by_method(methods, key_any(param, "--param"), "--param").items():
        found[method] |= check_parameters(method, values)
    return found


def by_method(methods: Sequence[str], values: dict[str, Any], option: str) -> dict[str, dict[str, Any]]:
    """Sort ``{"amsh.ridge": value}`` by method; without a method before it, the name belongs to the only one."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        method, _, name = key.rpartition(".")
        if not method and len(methods) > 1:
            raise ValueError(f"{option} {key}=…: of which method? Write e.g. {option} {methods[0]}.{key}=…")
        method = method or methods[0]
        if method not in methods:
            raise ValueError(f"{option} {key}=…: {method!r} is not among the methods {', '.join(methods)}")
        found.setdefault(method, {})[name] = value
    return found


def parameters_of_one(
    method: str | None, param: Iterable[str] | None, files: Iterable[Path] | None
) -> tuple[str | None, dict[str, Any]]:
    """Return the method and its parameters; a file of one method's parameters names the method where nothing else does.

    What ``--param`` gives is not checked here: an engine knows more of it than the name.
    """
    given = key_any(param, "--param")
    if not files:
        return method, given
    if method is None:
        from modalhash.experiments import read_parameters

        named = list(dict.fromkeys(name for file in files for name in read_parameters(file)))
        if len(named) != 1:
            raise ValueError(f"--params has parameters of {', '.join(named) or 'no method'}; say which with --method")
        method = named[0]
    return method, method_parameters([method], None, files)[method] | given
