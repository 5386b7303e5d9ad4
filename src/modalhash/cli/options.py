"""Options shared by several commands, and the options that the engine declares as options of the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import partial, wraps
from math import inf
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer

from modalhash.cli.common import (
    AsJson,
    Map,
    Quiet,
    ReadMemory,
    ReadSeconds,
    bits_or_auto,
    command_with,
    file_mapping,
    import_from_here,
    key_any,
    key_values,
    open_dataset,
)
from modalhash.core.option import Option, Options
from modalhash.engine.settings import OpenOptions

if TYPE_CHECKING:
    from modalhash.data import Dataset, TableFormat
    from modalhash.engine.settings import TrainSettings

CODE = re.compile(r"``(.+?)``")


class _Entry(NamedTuple):
    """A parameter of a command, and how its value is read."""

    parameter: inspect.Parameter
    read: Callable[[Any], Any]


def with_option_groups(
    command: Callable[..., None], *, include: Callable[[Option], bool] = lambda option: True
) -> Callable[..., None]:
    """Turn the fields of dataclass parameters of a command into options of the command line.

    Fields and parameters are declared as for typer, ``Annotated[int, typer.Option(help=…)]``, or by an
    :class:`~modalhash.core.option.Option`; of the latter, fields that ``include`` refuses keep their defaults.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, dict[str, _Entry]] = {}
    entries: dict[str, _Entry] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hint := hints[name]):
            groups[name] = _entries(hint, include)
            entries |= groups[name]
        else:
            entries[name] = _entry(name, hint, parameter.default, _declared(hint))

    @wraps(command)
    def flat(**given: Any) -> None:
        values = {name: entries[name].read(value) for name, value in given.items()}
        for name, group in groups.items():
            values[name] = hints[name](**{field: values.pop(field) for field in group})
        command(**values)

    parameters = [entry.parameter for entry in entries.values()]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _entries(group: Any, include: Callable[[Option], bool]) -> dict[str, _Entry]:
    hints = get_type_hints(group, include_extras=True)
    options: dict[str, Option] = getattr(group, "options", {})
    known = {field.name: field for field in fields(group)}
    found = {}
    for name in options or known:
        option, default = options.get(name), known[name].default
        if option is None or (option.flag != "" and include(option)):
            found[name] = _entry(name, hints[name], inspect.Parameter.empty if default is MISSING else default, option)
    return found


def _declared(hint: Any) -> Option | None:
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Option)), None)


def _entry(name: str, hint: Any, default: Any, option: Option | None) -> _Entry:
    """Return a parameter for typer; one without an ``option`` is declared for typer already."""
    if option is not None:
        return _declared_entry(name, hint, default, option)
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
    return _Entry(parameter, lambda value: value)


def _declared_entry(name: str, hint: Any, default: Any, option: Option) -> _Entry:
    flag = option.flag or name
    flag = flag if flag.startswith("-") else f"--{flag.replace('_', '-')}"
    help = CODE.sub(r"[b]\1[/b]", option.help)
    types = {get_origin(one) or one for one in _members(hint)}
    given: Any = next((kind for kind in (bool, int, float, Path) if kind in types), str)
    read: Callable[[Any], Any] = given
    shown = default
    if bool in types:
        flag = f"{flag}/--no-{flag[2:]}" if default else flag
    elif Mapping in types or tuple in types:
        given, shown = list[str], None
        read = tuple if tuple in types else partial(key_any if option.json else key_values, option=flag)
        help += " May be repeated."
    elif {int, str} <= types:
        given, read = str, bits_or_auto
    elif option.choices:
        enum: Any = StrEnum
        given, read = enum(name.title().replace("_", ""), {one: one for one in option.choices}), str
        shown = None if default is None else given(default)
    elif option.unit != 1:
        shown, read = default / option.unit, lambda value: value * option.unit
    bounds: dict[str, Any] = {}
    if given in (int, float):
        least, most = option.at_least, None if option.at_most == inf else option.at_most
        bounds = {"min": None if least is None else given(least / option.unit), "max": most}
    facts: dict[str, Any] = {"metavar": option.metavar, "envvar": option.envvar, **bounds}
    declared = typer.Option(flag, help=help, show_default=option.by_default or True, **facts)
    annotation = Annotated[given | None if shown is None else given, declared]  # type: ignore[valid-type]
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=annotation)
    return _Entry(parameter, lambda value: default if value is None else read(value))


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, without what annotates it."""
    hint = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


Sources = Annotated[
    list[str],
    typer.Argument(
        help="Manifests (.jsonl, .csv, .tsv, .xlsx, .parquet, .feather), folders, zips or tars of pictures, or the "
        "name of a data set."
    ),
]
Params = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="A TOML or JSON file of parameters, as written by [b]modalhash tune[/b]; --param overrides it. May be "
        "repeated.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class TableOptions:
    """How a table is written, where the file does not show it."""

    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Encoding of a manifest, e.g. [b]latin-1[/b]; detected by default.", show_default=False
        ),
    ] = None
    separator: Annotated[
        str | None,
        typer.Option(
            metavar="SIGN",
            help="Separator of columns, e.g. [b]';'[/b] or [b]'\\t'[/b]; detected by default.",
            show_default=False,
        ),
    ] = None
    sheet: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Sheet of an Excel file; the first by default.", show_default=False),
    ] = None

    @property
    def table(self) -> TableFormat:
        from modalhash.data import TableFormat

        return TableFormat(self.encoding, self.separator, self.sheet)


@dataclass(frozen=True)
class ReadLimitOptions:
    """Limits of reading a file."""

    read_memory: ReadMemory = None
    read_seconds: ReadSeconds = None


@dataclass(frozen=True)
class ReadingOptions(ReadLimitOptions, TableOptions):
    """How files are read."""


@dataclass(frozen=True)
class OpeningOptions(Options, like=OpenOptions):
    """How an engine is opened."""

    trust: bool = False
    read_only: bool = False


@dataclass(frozen=True)
class ReportOptions:
    """How a command reports what it does."""

    quiet: Quiet = False
    as_json: AsJson = False


def allow_imports(method: str | None, encoders: Mapping[str, str] | None) -> None:
    """Allow importing modules from the current folder if a method or an encoder is given as ``module:Class``."""
    from modalhash.encoders import names_module

    if ":" in (method or "") or any(names_module(name) for name in (encoders or {}).values()):
        import_from_here()


def names_in(text: str) -> list[str]:
    """Parse method names separated by commas; ``module:Class`` allows imports from the current folder."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"--method {text!r}: expected names separated by commas, e.g. amsh,rlh")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"--method {text!r}: {twice[0]} is given twice")
    if any(":" in name for name in names):
        import_from_here()
    return names


def method_parameters(
    methods: Sequence[str], param: Iterable[str] | None, files: Iterable[Path] | None
) -> dict[str, dict[str, Any]]:
    """Return the parameters of each method, from files and then ``--param``; raise for unknown ones."""
    from modalhash.experiments import check_parameters, read_parameters

    found: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for file in files or ():
        given = read_parameters(file)
        if not given.keys() & found.keys():
            raise ValueError(
                f"{file} has parameters of {', '.join(given) or 'no method'}; expected {', '.join(methods)}"
            )
        for method in given.keys() & found.keys():
            found[method] |= given[method]
    for method, values in by_method(methods, key_any(param, "--param"), "--param").items():
        found[method] |= check_parameters(method, values)
    return found


def by_method(methods: Sequence[str], values: dict[str, Any], option: str) -> dict[str, dict[str, Any]]:
    """Group ``{"amsh.ridge": value}`` by method; a name without a method belongs to the only one."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        method, _, name = key.rpartition(".")
        if not method and len(methods) > 1:
            raise ValueError(f"{option} {key}=…: which method? Write e.g. {option} {methods[0]}.{key}=…")
        method = method or methods[0]
        if method not in methods:
            raise ValueError(f"{option} {key}=…: {method!r} is not among the methods {', '.join(methods)}")
        found.setdefault(method, {})[name] = value
    return found


def with_parameter_files(settings: TrainSettings, files: Sequence[Path] | None) -> TrainSettings:
    """Return settings with the parameters in files; by default the method is the only one in these.

    ``--param`` is checked by the engine.
    """
    if not files:
        return settings
    method = settings.method
    if method is None:
        from modalhash.experiments import read_parameters

        named = list(dict.fromkeys(name for file in files for name in read_parameters(file)))
        if len(named) != 1:
            raise ValueError(f"--params has parameters of {', '.join(named) or 'no method'}; say which with --method")
        method = named[0]
    parameters = method_parameters([method], None, files)[method] | dict(settings.parameters or {})
    return replace(settings, method=method, parameters=parameters)


class ScenarioName(StrEnum):
    """Scenarios for the training items; functions of :mod:`modalhash.data` with the same name."""

    paired = "paired"
    unpaired = "unpaired"
    unequal = "unequal"
    semi_paired = "semi_paired"
    noisy_labels = "noisy_labels"
    missing_labels = "missing_labels"


@dataclass(frozen=True)
class DataOptions:
    """Options of commands that measure on a data set."""

    dataset: Annotated[str, typer.Argument(metavar="DATA", help="Name of a data set, or a file.")]
    mapping: Map = None
    modalities: Annotated[str, typer.Option(help="Only these modalities, separated by commas.")] = ""
    scenario: Annotated[
        ScenarioName | None,
        typer.Option(
            help="How training items are changed.", show_default="paired if a method needs pairs, else unpaired"
        ),
    ] = None
    test_share: Annotated[
        float | None,
        typer.Option(
            help="Fraction of the items drawn as queries if there is no split.",
            show_default="the data set's own number of queries, or 0.2",
        ),
    ] = None
    root: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None
    read_memory: ReadMemory = None
    read_seconds: ReadSeconds = None

    def open(self) -> Dataset:
        data = open_dataset(self.dataset, self.root, file_mapping(self.mapping))
        check_labels(data, self.dataset)
        return data.only(*self.modalities.split(",")) if self.modalities else data


def check_labels(data: Dataset, name: str) -> None:
    """Raise for a data set without labels; suggest a ``--map`` if a variable may contain them."""
    if data.labels or not data.features:
        return
    from modalhash.data import guess_mapping

    error = ValueError(f"{name} has no labels, which define what is relevant to a query")
    guessed = guess_mapping(name) if Path(name).exists() else {}
    if "labels" in guessed and (line := command_with(guessed)):
        error.add_note(f"If an unrecognised variable contains them, map it:\n  {line}")
    else:
        error.add_note(
            "In a file of arrays, labels are a variable `labels` with a row per item, and a column of 0 and 1 per "
            "class or one column of class numbers; in a table, a column `labels`"
        )
    raise error
