"""Shared parts of the commands: signals, progress, options, errors and output for people."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from modalhash.core.progress import Progress, spoken

if TYPE_CHECKING:
    from rich.console import Console

    from modalhash.core.progress import Callback, Progress
    from modalhash.data import Dataset
    from modalhash.engine import Engine, Problem


SIGNALS = ("SIGTERM", "SIGHUP")
"""Signals that stop a command after it has cleaned up, as after Ctrl-C. Windows does not have SIGHUP."""
SIGNALLED = 128
"""Added to the signal number for the exit code, as in a shell: 143 for SIGTERM, 130 for Ctrl-C."""


class Terminated(SystemExit):
    """The command was stopped by a signal; a SystemExit, so that error handlers do not catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(SIGNALLED + number)
        self.name = signal.Signals(number).name


@contextmanager
def clean_stops() -> Iterator[None]:
    """Raise :class:`Terminated` in the block at the first stop signal; ignore later ones, to finish cleaning up.

    Signals that the parent process ignores stay ignored.
    """
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    own = [number for number, handler in before.items() if handler is signal.SIG_DFL]

    def stop(number: int, frame: FrameType | None) -> None:
        for each in own:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    for number in own:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in own:
            signal.signal(number, signal.SIG_DFL)


QUIET = "MODALHASH_QUIET"
"""Environment variable that turns off progress, unless it is empty or 0."""
EVERY = 5.0
"""Seconds between progress lines."""
MIN_STEPS = 3
"""Steps of a stage before its remaining time is estimated."""


class ProgressLines:
    """Callback that writes a progress line every few seconds, for logs, and one at the end of a stage.

    Stages that start and end between two lines write nothing.

    Examples
    --------
    >>> seconds = iter([0, 0, 6, 12, 13])
    >>> show = ProgressLines(print, clock=lambda: next(seconds))
    >>> for step in (0, 300, 600, 1000):
    ...     show(Progress("encode: image", step, 1000, seconds=0.0))
    encode: image 300 of 1,000 (30 %), about 14 s left
    encode: image 600 of 1,000 (60 %), about 8 s left
    encode: image 1,000 of 1,000 (100 %)
    """

    def __init__(self, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._begun: dict[str, tuple[float, int]] = {}
        self._shown: dict[str, bool] = {}
        self._last = clock()

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        began, first = self._begun.setdefault(progress.stage, (now, progress.step))
        ended = progress.step >= progress.total
        if now - self._last < EVERY and not (ended and self._shown.get(progress.stage)):
            return
        self._last, self._shown[progress.stage] = now, not ended
        share = f" ({progress.step / progress.total:.0%})".replace("%", " %") if progress.total else ""
        done, seconds, left = progress.step - first, now - began, ""
        if not ended and done >= MIN_STEPS and seconds > 0:
            left = f", about {spoken((progress.total - progress.step) * seconds / done)} left"
        self._write(f"{progress.stage} {progress.step:,} of {progress.total:,}{share}{left}")


EXIT_INCOMPLETE = 1
"""Exit code if some items were skipped."""
EXIT_ERROR = 2
"""Exit code after an error."""
_typed: ContextVar[list[str]] = ContextVar("typed", default=[])  # noqa: B039 - never changed in place
"""The words of the current command line."""
MAX_PROBLEMS = 20
"""Number of problems printed; --json lists all."""

EngineFolder = Annotated[Path, typer.Argument(metavar="ENGINE", help="Folder of the engine.", show_default=False)]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first bad item instead of skipping it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Do not show progress. Also the variable MODALHASH_QUIET.",
        callback=lambda value: _set_variable(QUIET, "1" if value else None),
    ),
]


def _set_variable(name: str, text: str | None) -> None:
    if text is not None:
        os.environ[name] = text


ReadMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory limit for reading a file, e.g. [b]2GB[/b]; by default 0.5 GB or 16 times its size. Also the "
        "variable MODALHASH_READ_MEMORY.",
        callback=lambda value: _set_variable("MODALHASH_READ_MEMORY", value),
    ),
]
ReadSeconds = Annotated[
    str | None,
    typer.Option(
        metavar="SECONDS",
        help="Time limit for reading a variable of a file; by default a minute, more for large files. Also the "
        "variable MODALHASH_READ_SECONDS.",
        callback=lambda value: _set_variable("MODALHASH_READ_SECONDS", value),
    ),
]


Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="ROLE=VARIABLE",
        help="Role of a variable in a file that is not recognised, e.g. [b]--map image=I_tr --map labels=L_tr[/b]; "
        "[b]image=I[/b] means I_tr and I_te. Also labels.image, ids, class_names, is_train; may be repeated.",
        show_default=False,
    ),
]


def file_mapping(texts: Iterable[str] | None) -> dict[str, Any]:
    """Parse ``--map``: ``labels.image=L`` sets the labels of one modality, ``[...]`` is JSON."""
    mapping: dict[str, Any] = {}
    for key, text in key_values(texts, "--map").items():
        value: Any = text
        if text[0] in "[{":
            try:
                value = json.loads(text)
            except ValueError as error:
                raise ValueError(f"--map {key}={text}: not JSON ({error})") from None
        role, _, modality = key.partition(".")
        if modality and role in ("labels", "ids"):
            of_role = mapping.setdefault(role, {})
            if not isinstance(of_role, dict):
                raise ValueError(f"--map {key}={text}: {role} are already given for all modalities")
            of_role[modality] = value
        elif isinstance(mapping.get(key), dict):
            raise ValueError(f"--map {key}={text}: {key} are already given by modality")
        else:
            mapping[key] = value
    return mapping


def key_values(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse a repeatable option: ``["a=b"]`` becomes ``{"a": "b"}``."""
    values: dict[str, str] = {}
    for text in texts or ():
        key, _, value = text.partition("=")
        if not key or not value:
            raise ValueError(f"{option} {text!r}: expected key=value")
        if key in values:
            raise ValueError(f"{option} {text!r}: {key} is already {values[key]!r}")
        values[key] = value
    return values


def key_any(texts: Iterable[str] | None, option: str) -> dict[str, Any]:
    """Parse as :func:`key_values`, with numbers, true, false, none and JSON converted."""
    return {key: _parse(value) for key, value in key_values(texts, option).items()}


def bits_or_auto(text: str) -> int | str:
    """Parse a code length; other texts are returned unchanged, for the library to check."""
    try:
        return int(text)
    except ValueError:
        return text


def _parse(text: str) -> Any:
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for parse in (int, float, json.loads):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def open_engine(folder: Path, *, trust: bool, **options: Any) -> Engine:
    """Open an engine with options of :meth:`Engine.open`; with ``trust``, also import from the current folder."""
    from modalhash.engine import Engine

    if trust:
        import_from_here()
    return Engine.open(folder, trust=trust, **options)


@contextmanager
def audited(what: str, folder: Path, **details: Any) -> Iterator[dict[str, Any]]:
    """Record a change in the engine's audit log, with the current user and what the block puts into the dict."""
    from modalhash.engine import audit_log, command_line_user

    creates = not folder.is_dir() or not any(folder.iterdir())
    with audit_log(folder).change(what, command_line_user(), creates=creates, **details) as result:
        yield result


def open_dataset(name: str, root: Path | None = None, mapping: dict[str, Any] | None = None) -> Dataset:
    """Read a data set: a file, else a named data set that is present, else a folder.

    ``mapping`` is the parsed ``--map``, or None for commands without it. If the layout of a file is not recognised, the
    error contains a command line with ``--map`` to copy.
    """
    from modalhash.data import ReadError, is_named, is_present, load_dataset, read

    path = Path(name)
    if mapping:
        return read(name, **mapping)
    if is_named(name) and not path.is_file() and (is_present(name, root) or not path.exists()):
        return load_dataset(name, root)
    if path.exists() or path.suffix:
        try:
            return read(name)
        except ReadError as error:
            if mapping is not None and error.mapping and (line := command_with(error.mapping)):
                error.add_note(
                    f"If the names and shapes of the variables are what they seem, this command reads it:\n  {line}"
                )
            raise
    return load_dataset(name, root)  # its error lists the names


def command_with(mapping: dict[str, str]) -> str:
    """Return the current command line with a mapping added, to copy; empty outside commands."""
    words = _typed.get()
    maps = [word for role, variable in mapping.items() for word in ("--map", f"{role}={variable}")]
    return shlex.join([*words, *maps]) if words else ""


def import_from_here() -> None:
    """Allow importing modules from the current folder; installed ones come first."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


def check_drawing(path: Path) -> None:
    """Raise if a figure could not be written, before anything is fitted."""
    from modalhash.core.imports import require

    kinds = (".svg", ".png", ".pdf")
    if path.suffix.lower() not in kinds:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(kinds)}")
    require("matplotlib", extra="plot", why="drawing curves")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path}: the folder {path.parent} is not writable; choose another one")


class Commands(TyperGroup):
    """Command group that prints user errors and warnings as single lines."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Store the command line for error messages that suggest a better one."""
        words = [info_name or "modalhash", *args]
        context = super().make_context(info_name, args, *rest, **extra)
        if context.parent is None:  # a nested group gets only the rest of the words
            _typed.set(words)
        return context

    def invoke(self, ctx: Any) -> Any:
        with user_errors():
            return super().invoke(ctx)


@contextmanager
def user_errors() -> Iterator[None]:
    """Print errors of the input in one line and exit with code 2; bugs keep their traceback."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except Exception as error:
            if not is_user_error(error):
                raise
            text = error.args[0] if isinstance(error, KeyError) else error  # str() would put it in quotes
            say(f"error: {' '.join(str(text).split())}", colour="red")
            for note in getattr(error, "__notes__", ()):
                say("\n".join(f"  {printable(line)}" for line in note.splitlines()))
            raise typer.Exit(EXIT_ERROR) from error
        finally:
            for message in dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning):
                say(f"warning: {message}", colour="yellow")


def is_user_error(error: Exception) -> bool:
    """Return whether the message of an exception is meant for the user."""
    if isinstance(error, BrokenPipeError):  # the reader closed the pipe; typer exits quietly
        return False
    if isinstance(error, KeyError):
        return bool(error.args) and " " in str(error.args[0])  # a sentence, not a key
    if isinstance(error, RuntimeError) and not isinstance(error, typer.Exit | typer.Abort):
        from modalhash.store import StoreError

        return isinstance(error, StoreError)
    return isinstance(error, ValueError | TypeError | OSError | ImportError)


def say(text: str, *, colour: str | None = None) -> None:
    """Print one line to stderr."""
    typer.secho(text, fg=colour, err=True)


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def is_quiet() -> bool:
    """Return whether --quiet or its variable is set."""
    return os.environ.get(QUIET, "") not in ("", "0")


@contextmanager
def progress_bars(
    on: Console | None = None, note: Callable[[Progress], str] | None = None
) -> Iterator[Callback | None]:
    """Yield a callback that draws one bar per stage, with a note or the objective.

    If stderr is not a terminal, a line is printed every few seconds instead; with ``--quiet`` (MODALHASH_QUIET),
    nothing.
    """
    on = console(stderr=True) if on is None else on
    if is_quiet():
        yield None
        return
    if on.stderr and not on.is_terminal:
        yield ProgressLines(say)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("  {task.description:<22}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Bars(*columns, console=on) as display:
        tasks = {}

        def show(progress: Progress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = display.add_task(progress.stage, total=progress.total, note="")
            if note is not None:
                text = note(progress)
            else:
                text = "" if progress.objective is None else f"objective {progress.objective:,.1f}"
            display.update(tasks[progress.stage], completed=progress.step, total=progress.total, note=text)

        yield show


def rate_and_time_left(progress: Progress) -> str:
    """Return a note for :func:`progress_bars`: steps per second and remaining time."""
    if not progress.step or progress.seconds <= 0:
        return ""
    rate, left = progress.step / progress.seconds, progress.total - progress.step
    return f"{rate:,.0f} a second" + (f", {spoken(left / rate)} left" if left else "")


def describe_labels(facts: dict[str, Any]) -> str:
    return "learned without labels" if facts["labels"] == "none" else f"{facts['classes']} labels"


def describe_named_labels(facts: dict[str, Any]) -> list[str]:
    """Describe which texts were given labels that they contain, one line per modality."""
    lines = []
    for modality, found in (facts["named_labels"] or {}).items():
        shown = "; ".join(f"{label!r} {n:,} times, as by {word!r}" for label, (word, n) in found["examples"].items())
        lines.append(
            f"{found['labelled']:,} of {found['texts']:,} {modality} items without labels name {found['labels']:,} "
            f"labels, which are used in training but not stored{': ' + shown if shown else ''}"
        )
    return lines


def describe_overlap(facts: dict[str, Any]) -> list[str]:
    """Describe in one line which labels the modalities do not share; empty if they share all."""
    from modalhash.engine import describe_label_overlap

    overlap = facts.get("label_overlap")
    if overlap is None or overlap["shared"] == overlap["labels"]:
        return []
    return [describe_label_overlap(overlap)]


def describe_codes(facts: dict[str, Any]) -> str:
    """Describe the code length of an engine and how its label sets share codes."""
    text, shared = f"{facts['n_bits']} bits", facts["collisions"]
    if shared is None:  # not trained from labels
        return text
    text += f": {facts['label_sets']:,} label sets, {shared['codes']:,} codes"
    if not shared["pairs"]:
        return f"{text}; no two label sets share a code"
    pairs = "1 pair of label sets shares" if shared["pairs"] == 1 else f"{shared['pairs']:,} pairs of label sets share"
    few, none = (f"{shared[name]:,}" if shared[name] else "none" for name in ("conflicting", "disjoint"))
    kinds = f"{few} with less than half of their labels in common, {none} without a common label"
    return (
        f"{text}; {pairs} a code, {kinds}; {shared['misplaced']:,} of {shared['items']:,} items have a code of others"
    )


def show_problems(problems: tuple[Problem, ...], sources: list[str]) -> None:
    if not problems:
        return
    more = f" and {len(sources) - 3:,} more" if len(sources) > 3 else ""
    say(f"{len(problems):,} skipped from {', '.join(sources[:3])}{more}:", colour="yellow")
    list_problems(sorted(problems, key=lambda one: (one.source or "", one.line or 0)))


def list_problems(problems: Sequence[Problem]) -> None:
    for problem in problems[:MAX_PROBLEMS]:
        say(f"  {describe_problem(problem)}")
    if len(problems) > MAX_PROBLEMS:
        say(f"  … and {len(problems) - MAX_PROBLEMS:,} more; --json lists them all")


def describe_problem(problem: Problem) -> str:
    """Describe a problem in one line, with paths relative to the current folder."""
    if problem.path is not None and Path(problem.path).is_relative_to(Path.cwd()):
        problem = replace(problem, path=str(Path(problem.path).relative_to(Path.cwd())))
    return printable(str(problem))


def problems_as_json(problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    """Return problems as JSON values, without empty fields."""
    known = [{key: value for key, value in vars(one).items() if value is not None} for one in problems]
    return [{key: value.value if isinstance(value, Enum) else value for key, value in one.items()} for one in known]


def print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    if any("\ud800" <= sign <= "\udfff" for sign in text):  # surrogates cannot be encoded as UTF-8
        text = json.dumps(value, indent=1)
    typer.echo(text)


def printable(text: str) -> str:
    """Replace control characters, which could control the terminal or break lines."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
