"""Docstrings as the reference shows them: what is reStructuredText in them becomes Markdown.

``help()`` and editors show a docstring as it is written, with roles such as ``:class:`` and formulas below
``.. math::``. mkdocstrings takes it for Markdown, and numpydoc's ``name : type`` for the place of a type, where this
project often has the description. This extension of griffe rewrites a docstring before it is parsed:

- a role becomes a link, if what it names is in the reference, and else code;
- a formula becomes one that the page renders;
- ``name : what it is`` becomes a name with a description, so that the type is that of the signature;
- a class whose fields are declared by an ``Option`` has the docstring that is made from them when it is imported.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|attr|data|mod|exc|obj):`([^`]+)`")
FORMULA = re.compile(r":math:`([^`]+)`")
BLOCK = re.compile(r"^( *)\.\. math::[ ]*(.*(?:\n(?:\1 +.*|[ ]*(?=\n\1 )))*)", re.MULTILINE)
FOOTNOTE = re.compile(r"^( *)\.\. \[(\w+)\] ", re.MULTILINE)
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
NAMED = re.compile(r"^((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*) ?: ?(\S.*)$")
LONGEST_TYPE, LONGEST_FORMULA = 70, 90  # characters


class Docstrings(griffe.Extension):
    """Rewrites every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through all objects of a package."""
        _visit(pkg)


def _visit(thing: griffe.Object) -> None:
    if isinstance(thing, griffe.Class) and "Options" in {base.name for base in thing.mro()}:
        _document_options(thing)
    if thing.docstring is not None:
        thing.docstring.value = as_markdown(thing.docstring.value, thing)
    for member in thing.members.values():
        if not member.is_alias:
            _visit(member)  # type: ignore[arg-type]


def _document_options(thing: griffe.Class) -> None:
    """Give a class the docstring that it has when it is imported, and its fields their types without the option."""
    imported = getattr(import_module(thing.module.path), thing.name)
    thing.docstring = griffe.Docstring(inspect.getdoc(imported) or "", parent=thing)
    for field in (*thing.attributes.values(), *thing.parameters):
        declared = field.annotation
        if isinstance(declared, griffe.ExprName) and (alias := thing.module.attributes.get(declared.name)) is not None:
            declared = alias.value
        if isinstance(declared, griffe.ExprSubscript) and str(declared.left) == "Annotated":
            field.annotation = declared.slice.elements[0]  # type: ignore[union-attr]


def as_markdown(text: str, thing: griffe.Object | None = None) -> str:
    """Return a docstring as Markdown with numpydoc's sections."""
    text = BLOCK.sub(_block, text)
    text = FORMULA.sub(lambda match: f"${_joined(match[1])}$", text)
    text = ROLE.sub(lambda match: _link(_joined(match[1]), thing), text)
    text = FOOTNOTE.sub(r"\1[\2] ", text)
    return _with_descriptions(text, thing)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _block(match: re.Match[str]) -> str:
    """Return a formula that stands alone, on lines of its own; a long one goes on where it does in the docstring."""
    indent = match[1]
    rows = [" ".join(line.split()) for line in match[2].split("\n") if line.strip()]
    body = " ".join(rows)
    if r"\begin" not in body and r"\\" in body:
        body = rf"\begin{{aligned}} {body} \end{{aligned}}"
    elif r"\begin" not in body and len(body) > LONGEST_FORMULA and all(row[0] in "+-" for row in rows[1:]):
        body = r"\begin{aligned} & " + r" \\ & \quad ".join(rows) + r" \end{aligned}"
    return f"\n{indent}$$\n{indent}{body}\n{indent}$$\n"


def _link(target: str, thing: griffe.Object | None) -> str:
    """Return a link to what a role names, which is plain code where the reference does not have it."""
    shown = target.removeprefix("~")
    name = shown.rpartition(".")[2] if target.startswith("~") or shown.startswith("modalhash.") else shown
    if thing is not None and not shown.startswith("modalhash."):
        try:
            shown = thing.resolve(shown)
        except griffe.NameResolutionError:
            return f"`{shown}`"
    return f'<autoref identifier="{shown}" optional><code>{name}</code></autoref>'


def _with_descriptions(text: str, thing: griffe.Object | None) -> str:
    """Return a docstring in whose sections what describes a name stands below it."""
    heads = list(SECTION.finditer(text))
    pieces = [text[: heads[0].start()] if heads else text]
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        body = text[head.end() : end]
        if head[1] in ("Parameters", "Attributes"):
            body = _described(body)
        elif head[1] == "Returns":
            body = _returned(body, thing)
        pieces.append(head[0] + body)
    return "".join(pieces)


def _described(body: str) -> str:
    found: list[str] = []
    for entry in re.split(r"\n(?=\S)", body):
        line, _, rest = entry.partition("\n")
        match = NAMED.match(line)
        if match is None or _is_type(match[2], rest.partition("\n")[0]):
            found.append(entry)
        else:  # names that share a description have it each, with a type of their own
            text = f"    {match[2]}\n{rest}".rstrip("\n")
            found.append(
                "\n".join(f"{name}\n{text}" for name in match[1].split(", ")) + entry[len(entry.rstrip("\n")) :]
            )
    return "\n".join(found)


def _is_type(text: str, following: str) -> bool:
    """Return whether a text after a colon is a type: a description follows that is a sentence of its own."""
    sentence = following.startswith("    ") and following.strip()[:1].isupper()
    return sentence and len(text) <= LONGEST_TYPE and not text.endswith(".") and ";" not in text


def _returned(body: str, thing: griffe.Object | None) -> str:
    """Return what is given back with the type of the signature, where only its description is written."""
    if thing is None or not thing.is_function or any(line.startswith(" ") for line in body.split("\n")):
        return body
    annotation = getattr(thing, "returns", None)
    if annotation is None:
        return body
    content, blank, rest = body.strip("\n").partition("\n\n")
    indented = "\n".join(f"    {line}" for line in content.split("\n"))
    return f"{annotation}\n{indented}\n{blank}{rest}\n"
