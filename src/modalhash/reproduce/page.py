"""The report as one HTML page that needs no other file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from modalhash.reproduce.document import Bullets, Claim, Claims, Entry, Figure, Grid, Report, Section

MARKS = {"confirmed": "✓", "not confirmed": "✗", "not testable": "–"}
_SHAPES = (
    (re.compile(r"\*\*(.+?)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*(?!\s)(.+?)(?<!\s)\*(?![\w*])"), r"<em>\1</em>"),
    (re.compile(r"`(.+?)`"), r"<code>\1</code>"),
)


def render(report: Report) -> str:
    """The whole page."""
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{inline(value)}</dd></div>" for name, value in report.summary)
    contents = "".join(f'<li><a href="#{escape(s.key)}">{escape(s.title)}</a></li>' for s in report.sections)
    body = "\n".join(_section(section) for section in report.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(report.title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{escape(report.title)}</h1>
<p class="subtitle">{inline(report.subtitle)}</p>
<dl>{facts}</dl>
</header>
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>
{body}
</main>
</body>
</html>
"""


def inline(text: str) -> str:
    """Escaped, with bold, italic and code."""
    found = escape(text, quote=False)
    for pattern, shape in _SHAPES:
        found = pattern.sub(shape, found)
    return found


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f'<section id="{escape(section.key)}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>'


def _block(block: str | Grid | Figure | Bullets | Claims) -> str:
    if isinstance(block, str):
        return f"<p>{inline(block)}</p>"
    if isinstance(block, Bullets):
        return f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in block.items)}</ul>"
    if isinstance(block, Figure):
        return _figure(block)
    return _claims(block) if isinstance(block, Claims) else _grid(block)


def _figure(figure: Figure) -> str:
    points = float(figure.svg.partition('viewBox="0 0 ')[2].partition(" ")[0] or 700)
    size = f'style="max-width:{1.5 * points:.0f}px"'  # a small drawing is not blown up
    svg = figure.svg.replace("<svg ", f'<svg role="img" aria-label="{escape(figure.alt)}" {size} ', 1)
    caption = f"<figcaption><b>{escape(figure.number)}.</b> {inline(figure.caption)}</figcaption>"
    return f'<figure><div class="scroll"><div class="drawing">{svg}</div></div>{caption}</figure>'


def _grid(grid: Grid) -> str:
    ends = _ends(grid)
    head = ""
    if grid.groups:
        over = "".join(
            f'<th colspan="{span}" scope="colgroup"><span>{inline(t)}</span></th>' for t, span in grid.groups
        )
        head = f'<tr class="groups"><td></td>{over}</tr>'
    names = "".join(f'<th scope="col"{_edge(j, ends)}>{inline(name)}</th>' for j, name in enumerate(grid.columns))
    head += f'<tr><th scope="col">{inline(grid.stub)}</th>{names}</tr>'
    body = "".join(_rows(title, rows, len(grid.columns), ends) for title, rows in grid.sections)
    caption = f"<b>{escape(grid.number)}.</b> {inline(grid.caption)}"
    table = f'<div class="scroll" tabindex="0"><table><thead>{head}</thead>{body}</table></div>'
    notes = "".join(f"<p>{inline(note)}</p>" for note in grid.notes)
    notes = f'<div class="notes">{notes}</div>' if notes else ""
    key = escape(grid.key)
    if grid.folded:
        return f'<details class="grid" id="{key}"><summary>{caption}</summary>{table}{notes}</details>'
    return f'<figure class="grid" id="{key}"><figcaption>{caption}</figcaption>{table}{notes}</figure>'


def _rows(title: str, rows: Sequence[tuple[str, Sequence[Entry]]], width: int, ends: set[int]) -> str:
    lines = (
        [f'<tr class="task"><th colspan="{width + 1}" scope="rowgroup"><span>{inline(title)}</span></th></tr>']
        if title
        else []
    )
    for label, entries in rows:
        ours = ' class="ours"' if label.partition(" ")[0] in ("AMSH", "AMSH_cnn") else ""
        cells = "".join(f"<td{_edge(j, ends)}>{_entry(entry)}</td>" for j, entry in enumerate(entries))
        lines.append(f'<tr{ours}><th scope="row">{inline(label)}</th>{cells}</tr>')
    return f"<tbody>{''.join(lines)}</tbody>"


def _entry(entry: Entry) -> str:
    text = inline(entry.text)
    mark = f'<i title="{"below" if entry.mark == "▼" else "above"} AMSH">{entry.mark}</i>' if entry.mark else ""
    below = f"<small>{escape(entry.below)}</small>" if entry.below else ""
    return f"<b>{text}</b>{mark}{below}" if entry.bold else f"{text}{mark}{below}"


def _ends(grid: Grid) -> set[int]:
    """First columns of the groups but the first: a little space stands before them."""
    starts, place = set(), 0
    for _, span in grid.groups[:-1]:
        place += span
        starts.add(place)
    return starts


def _edge(column: int, ends: set[int]) -> str:
    return ' class="edge"' if column in ends else ""


def _claims(block: Claims) -> str:
    return f'<h3>{escape(block.title)}</h3><div class="claims">{"".join(map(_claim, block.claims))}</div>'


def _claim(claim: Claim) -> str:
    findings = "".join(
        f'<li><span class="verdict {f.verdict.replace(" ", "-")}">{MARKS[f.verdict]} {f.verdict}</span> '
        f"<b>{escape(f.dataset)}</b> <span>{inline(f.evidence)}</span></li>"
        for f in claim.findings
    )
    where = f'<span class="where">{escape(claim.where)}</span>'
    return f"<article><p>{inline(claim.statement)} {where}</p><ul>{findings}</ul></article>"
