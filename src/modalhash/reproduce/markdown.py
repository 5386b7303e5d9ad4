"""The report as Markdown, figures beside it."""

from __future__ import annotations

from modalhash.evaluation import Table
from modalhash.reproduce.document import Bullets, Claims, Entry, Figure, Grid, Report


def render(report: Report) -> str:
    """One page; figures are links to ``figures/*.svg``."""
    lines = [f"# {report.title}", "", report.subtitle, ""]
    lines += [f"- **{name}**: {value}" for name, value in report.summary]
    lines.append("")
    for section in report.sections:
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += [_block(block), ""]
    return "\n".join(lines).rstrip() + "\n"


def _block(block: str | Grid | Figure | Bullets | Claims) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, Bullets):
        return "\n".join(f"- {item}" for item in block.items)
    if isinstance(block, Figure):
        return f"![{block.alt}](figures/{block.name}.svg)\n\n**{block.number}.** {block.caption}"
    return _claims(block) if isinstance(block, Claims) else _grid(block)


def _grid(grid: Grid) -> str:
    heads: list[str] = []
    for title, span in grid.groups:
        start = len(heads)
        heads += [f"{title}: {name}" for name in grid.columns[start : start + span]]
    rows = [
        [f"{label} ({heading})" if heading else label, *map(_entry, entries)]
        for heading, lines in grid.sections
        for label, entries in lines
    ]
    title = f"{grid.number}. {grid.caption}".replace("**", "")
    columns = [grid.stub or " ", *(heads or grid.columns)]
    return Table(title, columns, rows, list(grid.notes) or [" "]).to_markdown().rstrip()


def _entry(entry: Entry) -> str:
    text = f"{entry.text} {entry.below}".strip() + (f" {entry.mark}" if entry.mark else "")
    return f"**{text}**" if entry.bold else text


def _claims(block: Claims) -> str:
    rows = [
        [claim.statement, finding.dataset, f"**{finding.verdict}**", finding.evidence]
        for claim in block.claims
        for finding in claim.findings
    ]
    sections = sorted({claim.where for claim in block.claims})
    columns = ["the paper says", "data", "here", "evidence"]
    return Table(block.title, columns, rows, [f"Sections {'; '.join(sections)} of the paper."]).to_markdown().rstrip()
