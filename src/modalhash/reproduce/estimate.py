"""How long a cell may take: from results where there are any, else from a table of one machine's seconds."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from modalhash.reproduce.cells import Cell
from modalhash.reproduce.sources import SOURCES
from modalhash.reproduce.store import Store

SECONDS = {
    "amsh": (1.3, 11.6), "batch": (0.4, 4.8), "cmfh": (0.1, 33.0), "cre": (0.5, 27.0), "dch": (0.1, 9.8),
    "fsh": (0.5, 63.5), "scratch": (1.4, 14.3), "smfh": (0.6, 48.8), "srlch": (0.2, 5.0), "edmh": (2.3, 20.0),
    "fmh": (1.1, 8.0), "gsph": (1.1, 10.0), "rucmh": (1.5, 20.0), "sapmh": (1.5, 15.0), "ucmh": (3.7, 25.0),
}  # fmt: skip
"""CPU seconds of a fit with 64 bits on Wiki (2,173 items) and IAPR TC-12 (17,664), one thread of a 2.x GHz EPYC."""
SMALL, LARGE = 2173, 17664
SIZES = {
    "mirflickr25k": 15902, "nuswide10": 184577, "iaprtc12": 18000, "wiki": 2173, "iapr-tc12": 17664, "mfeat": 1500,
    "openmoji": 1517, "iapr-tc12-cnn": 17664, "mirflickr25k-cnn": 10000, "nuswide21-cnn": 10500,
}  # fmt: skip


class Estimates:
    """Expected seconds of a cell, its evaluation included."""

    def __init__(self, store: Store) -> None:
        seen: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        for result in store.everything():
            if "took" in result and "error" not in result:
                made = result["configuration"]
                seen[made["method"], made["dataset"], made["bits"]].append(result["took"])
        self._seen = {key: median(values) for key, values in seen.items()}

    def __call__(self, cell: Cell) -> float:
        known = self._seen.get((cell.method, cell.dataset, cell.bits))
        return known if known is not None else self._guess(cell)

    def _guess(self, cell: Cell) -> float:
        source = SOURCES[cell.dataset]
        items = SIZES[source.quotes if source.twin else cell.dataset]
        small, large = SECONDS.get(cell.method, (1.0, 15.0))
        share = (items - SMALL) / (LARGE - SMALL)  # linear in the items, beyond both ends too
        fit = max(0.2 * small, small + share * (large - small)) * (0.5 + cell.bits / 128)
        return fit + (0.3 + items / 6000 if cell.measured else items / 20000)


def spoken(seconds: float) -> str:
    """E.g. ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
