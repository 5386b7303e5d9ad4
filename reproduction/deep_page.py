"""Table VI in docs/measurements/deep.md, made from results: measured rows, curves, CPU seconds, quoted rows.

    python -m reproduction table6 --results results/table6
    modalhash experiment pack --no-per-query results/table6 reproduction/results/table6.json.xz
    python -m reproduction.deep_page

The text between the marks of the page is replaced, and the figures under docs/images are written.
"""

from __future__ import annotations

from pathlib import Path

from modalhash.core.files import write_atomically
from modalhash.experiments import Results, seconds_table
from reproduction.document import Figure
from reproduction.published import load_all
from reproduction.report import experiment_section
from reproduction.study import Evidence

ROOT = Path(__file__).parents[1]
PAGE, IMAGES = ROOT / "docs" / "measurements" / "deep.md", ROOT / "docs" / "images"
PACKED = ROOT / "reproduction" / "results" / "table6.json.xz"
TABLE = "table6"
BEGIN, END = "<!-- measured: python -m reproduction.deep_page -->", "<!-- end of measured -->"


def measured() -> Evidence:
    """Return what the packed results hold."""
    return Evidence(Results(PACKED), load_all())


def page(text: str, found: Evidence) -> tuple[str, dict[str, str]]:
    """Return the page with the section of Table VI between its marks, and the figures by name."""
    lines: list[str] = []
    drawings: dict[str, str] = {}
    for block in experiment_section(found, TABLE, {}).blocks:
        if isinstance(block, Figure):
            drawings[f"{block.name}.svg"] = block.svg
            lines += [f"![{block.alt}](../images/{block.name}.svg)", "", block.caption, ""]
        else:
            lines += [block if isinstance(block, str) else block.to_markdown(), ""]
    for study in found.studies[TABLE].values():
        lines += [seconds_table(study).to_markdown().rstrip(), ""]
    head, _, rest = text.partition(BEGIN)
    return "\n".join([head + BEGIN, "", *lines]).rstrip("\n") + "\n\n" + END + rest.partition(END)[2], drawings


def main() -> None:
    """Write the page and its figures."""
    text, drawings = page(PAGE.read_text(encoding="utf-8"), measured())
    for name, svg in drawings.items():
        write_atomically(IMAGES / name, svg.encode())
    write_atomically(PAGE, text.encode())


if __name__ == "__main__":
    main()
