"""One table, four ways to show it; none of them without the protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "→": r"$\to$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "≤": r"$\le$",
    }
)


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under a title, with notes that say what was measured."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str]
    """The protocol comes first."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row has {len(row)} cells for {len(self.columns)} columns: {row}")
        if not self.notes:
            raise ValueError("a table without notes does not say what was measured; put the protocol there")

    def to_markdown(self) -> str:
        """Return a pipe table as GitHub reads it."""
        cells = [[text.replace("|", "\\|") for text in row] for row in self._texts()]
        aligned = ["---" if self._is_text(j) else "---:" for j in range(len(self.columns))]
        lines = [f"**{self.title}**", ""]
        lines += [_pipe(row) for row in (self.columns, aligned, *cells)]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.notes)]).rstrip() + "\n"

    def to_latex(self) -> str:
        """Return a ``table`` environment; it needs the package booktabs."""
        layout = "".join("l" if self._is_text(j) else "r" for j in range(len(self.columns)))
        body = [" & ".join(text.translate(_LATEX) for text in row) + r" \\" for row in (self.columns, *self._texts())]
        caption = ". ".join(text.rstrip(".") for text in (self.title, *self.notes)).translate(_LATEX) + "."
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{caption}}}",
                rf"\begin{{tabular}}{{{layout}}}",
                r"\toprule",
                body[0],
                r"\midrule",
                *body[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def to_json(self) -> str:
        """Return title, notes and one object per row; numbers keep all their digits."""
        rows = [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]
        return json.dumps({"title": self.title, "notes": list(self.notes), "rows": rows}, indent=2, ensure_ascii=False)

    def to_rich(self) -> Any:
        """Return a :class:`rich.table.Table`, for ``rich.print``."""
        from rich.markup import escape
        from rich.table import Table as RichTable

        table = RichTable(title=escape(self.title), caption=escape("\n".join(self.notes)), caption_justify="left")
        texts = self._texts()
        for j, column in enumerate(self.columns):
            whole = j == 0 or (self._is_text(j) and not any(" " in row[j] for row in texts))  # image→text is one word
            justify: Any = "left" if self._is_text(j) else "right"
            table.add_column(escape(column), justify=justify, overflow="fold", no_wrap=whole)
        for row in texts:
            table.add_row(*map(escape, row))
        return table

    def _texts(self) -> list[list[str]]:
        return [[_text(cell) for cell in row] for row in self.rows]

    def _is_text(self, column: int) -> bool:
        return any(isinstance(row[column], str) for row in self.rows)


def _text(cell: Any) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _plain(cell: Any) -> Any:
    return asdict(cell) if is_dataclass(cell) and not isinstance(cell, type) else cell


def _pipe(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
