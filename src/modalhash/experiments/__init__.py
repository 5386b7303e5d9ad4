"""Experiments: any grid of methods, data sets, code lengths, seeds and scenarios in a TOML file, measured.

``config`` reads a grid, ``inputs`` finds its data, ``cells`` lists what has to be measured, ``provenance`` knows when
it has to be measured again, ``measure`` measures one cell, ``run`` many of them in processes, ``timing`` estimates how
long that takes, ``results`` stores them and reads them back, ``grid_report`` makes tables and figures of them. Without
a file: ``comparison`` measures several methods on one data set and tests which differences are significant, ``tuning``
searches for the parameters of one method, ``parameters`` keeps them in a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.experiments.cells import Cell as Cell
    from modalhash.experiments.cells import Point as Point
    from modalhash.experiments.cells import cells_of as cells_of
    from modalhash.experiments.comparison import SCENARIOS as SCENARIOS
    from modalhash.experiments.comparison import MarkedSpread as MarkedSpread
    from modalhash.experiments.comparison import MethodComparison as MethodComparison
    from modalhash.experiments.comparison import Run as Run
    from modalhash.experiments.comparison import SignificanceTest as SignificanceTest
    from modalhash.experiments.comparison import compare_methods as compare_methods
    from modalhash.experiments.config import KEYS as KEYS
    from modalhash.experiments.config import Grid as Grid
    from modalhash.experiments.config import Part as Part
    from modalhash.experiments.config import Row as Row
    from modalhash.experiments.config import Scenario as Scenario
    from modalhash.experiments.config import Sweep as Sweep
    from modalhash.experiments.config import load_grid as load_grid
    from modalhash.experiments.config import make_grid as make_grid
    from modalhash.experiments.environment import describe_environment as describe_environment
    from modalhash.experiments.grid_report import curve_figure as curve_figure
    from modalhash.experiments.grid_report import environments as environments
    from modalhash.experiments.grid_report import quality_tables as quality_tables
    from modalhash.experiments.grid_report import seconds_table as seconds_table
    from modalhash.experiments.inputs import Input as Input
    from modalhash.experiments.measure import RECALL as RECALL
    from modalhash.experiments.parameters import check_parameters as check_parameters
    from modalhash.experiments.parameters import read_parameters as read_parameters
    from modalhash.experiments.parameters import write_parameters as write_parameters
    from modalhash.experiments.provenance import code_digest as code_digest
    from modalhash.experiments.results import Results as Results
    from modalhash.experiments.results import Study as Study
    from modalhash.experiments.results import pack as pack
    from modalhash.experiments.results import read_studies as read_studies
    from modalhash.experiments.results import read_study as read_study
    from modalhash.experiments.results import unpack as unpack
    from modalhash.experiments.run import Estimates as Estimates
    from modalhash.experiments.run import Event as Event
    from modalhash.experiments.run import Plan as Plan
    from modalhash.experiments.run import describe_plan as describe_plan
    from modalhash.experiments.run import make_plan as make_plan
    from modalhash.experiments.run import record as record
    from modalhash.experiments.run import run_cells as run_cells
    from modalhash.experiments.timing import spoken as spoken
    from modalhash.experiments.tuning import Dimension as Dimension
    from modalhash.experiments.tuning import Tuned as Tuned
    from modalhash.experiments.tuning import Tuning as Tuning
    from modalhash.experiments.tuning import search_space as search_space

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "cells": ["Cell", "Point", "cells_of"],
        "comparison": ["SCENARIOS", "MethodComparison", "MarkedSpread", "Run", "SignificanceTest", "compare_methods"],
        "config": ["KEYS", "Grid", "Part", "Row", "Scenario", "Sweep", "load_grid", "make_grid"],
        "environment": ["describe_environment"],
        "grid_report": ["curve_figure", "environments", "quality_tables", "seconds_table"],
        "inputs": ["Input"],
        "measure": ["RECALL"],
        "parameters": ["check_parameters", "read_parameters", "write_parameters"],
        "provenance": ["code_digest"],
        "results": ["Results", "Study", "pack", "read_studies", "read_study", "unpack"],
        "run": ["Estimates", "Event", "Plan", "describe_plan", "make_plan", "record", "run_cells"],
        "timing": ["spoken"],
        "tuning": ["Dimension", "Tuned", "Tuning", "search_space"],
    },
)
