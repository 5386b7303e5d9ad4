"""Grids on data that are drawn in a moment."""

from __future__ import annotations

from pathlib import Path

from modalhash.experiments import Grid, load_grid

GRID = """
title = "Two methods on generated data"
datasets = [{name = "little", generated = {n_items = 120, n_queries = 17}}]
bits = [8, 16]
seeds = 2
scenario = "unpaired"

[[rows]]
label = "AMSH"
method = "amsh"
parameters = {n_anchors = 60, code_iter = 3, function_iter = 3}

[[rows]]
label = "GSPH"
method = "gsph"

[[rows]]
label = "Chance"
method = "chance"
"""


def write_grid(folder: Path, text: str = GRID, name: str = "little") -> Path:
    """Write a grid file and return its path."""
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def little_grid(folder: Path, text: str = GRID) -> Grid:
    """Return a grid, read from a file in this folder."""
    return load_grid(write_grid(folder, text))
