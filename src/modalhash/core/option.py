"""Options that are declared once, as fields of a dataclass with an :class:`Option`.

Their documentation, the checks of their values, and options of the command line and of the HTTP API are made from that.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, ClassVar, get_type_hints


@dataclass(frozen=True)
class Option:
    """Describe an option, the values it takes, and how it is given on the command line.

    Parameters
    ----------
    help : what it means, with code in double backquotes
    python : what else it may be in Python
    by_default : what happens without it, if the default value does not say so
    choices : the texts it takes
    at_least, at_most : the smallest and the largest number it takes, which is an integer unless ``at_least`` is a float
    flag : the name on the command line, if not that of the field; empty if only Python has the option
    metavar : the value in the help of the command line
    envvar : the environment variable from which the command line has it
    unit : the unit on the command line, in units of the field
    json : whether the command line reads the values of a mapping as JSON
    check : whether ``modalhash check`` has it too
    """

    help: str
    python: str = ""
    by_default: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float = inf
    flag: str | None = None
    metavar: str | None = None
    envvar: str | None = None
    unit: float = 1
    json: bool = False
    check: bool = True

    @property
    def description(self) -> str:
        default = f"By default, {self.by_default}." if self.by_default else ""
        return " ".join(filter(None, (self.help, self.python, default)))

    def checked(self, value: Any, name: str) -> Any:
        if type(value) is int and type(self.at_least) is int and self.at_least <= value <= self.at_most:
            return value  # the most frequent case
        from modalhash.core.validation import check_choice, check_int, check_number

        if self.at_least is None:
            return check_choice(value, name, self.choices) if self.choices else value
        if isinstance(value, str) and value in self.choices:
            return value
        if isinstance(self.at_least, float):
            return check_number(value, name, at_least=self.at_least, at_most=self.at_most)
        try:
            value = check_int(value, name, at_least=self.at_least)
        except (TypeError, ValueError) as error:
            if not self.choices:
                raise
            kind = ValueError if isinstance(value, str) else type(error)
            choices = ", ".join(map(repr, self.choices))
            raise kind(f"{name} is {value!r}; expected {choices} or an integer ≥ {self.at_least}") from None
        if value > self.at_most:
            raise ValueError(f"{name} is {value}; expected an integer from {self.at_least} to {self.at_most}")
        return value


class Options:
    """Base of option values: documents and checks the fields that are declared by an :class:`Option`.

    A subclass made with ``like=Other`` has the options of another with the same names. What a value of None means there
    may differ: ``by_default``.
    """

    options: ClassVar[dict[str, Option]] = {}
    """By field, those of a class before those of its base."""

    def __init_subclass__(cls, *, like: type[Options] | None = None, by_default: str = "") -> None:
        declared = {} if like is None else dict(like.options)
        if by_default:
            unset = [name for name in declared if vars(cls).get(name, ...) is None]
            declared |= {name: replace(declared[name], by_default=by_default) for name in unset}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            for one in getattr(hint, "__metadata__", ()):
                if isinstance(one, Option):
                    declared[name] = one
        names = dict.fromkeys(name for one in cls.__mro__ for name in inspect.get_annotations(one))
        cls.options = {name: declared[name] for name in names if name in declared}
        entries = [f"{name} : {option.description}" for name, option in cls.options.items()]
        lines = [textwrap.fill(entry, 100, subsequent_indent="    ") for entry in entries]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Parameters", "-" * 10, *lines])

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in self.options and not (value is None and field.default is None):
                object.__setattr__(self, field.name, self.options[field.name].checked(value, field.name))
