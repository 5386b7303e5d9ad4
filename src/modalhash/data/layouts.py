"""Recognise the layouts of shared data files by the names of their variables.

A name has a stem and a part: ``I_tr`` is the stem ``I`` of the training part, ``XDatabase`` the stem ``X``
of the database, ``LAll`` the stem ``L`` of all items, ``testL`` the stem ``L`` of the queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from modalhash.data.formats.variables import ReadError, Variable, listing

ALL, TRAINING, QUERY, DATABASE = "all", "training", "query", "database"
_PARTS = {
    "tr": TRAINING, "train": TRAINING, "training": TRAINING,
    "te": QUERY, "test": QUERY, "query": QUERY,
    "db": DATABASE, "database": DATABASE, "retrieval": DATABASE, "all": ALL,
}  # fmt: skip
_WORDS = "train|training|test|query|database|retrieval"
_PATTERNS = (
    re.compile(rf"^(?P<stem>.+)_(?P<part>tr|te|db|all|{_WORDS})$", re.I),
    re.compile(rf"^(?P<part>{_WORDS})_(?P<stem>.+)$", re.I),
    re.compile(r"^(?P<stem>.+?)(?P<part>Train|Test|Query|Database|Retrieval|All)$"),
    re.compile(r"^(?P<part>train|test|query|database|retrieval)(?P<stem>[A-Z].*)$"),
)

# Earlier stems get the plain modality name: X holds features, I often the pixels they were computed from.
_IMAGE: tuple[str, ...] = ("x", "image", "img", "i", "images", "imgs", "imgs_deep")
_TEXT: tuple[str, ...] = ("t", "text", "txt", "y", "texts", "tags")
_VARIANTS = {"v": "image_vgg", "t_tfidf": "text_tfidf"}
_LABELS = ("l", "labels", "label", "imgs_labels", "category", "categories", "gnd")
_PATHS: tuple[str, ...] = ("f", "index", "paths", *_IMAGE)
_CAPTIONS: tuple[str, ...] = ("caption", "captions", *_TEXT)

ByPart = dict[str, Variable]


@dataclass
class Layout:
    """The variables of each part of a data set."""

    modalities: dict[str, ByPart] = field(default_factory=dict)
    labels: dict[str, ByPart] = field(default_factory=dict)
    """By modality; the key ``""`` applies to all modalities."""
    raw: dict[str, ByPart] = field(default_factory=dict)
    ids: dict[str, Variable] = field(default_factory=dict)
    class_names: Variable | None = None
    is_train: Variable | None = None

    def used(self) -> set[str]:
        groups = (*self.modalities.values(), *self.labels.values(), *self.raw.values(), self.ids)
        names = {variable.name for group in groups for variable in group.values()}
        return names | {variable.name for variable in (self.class_names, self.is_train) if variable is not None}


def split_name(name: str) -> tuple[str, str]:
    """Split the name of a variable into stem and part.

    Examples
    --------
    >>> split_name("I_tr"), split_name("XDatabase"), split_name("testL"), split_name("mor")
    (('I', 'training'), ('X', 'database'), ('L', 'query'), ('mor', ''))
    """
    for pattern in _PATTERNS:
        if match := pattern.match(name):
            return match["stem"], _PARTS[match["part"].lower()]
    return name, ""


def by_stem(variables: Iterable[Variable]) -> dict[str, ByPart]:
    """Group variables by stem, then part; ``""`` is the part of a name without one."""
    groups: dict[str, ByPart] = {}
    for variable in variables:
        stem, part = split_name(variable.name)
        groups.setdefault(stem, {})[part] = variable
    return groups


def recognise(variables: Mapping[str, Variable]) -> Layout | None:
    layout = _several_views(variables) or _by_role(variables)
    if layout is None or not (layout.modalities or layout.raw):
        return None
    return layout


def _several_views(variables: Mapping[str, Variable]) -> Layout | None:
    """Recognise a cell array with one matrix per view, and at most one variable of classes."""
    views = [variable for name, variable in variables.items() if re.search(r"\{\d+\}$", name)]
    others = [variable for variable in variables.values() if variable not in views and variable.usable]
    stems = {view.name.partition("{")[0] for view in views}
    if len(views) < 2 or len(stems) != 1 or not all(view.usable for view in views):
        return None
    labels = [variable for variable in others if variable.name.lower() in (*_LABELS, "y", "truth", "gt", "c")]
    if len(labels) > 1:
        return None
    modalities = {f"view{number}": {ALL: view} for number, view in enumerate(views, 1)}
    return Layout(modalities, {"": {ALL: labels[0]}} if labels else {})


def _by_role(variables: Mapping[str, Variable]) -> Layout | None:
    groups = by_stem(variables.values())
    present = {part for stem, parts in groups.items() for part in parts if _has_role(stem, _IMAGE + _TEXT + _LABELS)}
    chosen = present & {TRAINING, QUERY, DATABASE} or {ALL, ""}
    groups = {
        stem: {part or ALL: variable for part, variable in parts.items() if part in chosen}
        for stem, parts in groups.items()
    }
    groups = {stem: parts for stem, parts in groups.items() if parts}
    layout = Layout()
    plain = chosen == {ALL, ""} and ALL not in present
    labels = _first(groups, _LABELS)
    for role, stems in (("image", _IMAGE), ("text", _TEXT)):
        for stem in sorted((s for s in groups if _has_role(s, stems)), key=lambda s: stems.index(s.lower())):
            if plain and stem.lower() in ("x", "y", "i", "t") and labels is None:
                continue  # X and Y alone may also be features and classes
            if all(variable.usable for variable in groups[stem].values()):
                _add(layout.modalities, role, stem, groups[stem])
    for stem, name in _VARIANTS.items():
        for own in (s for s in groups if s.lower() == stem and all(v.usable for v in groups[s].values())):
            layout.modalities[name] = groups[own]
    for role, names in (("image", _PATHS), ("text", _CAPTIONS)):
        texts = _first(groups, names, texts=True)
        if texts is not None:
            layout.raw[role] = texts
    if labels is not None:
        layout.labels[""] = labels
    _add_extras(layout, variables)
    if plain and labels is not None:
        _add_plain(layout, groups)
    return layout


def _add_extras(layout: Layout, variables: Mapping[str, Variable]) -> None:
    for name in ("class_names", "label_names", "classes"):
        if name in variables and variables[name].kind == "texts":
            layout.class_names = variables[name]
            break
    if "is_train" in variables and variables["is_train"].usable:
        layout.is_train = variables["is_train"]
    if "ids" in variables and len(variables["ids"].shape) == 1:
        layout.ids[""] = variables["ids"]
    for name, variable in variables.items():
        modality, mark, what = name.partition("__")
        if mark and what == "labels" and variable.usable:
            layout.labels[modality] = {ALL: variable}
        elif mark and what == "ids" and variable.kind in ("numbers", "texts"):
            layout.ids[modality] = variable
        elif mark and what == "raw" and variable.kind == "texts":
            layout.raw[modality] = {ALL: variable}
    if len(layout.labels) > 1:
        layout.labels.pop("", None)


def _add_plain(layout: Layout, groups: Mapping[str, ByPart]) -> None:
    """Add every matrix with the same number of items as ``labels`` as a modality under its own name."""
    if "" not in layout.labels or not layout.labels[""][ALL].shape:
        return
    used = layout.used()
    free = [
        parts[ALL]
        for stem, parts in groups.items()
        if parts[ALL].usable and len(parts[ALL].shape) >= 2 and parts[ALL].name not in used and "__" not in stem
    ]
    ends = [{variable.shape[0], variable.shape[-1]} for variable in free]
    n = max(layout.labels[""][ALL].shape, key=lambda size: sum(size in end for end in ends))
    for variable, end in zip(free, ends, strict=True):
        if n in end:
            layout.modalities[variable.name] = {ALL: variable}


def mapped(variables: Mapping[str, Variable], mapping: Mapping[str, object]) -> Layout:
    """Return the layout that ``mapping`` describes: per role, a variable or the stem that its parts share."""
    groups = by_stem(variables.values())

    def checked(parts: ByPart) -> ByPart:
        for variable in parts.values():
            if not variable.usable and variable.kind != "texts":
                raise ReadError(
                    variable.file,
                    f"{variable.kind}; expected numbers or texts. Store it as one numeric array",
                    variable=variable.name,
                )
        return parts

    def find(name: object, role: str) -> ByPart:
        if isinstance(name, str) and name in variables:
            return checked({ALL: variables[name]})
        if isinstance(name, str) and name in groups:
            return checked({part or ALL: variable for part, variable in groups[name].items()})
        raise ValueError(f"{role}={name!r}: no such variable; the file has: {listing(variables.values())}")

    def one(name: object, role: str) -> Variable:
        return next(iter(find(name, role).values()))

    layout = Layout()
    for role, value in mapping.items():
        if role == "labels":
            given = value if isinstance(value, Mapping) else {"": value}
            layout.labels = {modality: find(name, f"labels of {modality!r}") for modality, name in given.items()}
        elif role == "ids":
            given = value if isinstance(value, Mapping) else {"": value}
            layout.ids = {modality: one(name, "ids") for modality, name in given.items()}
        elif role == "class_names":
            layout.class_names = one(value, role)
        elif role == "is_train":
            layout.is_train = one(value, role)
        else:
            parts = find(value, role)
            target = layout.raw if all(v.kind == "texts" for v in parts.values()) else layout.modalities
            target[role] = parts
    return layout


def guess(variables: Mapping[str, Variable]) -> dict[str, str]:
    """Guess the mapping for :func:`mapped` from shapes and names; empty if nothing fits.

    Variables that share their number of items with most others are candidates. The one named like labels, or else the
    one with the fewest columns, is taken as labels. The guess is a suggestion for the user and is never used to read.
    """
    groups = {
        stem: next(iter(parts.values()))
        for stem, parts in by_stem(variables.values()).items()
        if all(v.usable and v.shape and len(v.shape) <= 2 and max(v.shape) > 1 for v in parts.values())
    }
    sizes = sorted({size for variable in groups.values() for size in variable.shape}, reverse=True)
    if not sizes:
        return {}
    n = max(sizes, key=lambda size: sum(size in variable.shape for variable in groups.values()))
    fitting = {stem: variable for stem, variable in groups.items() if n in variable.shape}
    if len(fitting) < 2:
        return {}
    names = {
        stem: variable.name if len(by_stem(variables.values())[stem]) == 1 else stem
        for stem, variable in fitting.items()
    }

    def columns(stem: str) -> int:
        shape = fitting[stem].shape
        return min(shape) if len(shape) == 2 else 1

    called = [stem for stem in fitting if re.search(r"lab|cls|class|gnd|cat|target|truth", stem, re.I)]
    labels = called[0] if called else min(fitting, key=columns) if len(fitting) > 2 else ""
    found: dict[str, str] = {}
    for role, pattern in (("image", "im|pic|photo|vis"), ("text", "te?xt|tag|word|cap")):
        for stem in fitting:
            if stem != labels and role not in found and re.search(pattern, stem, re.I):
                found[role] = stem
                break
    free = [stem for stem in fitting if stem != labels and stem not in found.values()]
    roles = [role for role in ("image", "text") if role not in found]
    found |= {roles.pop(0) if roles else stem: stem for stem in free}
    found = {role: found[role] for role in sorted(found, key=lambda role: list(fitting).index(found[role]))}
    return {role: names[stem] for role, stem in (found | ({"labels": labels} if labels else {})).items()}


def _has_role(stem: str, stems: tuple[str, ...]) -> bool:
    return stem.lower() in stems


def _add(modalities: dict[str, ByPart], role: str, stem: str, parts: ByPart) -> None:
    if role not in modalities:
        modalities[role] = parts
    else:
        pixels = any(len(variable.shape) == 4 for variable in parts.values())
        modalities[f"{role}_{'pixels' if pixels else stem.lower()}"] = parts


def _first(groups: Mapping[str, ByPart], stems: tuple[str, ...], *, texts: bool = False) -> ByPart | None:
    lower = {stem.lower(): parts for stem, parts in groups.items()}
    for stem in stems:
        parts = lower.get(stem)
        if parts and all((v.kind == "texts") == texts and (texts or v.usable) for v in parts.values()):
            return parts
    return None
