"""What a report is made of, before it is HTML or Markdown. Texts may hold Markdown's bold, italic and code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


def signed(value: float, digits: int) -> str:
    """With its sign, a real minus.

    Examples
    --------
    >>> signed(-0.25, 3), signed(0.5, 1)
    ('−0.250', '+0.5')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Entry:
    """One cell of a table: a number, what stands below it, a mark."""

    text: str = "–"
    below: str = ""
    bold: bool = False
    mark: str = ""
    shade: float | None = None
    """0 to 1, for a table that is read as a picture."""


@dataclass(frozen=True)
class Grid:
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
    key: str = ""
    folded: bool = False
    """Shown on demand."""

    def __post_init__(self) -> None:
        for _, rows in self.sections:
            for label, entries in rows:
                if len(entries) != len(self.columns):
                    raise ValueError(
                        f"{self.caption}: {label} has {len(entries)} cells for {len(self.columns)} columns"
                    )
        if self.groups and sum(span for _, span in self.groups) != len(self.columns):
            raise ValueError(f"{self.caption}: the groups do not cover the columns")


@dataclass(frozen=True)
class Figure:
    """A drawing."""

    name: str
    number: str
    caption: str
    svg: str
    alt: str
    wide: bool = True


@dataclass(frozen=True)
class Bullets:
    """A list of texts."""

    items: Sequence[str]


@dataclass(frozen=True)
class Finding:
    """What the results say about a claim, on one data set."""

    dataset: str
    verdict: str
    """``"confirmed"``, ``"not confirmed"`` or ``"not testable"``."""
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


@dataclass(frozen=True)
class Section:
    """A chapter of the report."""

    key: str
    title: str
    blocks: Sequence[str | Grid | Figure | Bullets | Claims] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """All of it."""

    title: str
    subtitle: str
    summary: Sequence[tuple[str, str]]
    """Facts for the head: name and value."""
    sections: Sequence[Section]
