"""What `modalhash demo` prints, as a picture.

    python benchmarks/screenshots/terminal.py docs/images/demo.svg     # make screenshots

tests/cli/test_demo_words.py compares the text of the picture with what a fresh demonstration prints. Progress bars are
left out: they differ from run to run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree

from rich.console import Console
from rich.text import Text

from modalhash.cli.demo import show

PICTURE = "demo.svg"
WIDTH = 96


def record_demo(folder: Path) -> Console:
    """Run the demonstration up to its page, training included; return the console that has recorded what it printed."""
    console = Console(record=True, width=WIDTH, highlight=False, file=io.StringIO(), color_system="truecolor")
    console.print(Text("$ make demo", style="bold green"))
    with patch.dict(os.environ, MODALHASH_QUIET="1"):
        show(console, folder, fresh=True).close()
    return console


def save_picture(console: Console, path: Path) -> None:
    """Save what was printed as an SVG that needs no network."""
    svg = console.export_svg(title="modalhash", unique_id="demo", clear=False)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # the theme fetches its font from a host
    svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas")
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


def picture_text(path: Path) -> str:
    """Return what is written on such a picture, without white space."""
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    texts = root.iterfind(".//{*}g[@class='demo-matrix']/{*}text")
    return "".join("".join(text.text or "" for text in texts).split())


if __name__ == "__main__":
    picture = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        save_picture(record_demo(Path("demo")), picture)
