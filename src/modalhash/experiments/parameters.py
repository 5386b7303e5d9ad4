"""Parameters of methods that a person gives: checked by name, read from a file, written into one.

A file of parameters is TOML with a table per method, or the same as JSON::

    [rlh]
    ridge = 0.003
    kernel = "none"

    ["mypackage.module:Mine"]
    depth = 3

TOML has no null: the text ``"none"`` stands for it, as in a grid.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modalhash import registry
from modalhash._files import write_atomically

SET_ELSEWHERE = {"n_bits": "the code lengths (--bits)", "random_state": "the seeds (--seeds)"}
"""Parameters that a comparison sets by itself, and what decides them."""


def check_parameters(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters if the method has all of them; an error names what it has.

    Values are checked by ``fit``, as everywhere.

    Examples
    --------
    >>> check_parameters("batch", {"ridge": 0.1})
    {'ridge': 0.1}
    >>> check_parameters("batch", {"rigde": 0.1})
    Traceback (most recent call last):
    ...
    ValueError: batch has no parameter 'rigde'; did you mean 'ridge'? It has feature_weight, ...
    """
    known = registry.get(method)().get_params(deep=False)
    for name in given:
        if name in SET_ELSEWHERE:
            raise ValueError(f"{method}: {name} is set by {SET_ELSEWHERE[name]}; leave it out of the parameters")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}? It" if near else "; it"
            free = [one for one in known if one not in SET_ELSEWHERE]
            raise ValueError(f"{method} has no parameter {name!r}{hint} has {', '.join(free) or 'none'}")
    return dict(given)


def read_parameters(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read a file of parameters: TOML, or JSON by its name; the result is a dict by method."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not in UTF-8 ({error})") from None
    try:
        content = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
        raise ValueError(f"{path}: not {kind}: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(one, dict) for one in content.values()):
        raise ValueError(f"{path}: expected a table per method, e.g. [rlh] with ridge = 0.003 below it")
    found = {}
    for method, values in content.items():
        try:
            found[method] = check_parameters(method, {name: _denoted(value) for name, value in values.items()})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
    return found


def write_parameters(path: str | Path, parameters: Mapping[str, Mapping[str, Any]], notes: Sequence[str] = ()) -> None:
    """Write a file of parameters as :func:`read_parameters` reads it; notes become comments of a TOML file."""
    path = Path(path)
    if path.suffix.lower() == ".json":
        text = json.dumps(parameters, indent=1, ensure_ascii=False)
    else:
        lines = [f"# {' '.join(note.split())}" for note in notes]
        for method, values in parameters.items():
            lines += ["", f"[{_key(method)}]", *(f"{_key(name)} = {_toml(value)}" for name, value in values.items())]
        text = "\n".join(lines).lstrip("\n")
    write_atomically(path, (text + "\n").encode())


def _denoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _denoted(one) for name, one in value.items()}
    return None if value == "none" else value


def _key(name: str) -> str:
    plain = name.replace("-", "").replace("_", "")
    return name if plain.isascii() and plain.isalnum() else json.dumps(name)


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool | str):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise TypeError(f"{value!r} cannot be written; expected numbers, texts, true, false, none, or lists and tables")
