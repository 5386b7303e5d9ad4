"""Which names of folders are labels: not years, numbers, those that cameras and programs give, nor hashes."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_NAMED = 6
"""Names that are listed where some are no labels."""
_WORD = re.compile(r"[^\W\d_]+")
_CAMERA = re.compile(r"\d{3}[a-z0-9_]{5}", re.IGNORECASE)
"""As the rule for cameras (DCF) has it: 100CANON, 101_PANA."""
_HASH = re.compile(r"(?=.*\d)(?=.*[a-f])[0-9a-f-]{8,}", re.IGNORECASE)
_MONTHS = frozenset({
    "jan", "january", "feb", "february", "mar", "march", "apr", "april", "may", "jun", "june", "jul", "july",
    "aug", "august", "sep", "sept", "september", "oct", "october", "nov", "november", "dec", "december",
})  # fmt: skip
_EMPTY = frozenset({
    "album", "albums", "backup", "backups", "bilder", "dcim", "directory", "download", "downloads", "export",
    "exported", "exports", "files", "folder", "folders", "foto", "fotos", "image", "images", "img", "imgs",
    "import", "imported", "imports", "jpeg", "jpg", "misc", "miscellaneous", "photo", "photos", "pic",
    "pics", "picture", "pictures", "png", "takeout", "temp", "tmp", "unnamed", "unsorted", "untitled",
    "uploads", "various",
})  # fmt: skip
_FILLING = frozenset({
    "all", "and", "android", "camera", "copy", "data", "default", "edited", "from", "google", "icloud", "my",
    "new", "of", "old", "original", "originals", "other", "others", "raw", "sort", "sorted", "stuff",
    "the", "to", "unknown", "upload", "whatsapp",
})  # fmt: skip
"""Words that say nothing next to one of the former or a number; alone they may be labels (old and new, cameras)."""
_PHRASES = frozenset({"camera roll"})


class FolderLabels:
    """Makes labels of the names of folders, and remembers the names that are none.

    Parameters
    ----------
    every
        whether every name is a label

    Examples
    --------
    >>> names = FolderLabels()
    >>> names.of(["2019", "holiday"]), names.of(["DCIM", "100CANON"]), names.of(["New folder (2)"])
    (('holiday',), (), ())
    >>> FolderLabels(every=True).of(["2019", "holiday"])
    ('2019', 'holiday')
    """

    def __init__(self, *, every: bool = False) -> None:
        self._every = every
        self._left: dict[str, None] = {}

    def of(self, folders: Sequence[str]) -> tuple[str, ...]:
        """Return the labels of a file in these folders."""
        labels: dict[str, None] = {}
        camera = False
        for name in filter(None, folders):
            camera = camera or name.casefold() == "dcim"  # what is below are the names of a camera, too
            if self._every or not (camera or says_nothing(name)):
                labels[name] = None
            else:
                self._left[name] = None
        return tuple(labels)

    def note(self) -> str | None:
        """Say which names were not taken as labels, in one line; None if all were."""
        if not self._left:
            return None
        names = list(self._left)
        more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
        return (
            f"not taken as labels, as names of folders that say little: {', '.join(names[:MAX_NAMED])}{more}; "
            "labels='folders' (--labels folders) takes every name"
        )


def says_nothing(name: str) -> bool:
    """Return whether the name of a folder says nothing about what is in its pictures.

    Examples
    --------
    >>> [says_nothing(name) for name in ("2019-06", "IMG_2019", "Photos from 2019", "3f2a9c01", "2019 June")]
    [True, True, True, True, True]
    >>> [says_nothing(name) for name in ("2019-06 Nice", "may", "old", "camera", "facade", "n01440764")]
    [False, False, False, False, False, False]
    """
    if _CAMERA.fullmatch(name) or _HASH.fullmatch(name):
        return True
    words = _WORD.findall(name.casefold())
    dated = any(sign.isdigit() for sign in name)
    nothing = _EMPTY | _FILLING | (_MONTHS if dated else frozenset())
    known = dated or not words or not _EMPTY.isdisjoint(words) or " ".join(words) in _PHRASES
    return known and (set(words) <= nothing or " ".join(words) in _PHRASES)
