"""Which items train, which ask, which are searched: by ids, so that a split outlives the row order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from modalhash._files import write_atomically
from modalhash._typing import Array
from modalhash.data._checks import check_mapping, clean_ids, shown

if TYPE_CHECKING:
    from modalhash.data.dataset import Dataset

FORMAT, VERSION = "modalhash-split", 1


class Parts(NamedTuple):
    """The three parts of a data set."""

    training: Dataset
    query: Dataset
    database: Dataset


class Split:
    """Ids of the training, query and database items of every modality.

    Parameters
    ----------
    training, query : dict from modality to ids
    database : the same; by default the training items, as in most papers of the field
    disjoint : refuse a query that is also a database item of its modality; False allows it

    Examples
    --------
    >>> split = Split(training={"image": [0, 1], "text": [0, 1]}, query={"image": [2], "text": [2]})
    >>> split
    Split(image: 2 training, 1 query, 2 database; text: 2 training, 1 query, 2 database)
    """

    training: Mapping[str, Array]
    query: Mapping[str, Array]
    database: Mapping[str, Array]

    def __init__(
        self,
        training: Mapping[str, Any],
        query: Mapping[str, Any],
        database: Mapping[str, Any] | None = None,
        *,
        disjoint: bool = True,
    ) -> None:
        self.training = _clean(training, "training")
        self.query = _clean(query, "query")
        alike = database is None or database is training
        self.database = self.training if alike else _clean(database, "database")
        for part, ids in (("query", self.query), ("database", self.database)):
            if set(ids) != set(self.training):
                raise ValueError(f"{part} has the modalities {shown(ids)}; training has {shown(self.training)}")
        if disjoint:
            self.check_disjoint()

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities."""
        return tuple(self.training)

    @property
    def database_is_training(self) -> bool:
        """Whether the items searched are the ones learned from."""
        return self.database is self.training

    def check_disjoint(self) -> None:
        """Raise if a query is also in the database of its modality."""
        for name, ids in self.query.items():
            both = np.intersect1d(ids, self.database[name]) if len(ids) and len(self.database[name]) else ids[:0]
            if len(both):
                raise ValueError(
                    f"{name!r}: {len(both)} of {len(ids)} queries are also in the database, "
                    f"e.g. {shown(both)}: a query would find itself. Take them out of one side, "
                    "or pass disjoint=False"
                )

    def apply(self, dataset: Dataset) -> Parts:
        """The three parts of the data set; where the database is the training part, it is the same object."""
        training, query = dataset.take(self.training), dataset.take(self.query)
        database = training if self.database_is_training else dataset.take(self.database)
        return Parts(training, query, database)

    def only(self, *modalities: str) -> Split:
        """The same split for some of the modalities."""
        training, query, database = (
            {name: part[name] for name in modalities} for part in (self.training, self.query, self.database)
        )
        return Split(training, query, None if self.database_is_training else database, disjoint=False)

    def save(self, path: str | Path) -> None:
        """Write the ids as JSON."""
        write_atomically(path, json.dumps(self.to_json(), ensure_ascii=False).encode())

    def to_json(self) -> dict[str, Any]:
        """The split as plain lists; ``database`` is None where it is the training items."""
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for part in ("training", "query", "database"):
            content[part] = {name: ids.tolist() for name, ids in getattr(self, part).items()}
        if self.database_is_training:
            content["database"] = None
        return content

    @classmethod
    def load(cls, path: str | Path, *, disjoint: bool = True) -> Split:
        """Read what :meth:`save` wrote."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not a JSON file ({error}); expected what Split.save wrote") from error
        return cls.from_json(content, disjoint=disjoint, where=str(path))

    @classmethod
    def from_json(cls, content: Any, *, disjoint: bool = True, where: str = "split") -> Split:
        """A split from what :meth:`to_json` gave."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"{where}: not a split: expected the field format={FORMAT!r}")
        if content.get("version") != VERSION:
            raise ValueError(f"{where}: version {content.get('version')!r}; this modalhash reads version {VERSION}")
        if missing := [part for part in ("training", "query") if part not in content]:
            raise ValueError(f"{where}: the part(s) {shown(missing)} are missing")
        return cls(content["training"], content["query"], content.get("database"), disjoint=disjoint)

    def __repr__(self) -> str:
        sizes = (
            f"{name}: {len(self.training[name])} training, {len(self.query[name])} query, "
            f"{len(self.database[name])} database"
            for name in self.modalities
        )
        return f"Split({'; '.join(sizes)})"


def _clean(part: Any, name: str) -> dict[str, Array]:
    return {
        modality: clean_ids(ids if len(ids) else np.empty(0, dtype=np.int64), f"{name} ids of {modality!r}")
        for modality, ids in check_mapping(part, name).items()
    }
