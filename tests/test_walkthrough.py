"""The walkthrough is a transcript: its commands run, in order, in a folder of their own, and print what the page shows.

A ```sh block is run, line by line; the ```text block after it, if there is one, is what it prints. Commands that are only
shown are in ```bash blocks. The photos and the table are made by the page's first ```python block. What differs from run
to run or from machine to machine (seconds, sizes, distances, the folder) is masked on both sides, and so is where lines
are broken. ``python tests/test_walkthrough.py`` puts what the commands print now into the page.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from modalhash.cli import app

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs" / "walkthrough.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
HOME = "/home/ada"
"""The folder, as the page calls it."""
MASKS = [
    (r"\s+", " "),
    (r"less than a second|about \d[\d,.]* (s|min|h)\b", "SOON"),
    (r"\b\d[\d,.]* (s|min|h)\b", "N s"),
    (r"\b\d[\d,.]* (MB|GB|bytes)\b", "N MB"),
    (r"here \d[\d,]*", "here N"),
    (r"(mAP|by chance) [\d.]+", r"\1 N"),  # which items are held out depends on the last bits of their features
    (r"\d+ codes", "N codes"),
    (r"/\d+\.png", "/N.png"),
    (r"\b\d+ (image|text) (photos|texts)", r"N \1 \2"),  # the distance of a hit
    (r"0\.\d+|\d+ ?%", "N"),
]


def masked(text: str) -> str:
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def run_line(line: str) -> str:
    """What a command prints: ``modalhash …``, perhaps with ``< FILE`` or ``; echo $?`` behind it."""
    command, shows_code, _ = line.partition("; echo $?")
    words = shlex.split(command, comments=True)
    given = None
    if "<" in words:
        given = Path(words[words.index("<") + 1]).read_text(encoding="utf-8")
        del words[words.index("<") :]
    assert words[0] == "modalhash", f"{line}: only modalhash is run; show other commands in a ```bash block"
    done = CliRunner().invoke(app, words[1:], input=given, env={"COLUMNS": "80"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if not shows_code:
        assert done.exit_code == 0, f"{line}: exit code {done.exit_code}\n{done.output}"
    return done.output.replace(os.getcwd(), HOME) + (f"{done.exit_code}\n" if shows_code else "")


def transcript(page: str) -> Iterator[tuple[str, str | None, str]]:
    """Run the page in the current folder; yield each block of commands, what it should print and what it prints."""
    made = False
    for found in BLOCK.finditer(page):
        kind, block, shown = found.groups()
        if kind == "sh":
            yield block, shown, "".join(map(run_line, block.splitlines()))
        elif not made:
            exec(compile(block, PAGE.name, "exec"), {})
            made = True


def test_commands_print_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    n = 0
    for commands, shown, printed in transcript(PAGE.read_text(encoding="utf-8")):
        if shown is not None:
            n += 1
            assert masked(printed) == masked(shown), f"{commands}prints now:\n\n{printed}"
    assert n >= 5


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("encode 1.5 s", "encode 12.25 s"),
        ("about 3 s", "less than a second"),
        ("8\timage\tphotos/a/1.png", "9 image photos/a/22.png"),
    ],
)
def test_masks_forget_what_differs(shown, printed):
    assert masked(shown) == masked(printed)


def test_masks_keep_what_matters():
    assert masked("120 image, 120 text; 5 labels") != masked("120 image, 119 text; 5 labels")


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for commands, shown, printed in transcript(text):
            if shown is not None and masked(shown) != masked(printed):
                text = text.replace(f"{commands}```\n\n```text\n{shown}```", f"{commands}```\n\n```text\n{printed}```")
        os.chdir(PAGE.parent)
    PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{PAGE} is up to date\n")
