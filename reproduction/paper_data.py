"""The data sets of the experiments: the paper's own where their files are present, stand-ins, and twins for times.

Whether a file holds the paper's data is not taken from its name: total, feature widths and number of classes have to
be those of Table I. Otherwise its numbers are treated as of other data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modalhash.data import NAMED
from modalhash.experiments import Input

CNN = (
    "Put {files} with 4096-D CNN features of the photographs, words and labels there (`image`, `text`, `labels` in any "
    "layout that `modalhash datasets info` recognises); the paper follows the release of AADAH."
)
LITE = (
    "With `data/iapr-tc12/` and the extra `neural`: `modalhash datasets encode iapr-tc12 "
    "data/iapr-tc12-cnn/iapr-tc12-cnn.npz --encoder efficientnet-lite0 --files data/iapr-tc12/images.zip`."
)


@dataclass(frozen=True)
class Source:
    """A data set, and what it has to do with the paper."""

    input: Input
    role: str
    """``"paper"``, ``"stand-in"`` or ``"twin"``."""
    table1: Mapping[str, int] = field(default_factory=dict)
    """What the paper's data set has, by Table I."""
    quotes: str = ""
    """The paper's data set whose published numbers may stand beside, headed as being of other data."""
    caution: str = ""

    @property
    def name(self) -> str:
        """Its name in experiment files."""
        return self.input.name

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.input.title

    @property
    def modalities(self) -> tuple[str, str]:
        """What stands for the paper's images and texts."""
        first, second = self.input.modalities
        return first, second

    @property
    def twin(self) -> bool:
        """Whether only the time of a fit means something."""
        return self.role == "twin"

    def statistics(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """Return the columns of Table I, of a data set as it was loaded."""
        widths = list(facts["features"].values())
        return {"total": facts["items"], "query": facts["queries"], "training": facts["training"], "image": widths[0],
                "text": widths[1], "classes": facts["classes"]}  # fmt: skip

    def differs(self, facts: Mapping[str, Any]) -> list[str]:
        """Return where a data set as it was loaded is not what Table I describes."""
        found = self.statistics(facts)
        return [
            f"{name} {found[name]:,} instead of {expected:,}"
            for name, expected in self.table1.items()
            if found[name] != expected
        ]

    def same(self, facts: Mapping[str, Any]) -> bool:
        """Whether these are the paper's data, so that its numbers may be compared."""
        return self.role == "paper" and not self.differs(facts)


PAIR = ("image", "text")


def _twin(name: str, recipe: str, title: str) -> Source:
    data = Input(f"{name}-twin", f"{title} twin", twin=recipe, modalities=PAIR)
    return Source(data, "twin", quotes=name, caution="synthetic: for times only")


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(Input("mirflickr25k", "MIRFlickr-25K", catalog="mirflickr25k", modalities=PAIR, queries=836), "paper",
               {"total": 16738, "image": 150, "text": 500, "classes": 24}),
        Source(Input("nuswide10", "NUS-WIDE", catalog="nuswide10", modalities=PAIR, queries=2000), "paper",
               {"total": 186577, "image": 500, "text": 1000, "classes": 10}),
        Source(Input("iaprtc12", "IAPR TC-12", modalities=PAIR, queries=2000,
                     files=("iaprtc12", *(f"iapr-tc12/{file}" for file in NAMED["iapr-tc12"].files[1:])),
                     how="Put the .mat file that the field shares (512 GIST features, 2,912 words, 255 labels) into "
                         "data/iaprtc12/, under any name."),
               "paper", {"total": 20000, "image": 512, "text": 2912, "classes": 255}),
        Source(Input("wiki", "Wiki", catalog="wiki", modalities=PAIR), "stand-in"),
        Source(Input("iapr-tc12", "IAPR TC-12 (keywords)", catalog="iapr-tc12", modalities=PAIR,
                     options={"text": "de"}, needs="iapr-tc12/features.npz"),
               "stand-in", quotes="iaprtc12",
               caution="the paper's photographs, other labels (291 caption keywords) and other features"),
        Source(Input("iapr-tc12-cnn", "IAPR TC-12 (keywords, CNN)", files=("iapr-tc12-cnn",), how=LITE,
                     modalities=PAIR), "stand-in",
               caution="photographs through EfficientNet-Lite0 (1,280 features), which is not the paper's network; "
                       "items, split, words and labels of IAPR TC-12 (keywords)"),
        Source(Input("mfeat", "Mfeat", catalog="mfeat", modalities=("pix", "fou")), "stand-in",
               caution="pixels stand for images, Fourier coefficients for texts"),
        Source(Input("openmoji", "OpenMoji", catalog="openmoji", modalities=PAIR), "stand-in"),
        _twin("mirflickr25k", "mirflickr25k", "MIRFlickr-25K"),
        _twin("nuswide10", "nuswide10", "NUS-WIDE"),
        _twin("iaprtc12", "iapr-tc12", "IAPR TC-12"),
        Source(Input("mirflickr25k-cnn", "MIRFlickr-25K (CNN)", files=("mirflickr25k-cnn",), modalities=PAIR,
                     queries=2000, training=10000, how=CNN.format(files="data/mirflickr25k-cnn/*.mat")), "paper",
               {"total": 20015, "image": 4096, "training": 10000}),
        Source(Input("nuswide21-cnn", "NUS-WIDE (CNN)", files=("nuswide21-cnn",), modalities=PAIR,
                     queries=2000, training=10500, how=CNN.format(files="data/nuswide21-cnn/*.mat")), "paper",
               {"total": 195834, "image": 4096, "training": 10500}),
    )
}  # fmt: skip
INPUTS: dict[str, Input] = {name: source.input for name, source in SOURCES.items()}
