"""Table I: what the data sets hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modalhash.experiments.results import kind_of
from reproduction.document import Entry, GroupedTable
from reproduction.paper_data import SOURCES
from reproduction.published import Experiment

STATISTICS = {
    "total": "items",
    "query": "queries",
    "training": "training items",
    "image": "image features",
    "text": "text features",
    "classes": "classes",
}


def statistics(experiment: Experiment, facts: Mapping[str, Mapping[str, Any]]) -> GroupedTable:
    """Tabulate what the data sets hold: the paper's as published, what is here as counted."""
    here = [name for name in experiment.datasets if name in facts]
    published = [
        (SOURCES[name].title, [*(Entry(f"{tasks['statistics'][key][0]:,}") for key in STATISTICS), Entry(), Entry()])
        for name, tasks in experiment.published.items()
    ]
    counted = [
        (
            SOURCES[name].title,
            [
                *(Entry(f"{SOURCES[name].statistics(facts[name])[key]:,}") for key in STATISTICS),
                _labels(facts[name]),
                Entry(kind_of(facts[name])),
            ],
        )
        for name in here
    ]
    sections = [("published", published), ("counted here", counted)]
    return GroupedTable(
        experiment.paper,
        f"{experiment.title}.",
        "data set",
        [*STATISTICS.values(), "labels per item", "data"],
        [section for section in sections if section[1]],
        notes=[
            *experiment.notes,
            *(f"{SOURCES[name].title}: {SOURCES[name].caution}." for name in here if SOURCES[name].caution),
        ],
    )


def _labels(facts: Mapping[str, Any]) -> Entry:
    return Entry(f"{facts['labels_per_item']:.2f}") if "labels_per_item" in facts else Entry()
