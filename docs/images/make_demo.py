"""Draws demo.svg: what `modalhash demo` prints.

python docs/images/make_demo.py
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from modalhash.cli.demo import show

console = Console(record=True, width=96, highlight=False, file=io.StringIO(), color_system="truecolor")
console.print(Text("$ make demo", style="bold green"))
target = Path(__file__).resolve().with_name("demo.svg")
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    show(console, Path("demo"), bits=64, seed=0, fresh=True).close()
console.save_svg(str(target), title="modalhash", unique_id="demo")
# the theme asks a font host for its font: the picture has to work offline
lines = target.read_text(encoding="utf-8").splitlines()
kept, inside = [], False
for line in lines:
    inside = inside or line.strip().startswith("@font-face")
    if not inside:
        kept.append(line)
    if inside and line.strip() == "}":
        inside = False
target.write_text("\n".join(kept).replace("Fira Code", "ui-monospace, Menlo, Consolas") + "\n", encoding="utf-8")
