"""Where the files of an engine's items are: stored relative to its folder where they lie in it or beside it.

=============================  =======================================================================
``../photos/red/1.jpg``        a file beside the engine: both may be moved together
``photos/red/1.jpg``           a file in the engine's folder; ``media/…`` are those that it saved itself
``/data/photos/red/1.jpg``     a file elsewhere
``../photos.zip!/red/1.jpg``   a file in an archive, which lies in any of these places
=============================  =======================================================================

An engine that is moved alone, copied or restored elsewhere finds its files where they were: its configuration says
where it was made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from modalhash._archives import ArchiveMember, find_member

HOME = "home"
"""The entry of an engine's configuration that says where its folder was when it was made."""
_OWN = "media"
File: TypeAlias = Path | ArchiveMember


@dataclass(frozen=True)
class ItemFiles:
    """Tells where files are, as it is stored, and finds them again.

    Parameters
    ----------
    folder : Path
        The engine's, absolute and without links.
    home : Path, optional
        Where the engine was made, if that is another folder: what is not in or beside the one is looked for there.
    relative : bool
        Whether files in the folder and beside it are stored relative to it. Not where other machines share the items:
        a folder of theirs may have other neighbours.
    """

    folder: Path
    home: Path | None = None
    relative: bool = True

    @classmethod
    def of(cls, folder: Path, config: Mapping[str, Any], *, relative: bool) -> ItemFiles:
        """Return those of an engine, by its configuration."""
        folder = folder.resolve()
        home = config.get(HOME)
        other = isinstance(home, str) and Path(home) != folder
        return cls(folder, Path(str(home)) if other else None, relative)

    def uri(self, file: str) -> str:
        """Return what is stored of a file: a path relative to the engine's folder where that will do."""
        if not self.relative or not os.path.isabs(file):
            return file
        if (member := find_member(file)) is not None:
            return f"{self.uri(os.fspath(member.archive))}!/{member.name}"
        path = Path(file)
        if ".." in path.parts:
            return file
        if path.is_relative_to(self.folder):
            within = path.relative_to(self.folder)
            return file if within.parts[:1] == (_OWN,) else within.as_posix()  # what it saved is deleted with its item
        beside = self.folder.parent
        if path.is_relative_to(beside) and beside != beside.parent:  # everything lies beside an engine in the root
            return f"../{path.relative_to(beside).as_posix()}"
        return file

    def find(self, uri: str | None) -> File | None:
        """Return where a file is, whether it is there or not; None for a URL, or what leads elsewhere."""
        if uri is None:
            return None
        if (member := find_member(uri)) is not None:
            archive = self._find(os.fspath(member.archive))
            return None if archive is None else ArchiveMember(archive, member.name)
        return self._find(uri)

    def whole(self, uri: str | None) -> str | None:
        """Return what is stored of a file where machines share the items: its path, unless the engine saved it."""
        file = self.find(uri)
        return uri if file is None or PurePosixPath(uri or "").parts[:1] == (_OWN,) else str(file)

    def _find(self, uri: str) -> Path | None:
        if os.path.isabs(uri):
            return Path(uri)
        parts = PurePosixPath(uri).parts
        if "://" in uri or ".." in parts[1:]:  # nothing that was stored leads further up than to the parent
            return None
        here = _join(self.folder, uri)
        if self.home is not None and not os.path.exists(here):
            before = _join(self.home, uri)
            if os.path.exists(before):
                return before
        return here


def _join(folder: Path, uri: str) -> Path:
    return folder.parent / uri[3:] if uri.startswith("../") else folder / uri
