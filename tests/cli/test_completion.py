"""Completion in a shell, as the documentation sets it up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
SCRIPT = """
eval "$(_MODALHASH_COMPLETE=source_bash modalhash)"
complete -p modalhash
for words in "$@"; do
    COMP_WORDS=($words) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$words
    _modalhash_completion modalhash
    echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_commands_and_options(tmp_path):
    program = tmp_path / "modalhash"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'modalhash'\nfrom modalhash.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    page = (Path(__file__).parents[2] / "docs" / "walkthrough.md").read_text(encoding="utf-8")
    assert SCRIPT.split("\n")[1] in page, "the line of the documentation is tried here"
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [str(BASH), "-c", SCRIPT, "bash", "modalhash tra", "modalhash info --re"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    how, command, options = done.stdout.splitlines()
    assert "-F _modalhash_completion modalhash" in how
    assert "-o default" in how, "paths are completed by the shell"
    assert command == "train"
    assert options.split() == ["--report", "--read-only"]
