"""Pictures of coloured shapes, and texts about such shapes: unpaired, with labels in common."""

from __future__ import annotations

import csv
import random
import struct
import zlib
from pathlib import Path

import pytest

COLOURS = {"red": (220, 30, 30), "green": (30, 180, 40), "blue": (30, 40, 220)}
SHAPES = {"circle": "a {} ball rolls over the grass", "square": "a {} box stands in the corner"}
ENDS = ("", " in summer", " at noon", " today")


def make_world(folder: Path, n: int = 60) -> Path:
    """``n`` pictures in ``photos/`` and ``n`` texts; returns the manifest."""
    image = pytest.importorskip("PIL.Image")
    drawing = pytest.importorskip("PIL.ImageDraw")
    draw = random.Random(0)
    (folder / "photos").mkdir(parents=True)
    rows = []
    for number in range(n):
        colour, shape = draw.choice(list(COLOURS)), draw.choice(list(SHAPES))
        picture = image.new("RGB", (40, 40), (240, 240, draw.randrange(220, 255)))
        x, y, r = draw.randrange(15, 25), draw.randrange(15, 25), draw.randrange(8, 13)
        pen = drawing.Draw(picture)
        (pen.ellipse if shape == "circle" else pen.rectangle)((x - r, y - r, x + r, y + r), fill=COLOURS[colour])
        picture.save(folder / "photos" / f"{number}.png")
        rows.append({"path": f"photos/{number}.png", "text": "", "labels": f"{colour};{shape}"})
        colour, shape = draw.choice(list(COLOURS)), draw.choice(list(SHAPES))
        text = SHAPES[shape].format(colour) + draw.choice(ENDS)
        rows.append({"path": "", "text": text, "labels": f"{colour};{shape}"})
    manifest = folder / "items.csv"
    with manifest.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["path", "text", "labels"])
        writer.writeheader()
        writer.writerows(rows)
    return manifest


def huge_png(side: int = 20_000) -> bytes:
    """A whole, white, 1-bit PNG of this many pixels squared, in a few kilobytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compressobj(1)
    row = b"\0" + b"\xff" * -(-side // 8)
    pixels = b"".join(rows.compress(row * 1000) for _ in range(side // 1000)) + rows.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


BAD_LINES = [
    (1, "missing", "no such file"),
    (2, "truncated", "truncated"),
    (3, "empty", "empty"),
    (5, "twice", "already in line 4"),
    (6, "sound", "unknown modality 'sound'"),
    (7, "huge", "pixels"),
    (9, None, "not JSON"),
]
"""Line, id and reason of what is wrong with the manifest of :func:`make_bad_manifest`."""
BAD_CODES = ["missing_file", "unreadable", "empty", "duplicate", "unknown_modality", "unreadable", "malformed"]
"""The code of each problem."""


def make_bad_manifest(folder: Path) -> Path:
    """A manifest with one mistake of each kind beside two good texts and a good picture."""
    import io
    import json

    image = pytest.importorskip("PIL.Image")
    whole = io.BytesIO()
    image.effect_noise((120, 120), 90).convert("RGB").save(whole, "JPEG")
    (folder / "truncated.jpg").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    (folder / "huge.png").write_bytes(huge_png())
    lines = [
        {"id": "missing", "path": "missing.jpg", "labels": ["red"]},
        {"id": "truncated", "path": "truncated.jpg", "labels": ["red"]},
        {"id": "empty", "text": "  ", "labels": ["red"]},
        {"id": "twice", "text": "a red ball", "labels": ["red"]},
        {"id": "twice", "text": "a blue ball", "labels": ["blue"]},
        {"id": "sound", "modality": "sound", "path": "a.wav"},
        {"id": "huge", "path": "huge.png"},
        {"id": "good", "path": "photos/0.png", "labels": ["red"], "place": "Graz"},
    ]
    path = folder / "bad.jsonl"
    text = (
        "\n".join(json.dumps(line) for line in lines) + '\n{"id": "cut", "te\n{"id": "fine", "text": "a green box"}\n'
    )
    path.write_text(text, encoding="utf-8")
    return path


class Lengths:
    """An encoder of somebody else's: how long a text and its words are, and which letters it has."""

    name = "lengths"
    version = 1
    dim = 28
    reads = "text"

    @property
    def state(self):
        from modalhash.encoders import State

        return State()

    @property
    def digest(self):
        return f"lengths {self.version}"

    def fit(self, items):
        return self

    def encode(self, batch):
        import numpy as np

        rows = [[len(text), len(text.split()), *(text.count(chr(97 + n)) for n in range(26))] for text in batch]
        return np.array(rows, dtype=np.float32).reshape(len(batch), 28)

    @classmethod
    def restore(cls, state):
        return cls()
