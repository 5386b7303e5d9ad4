"""Measure retrieval, and say exactly what was measured.

Importing this package loads neither numba nor matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modalhash._lazy import lazy_exports

if TYPE_CHECKING:
    from modalhash.evaluation.curves import Curve as Curve
    from modalhash.evaluation.curves import by_radius as by_radius
    from modalhash.evaluation.curves import by_rank as by_rank
    from modalhash.evaluation.databases import evaluate_databases as evaluate_databases
    from modalhash.evaluation.databases import unseen_items as unseen_items
    from modalhash.evaluation.figures import RECALL_STEP as RECALL_STEP
    from modalhash.evaluation.figures import draw_curves as draw_curves
    from modalhash.evaluation.figures import method_colours as method_colours
    from modalhash.evaluation.figures import plot_convergence as plot_convergence
    from modalhash.evaluation.figures import plot_precision_at as plot_precision_at
    from modalhash.evaluation.figures import plot_precision_recall as plot_precision_recall
    from modalhash.evaluation.figures import render_curves as render_curves
    from modalhash.evaluation.measures import chance_level as chance_level
    from modalhash.evaluation.measures import measure as measure
    from modalhash.evaluation.precision import average_precision as average_precision
    from modalhash.evaluation.precision import mean_average_precision as mean_average_precision
    from modalhash.evaluation.protocol import CHOICES as CHOICES
    from modalhash.evaluation.protocol import PRESETS as PRESETS
    from modalhash.evaluation.protocol import Protocol as Protocol
    from modalhash.evaluation.ranking import Ranking as Ranking
    from modalhash.evaluation.ranking import rank as rank
    from modalhash.evaluation.result import Direction as Direction
    from modalhash.evaluation.result import Result as Result
    from modalhash.evaluation.result import compare as compare
    from modalhash.evaluation.retrieval import evaluate as evaluate
    from modalhash.evaluation.runs import RunMeasure as RunMeasure
    from modalhash.evaluation.runs import compare_runs as compare_runs
    from modalhash.evaluation.runs import measure_run as measure_run
    from modalhash.evaluation.significance import PairedTest as PairedTest
    from modalhash.evaluation.significance import Spread as Spread
    from modalhash.evaluation.significance import bootstrap_interval as bootstrap_interval
    from modalhash.evaluation.significance import describe_tests as describe_tests
    from modalhash.evaluation.significance import holm as holm
    from modalhash.evaluation.significance import paired_tests as paired_tests
    from modalhash.evaluation.significance import randomisation_test as randomisation_test
    from modalhash.evaluation.significance import randomisation_tests as randomisation_tests
    from modalhash.evaluation.tables import Table as Table
    from modalhash.evaluation.trec import TrecRun as TrecRun
    from modalhash.evaluation.trec import read_qrels as read_qrels
    from modalhash.evaluation.trec import read_run as read_run
    from modalhash.evaluation.trec import write_qrels as write_qrels
    from modalhash.evaluation.trec import write_run as write_run

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "precision": ["average_precision", "mean_average_precision"],
        "curves": ["Curve", "by_radius", "by_rank"],
        "databases": ["evaluate_databases", "unseen_items"],
        "figures": [
            "RECALL_STEP",
            "draw_curves",
            "method_colours",
            "plot_convergence",
            "plot_precision_at",
            "plot_precision_recall",
            "render_curves",
        ],
        "measures": ["chance_level", "measure"],
        "protocol": ["CHOICES", "PRESETS", "Protocol"],
        "ranking": ["Ranking", "rank"],
        "result": ["Direction", "Result", "compare"],
        "retrieval": ["evaluate"],
        "significance": [
            "PairedTest",
            "Spread",
            "bootstrap_interval",
            "describe_tests",
            "holm",
            "paired_tests",
            "randomisation_test",
            "randomisation_tests",
        ],
        "tables": ["Table"],
        "runs": ["RunMeasure", "compare_runs", "measure_run"],
        "trec": ["TrecRun", "read_qrels", "read_run", "write_qrels", "write_run"],
    },
)
