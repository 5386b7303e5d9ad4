"""What the commands around an engine share: options as key=value, plain errors, problems, bars."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from modalhash.engine import Problem
    from modalhash.progress import Callback

SHOWN = 20
"""Problems that are printed; --json has all of them."""
PARTLY = 1
"""Exit code: done, but something was left out."""
ERROR = 2
"""Exit code: not done."""

EngineFolder = Annotated[Path, typer.Argument(metavar="ENGINE", help="Folder of the engine.", show_default=False)]
Field = Annotated[
    list[str] | None,
    typer.Option(
        help="What the manifest calls things, e.g. [b]text=caption[/b] or [b]image=file[/b]; may be repeated."
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first bad item instead of leaving it out.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads that read pictures; one per core by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run encoders that are not modalhash's, if the engine has some.")]


@contextmanager
def plain_errors() -> Iterator[None]:
    """What is wrong in one line and exit code 2; warnings as lines too."""
    from modalhash.store import StoreError

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except (ValueError, TypeError, KeyError, OSError, ImportError, StoreError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        say(f"error: {' '.join(str(text).split())}", colour="red")
        raise typer.Exit(ERROR) from error
    finally:
        for message in dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning):
            say(f"warning: {message}", colour="yellow")


@contextmanager
def progress_bars() -> Iterator[Callback | None]:
    """Bars on the terminal; nothing where there is none."""
    from rich.console import Console

    from modalhash.cli.bars import bars

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with bars(console) as callback:
        yield callback


def say(text: str, *, colour: str | None = None) -> None:
    """One line for a person, beside the output."""
    typer.secho(text, fg=colour, err=True)


def show_problems(problems: tuple[Problem, ...], source: object) -> None:
    """What was left out, by line."""
    if not problems:
        return
    say(f"{len(problems):,} left out of {source}:", colour="yellow")
    for problem in sorted(problems, key=lambda one: (one.source or "", one.line or 0))[:SHOWN]:
        say(f"  {printable(str(problem))}")
    if len(problems) > SHOWN:
        say(f"  … and {len(problems) - SHOWN:,} more; --json lists them all")


def plain_problems(problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    """Problems for JSON."""
    return [{key: value for key, value in vars(problem).items() if value is not None} for problem in problems]


def key_values(options: list[str] | None, option: str) -> dict[str, str]:
    """``["a=b"]`` to ``{"a": "b"}``."""
    found = {}
    for text in options or []:
        key, equals, value = text.partition("=")
        if not key or not equals or not value:
            raise ValueError(f"{option} {text!r}: expected key=value")
        found[key] = value
    return found


def printable(text: str) -> str:
    """One line without control characters: what items say must not steer the terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def is_terminal() -> bool:
    """Whether the output goes to a person."""
    return sys.stdout.isatty()
