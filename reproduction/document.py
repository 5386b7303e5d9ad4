"""Parts of a report, written as one Markdown document with its figures as SVG files next to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modalhash.core.files import write_atomically
from modalhash.evaluation import Table


def signed(value: float, digits: int) -> str:
    """Write a number with its sign, a real minus.

    Examples
    --------
    >>> signed(-0.25, 3), signed(0.5, 1)
    ('−0.250', '+0.5')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Entry:
    """One cell of a table: a number, a line below it, a mark."""

    text: str = "–"
    below: str = ""
    bold: bool = False
    mark: str = ""

    def to_markdown(self) -> str:
        """Return number, deviation and mark on one line."""
        text = f"{self.text} {self.below}".strip() + (f" {self.mark}" if self.mark else "")
        return f"**{text}**" if self.bold else text


@dataclass(frozen=True)
class GroupedTable:
    """A table with grouped columns and sections of rows."""

    number: str
    caption: str
    stub: str
    columns: Sequence[str]
    sections: Sequence[tuple[str, Sequence[tuple[str, Sequence[Entry]]]]]
    """Heading of the section ("" for none) and its rows: label and entries."""
    groups: Sequence[tuple[str, int]] = ()
    """Headings over runs of columns."""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for _, rows in self.sections:
            for label, entries in rows:
                if len(entries) != len(self.columns):
                    raise ValueError(
                        f"{self.caption}: {label} has {len(entries)} cells for {len(self.columns)} columns"
                    )
        if self.groups and sum(span for _, span in self.groups) != len(self.columns):
            raise ValueError(f"{self.caption}: the groups do not cover the columns")

    def to_markdown(self) -> str:
        """Return a flat table: groups become part of the column's name, sections of the row's."""
        heads: list[str] = []
        for title, span in self.groups:
            start = len(heads)
            heads += [f"{title}: {name}" for name in self.columns[start : start + span]]
        rows = [
            [f"{label} ({heading})" if heading else label, *(entry.to_markdown() for entry in entries)]
            for heading, lines in self.sections
            for label, entries in lines
        ]
        title = f"{self.number}. {self.caption}".replace("**", "")
        columns = [self.stub or " ", *(heads or self.columns)]
        return Table(title, columns, rows, list(self.notes) or [" "]).to_markdown().rstrip()


@dataclass(frozen=True)
class Figure:
    """A drawing. The report shows the main ones; the others are on a separate page."""

    name: str
    number: str
    caption: str
    svg: str
    alt: str
    main: bool = False

    def to_markdown(self) -> str:
        """Return a link to the file, with its caption."""
        return f"![{self.alt}](figures/{self.name}.svg)\n\n**{self.number}.** {self.caption}"


@dataclass(frozen=True)
class Bullets:
    """A list of texts."""

    items: Sequence[str]

    def to_markdown(self) -> str:
        """Return an item a line."""
        return "\n".join(f"- {item}" for item in self.items)


@dataclass(frozen=True)
class Finding:
    """The verdict on a claim on one data set."""

    dataset: str
    verdict: str
    """``"holds"``, ``"does not hold"`` or ``"cannot be judged"``."""
    evidence: str


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what was found."""

    statement: str
    where: str
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Claims:
    """Several claims under one heading."""

    title: str
    claims: Sequence[Claim]

    def to_markdown(self) -> str:
        """Return a table with a row per claim and data set."""
        rows = [
            [claim.statement, finding.dataset, f"**{finding.verdict}**", finding.evidence]
            for claim in self.claims
            for finding in claim.findings
        ]
        sections = sorted({claim.where for claim in self.claims})
        columns = ["the paper says", "data", "here", "evidence"]
        notes = [f"Sections {'; '.join(sections)} of the paper."]
        return Table(self.title, columns, rows, notes).to_markdown().rstrip()


Block = str | GroupedTable | Figure | Bullets | Claims


@dataclass(frozen=True)
class Section:
    """A chapter of the report."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """A complete report."""

    title: str
    subtitle: str
    summary: Sequence[tuple[str, str]]
    """Facts for the head: name and value."""
    sections: Sequence[Section]

    @property
    def figures(self) -> list[Figure]:
        """All figures, in their order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]

    def to_markdown(self) -> str:
        """Return the document, with the main figures."""
        lines = [f"# {self.title}", "", self.subtitle, ""]
        lines += [f"- **{name}**: {value}" for name, value in self.summary]
        lines.append("")
        for section in self.sections:
            lines += [f"## {section.title}", ""]
            for block in section.blocks:
                if isinstance(block, Figure) and not block.main:
                    continue
                lines += [block if isinstance(block, str) else block.to_markdown(), ""]
        if any(not figure.main for figure in self.figures):
            lines += [
                "## More figures",
                "",
                "Those of the other data sets are on [a page of their own](more/figures.md).",
                "",
            ]
        return "\n".join(lines).rstrip() + "\n"

    def more_figures(self) -> str:
        """Return a page with the figures that are not in the document."""
        lines = [f"# {self.title}: more figures", "", "The numbers are in [the report](../report.md).", ""]
        for figure in self.figures:
            if not figure.main:
                lines += [figure.to_markdown(), ""]
        return "\n".join(lines).rstrip() + "\n"


def write(report: Report, folder: Path) -> list[Path]:
    """Write ``report.md`` with its figures, and the other figures with their page under ``more/``.

    Figures of an earlier report that this one does not have are removed.
    """
    pages = {folder / "report.md": report.to_markdown()}
    if any(not figure.main for figure in report.figures):
        pages[folder / "more" / "figures.md"] = report.more_figures()
    drawings = {
        (folder if figure.main else folder / "more") / "figures" / f"{figure.name}.svg": figure.svg
        for figure in report.figures
    }
    for old in [*folder.glob("figures/*.svg"), *folder.glob("more/figures/*.svg")]:
        if old not in drawings:
            old.unlink()
    for path, text in (pages | drawings).items():
        write_atomically(path, text.encode())
    return list(pages)
