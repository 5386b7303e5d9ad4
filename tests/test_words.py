"""Prose uses the standard words: CONTRIBUTING.md lists those to avoid, and none of them is in code or documentation."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"^\| avoid \| write \|\n\|---\|---\|\n((?:\|.*\|\n)+)", re.MULTILINE)
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
AVOID = [row.split("|")[1].strip() for row in TABLE.search(CONTRIBUTING)[1].splitlines()]
WORDS = re.compile(
    r"\b(" + "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in AVOID) + r")\b", re.IGNORECASE
)
PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "benchmarks" / "README.md"]
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "reproduction").rglob("*.py"), *(ROOT / ".ci").glob("*.py")]


def prose(path: Path) -> str:
    """Return the docstrings, comments and messages of a file, or the text of a page without its code."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    strings = [value for value in strings if isinstance(value, str) and " " in value.strip()]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string.lstrip("#") for token in tokens if token.type == tokenize.COMMENT]
    return re.sub(r"``[^`]*``|`[^`\n]*`", "", "\n".join([*strings, " ".join(comments)]))


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_words_to_avoid_do_not_occur(path):
    matches = [match[0] for match in WORDS.finditer(prose(path))]
    found = sorted({match.lower() for match in matches if not match.endswith("None")})
    assert not found, f"{path.relative_to(ROOT)}: {', '.join(found)}; CONTRIBUTING.md says what to write instead"


def test_the_list_is_found_and_long():
    assert len(AVOID) >= 45
    assert WORDS.findall("nothing is computed anew") == ["anew"]


def test_contributing_keeps_to_its_list():
    assert not WORDS.findall(TABLE.sub("", CONTRIBUTING))
