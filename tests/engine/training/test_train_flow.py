"""A training passes through few modules."""

from __future__ import annotations

import inspect
import sys
import threading

import pytest
from typer.testing import CliRunner

from modalhash.cli import app

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 40), "blue": (30, 40, 220)}


@pytest.fixture
def sources(tmp_path):
    """A folder of pictures and a table of texts."""
    image = pytest.importorskip("PIL.Image")
    rows = ["text,labels"]
    for label, colour in COLOURS.items():
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(12):
            picture = image.new("RGB", (16, 16), tuple(max(0, part - 9 * number) for part in colour))
            picture.save(tmp_path / "photos" / label / f"{number}.png")
            rows.append(f"a {label} thing of number {number},{label}")
    (tmp_path / "texts.csv").write_text("\n".join(rows))
    return [str(tmp_path / "photos"), str(tmp_path / "texts.csv")]


def modules_of(call):
    """Return the modules of modalhash of which a call runs functions, in any thread; importing is not counted."""
    modules = set()

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            modules.add(frame.f_globals.get("__name__", ""))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(name for name in modules if name.startswith("modalhash."))


def test_a_training_passes_through_few_modules(sources, tmp_path):
    def train():
        done = CliRunner().invoke(app, ["train", *sources, "-o", str(tmp_path / "engine"), "--overwrite"])
        assert done.exit_code == 0, done.output

    train()  # imports
    modules = modules_of(train)
    assert len(modules) <= 56, modules
