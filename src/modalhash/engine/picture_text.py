"""Text in pictures: read once, when a picture is added, and stored with its item, where words of it are searched.

RapidOCR reads it (extra ``ocr``); its wheel holds the models.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from modalhash._archives import ArchiveMember
from modalhash._imports import require
from modalhash.engine.source_items import Item
from modalhash.progress import Reporter
from modalhash.store import PICTURE_TEXT

MIN_SCORE = 0.6
"""The least confidence of a line of text that counts."""
MAX_PICTURE_TEXT = 2000
"""Characters that are kept of the text in a picture."""
MAX_SIDE = 2000
"""Pixels of the longer side above which the reader makes a picture smaller."""

Reader = Callable[[Any], str]
"""Takes the path or the bytes of a picture, and returns the text in it."""


class PictureTextReader:
    """Reads the text in pictures, line by line; lines it is not sure of are left out."""

    def __init__(self) -> None:
        rapidocr = require("rapidocr", extra="ocr", why="reading the text in pictures")
        limits = {"Global.text_score": MIN_SCORE, "Global.max_side_len": MAX_SIDE}
        self._ocr = rapidocr.RapidOCR(params={**limits, "Global.log_level": "critical"})

    def __call__(self, source: Any) -> str:
        """Return the text in a picture, a path or the bytes of a file; empty if there is none."""
        from modalhash.encoders import read_whole_picture

        picture = np.asarray(read_whole_picture(source, at_least=MAX_SIDE))
        found = self._ocr(np.ascontiguousarray(picture[:, :, ::-1]))  # which takes blue first
        return "\n".join(found.txts or ())


def reader_of(read_text: bool | Reader) -> Reader | None:
    """Return what reads the text in pictures, if that is wanted; MissingExtraError names the extra."""
    if callable(read_text):
        return read_text
    return PictureTextReader() if read_text else None


def with_picture_text(items: Sequence[Item], read: Reader, progress: Reporter | None = None) -> list[Item]:
    """Return items of pictures with the text that is in them; those that have such a field keep it.

    A picture in which nothing can be read has no text; if the reader fails, a warning tells.
    """
    done, failures = [], []
    for number, item in enumerate(items, 1):
        if PICTURE_TEXT not in item.extra:
            content = item.content
            try:
                text = read(content.read() if isinstance(content, ArchiveMember) else content)
            except (MemoryError, KeyboardInterrupt):
                raise
            except Exception as error:  # a model of another package, which an odd picture can make fail in any way
                failures.append(f"{item.id}: {error}")
                text = ""
            if text := shortened(text):
                item = replace(item, extra={**item.extra, PICTURE_TEXT: text})
        done.append(item)
        if progress is not None:
            progress("read text", number, len(items))
    if failures:
        text = f"the text in {len(failures):,} pictures could not be read; the first: {failures[0]}"
        warnings.warn(text, UserWarning, stacklevel=3)
    return done


def shortened(text: str) -> str:
    """Return a text as it is stored: lines without what cannot be printed, up to the limit."""
    printable = "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
    lines = (" ".join(line.split()) for line in printable.split("\n"))
    return "\n".join(line for line in lines if line)[:MAX_PICTURE_TEXT].rstrip()


def searching_text(fields: Iterable[str]) -> list[str]:
    """Return the names of searched fields with that of the text in pictures."""
    return list(dict.fromkeys([*fields, PICTURE_TEXT]))
