"""The data sets of the experiments: the paper's own where their files are present, stand-ins, and twins for times.

Whether the paper's numbers may be compared is decided by what a data set says it is (``Dataset.kind``): the original
data, or the original items and labels with recomputed features. Otherwise its numbers are treated as of other data,
whatever its counts are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modalhash.data import NAMED
from modalhash.experiments import Input

CNN = (
    "Put {files} with 4096-D CNN features of the photographs, words and labels there (`image`, `text`, `labels` in any "
    'layout that `modalhash datasets info` recognises), and a provenance.json with {{"kind": "original"}}; the paper '
    "follows the release of AADAH."
)
LITE0 = "photographs through EfficientNet-Lite0 (1,280 features), which is not the paper's network (4,096)"


@dataclass(frozen=True)
class Source:
    """A data set, and its relation to the paper."""

    input: Input
    role: str
    """``"paper"``, ``"stand-in"`` or ``"twin"``."""
    table1: Mapping[str, int] = field(default_factory=dict)
    """What the paper's data set has, by Table I."""
    quotes: str = ""
    """The paper's data set whose published numbers may be shown next to it, marked as other data."""
    caution: str = ""

    @property
    def name(self) -> str:
        """Its name in experiment files."""
        return self.input.name

    @property
    def title(self) -> str:
        """Title of the data set."""
        return self.input.title

    @property
    def modalities(self) -> tuple[str, str]:
        """What represents the paper's images and texts."""
        first, second = self.input.modalities
        return first, second

    @property
    def twin(self) -> bool:
        """Whether only the time of a fit is meaningful."""
        return self.role == "twin"

    def statistics(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """Return the columns of Table I for a loaded data set."""
        widths = list(facts["features"].values())
        return {"total": facts["items"], "query": facts["queries"], "training": facts["training"], "image": widths[0],
                "text": widths[1], "classes": facts["classes"]}  # fmt: skip

    def differs(self, facts: Mapping[str, Any]) -> list[str]:
        """Return the differences of a loaded data set from Table I."""
        found = self.statistics(facts)
        return [
            f"{name} {found[name]:,} instead of {expected:,}"
            for name, expected in self.table1.items()
            if found[name] != expected
        ]

    def same(self, facts: Mapping[str, Any]) -> bool:
        """Whether the data set says that it is the paper's, so that its numbers may be compared."""
        return self.role == "paper" and facts.get("kind") in ("original", "recomputed features")


PAIR = ("image", "text")


def _papers(name: str, title: str) -> Source:
    table1 = {"total" if key == "items" else key: value for key, value in NAMED[name].published.items()}
    return Source(Input(name, title, catalog=name, modalities=PAIR), "paper", table1)


def _twin(name: str, title: str) -> Source:
    data = Input(f"{name}-twin", f"{title} twin", twin=name, modalities=PAIR)
    return Source(data, "twin", quotes=name, caution="synthetic: for times only")


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        _papers("mirflickr25k", "MIRFlickr-25K"),
        _papers("nuswide10", "NUS-WIDE"),
        _papers("iapr-tc12-255", "IAPR TC-12"),
        Source(Input("wiki", "Wiki", catalog="wiki", modalities=PAIR), "stand-in"),
        Source(Input("mfeat", "Mfeat", catalog="mfeat", modalities=("pix", "fou")), "stand-in",
               caution="pixels represent images, Fourier coefficients texts"),
        Source(Input("openmoji", "OpenMoji", catalog="openmoji", modalities=PAIR), "stand-in"),
        _twin("mirflickr25k", "MIRFlickr-25K"),
        _twin("nuswide10", "NUS-WIDE"),
        _twin("iapr-tc12-255", "IAPR TC-12"),
        Source(Input("mirflickr25k-cnn", "MIRFlickr-25K (CNN)", catalog="mirflickr25k:cnn", modalities=PAIR), "paper",
               {"total": 20015, "image": 4096, "training": 10000}, caution=LITE0),
        Source(Input("iapr-tc12-255-cnn", "IAPR TC-12 (CNN)", catalog="iapr-tc12-255:cnn", modalities=PAIR), "stand-in",
               caution=f"{LITE0}; the paper's table does not have this data set"),
        Source(Input("nuswide21-cnn", "NUS-WIDE (CNN)", files=("nuswide21-cnn",), modalities=PAIR,
                     queries=2000, training=10500, how=CNN.format(files="data/nuswide21-cnn/*.mat")), "paper",
               {"total": 195834, "image": 4096, "training": 10500}),
    )
}  # fmt: skip
INPUTS: dict[str, Input] = {name: source.input for name, source in SOURCES.items()}
