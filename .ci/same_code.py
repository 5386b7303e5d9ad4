"""Check that only words changed, by comparing syntax trees without docstrings and comments.

    python .ci/same_code.py [--messages] [--base REVISION] [FILE ...]

Compares the given Python files, or all that differ, with a revision of git (HEAD by default). ``--messages`` also
accepts other texts in strings: it lists each changed text for review, and f-strings must keep their expressions.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


class Bare(ast.NodeTransformer):
    """Removes docstrings, including those of attributes, and collects texts that users read."""

    def __init__(self, messages: bool) -> None:
        self.messages, self.texts = messages, []

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        if not self.messages:
            return self.generic_visit(node)
        self.texts.append(ast.unparse(node))
        values = sorted(ast.unparse(part) for part in node.values if isinstance(part, ast.FormattedValue))
        return ast.Constant(f"f-string of {values}")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self.messages and isinstance(node.value, str) and " " in node.value.strip():
            self.texts.append(repr(node.value))
            return ast.Constant("text")
        return node


def bare(source: str, messages: bool) -> tuple[str, list[str]]:
    """Return the code of a file without docstrings, and its texts."""
    remover = Bare(messages)
    tree = remover.visit(ast.parse(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = [part for part in node.body if ast.unparse(part) not in ("...", "pass")] or [ast.Pass()]
    return ast.dump(ast.parse(ast.unparse(ast.fix_missing_locations(tree)))), remover.texts


def differences(path: str, base: str, messages: bool) -> Iterator[str]:
    """Yield what changed in a file except docstrings and comments."""
    old, old_texts = bare(git("show", f"{base}:{path}"), messages)
    new, new_texts = bare((ROOT / path).read_text("utf-8"), messages)
    if old != new:
        yield f"{path}: the code differs"
    elif messages:
        for before, after in zip_longest(old_texts, new_texts, fillvalue=""):
            if before != after:
                print(f"{path}:\n  - {before}\n  + {after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--messages", action="store_true", help="accept other texts in strings, and list them")
    parser.add_argument("--base", default="HEAD")
    args = parser.parse_args()
    changed = args.files or git("diff", "--name-only", "--diff-filter=M", args.base, "--", "*.py").split()
    found = [line for path in changed for line in differences(path, args.base, args.messages)]
    print("\n".join(found) if found else f"{len(changed)} files: the same code")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
