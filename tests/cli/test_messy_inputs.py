"""Inputs as people have them: what each says, with which exit code.

A row of :data:`ROWS` is one messy input. Its ``make`` gets a folder that has ``photos/`` (pictures in subfolders that are
their labels) and ``texts.csv`` (texts with the same labels), changes them, and returns the arguments of the command.
To add a row, write such a function above the table, add the row, and bring the page up to date by
``python tests/cli/test_messy_inputs.py``: docs/messy-inputs.md has the same rows.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from modalhash.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "messy-inputs.md"
START, END = "<!-- rows -->", "<!-- end of rows -->"
COLOURS = {"red": (220, 30, 30), "green": (30, 180, 40), "blue": (30, 40, 220)}
LABELS = tuple(COLOURS)
SOURCES = ("photos", "texts.csv")


def make_sources(folder: Path, per_label: int = 6) -> None:
    """Write ``photos/LABEL/N.png`` and ``texts.csv``: a few of each label, nothing wrong with any."""
    image = pytest.importorskip("PIL.Image")
    rows = ["text,labels"]
    for label, colour in COLOURS.items():
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(per_label):
            picture = image.new("RGB", (16, 16), tuple(max(0, part - 9 * number) for part in colour))
            picture.save(folder / "photos" / label / f"{number}.png")
            rows.append(f"a {label} thing of number {number},{label}")
    (folder / "texts.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


class Messy(NamedTuple):
    """One messy input."""

    input: str
    """What it is, for the page."""
    make: Callable[[Path], tuple[str, ...]]
    """Changes the sources in a folder and returns the arguments after the command; paths are relative to the folder."""
    says: str
    """Part of what is printed, with any white space as one space."""
    exit_code: int
    command: str = "check"


def nothing_wrong(folder: Path) -> tuple[str, ...]:
    return SOURCES


def append(folder: Path, *lines: str) -> tuple[str, ...]:
    """Add lines to the table."""
    with (folder / "texts.csv").open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return SOURCES


def table_of(name: str, *lines: str) -> Callable[[Path], tuple[str, ...]]:
    """Make a table of these lines, to read together with the photos."""

    def make(folder: Path) -> tuple[str, ...]:
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return "photos", name

    return make


def with_lines(*lines: str) -> Callable[[Path], tuple[str, ...]]:
    """Add lines to the table of texts."""
    return lambda folder: append(folder, *lines)


def with_folder(old: str, new: str) -> Callable[[Path], tuple[str, ...]]:
    """Give a folder of photos, which is their label, another name."""

    def make(folder: Path) -> tuple[str, ...]:
        (folder / "photos" / old).rename(folder / "photos" / new)
        return SOURCES

    return make


def with_options(*options: str) -> Callable[[Path], tuple[str, ...]]:
    return lambda folder: (*SOURCES, *options)


def capitals(folder: Path) -> tuple[str, ...]:
    text = (folder / "texts.csv").read_text(encoding="utf-8")
    for label in LABELS:
        text = text.replace(f",{label}\n", f",{label.title()}\n")
    (folder / "texts.csv").write_text(text, encoding="utf-8")
    return SOURCES


def other_accents(folder: Path) -> tuple[str, ...]:
    """The folder as a Mac names it, the accent a character of its own; the table as other systems write it."""
    (folder / "photos" / "red").rename(folder / "photos" / unicodedata.normalize("NFD", "rosé"))
    return append(
        folder, *(f"a rosé thing of number {number},{unicodedata.normalize('NFC', 'rosé')}" for number in range(6))
    )


def in_latin_1(folder: Path) -> tuple[str, ...]:
    text = (folder / "texts.csv").read_text(encoding="utf-8").replace("thing", "Gefäß aus Glas")
    (folder / "texts.csv").write_bytes(text.encode("latin-1"))
    return SOURCES


def cut_picture(folder: Path) -> tuple[str, ...]:
    path = folder / "photos" / "red" / "0.png"
    path.write_bytes(path.read_bytes()[:-30])
    return SOURCES


def empty_picture(folder: Path) -> tuple[str, ...]:
    (folder / "photos" / "red" / "0.png").write_bytes(b"")
    return SOURCES


def no_picture(folder: Path) -> tuple[str, ...]:
    (folder / "photos" / "red" / "0.png").write_text("<html>404</html>")
    return SOURCES


def no_pictures(folder: Path) -> tuple[str, ...]:
    for path in (folder / "photos").rglob("*.png"):
        path.write_bytes(b"")
    return SOURCES


def nothing_usable(folder: Path) -> tuple[str, ...]:
    return table_of("empty.csv", "text,labels", ",red", ",red", "a,b,c")(folder)[1:]


ROWS = [
    Messy("nothing wrong", nothing_wrong, "No problems found.", 0),
    # labels
    Messy(
        "labels of photos in small letters, of texts with capitals",
        capitals,
        "'blue' and 'Blue' are one label: shown as 'blue'; 'green' and 'Green' are one label: shown as 'green'; "
        "'red' and 'Red' are one label: shown as 'red'",
        0,
    ),
    Messy(
        "photos and texts with other labels",
        table_of("de.csv", "text,labels", *(f"ein Ding {number},Haus" for number in range(9))),
        "'image' and 'text' have no label in common, so nothing relates them. Give them the same labels, "
        "use another column (--field labels=COLUMN), or learn without labels (--labels none)",
        2,
    ),
    Messy(
        "a label typed in two ways", with_lines("a red thing,Red"), "'red' and 'Red' are one label: shown as 'red'", 0
    ),
    Messy(
        "a folder whose name ends in a blank",
        with_folder("red", "red "),
        "'red ' and 'red' are one label: shown as 'red'",
        0,
    ),
    Messy("an accent as a Mac stores it in names of folders", other_accents, "(accents stored in two ways)", 0),
    Messy(
        "a comma between labels, in one cell",
        with_lines('a thing,"red, blue"'),
        "labels that look like several in one: 'red, blue' (1). In a table, ';' separates labels",
        1,
    ),
    Messy(
        "a label that hardly any item has",
        with_lines("a pink thing,pink"),
        "1 of 4 labels are rare (fewer than 5 items): 'pink' (1)",
        0,
    ),
    Messy(
        "a table without labels",
        table_of("bare.csv", "text", "a red thing", "a blue thing", "something"),
        "'text': none of 3 items has a label. Give labels to some, leave this modality out of the manifest, use "
        "labels='names' (--labels names), because 2 of 3 texts name labels of the others, or learn without labels with "
        "labels='none' (--labels none)",
        2,
    ),
    # texts and lines
    Messy(
        "a table in Latin-1",
        in_latin_1,
        "texts.csv: not in UTF-8; read as windows-1252, e.g. 'Gefäß'. If that looks wrong, name the encoding: "
        "--encoding (table=TableFormat(encoding=…))",
        1,
    ),
    Messy("an empty text", with_lines("  ,red"), "texts.csv, line 20: texts.csv:20: the text is empty", 1),
    Messy(
        "a text without a word", with_lines("???,red"), "texts.csv, line 20: texts.csv:20: no word in the text '???'", 1
    ),
    Messy(
        "a duplicate id",
        table_of("ids.csv", "id,text,labels", *(f"{n // 2 if n < 2 else n},a red thing {n},red" for n in range(6))),
        "ids.csv, line 3: 0: the id '0' is already in line 2; the first one is used",
        1,
    ),
    Messy(
        "a comma that is not within quotes",
        with_lines("a red thing, and a blue one,red"),
        "texts.csv, line 20: not 2 columns as in line 1 but 3; is a text with ',' in it not within quotes?",
        1,
    ),
    Messy(
        "columns of other names",
        table_of("captions.csv", "caption,keywords", "a red thing,red"),
        "captions.csv: the columns are caption, keywords; expected path or text. Name the columns, e.g. --field "
        "text=caption --field image=file (fields={...})",
        2,
    ),
    Messy(
        "a table with nothing but its first line",
        lambda folder: table_of("no.csv", "text,labels")(folder)[1:],
        "no usable item: the source has none; expected at least one text or picture",
        2,
    ),
    Messy(
        "a table of which no line can be used",
        nothing_usable,
        "no usable item: all 3 were left out. 2 × empty, e.g. empty.csv, line 2: text is empty; 1 × not 2 columns as in "
        "line 1 but 3, e.g. empty.csv, line 4: not 2 columns as in line 1 but 3; is a text with ',' in it not within quotes?",
        2,
    ),
    Messy(
        "a file that is not there",
        lambda folder: ("photos", "nosuch.csv"),
        "nosuch.csv: no such file; expected a manifest (.jsonl, .csv, .tsv, .xlsx, .parquet)",
        2,
    ),
    # pictures
    Messy("a picture that is cut off", cut_picture, "photos/red/0.png: the file is truncated", 1),
    Messy("a picture of no bytes", empty_picture, "photos/red/0.png: the file is empty (0 bytes)", 1),
    Messy("a web page that was saved as a picture", no_picture, "1 × unreadable photos/red/0.png: ", 1),
    Messy(
        "a table with a picture that is not there",
        table_of("more.csv", "path,text,labels", "lost.png,,red", *(f",a red thing {n},red" for n in range(5))),
        "lost.png: no such file",
        1,
    ),
    Messy(
        "a table with labels of photos in the folder",
        table_of("labels.csv", "file,labels", "red/0.png,dark", "lost.png,dark"),
        "labels.csv: 1 of 2 rows name photos of photos/; 1 names no photo there",
        1,
    ),
    Messy(
        "a table with a file name that two subfolders have",
        table_of("labels.csv", "file,labels", "0.png,dark"),
        "labels.csv, line 2: 0.png: '0.png' is the name of 3 photos (photos/blue/0.png, photos/green/0.png, "
        "photos/red/0.png); give the path of one",
        1,
    ),
    Messy("no picture can be read", no_pictures, "every item of image would be left out", 1),
    # options
    Messy(
        "codes longer than there are items",
        with_options("--bits", "64"),
        "'image': n_bits is 64, but there are only 18 items",
        2,
    ),
    Messy("codes too short for the labels", with_options("--bits", "1"), "1 bits for 3 label sets are few", 1),
]


def run(command: str, *arguments: str):
    more = ("-o", "engine") if command == "train" else ()
    return CliRunner().invoke(app, [command, *arguments, *more], env={"COLUMNS": "80"})


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.input)
def test_says_what_is_wrong(row, tmp_path, monkeypatch):
    make_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = run(row.command, *row.make(tmp_path))
    assert squeezed(row.says) in squeezed(done.output), done.output
    assert done.exit_code == row.exit_code, done.output
    if row.exit_code == 2:  # train refuses it as well, in the same words
        refused = run("train", *row.make(tmp_path))
        assert squeezed(row.says) in squeezed(refused.output), refused.output
        assert refused.exit_code == 2
        assert not Path("engine").exists()


def table() -> str:
    """The rows as a table of the page."""
    lines = ["| input | command | it says | exit code |", "|---|---|---|---|"]
    lines += [
        f"| {row.input} | `{row.command}` | {squeezed(row.says).replace('|', chr(92) + '|')} | {row.exit_code} |"
        for row in ROWS
    ]
    return "\n".join(lines)


def page_with_rows(text: str) -> str:
    """The page with the current table."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{table()}\n\n{END}{after}"


def test_the_page_has_these_rows():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with_rows(text), "python tests/cli/test_messy_inputs.py brings docs/messy-inputs.md up to date"


if __name__ == "__main__":
    PAGE.write_text(page_with_rows(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: {len(ROWS)} rows\n")
