"""RAW files as cameras write them, small: DNG, with a preview or without, and the same bytes under other names."""

from __future__ import annotations

import io
import struct

import numpy as np

BYTE, ASCII, SHORT, LONG, RATIONAL, SRATIONAL = 1, 2, 3, 4, 5, 10
_CODES = {BYTE: "B", ASCII: "B", SHORT: "H", LONG: "I", RATIONAL: "I", SRATIONAL: "i"}


class _Tiff:
    """A little-endian TIFF, written from the front."""

    def __init__(self) -> None:
        self.data = bytearray(b"II*\0\0\0\0\0")

    def put(self, content: bytes) -> int:
        """Append some bytes and return where they are."""
        at = len(self.data)
        self.data += content + b"\0" * (len(content) % 2)
        return at

    def table(self, tags: dict[int, tuple[int, list[int] | str]]) -> int:
        """Append a table of tags and return where it is."""
        entries = b""
        for tag, (kind, given) in sorted(tags.items()):
            values = [*given.encode("ascii"), 0] if isinstance(given, str) else given
            packed = struct.pack(f"<{len(values)}{_CODES[kind]}", *values)
            count = len(values) // (2 if kind in (RATIONAL, SRATIONAL) else 1)
            place = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", self.put(packed))
            entries += struct.pack("<HHI", tag, kind, count) + place
        return self.put(struct.pack("<H", len(tags)) + entries + b"\0\0\0\0")


def dng(
    colour: tuple[int, int, int] = (220, 30, 30),
    size: tuple[int, int] = (64, 48),
    *,
    orientation: int = 1,
    preview: bool = True,
) -> bytes:
    """Return a DNG whose pixels, and preview, have one colour."""
    from PIL import Image

    file, (width, height) = _Tiff(), size
    mosaic = np.empty((height, width), dtype="<u2")
    for row, column, channel in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2)):
        mosaic[row::2, column::2] = round(65535 * (colour[channel] / 255) ** 2.2)
    strip = file.put(mosaic.tobytes())
    about = {
        0x010F: (ASCII, "Maker"), 0x0110: (ASCII, "Maker One"), 0x0112: (SHORT, [orientation]),
        0x0132: (ASCII, "2019:06:14 12:30:00"), 50706: (BYTE, [1, 4, 0, 0]), 50708: (ASCII, "Maker One"),
        50721: (SRATIONAL, [32406, 10000, -15372, 10000, -4986, 10000, -9689, 10000, 18758, 10000, 415, 10000,
                            557, 10000, -2040, 10000, 10570, 10000]),
        50728: (RATIONAL, [1, 1, 1, 1, 1, 1]), 50778: (SHORT, [21]),
    }  # fmt: skip
    raw = {
        0x00FE: (LONG, [0]), 0x0100: (LONG, [width]), 0x0101: (LONG, [height]), 0x0102: (SHORT, [16]),
        0x0103: (SHORT, [1]), 0x0106: (SHORT, [32803]), 0x0111: (LONG, [strip]), 0x0115: (SHORT, [1]),
        0x0116: (LONG, [height]), 0x0117: (LONG, [mosaic.nbytes]), 33421: (SHORT, [2, 2]), 33422: (BYTE, [0, 1, 1, 2]),
        50717: (LONG, [65535]),
    }  # fmt: skip
    if not preview:
        start = file.table({**about, **raw})
    else:
        out = io.BytesIO()
        Image.new("RGB", size, colour).save(out, "JPEG", quality=95)
        place = file.put(out.getvalue())
        small = {
            0x00FE: (LONG, [1]), 0x0100: (LONG, [width]), 0x0101: (LONG, [height]), 0x0102: (SHORT, [8, 8, 8]),
            0x0103: (SHORT, [7]), 0x0106: (SHORT, [6]), 0x0111: (LONG, [place]), 0x0115: (SHORT, [3]),
            0x0116: (LONG, [height]), 0x0117: (LONG, [len(out.getvalue())]),
        }  # fmt: skip
        start = file.table({**about, **small, 0x014A: (LONG, [file.table(raw)])})
    struct.pack_into("<I", file.data, 4, start)
    return bytes(file.data)
