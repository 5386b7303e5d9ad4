"""What ``train`` and ``check`` are told alike: sources, method, encoders, labels."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Quality(StrEnum):
    """Which encoders are taken where none is named."""

    fast = "fast"
    best = "best"


class Labels(StrEnum):
    """Which labels are learned from."""

    given = "given"
    folders = "folders"
    names = "names"
    none = "none"


class LearnFrom(StrEnum):
    """Which items are learned from."""

    training = "training"
    all = "all"


Sources = Annotated[
    list[str],
    typer.Argument(
        help="Manifests (.jsonl, .csv, .tsv, .xlsx, .parquet, .feather), folders, zips or tars of pictures, or the "
        "name of a data set."
    ),
]
Bits = Annotated[
    str, typer.Option(help="Length of the codes; [b]auto[/b] is enough to keep what is labelled otherwise apart.")
]
Method = Annotated[
    str | None,
    typer.Option(
        help="See [b]modalhash methods[/b], or mymodule:Class.",
        show_default="rlh; itq without labels",
    ),
]
Param = Annotated[
    list[str] | None, typer.Option(help="A parameter of the method, e.g. [b]ridge=1[/b]; may be repeated.")
]
EncoderNames = Annotated[
    list[str] | None,
    typer.Option(
        help="Encoder of a modality, repeatable; by default those of [b]--quality[/b]. For texts [b]text=tfidf[/b] "
        "(counts words), hashing, use, text+use, e5, text+e5 (these understand synonyms and languages; e5 needs the "
        "extra 'semantic', use that or 'photos'), minilm, hf:MODEL; for pictures [b]image=image[/b], "
        "efficientnet-lite0 (extra 'photos'), hf:MODEL; or [b]text=mymodule:Class[/b]. "
        "MODEL is a folder or an ID of Hugging Face (CLIP, SigLIP, DINOv2)."
    ),
]
QualityOfEncoders = Annotated[
    Quality | None,
    typer.Option(
        help="Encoders where none is named. [b]best[/b] (extra 'photos'): efficientnet-lite0, about 90 photos a second "
        "and core, and text+use. [b]fast[/b]: built in, about 800 photos a second and core; words do not find photos "
        "without labels.",
        show_default="best where installed",
    ),
]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch a model that is named as hf:ID and is not on this disk.")
]
LabelsFrom = Annotated[
    Labels,
    typer.Option(
        help="Labels to learn from: as items have them; with every name of [b]folders[/b], also one that says "
        "nothing (2019, DCIM, New folder); for texts without any, also those whose [b]names[/b] they contain; or none: "
        "from features alone."
    ),
]
LearnFromItems = Annotated[
    LearnFrom,
    typer.Option(help="Hold items out as their field [b]split[/b] says, to measure by them; or learn from all."),
]
