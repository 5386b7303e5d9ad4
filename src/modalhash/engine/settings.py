"""Options of the engine: how it reads and learns, what a retraining changes, and what a search returns.

The command line imports this module, so it imports nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from modalhash.core.option import Option, Options
from modalhash.store import KINDS, PICTURE_TEXT, SEARCHED_FIELDS, Comparison, Filter, all_of

if TYPE_CHECKING:
    from modalhash.data import TableFormat
else:  # the command line imports this module, and the readers of tables import numpy
    TableFormat = Any

FieldNames = Annotated[
    Mapping[str, str] | None,
    Option(
        "Names of the manifest's fields, e.g. ``text=caption`` or ``labels=keywords``.",
        flag="field",
        metavar="ROLE=FIELD",
    ),
]
ReadText = Annotated[
    bool | Callable[[Any], str],
    Option(
        "Make text in pictures searchable by OCR (extra 'ocr'; about 1 s each), as the field ``picture_text``.",
        python="Also a function that takes the path or the bytes of a picture and returns its text.",
        check=False,
    ),
]
StorePlace = Annotated[
    str | None,
    Option(
        "Where items are stored: ``sqlite``, a file in the folder; ``postgresql`` (extra 'postgres'), the database "
        "in the variable; or the URL of a database.",
        by_default="as in the replaced engine, else sqlite",
        metavar="STORE",
        check=False,
    ),
]
StoreVariable = Annotated[
    str | None,
    Option(
        "Environment variable with the URL of the database, whenever the engine is opened. The folder has its "
        "name, never the URL.",
        by_default="MODALHASH_DATABASE_URL",
        metavar="NAME",
        check=False,
    ),
]
Workers = Annotated[int | None, Option("Threads that read pictures.", by_default="one per core", at_least=1)]
Trust = Annotated[
    bool, Option("Allow the engine to import methods or encoders that are not modalhash's, which runs their code.")
]
ReadOnly = Annotated[
    bool,
    Option(
        "Do not write to the engine's folder, e.g. on a read-only disk.",
        python="Changes raise. Otherwise, files that killed processes left are removed.",
    ),
]


class OpenOptionValues(TypedDict, total=False):
    """The options of opening as keyword arguments; see :class:`OpenOptions`."""

    backend: str
    n_threads: int | None
    trust: bool
    read_only: bool
    database: str | None
    compiled: bool | None


@dataclass(frozen=True, kw_only=True)
class OpenOptions(Options):
    """How an engine is opened, and where its codes are searched."""

    backend: Annotated[
        str,
        Option(
            "Where codes are searched. ``exact``: in memory, all codes are compared. ``clusters``: exact too, faster "
            "for millions of items whose codes form clusters, but takes 0.5 s per million items to open, and 12 bytes "
            "per item and process, twice that while clusters are rebuilt. ``milvus``: on the Milvus server of "
            "the variable MODALHASH_MILVUS_URI, for items in PostgreSQL.",
            choices=("exact", "clusters", "milvus"),
            flag="index",
        ),
    ] = "exact"
    n_threads: Annotated[
        int | None, Option("Threads of one large search.", by_default="one per core", at_least=1, flag="")
    ] = None
    trust: Trust = False
    read_only: ReadOnly = False
    database: Annotated[
        str | None,
        Option(
            "URL of the PostgreSQL database of the items, if they are in one.",
            by_default="read from the environment variable that the engine names",
            flag="",
        ),
    ] = None
    compiled: Annotated[
        bool | None,
        Option(
            "Whether searches use compiled code. Loading it takes half a second, so a process that searches once is "
            "quicker with None, which uses it only above a million items; the hits are the same.",
            flag="",
        ),
    ] = True


class ReadOptionValues(TypedDict, total=False):
    """The options of reading as keyword arguments; see :class:`ReadSettings`."""

    fields: Mapping[str, str] | None
    table: TableFormat | None
    exif: bool
    read_text: bool | Callable[[Any], str]
    workers: int | None


@dataclass(frozen=True, kw_only=True)
class ReadSettings(Options):
    """How sources are read, for training and for adding."""

    fields: FieldNames = None
    table: Annotated[
        TableFormat | None,
        Option("Encoding, separator or sheet of a table, where the file does not show it.", flag=""),
    ] = None
    exif: Annotated[
        bool,
        Option(
            "Read the fields ``taken``, ``camera``, ``lens``, ``latitude`` and ``longitude`` from the EXIF data of "
            "photos, unless the manifest has them.",
            check=False,
        ),
    ] = True
    read_text: ReadText = False
    workers: Workers = None


class AddOptionValues(ReadOptionValues, total=False):
    """The options of adding as keyword arguments; see :class:`AddOptions`."""

    replace: bool
    keep: bool
    strict: bool


@dataclass(frozen=True, kw_only=True)
class AddOptions(ReadSettings):
    """How items are added: how their source is read, and what happens to known and to bad ones."""

    replace: Annotated[bool, Option("Replace items with the same id; otherwise skip and report new ones.")] = False
    keep: Annotated[
        bool,
        Option(
            'Save pictures given as bytes (``{"data": …}``) in the engine\'s folder, and delete them when their item '
            "is removed. An engine whose items are in a database skips them, because other machines do not have this "
            "folder.",
            flag="",
        ),
    ] = False
    strict: Annotated[bool, Option("Stop at the first bad item instead of skipping it.")] = False


class TrainOptionValues(ReadOptionValues, total=False):
    """The options of a training as keyword arguments; see :class:`TrainSettings`."""

    n_bits: int | str
    method: str | None
    parameters: Mapping[str, Any] | None
    encoders: Mapping[str, Any] | None
    quality: str | None
    download: bool
    labels: str
    codes: str
    learn_from: str
    store: str | None
    store_variable: str | None
    random_state: int
    searched_fields: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class TrainSettings(ReadSettings):
    """How an engine is trained: from which labels, with which encoders and method, and where its items are stored."""

    n_bits: Annotated[
        int | str,
        Option(
            "Length of the codes in bits, below the number of items of every modality. ``auto`` is the first of 32, "
            "64, 128 and 256 at which at most 1 % of the items share a code with items whose labels conflict, or the "
            "one with the fewest such items.",
            choices=("auto",),
            at_least=1,
            flag="bits",
        ),
    ] = "auto"
    method: Annotated[
        str | None,
        Option(
            "Method of learning: see ``modalhash methods``, or ``mymodule:Class``.",
            by_default="rlh; itq without labels",
        ),
    ] = None
    parameters: Annotated[
        Mapping[str, Any] | None,
        Option("Parameters of the method, e.g. ``ridge=1``.", flag="param", metavar="NAME=VALUE", json=True),
    ] = None
    encoders: Annotated[
        Mapping[str, Any] | None,
        Option(
            "Encoders by modality. For texts: ``text=tfidf`` (word counts), ``hashing``, ``use``, ``text+use``, "
            "``e5``, ``text+e5`` (these know synonyms and languages; e5 needs the extra 'semantic', use that or "
            "'photos'), ``minilm``, ``hf:MODEL``. For pictures: ``image=image``, ``efficientnet-lite0`` (extra "
            "'photos'), ``hf:MODEL``. Your own: ``text=mymodule:Class``. MODEL is a folder or a Hugging "
            "Face ID (CLIP, SigLIP, DINOv2).",
            python="Also encoders.",
            by_default="as set by the quality; the features themselves for a data set without pictures or texts",
            flag="encoder",
            metavar="MODALITY=ENCODER",
        ),
    ] = None
    quality: Annotated[
        str | None,
        Option(
            "Default encoders. ``best`` (extra 'photos'): efficientnet-lite0, about 90 photos per second and core, and "
            "text+use. ``fast``: built in, about 800 photos per second and core; words do not find unlabelled photos.",
            by_default="best if installed",
            choices=("fast", "best"),
        ),
    ] = None
    download: Annotated[bool, Option("Download a model given as ``hf:ID`` if it is not on this machine.")] = False
    labels: Annotated[
        str,
        Option(
            "Labels to learn from: those ``given``; also all names of ``folders``, even 2019, DCIM or New folder; for "
            "texts without labels, also those whose ``names`` they contain; or ``none``, to learn from features alone, "
            "which needs one modality or encoders that share a space.",
            choices=("given", "folders", "names", "none"),
        ),
    ] = "given"
    codes: Annotated[
        str,
        Option(
            "Codes of the training items: ``learned`` from their labels, or ``hashed`` from features alone, like those "
            "of new items.",
            choices=("learned", "hashed"),
            check=False,
        ),
    ] = "learned"
    learn_from: Annotated[
        str,
        Option(
            "Items to learn from: ``training`` holds items out by their field ``split``, to measure quality with them; "
            "``all`` learns from them too.",
            choices=("training", "all"),
        ),
    ] = "training"
    store: StorePlace = None
    store_variable: StoreVariable = None
    random_state: Annotated[int, Option("Seed of the training.", flag="seed", check=False)] = 0
    searched_fields: Annotated[
        Sequence[str],
        Option("Fields of items, in addition to texts and ids, in which words of queries are searched.", flag=""),
    ] = SEARCHED_FIELDS

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.searched_fields, str) or not all(isinstance(name, str) for name in self.searched_fields):
            raise TypeError(f"searched_fields is {self.searched_fields!r}; expected names of fields, e.g. ['title']")

    @property
    def all_searched_fields(self) -> list[str]:
        """The searched fields, and that of the text in pictures if it is read."""
        return list(dict.fromkeys([*self.searched_fields, *([PICTURE_TEXT] if self.read_text else [])]))

    @property
    def method_parameters(self) -> dict[str, Any]:
        """The parameters of the method, with the seed."""
        return {"random_state": self.random_state, **(self.parameters or {})}


class RetrainOptionValues(TypedDict, total=False):
    """The options that a retraining may change, as keyword arguments; see :class:`TrainSettings`."""

    n_bits: int | str | None
    method: str | None
    parameters: Mapping[str, Any] | None
    encoders: Mapping[str, Any] | None
    download: bool
    labels: str | None
    codes: str | None
    workers: int | None
    online: bool


@dataclass(frozen=True, kw_only=True)
class RetrainOverrides(Options, like=TrainSettings, by_default="unchanged"):
    """What a retraining changes."""

    n_bits: int | str | None = None
    method: str | None = None
    parameters: Mapping[str, Any] | None = None
    encoders: Mapping[str, Any] | None = None
    download: bool = False
    labels: str | None = None
    codes: str | None = None
    workers: Workers = None
    online: Annotated[
        bool,
        Option(
            "Learn only from items with labels and hashed codes, which are those added or held out, chunk by chunk. "
            "Encoders and learned codes stay; hashed codes follow. Needs a method with ``partial_fit``: ``lemon``."
        ),
    ] = False


class EncodeOptionValues(TypedDict, total=False):
    """The options of encoding as keyword arguments; see :class:`EncodeOptions`."""

    scheduler: Any
    workers: int | None
    root: str | PathLike[str] | None
    fields: Mapping[str, str] | None
    part_size: int
    table: TableFormat | None


@dataclass(frozen=True, kw_only=True)
class EncodeOptions(Options, like=ReadSettings):
    """How sources are encoded into files."""

    scheduler: Annotated[
        Any,
        Option(
            "Address of a Dask scheduler, e.g. ``tcp://10.0.0.1:8786``; its workers need access to sources and files.",
            python="Also a ``distributed.Client``.",
            metavar="ADDRESS",
        ),
    ] = None
    workers: Annotated[
        int | None,
        Option(
            "Processes of this machine, if there is no scheduler; 1 is this process itself.",
            by_default="one per core from 2,000 inputs",
            at_least=1,
        ),
    ] = None
    root: Annotated[
        str | PathLike[str] | None,
        Option(
            "Folder that contains all paths in manifests and lists, which are relative to it.",
            by_default="their own folder",
            metavar="URL",
        ),
    ] = None
    fields: Mapping[str, str] | None = None
    part_size: Annotated[int, Option("Inputs per file, which is one task; a tar is one file.", at_least=1)] = 2048
    table: TableFormat | None = None


class OptionValues(TypedDict, total=False):
    """The options of a search as keyword arguments; see :class:`SearchOptions`."""

    k: int
    radius: int | None
    want: str | Sequence[str] | None
    labels: str | Sequence[str]
    kind: str | None
    refine: bool
    asymmetric: bool
    shortlist: int | None
    where: Filter | str | Mapping[str, Any] | None
    hybrid: bool
    limit: int | None
    min_confidence: float | None
    unique: bool


@dataclass(frozen=True)
class SearchOptions(Options):
    """What a search returns: how many hits, of which items, in which order."""

    k: Annotated[int, Option("Number of hits.", at_least=1, flag="-k")] = 20
    radius: Annotated[
        int | None,
        Option("Return all items within this Hamming distance instead of the ``k`` nearest.", at_least=0),
    ] = None
    want: Annotated[
        tuple[str, ...] | None, Option("Modality, or modalities, to search in, e.g. ``image``.", by_default="all")
    ] = None
    labels: Annotated[tuple[str, ...], Option("Return only items that have all of these labels.", flag="label")] = ()
    kind: Annotated[
        str | None, Option("Return only items with this kind of code.", choices=KINDS, by_default="both")
    ] = None
    refine: Annotated[
        bool,
        Option(
            "Order the nearest items by their refinement vectors, and find items of the query's own modality by their "
            "features as well. Without it, order by Hamming distance alone, then by age."
        ),
    ] = True
    asymmetric: Annotated[
        bool, Option("Re-rank the nearest items by the query's real-valued projections, which is slightly better.")
    ] = False
    shortlist: Annotated[
        int | None,
        Option(
            "Number of items to re-rank.",
            by_default="10 times ``k``, and at least 200 with ``asymmetric``; with ``refine`` at least 2,000, or 200 "
            "of more than 100,000 items, and all items at the distance of the last",
            at_least=1,
            flag="",
        ),
    ] = None
    where: Annotated[
        Filter | None,
        Option(
            "Return only items that pass this filter, e.g. ``label = boat and not (year < 2005 or kind = learned)``.",
            python="Its text, its JSON form, or a :class:`~modalhash.store.Filter`.",
        ),
    ] = None
    hybrid: Annotated[
        bool,
        Option("Search the words of a text also in the texts, captions and ids of items, and join both rankings."),
    ] = True
    limit: Annotated[
        int | None, Option("Largest number of hits within a ``radius``.", by_default="all", at_least=1, flag="")
    ] = None
    min_confidence: Annotated[
        float | None,
        Option(
            "Drop hits that share a label with the query with a lower probability.",
            python="See :attr:`Hit.confidence`.",
            at_least=0.0,
            at_most=1.0,
        ),
    ] = None
    unique: Annotated[bool, Option("Replace near-duplicates of better hits by further hits.")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("want", "labels"):
            if (names := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(dict.fromkeys([names] if isinstance(names, str) else names)))
        if self.where is not None:
            object.__setattr__(self, "where", Filter.of(self.where))
        if self.shortlist is not None and self.shortlist < self.k:
            raise ValueError(f"shortlist is {self.shortlist}; expected an integer ≥ k, which is {self.k}")

    @cached_property
    def filter(self) -> Filter | None:
        """The conjunction of ``where``, the labels and the kind."""
        if not self.labels and self.kind is None:
            return self.where
        return all_of(
            self.where,
            *(Comparison("label", "=", label) for label in self.labels),
            None if self.kind is None else Comparison("kind", "=", self.kind),
        )
